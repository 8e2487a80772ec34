"""Rewards of trajectories, of groups and of whole steps, and rewards composed of rewards.

A reward that is unknown is None, never 0.
"""
