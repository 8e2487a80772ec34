"""transformers: generate, generate_batch, and the plain learning loop over its model."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

NEEDS = ("transformers", "torch")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "continuous": "bfloat16"}


def prepare(work: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    torch, hf = import_module("torch"), import_module("transformers")
    torch.set_num_threads(work["threads"])
    learning = work["kind"] == "learn"
    dtype = "float32" if learning else DTYPES[work["variant"]]
    model = hf.AutoModelForCausalLM.from_pretrained(work["folder"], dtype=getattr(torch, dtype))
    about = {"version": hf.__version__, "torch": torch.__version__}
    if learning:
        from .loop import step_of

        model.train()
        run, dtype = step_of(
            model, lambda ids: model.model(ids, use_cache=False).last_hidden_state, model.lm_head, work
        )
        return {**about, "dtype": dtype}, run
    model.eval()
    how = hf.GenerationConfig(
        do_sample=True,
        top_k=0,
        top_p=1.0,
        temperature=1.0,
        max_new_tokens=work["new"],
        pad_token_id=0,
        eos_token_id=None,
    )
    model.generation_config = how

    def generate(given: dict[str, Any]) -> dict[str, Any]:
        ids = torch.tensor(given["prompts"])
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=how)
        return {"seconds": time.perf_counter() - start, "tokens": out[:, ids.shape[1] :].numel()}

    def continuous(given: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        out = model.generate_batch(given["prompts"], generation_config=how, progress_bar=False)
        return {"seconds": time.perf_counter() - start, "tokens": sum(len(o.generated_tokens) for o in out.values())}

    return {**about, "dtype": dtype}, continuous if work["variant"] == "continuous" else generate
