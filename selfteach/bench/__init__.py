"""Measuring speed: this library and its peers in one run, in turns, beside what the machine could do.

What lives here: the work (`work`, and `rollout`, `learn`, `step`, one file per kind), the processes that do it in turns (`contest`, `worker`),
what the work needs at least and what the machine gives (`limits`). `own/` holds our side, `peers/` that of other libraries, which knows nothing
of selfteach. What may not: anything that a run needs.
"""
