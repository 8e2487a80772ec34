"""llama.cpp through llama-cpp-python's binding of its C interface: all sequences in one batch, its own sampler."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("llama_cpp",)
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def prepare(work: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    lib = import_module("llama_cpp")
    if "why" in work:
        raise RuntimeError(work["why"])
    width, prompt, new = work["width"], work["prompt"], work["new"]
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(work["gguf"].encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError(f"{work['gguf']}: llama.cpp does not load it")
    how = lib.llama_context_default_params()
    how.n_ctx, how.n_batch, how.n_seq_max = width * (prompt + new), width * prompt, width
    how.n_threads = how.n_threads_batch = work["threads"]
    context = lib.llama_init_from_model(model, how)
    if not context:
        raise RuntimeError(f"llama.cpp makes no context for {width} sequences of {prompt + new} tokens")
    sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_dist(0))
    batch = lib.llama_batch_init(width * prompt, 0, 1)

    def decode(ids: list[list[int]], at: int) -> list[int]:
        """Put the next tokens of every sequence through the model and draw one each."""
        n, rows = 0, []
        for s, row in enumerate(ids):
            for i, token in enumerate(row):
                batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = token, at + i, 1, s
                batch.logits[n] = i == len(row) - 1
                n += 1
            rows.append(n - 1)
        batch.n_tokens = n
        if code := lib.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode gave {code}")
        return [lib.llama_sampler_sample(sampler, context, row) for row in rows]

    def run(given: dict[str, Any]) -> dict[str, Any]:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        start = time.perf_counter()
        drawn, at = decode(given["prompts"], 0), prompt
        for _ in range(new - 1):
            drawn = decode([[t] for t in drawn], at)
            at += 1
        return {"seconds": time.perf_counter() - start, "tokens": width * new}

    return {"version": lib.__version__, "dtype": DTYPES[work["variant"]]}, run
