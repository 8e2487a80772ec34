"""Processes of a run that Ray places (`--cluster ray`): rollout workers, ranks of the learner, users' functions.

    resources.py        what is asked for, as one value; what of it a cluster lacks, in words
    ray_cluster.py      Ray itself: joined or started, the placement group, actors, and how one ended
    engine_host.py      in a rollout worker: the built-in engine
    worker_engine.py    in the run: the engine over all rollout workers, which asks again what a dead one had
    stored_weights.py   weights in Ray's object store
    vllm_workers.py     rollout workers that are a vLLM each
    prefix_routes.py    which worker has a context's beginning in its cache
    rank_host.py        the learner's ranks above 0
    call_workers.py     rewards and typed tools in processes of their own

Ray is imported where it is used; everything here is importable without it.
"""
