"""Rollout programs that methods share: `async (request, rollout) -> answer`, one call per episode.

A program samples through contexts and tools. It handles no token ids, rewards or learning.
"""
