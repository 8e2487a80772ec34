"""Selfteach's side, and plain torch loops over its model: modules that `worker` serves.

Each has `prepare(workload) -> (info, run)`, as a file of `peers/` has.
"""
