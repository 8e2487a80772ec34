"""Peers: other libraries that do the same work.

A file here imports its library and this folder alone, so that another interpreter may run it. NEEDS names the packages;
`prepare(workload)` loads what the workload names and returns `(info, run)`; `run(inputs)` does one round and returns
its figures, `seconds` and `tokens` among them, without the conversion of the inputs.
"""
