"""Other libraries as contestants. A file here needs its library and this folder alone, so that another interpreter may
run it.

NEEDS names the packages; prepare(work) loads what the work names and returns (about, run); run(given) does one round
and returns its figures, `seconds` among them, measured without the conversion of what was given.
"""
