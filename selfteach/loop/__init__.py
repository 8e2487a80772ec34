"""The loop: episodes, stages, history and replay, checkpoints, the event log of a run, evaluation.

It knows no method by name.
"""
