"""The loop: episodes, stages, history and replay, checkpoints, the event log of a run, evaluation.

Nothing in it depends on a method's name.
"""
