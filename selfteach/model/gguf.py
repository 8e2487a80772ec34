"""GGUF files, read through the package `gguf` and kept as a copy in the Hub's layout, so that only the first load is slow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.cache import cache_folder
from ..core.errors import BadCheckpoint
from . import files
from .tokenizer import Tokenizer

VERSION = 1  # raise when the conversion changes
QUANTS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
ELSE = "give the model's own folder in the Hub's layout instead"
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL, USER = 3, 4  # kinds of token


def folder_of(file: Path) -> Path:
    """The folder of a GGUF file's copy in the Hub's layout, made now unless the cache has it.

    Raises BadCheckpoint naming the file and what to do, for one that is cut short, foreign, or of a kind that is not read.
    """
    if not file.is_file():
        raise BadCheckpoint(f"{file}: no such file; give a GGUF file or a model's folder")
    folder = cache_folder() / "gguf" / content(file)
    if (folder / "model.safetensors").is_file():
        return folder
    config, tensors, tokenizer = read(file)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with files.written_aside(folder) as aside:
        (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        files.write_tensors(aside / "model.safetensors", tensors)
        tokenizer.save(aside)
    return folder


def content(file: Path) -> str:
    """A hash of all a file holds."""
    h = hashlib.sha256(str(VERSION).encode())  # processors have instructions for it
    with file.open("rb") as f:
        while chunk := f.read(1 << 22):
            h.update(chunk)
    return h.hexdigest()[:24]


def read(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], Tokenizer]:
    """A GGUF file's config.json, its tensors under the Hub's names (float32), and its tokenizer. Raises BadCheckpoint."""
    tensors, meta = opened(file)
    if meta.get("general.architecture") != "llama":
        raise BadCheckpoint(f"{file}: its architecture is {meta.get('general.architecture')!r}, only llama is read from GGUF; {ELSE}")
    tensors, tokenizer = _tensors(file, tensors, meta), tokenizer_of(file, meta)
    return _config(file, meta, tensors, tokenizer), tensors, tokenizer


def opened(file: Path) -> tuple[Sequence[Any], dict[str, Any]]:
    """A GGUF file's tensors, quantised as they are, and its metadata. Raises BadCheckpoint."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise BadCheckpoint(f"{file}: reading GGUF files needs the package gguf; install selfteach[gguf]") from None
    with file.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise BadCheckpoint(f"{file}: not a GGUF file (it does not begin with GGUF); {ELSE}")
    try:
        reader = GGUFReader(file)
        return reader.tensors, {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, OSError) as error:
        raise BadCheckpoint(f"{file}: cut short or damaged ({_line(error)}); fetch it again") from error


def unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as the Hub has them: per head, first halves of all rotary pairs, then second halves. GGUF has the pairs side by side."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _tensors(file: Path, given: Sequence[Any], meta: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    from gguf.quants import dequantize

    heads = int(_needed(file, meta, "llama.attention.head_count"))
    turned = {"attn_q": heads, "attn_k": int(meta.get("llama.attention.head_count_kv", heads))}
    out: dict[str, torch.Tensor] = {}
    for t in given:
        kind = t.tensor_type.name
        if kind not in QUANTS:
            raise BadCheckpoint(f"{file}: tensor {t.name} is {kind}; read are {', '.join(QUANTS)}; quantise it to one of these, or {ELSE}")
        stem, _, tail = t.name.rpartition(".")
        parts = stem.split(".")
        name = TOP.get(stem) if len(parts) == 1 else None
        if len(parts) == 3 and parts[0] == "blk" and parts[2] in BLOCK:
            name = f"model.layers.{parts[1]}.{BLOCK[parts[2]]}"
        if name is None or tail not in ("weight", "bias"):
            raise BadCheckpoint(f"{file}: tensor {t.name} has no place in this model; {ELSE}")
        w = np.array(dequantize(t.data, t.tensor_type), np.float32).reshape(tuple(int(n) for n in reversed(t.shape)))
        if parts[-1] in turned:
            w = unpermute(w, turned[parts[-1]])
        out[f"{name}.{tail}"] = torch.from_numpy(np.ascontiguousarray(w))
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        if name not in out:
            raise BadCheckpoint(f"{file}: it lacks the tensor of {name}; fetch it again, or {ELSE}")
    return out


def _config(file: Path, meta: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], tokenizer: Tokenizer) -> dict[str, Any]:
    """The config.json of a Llama of this shape."""
    need = lambda name: _needed(file, meta, f"llama.{name}")  # noqa: E731
    if (scaling := meta.get("llama.rope.scaling.type", "none")) != "none":
        raise BadCheckpoint(f"{file}: its rotary positions are scaled ({scaling}), which is not read from GGUF; {ELSE}")
    heads, width = int(need("attention.head_count")), int(need("embedding_length"))
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "hidden_size": width,
        "num_hidden_layers": int(need("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(meta.get("llama.attention.head_count_kv", heads)),
        "head_dim": int(meta.get("llama.attention.key_length", width // heads)),
        "intermediate_size": int(need("feed_forward_length")),
        "rope_theta": _rounded(meta.get("llama.rope.freq_base", 10_000.0)),
        "rms_norm_eps": _rounded(need("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "mlp_bias": "model.layers.0.mlp.up_proj.bias" in tensors,
        "max_position_embeddings": int(need("context_length")),
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.end,
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }


def tokenizer_of(file: Path, meta: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that the metadata describes: byte-level BPE."""
    from tokenizers import AddedToken, decoders, models, processors
    from tokenizers import Tokenizer as Inner

    get = lambda name: meta.get(f"tokenizer.ggml.{name}")  # noqa: E731
    if get("model") != "gpt2":
        raise BadCheckpoint(f"{file}: its tokenizer is of the kind {get('model')!r}, only byte-level BPE (gpt2) is read from GGUF; {ELSE}")
    tokens, merges = list(_needed(file, meta, "tokenizer.ggml.tokens")), _needed(file, meta, "tokenizer.ggml.merges")
    kinds = get("token_type") or [1] * len(tokens)
    inner = Inner(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ", 1)) for m in merges]))
    inner.pre_tokenizer = splitter(file, str(get("pre") or "default"))
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, kinds, strict=True) if k == CONTROL])
    inner.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == USER])
    named = {f"{hub}_token": tokens[i] for hub, own in NAMED.items() if (i := get(f"{own}_token_id")) is not None}
    if get("add_bos_token") and (bos := named.get("bos_token")):
        inner.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))])
    ends = [i for name in ("eos", "eot") if (i := get(f"{name}_token_id")) is not None]
    if not ends:
        raise BadCheckpoint(f"{file}: it names no end token (tokenizer.ggml.eos_token_id); {ELSE}")
    config = {**named, "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": meta.get("llama.context_length")}
    if (template := meta.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return Tokenizer(inner, ends, config)


NAMED = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # the Hub's name -> GGUF's
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {"llama-bpe": LLAMA3, "llama3": LLAMA3, "qwen2": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")}
PLAIN = ("default", "gpt-2", "gpt2")
DIGITS = ("smollm", "refact", "starcoder", "command-r")


def splitter(file: Path | str, pre: str) -> Any:
    """How text is cut before merges, by the name that the file gives. Raises BadCheckpoint for a name that is not known."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if pre in PLAIN:
        return ByteLevel(add_prefix_space=False)
    if pre in DIGITS:  # each digit by itself, before the pattern of GPT-2 is tried
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if pre in SPLITS:
        return Sequence([Split(Regex(SPLITS[pre]), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    raise BadCheckpoint(f"{file}: its pre-tokenizer {pre!r} is not known; there are {', '.join((*PLAIN, *DIGITS, *SPLITS))}; {ELSE}")


def _needed(file: Path, meta: Mapping[str, Any], name: str) -> Any:
    if meta.get(name) is None:
        raise BadCheckpoint(f"{file}: its metadata lack {name}; fetch it again, or {ELSE}")
    return meta[name]


def _rounded(x: float) -> float:
    """A number that was kept in float32, as it was meant: 1e-05, not 9.999999747e-06."""
    return float(f"{float(x):.7g}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
