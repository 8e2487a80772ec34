"""Small models and tokenizers."""

from __future__ import annotations

from typing import Any

from selfteach.model.transformer import Config, Transformer

TAGS = tuple(f"<{slash}{t}>" for t in ("think", "search", "information", "answer") for slash in ("", "/"))
MINI: dict[str, Any] = {"width": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "hidden": 48}


def mini(vocab: int, seed: int = 0, **shape: Any) -> Transformer:
    return Transformer(Config(vocab=vocab, **{**MINI, "max_length": 128, **shape})).initialise(seed)
