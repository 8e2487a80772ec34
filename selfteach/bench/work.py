"""What is worked on: shapes of models, the folder that all contestants load, prompts and batches that all are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core import address
from ..core.errors import BadValue
from ..model import files, tokenizer
from ..model.transformer import Config, Transformer
from .contest import Entry
from .limits import Need

ROOM = 4096  # positions of a shape's context: two hundred turns fit
SHAPES = {
    "tiny": Config(vocab=512, width=256, layers=4, heads=8, kv_heads=2, head_dim=32, hidden=704, max_length=ROOM),
    "smollm2-135m": Config(
        vocab=49152, width=576, layers=30, heads=9, kv_heads=3, head_dim=64, hidden=1536, rope_theta=100_000.0, norm_eps=1e-5, max_length=ROOM
    ),
}


@dataclass(frozen=True)
class Work:
    """One thing that is measured: who does it, what all know before, what all are given in a round, and what it needs at least, by precision."""

    part: str
    title: str
    entries: tuple[Entry, ...]
    fields: Mapping[str, Any]
    given: Callable[[int], Mapping[str, Any]] = lambda number: {}
    need: Mapping[str, Need] = field(default_factory=dict[str, Need])
    repeats: int | None = None


@dataclass(frozen=True)
class Options:
    """What the command was asked."""

    kind: str
    model: str = "tiny"
    against: tuple[str, ...] | None = None  # NAME or NAME:VARIANT; None: all that know the kind
    ours: tuple[str, ...] | None = None  # our variants; None: all of the kind
    widths: tuple[int, ...] = ()
    only: tuple[str, ...] = ()
    repeats: int = 5
    threads: int = 1
    slots: int | None = None
    steps: int = 500
    pythons: Mapping[str, str] = field(default_factory=dict[str, str])


def folder_of(model: str, aside: Path) -> tuple[Path, Config]:
    """The folder of a model in the Hub's layout and its shape: a folder as it is, a shape's name as random weights written into `aside`.

    Raises BadValue for a name that is neither, BadCheckpoint for a folder that holds no model.
    """
    if model not in SHAPES:
        folder = Path(model)
        if not folder.is_dir():
            raise BadValue(f"selfteach bench: model {model}: no such shape or folder; there are {', '.join(SHAPES)}, or a folder in the Hub's layout")
        return folder.resolve(), files.read_config(folder / "config.json")
    config = SHAPES[model]
    words = tokenizer.make(["some text to cut into pieces"], (), config.vocab)
    aside.mkdir(parents=True, exist_ok=True)
    files.save(aside, Transformer(config).initialise(0), words)
    return aside, config


def gguf_of(folder: Path, dtype: str) -> str | None:
    """The model of a folder as a GGUF file without a tokenizer, for llama.cpp; None where the package gguf is not installed.

    `dtype`: f32, f16 or bf16, of matrices; vectors stay float32. Raises BadValue for a model that is not a plain Llama.
    """
    try:
        import gguf
    except ModuleNotFoundError:
        return None
    model = files.load_model(folder)
    c = model.c
    if c.kind != "llama" or c.scaling is not None or c.attention_bias or c.mlp_bias:
        raise BadValue(f"{folder}: llama.cpp is given plain Llamas only, not {c.kind}")
    from ..model.gguf import BLOCK, TOP

    stem_of = {v: k for k, v in TOP.items()}
    block_of = {v: k for k, v in BLOCK.items()}
    kind = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}[dtype]
    file = folder / f"model-{dtype}.gguf"
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
    heads = {"attn_q": c.heads, "attn_k": c.kv_heads}
    for name, tensor in model.names().items():
        stem, x = name.removesuffix(".weight"), tensor.detach().numpy()
        if stem in stem_of:
            stem = stem_of[stem]
        else:
            _, _, layer, rest = stem.split(".", 3)
            own = block_of[rest]
            if own in heads:
                x = permute(x, heads[own])
            stem = f"blk.{layer}.{own}"
        how = kind if x.ndim > 1 else gguf.GGMLQuantizationType.F32
        w.add_tensor(f"{stem}.weight", gguf.quants.quantize(np.ascontiguousarray(x), how), raw_dtype=how)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return str(file)


def permute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as GGUF has them, rotary pairs side by side: the inverse of model.gguf.unpermute."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def prompts(vocab: int, count: int, length: int, *where: object) -> list[list[int]]:
    """`count` prompts of random ids at an address, the first id never 0 (an end token in fresh tokenizers)."""
    return address.generator("bench", *where).integers(1, vocab, (count, length)).tolist()


def lengths(count: int, limit: int, *where: object) -> list[int]:
    """Lengths of `count` episodes: geometric with mean limit / 3, cut at the limit."""
    drawn = address.generator("bench", "lengths", *where).geometric(3 / limit, count)
    return np.minimum(drawn, limit).tolist()


def sequences(vocab: int, groups: int, siblings: int, prompt: int, new: int) -> list[dict[str, Any]]:
    """Sequences to learn from: `siblings` of each of `groups` prompts, `new` learned tokens and an advantage each."""
    given = prompts(vocab, groups, prompt, "learn", groups, siblings)
    own = prompts(vocab, groups * siblings, new, "learned", groups, siblings)
    adv = address.generator("bench", "adv").standard_normal(groups * siblings).tolist()
    return [{"prompt": given[s // siblings], "response": own[s], "adv": adv[s], "group": s // siblings} for s in range(groups * siblings)]
