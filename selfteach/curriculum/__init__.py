"""Task selection: which tasks are sampled next, how often, and with which hint.

A select block is a function `(n, rollouts, finished_rounds, ...) -> requests`. It is called again with the groups of
the step's earlier rounds until it requests nothing more.
"""
