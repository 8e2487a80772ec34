"""A model and its tokenizer as a GGUF file, by the package `gguf`; the inverse of gguf.py.

What is written is read back by our own reader before the file gets its name: the same weights (of what was quantised,
its values), the same shape, the same tokens for texts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from ..core.disk import disk_errors
from ..core.errors import BadCheckpoint, BadValue
from ..core.extras import optional
from . import gguf
from .base import Model
from .chat import Message
from .hf_config import config_from_json, config_to_json
from .tokenizer import Tokenizer
from .transformer import Config, Transformer

Precision = Literal["f32", "f16", "bf16", "q8_0"]
ARCHITECTURE = "llama"  # the one that gguf.py reads
PRE_TOKENIZERS = ("gpt-2", "smollm", "llama-bpe", "qwen2")  # one name of each kind that gguf.py knows
# What a byte-level BPE of a tokenizer.json may have, and GGUF has no place for.
ODD = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "dropout", "byte_fallback")
NORMAL = 1  # a kind of token, besides gguf.py's
PROBES = (  # texts whose tokens must come back as they were
    "The quick brown fox 1234, 12.5 and\n\n  some   spaces\tdon't  ",
    "naïve 日本語 🙂 ЖЗ <|x|> [x] x_y=z*2; ",
    "",
)
MESSAGES: tuple[Message, ...] = ({"role": "user", "content": "What is asked?"},)


def write_gguf(file: Path, model: Model, tokenizer: Tokenizer, precision: Precision = "f32", name: str = "") -> None:
    """Write a GGUF file. precision: of matrices; vectors are float32.

    Raises BadValue for a model or tokenizer that such a file cannot hold, or that our reader would not read back as
    they are.
    """
    package = optional("gguf", "gguf", "export --gguf")
    config = llama_config(model)
    tokens = token_metadata(tokenizer, config.vocab)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    kind = package.GGMLQuantizationType[precision.upper()]
    assert isinstance(model, Transformer)
    with disk_errors(file):
        try:
            writer = package.GGUFWriter(temporary, ARCHITECTURE)
            _add_metadata(writer, {"general.name": name or file.stem, **shape_metadata(config), **tokens})
            for own, values in _tensors(model, config):
                exact = values.ndim < 2 or precision == "f32"
                data = values if exact else package.quants.quantize(values, kind)
                writer.add_tensor(own, data, raw_dtype=None if exact else kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            check(temporary, file, model, tokenizer, kind, package)
            os.replace(temporary, file)
        except package.quants.QuantError as error:
            raise BadValue(f"{file}: cannot be written as {precision} ({error}); take --precision f32") from error
        finally:
            temporary.unlink(missing_ok=True)


def llama_config(model: Model) -> Config:
    """The shape of a model as a Llama's. Raises BadValue for one that is none."""
    why = "only models of Llama's shape are written as GGUF; --hub writes any"
    if not isinstance(model, Transformer):
        raise BadValue(f"export --gguf: {why}")
    config = replace(model.config, kind="llama")
    data = config_to_json(config)
    if data["model_type"] != "llama":
        raise BadValue(f"export --gguf: this model is a {data['model_type']}; {why}")
    if config.scaling is not None or config.activation != "silu":
        odd = "its rotary positions are scaled" if config.scaling is not None else f"it has {config.activation}"
        raise BadValue(f"export --gguf: {odd}, which such a file cannot say; --hub writes any")
    return config


def shape_metadata(c: Config) -> dict[str, Any]:
    """The metadata of a shape."""
    return {
        f"{ARCHITECTURE}.{name}": value
        for name, value in {
            "block_count": c.layers,
            "context_length": c.max_length,
            "embedding_length": c.width,
            "feed_forward_length": c.hidden,
            "vocab_size": c.vocab,
            "attention.head_count": c.heads,
            "attention.head_count_kv": c.kv_heads,
            "attention.key_length": c.head_dim,
            "attention.value_length": c.head_dim,
            "rope.dimension_count": c.head_dim,
            "attention.layer_norm_rms_epsilon": float(c.norm_eps),
            "rope.freq_base": float(c.rope_theta),
        }.items()
    }


def token_metadata(tokenizer: Tokenizer, vocab: int) -> dict[str, Any]:
    """The metadata of a tokenizer, with as many tokens as the model has ids.

    Raises BadValue for one that is no byte-level BPE of a kind that GGUF has a name for.
    """
    data = json.loads(tokenizer.inner.to_str())
    model = data["model"]
    pre = _pre_tokenizer_name(data)
    odd = any(model.get(name) for name in ODD)
    if model["type"] != "BPE" or odd or pre is None or not model["merges"] or data["normalizer"] is not None:
        raise BadValue(
            "export --gguf: its tokenizer is not a byte-level BPE of a kind that GGUF has a name for"
            f" ({', '.join(PRE_TOKENIZERS)}); --hub writes any"
        )
    tokens = [tokenizer.inner.id_to_token(i) for i in range(vocab)]
    added = tokenizer.inner.get_added_tokens_decoder()
    kinds = [_kind(tokenizer, i, token, added) for i, token in enumerate(tokens)]
    out: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [f"[PAD{i}]" if t is None else t for i, t in enumerate(tokens)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in model["merges"]],
    }
    ends = tokenizer.eos_token_ids
    if len(ends) > len(gguf.ENDS):
        raise BadValue(f"export --gguf: its tokenizer has {len(ends)} EOS tokens, and such a file {len(gguf.ENDS)}")
    out |= {f"tokenizer.ggml.{name}_token_id": i for name, i in zip(gguf.ENDS, ends, strict=False)}
    for hub, own in gguf.SPECIAL_TOKENS.items():
        content = (tokenizer.config or {}).get(f"{hub}_token")
        content = content.get("content") if isinstance(content, Mapping) else content
        if hub != "eos" and isinstance(content, str) and (i := tokenizer.inner.token_to_id(content)) is not None:
            out[f"tokenizer.ggml.{own}_token_id"] = i
    before = tokenizer.render("a").tolist()[: -len(tokenizer.encode("a"))]
    if before and before != [out.get("tokenizer.ggml.bos_token_id")]:
        raise BadValue("export --gguf: its tokenizer adds other tokens than BOS before a text; --hub writes any")
    out["tokenizer.ggml.add_bos_token"] = bool(before)
    if tokenizer.chat is not None:
        out["tokenizer.chat_template"] = tokenizer.chat.template
    return out


def _kind(tokenizer: Tokenizer, i: int, token: str | None, added: Mapping[int, Any]) -> int:
    if token is None:
        return gguf.UNUSED
    if i not in added:
        return NORMAL
    special = i in tokenizer.eos_token_ids or (added[i].special and tokenizer.config is not None)
    return gguf.CONTROL if special else gguf.USER  # the tags of a tokenizer trained here are text of its tasks


def _pre_tokenizer_name(data: Mapping[str, Any]) -> str | None:
    """GGUF's name for a pre-tokenizer; None where it has none."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import models

    def parts(value: Any) -> Any:
        if isinstance(value, Mapping):  # offsets are not ids
            return {k: parts(v) for k, v in value.items() if k not in ("trim_offsets", "invert")}
        return [parts(v) for v in value] if isinstance(value, list) else value

    for name in PRE_TOKENIZERS:
        known = Inner(models.BPE())
        known.pre_tokenizer = gguf.pre_tokenizer("export", name)
        if parts(json.loads(known.to_str())["pre_tokenizer"]) == parts(data["pre_tokenizer"]):
            ignores = name in gguf.WHOLE_WORDS
            return name if bool(data["model"].get("ignore_merges")) == ignores else None
    return None


def _add_metadata(writer: Any, metadata: Mapping[str, Any]) -> None:
    for name, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)


def _tensors(model: Transformer, config: Config) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF's name, f32 values as such a file has them) of every tensor."""
    own_names = {hub: own for own, hub in (gguf.TOP | gguf.BLOCK).items()}
    heads = {"attn_q": config.heads, "attn_k": config.kv_heads}
    for name, tensor in model.named_tensors().items():
        stem, _, tail = name.rpartition(".")
        values = tensor.detach().to("cpu", torch.float32).numpy()
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            own = own_names[part]
            values = permute(values, heads[own]) if own in heads else values
            stem = f"blk.{layer}.{own}"
        else:
            stem = own_names[stem]
        yield f"{stem}.{tail}", np.ascontiguousarray(values)


def permute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as GGUF has them, the two of a rotary pair side by side; the inverse of `gguf.unpermute`."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def check(written: Path, file: Path, model: Transformer, tokenizer: Tokenizer, kind: Any, package: Any) -> None:
    """Raise BadValue where our reader gives another model or tokenizer than was written. file: its name in messages."""
    try:
        data, tensors, back = gguf.read(written)
    except BadCheckpoint as error:
        raise BadValue(f"{file}: was written, and cannot be read back ({error}); --hub writes any model") from error
    shape = config_from_json(data, file)
    if replace(shape, kind=model.config.kind) != model.config:
        raise BadValue(f"{file}: was read back as another shape than was written ({shape}); --hub writes any model")
    own = model.named_tensors()
    for name, tensor in own.items():
        values = tensor.detach().to("cpu", torch.float32).numpy()
        if values.ndim > 1 and kind != package.GGMLQuantizationType.F32:
            values = package.quants.dequantize(package.quants.quantize(values, kind), kind)
        if name not in tensors or not np.array_equal(tensors[name].numpy(), values):
            raise BadValue(f"{file}: {name} was read back otherwise than it was written; --hub writes any model")
    for text in (*PROBES, *_added_texts(tokenizer)):
        if back.render(text).tolist() != tokenizer.render(text).tolist():
            raise BadValue(f"{file}: its tokenizer would read {text!r} otherwise; --hub writes any model")
    if tokenizer.chat is not None and _rendered(back) != _rendered(tokenizer):
        raise BadValue(f"{file}: its chat template would give other tokens; --hub writes any model")
    if set(back.eos_token_ids) != set(tokenizer.eos_token_ids):
        raise BadValue(f"{file}: its EOS tokens would be others; --hub writes any model")


def _added_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts around the first added tokens, which a file may hold as something else."""
    for token in list(tokenizer.inner.get_added_tokens_decoder().values())[:200]:
        yield f"a {token.content} b{token.content}"


def _rendered(tokenizer: Tokenizer) -> Any:
    try:
        return tokenizer.render(list(MESSAGES)).tolist()
    except BadValue as error:
        return str(error)
