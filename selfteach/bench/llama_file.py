"""Weights as a GGUF file, so that llama.cpp has the same weights as the other systems."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..core.errors import BadValue
from ..model import files
from ..model.gguf import BLOCK, TOP


def write_gguf(folder: Path, dtype: str, scratch: Path) -> Path:
    """The model of a folder as a GGUF file in `scratch`, without a tokenizer; written once.

    `dtype`: f32, f16 or bf16, of matrices; vectors stay float32. Raises BadValue for a model that is not a plain Llama,
    and where the package gguf is not installed.
    """
    file = scratch / f"model-{dtype}.gguf"
    if file.is_file():
        return file
    try:
        import gguf
    except ModuleNotFoundError:
        raise BadValue(
            "its weights are written by the package gguf, which is not installed; pip install 'selfteach[gguf]'"
        ) from None
    model = files.load_model(folder)
    c = model.config
    if c.kind != "llama" or c.scaling is not None or c.attention_bias or c.mlp_bias:
        raise BadValue(f"{folder}: llama.cpp is measured on plain Llamas only, not {c.kind}")
    w = gguf.GGUFWriter(str(file), "llama")
    w.add_context_length(c.max_length)
    w.add_embedding_length(c.width)
    w.add_block_count(c.layers)
    w.add_feed_forward_length(c.hidden)
    w.add_head_count(c.heads)
    w.add_head_count_kv(c.kv_heads)
    w.add_key_length(c.head_dim)
    w.add_value_length(c.head_dim)
    w.add_rope_dimension_count(c.head_dim)
    w.add_rope_freq_base(c.rope_theta)
    w.add_layer_norm_rms_eps(c.norm_eps)
    w.add_vocab_size(c.vocab)
    w.add_tokenizer_model("no_vocab")
    kinds = gguf.GGMLQuantizationType
    matrices = {"f32": kinds.F32, "f16": kinds.F16, "bf16": kinds.BF16}[dtype]
    rotary = {"attn_q": c.heads, "attn_k": c.kv_heads}
    stems, blocks = {v: k for k, v in TOP.items()}, {v: k for k, v in BLOCK.items()}
    for name, tensor in model.named_tensors().items():
        stem, x = name.removesuffix(".weight"), tensor.detach().numpy()
        if stem in stems:
            stem = stems[stem]
        else:
            _, _, layer, rest = stem.split(".", 3)
            x = permute(x, rotary[blocks[rest]]) if blocks[rest] in rotary else x
            stem = f"blk.{layer}.{blocks[rest]}"
        kind = matrices if x.ndim > 1 else kinds.F32
        w.add_tensor(f"{stem}.weight", gguf.quants.quantize(np.ascontiguousarray(x), kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return file


def permute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as GGUF has them, rotary pairs side by side: the inverse of model.gguf.unpermute."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)
