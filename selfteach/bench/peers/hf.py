"""transformers: generate, generate_batch, and the plain learning loop over its model."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("transformers", "torch")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "continuous": "bfloat16"}


def prepare(workload: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """See `peers`; the variants are listed in `systems.PEERS`."""
    torch, hf = import_module("torch"), import_module("transformers")
    torch.set_num_threads(workload["threads"])
    learning = workload["kind"] == "learn"
    dtype = "float32" if learning else DTYPES[workload["variant"]]
    model = hf.AutoModelForCausalLM.from_pretrained(workload["folder"], dtype=getattr(torch, dtype))
    info = {"version": hf.__version__, "torch": torch.__version__}
    if learning:
        from .loop import step_of

        model.train()
        run, dtype = step_of(
            model, lambda ids: model.model(ids, use_cache=False).last_hidden_state, model.lm_head, workload
        )
        return {**info, "dtype": dtype}, run
    model.eval()
    generation = hf.GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=workload["new"],
        pad_token_id=0,
        eos_token_id=None,
    )
    model.generation_config = generation

    def generate(inputs: dict[str, Any]) -> dict[str, Any]:
        ids = torch.tensor(inputs["prompts"])
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=generation)
        return {"seconds": time.perf_counter() - start, "tokens": out[:, ids.shape[1] :].numel()}

    def continuous(inputs: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        out = model.generate_batch(inputs["prompts"], generation_config=generation, progress_bar=False)
        return {"seconds": time.perf_counter() - start, "tokens": sum(len(o.generated_tokens) for o in out.values())}

    return {**info, "dtype": dtype}, continuous if workload["variant"] == "continuous" else generate
