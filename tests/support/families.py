"""Checkpoints of the model families that transformers knows, small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from selfteach.model.attention import causal_attention
from selfteach.model.tokenizer import train_tokenizer
from selfteach.model.transformer import Transformer

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()

TOKENIZER = train_tokenizer(["the quick brown fox"], (), 257)
VOCAB = 264
LONG = 48  # tokens of a text: more than twice the windows below
SMALL = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
SMALL |= {
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SLIDING = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
GEMMA = {"tie_word_embeddings": True, "sliding_window": 8}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "llama biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama one head each": ("LlamaConfig", {"num_key_value_heads": 4, "head_dim": 12, "hidden_act": "gelu"}),
    "llama linear": ("LlamaConfig", {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "llama dynamic": ("LlamaConfig", {"rope_scaling": {"rope_type": "dynamic", "factor": 3.0}}),
    "llama llama3": ("LlamaConfig", {"rope_scaling": LLAMA3, "rope_theta": 500_000.0}),
    "mistral": ("MistralConfig", {"sliding_window": 8}),
    "mistral whole": ("MistralConfig", {"sliding_window": None, "rope_theta": 1e6}),
    "qwen2": ("Qwen2Config", {"head_dim": 12, "tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen2 windows": ("Qwen2Config", SLIDING),
    "qwen2 yarn": ("Qwen2Config", {"rope_scaling": YARN, "rope_theta": 100.0}),
    "qwen2 yarn given": (
        "Qwen2Config",
        {"rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2, "mscale": 1.2, "mscale_all_dim": 0.7}},
    ),
    "qwen2 yarn untruncated": (
        "Qwen2Config",
        {"rope_scaling": {**YARN, "truncate": False, "attention_factor": 1.3}, "rope_theta": 100.0},
    ),
    "qwen3": ("Qwen3Config", {"attention_bias": True}),
    "qwen3 windows": ("Qwen3Config", {**SLIDING, "tie_word_embeddings": True}),
    "smollm3": ("SmolLM3Config", {"no_rope_layer_interval": 2}),
    "smollm3 windows": (
        "SmolLM3Config",
        {"no_rope_layers": [1, 0, 0], "use_sliding_window": True, "sliding_window": 8, "mlp_bias": True},
    ),
    "gemma": ("GemmaConfig", {"num_key_value_heads": 1, "attention_bias": True}),
    "gemma2": (
        "Gemma2Config",
        {**GEMMA, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    ),
    "gemma2 uncapped": ("Gemma2Config", {**GEMMA, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": (
        "Gemma3TextConfig",
        {**GEMMA, "query_pre_attn_scalar": 20, "sliding_window_pattern": 2, "final_logit_softcapping": 4.0},
    ),
    "gemma3 linear": (
        "Gemma3TextConfig",
        {**GEMMA, "sliding_window_pattern": 3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
}


def their(case: str) -> Any:
    """transformers' own model, with weights large enough for attention to be uneven, biases and norms away from their
    beginnings.
    """
    name, change = CASES[case]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        getattr(transformers, name)(**{**SMALL, **change}), attn_implementation="eager"
    )
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p * 6 if p.ndim > 1 else p + 0.2 * torch.randn(p.shape, generator=draw))
    return model.eval()


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()


def texts(rows: int = 2) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, LONG), generator=torch.Generator().manual_seed(2))


def ours_logits(model: Transformer, ids: torch.Tensor) -> torch.Tensor:
    return model.logits(model(ids, causal_attention))
