"""llama.cpp through llama-cpp-python's binding of its C interface: all sequences in one batch, its own sampler."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("llama_cpp",)
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def prepare(workload: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """See `peers`; the variants are listed in `systems.PEERS`."""
    lib = import_module("llama_cpp")
    if "error" in workload:
        raise RuntimeError(workload["error"])
    width, prompt, new = workload["width"], workload["prompt"], workload["new"]
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(workload["gguf"].encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError(f"{workload['gguf']}: llama.cpp does not load it")
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_seq_max = width * (prompt + new), width * prompt, width
    params.n_threads = params.n_threads_batch = workload["threads"]
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"llama.cpp makes no context for {width} sequences of {prompt + new} tokens")
    sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_dist(0))
    batch = lib.llama_batch_init(width * prompt, 0, 1)

    def decode(ids: list[list[int]], position: int) -> list[int]:
        """Run the next tokens of every sequence through the model and sample one each."""
        n, rows = 0, []
        for s, row in enumerate(ids):
            for i, token in enumerate(row):
                batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = token, position + i, 1, s
                batch.logits[n] = i == len(row) - 1
                n += 1
            rows.append(n - 1)
        batch.n_tokens = n
        if code := lib.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode gave {code}")
        return [lib.llama_sampler_sample(sampler, context, row) for row in rows]

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        lib.llama_memory_clear(lib.llama_get_memory(context), True)
        start = time.perf_counter()
        sampled, position = decode(inputs["prompts"], 0), prompt
        for _ in range(new - 1):
            sampled = decode([[t] for t in sampled], position)
            position += 1
        return {"seconds": time.perf_counter() - start, "tokens": width * new}

    return {"version": lib.__version__, "dtype": DTYPES[workload["variant"]]}, run
