"""Our contestants, and the plain loops over our own model: modules that `worker` serves, with `prepare(work) -> (about,
run)`.
"""
