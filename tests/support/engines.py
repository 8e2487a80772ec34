"""Small models of some shapes for engines, and the tokenizer that they share."""

from __future__ import annotations

import torch

from selfteach.model.tokenizer import train_tokenizer
from selfteach.model.transformer import Config, Transformer

TOKENIZER = train_tokenizer(
    ["the quick brown fox jumps over the lazy dog, and so on; </search> ends a query."] * 3,
    ["<search>", "</search>"],
    320,
)
VOCAB = len(TOKENIZER)
SHAPES = {
    "grouped": Config(VOCAB, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, hidden=48, max_length=160),
    "alone": Config(VOCAB, width=24, layers=1, heads=3, kv_heads=3, head_dim=8, hidden=40, max_length=96, tied=False),
    "qwen": Config(
        VOCAB,
        width=40,
        layers=2,
        heads=8,
        kv_heads=1,
        head_dim=10,
        hidden=56,
        max_length=96,
        qk_norm=True,
        attention_bias=True,
    ),
}


def model(shape: str = "grouped", seed: int = 0, scale: float = 6.0) -> Transformer:
    """A model whose distributions are neither flat nor sharp."""
    m = Transformer(SHAPES[shape]).initialise(seed)
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim > 1:
                p.mul_(scale)
    return m
