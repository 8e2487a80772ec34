"""GGUF files, read by the package `gguf` and converted once to a cached copy in the Hub's layout."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.cache import cache_folder
from ..core.disk import atomic_folder
from ..core.errors import BadCheckpoint, describe
from . import files
from .gguf_layout import check_layout
from .hf_config import config_from_json
from .outside_files import check_finite
from .tokenizer import Tokenizer
from .transformer import Transformer

VERSION = 2  # raise when the conversion changes
TENSOR_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
ALTERNATIVE = "give the model's own folder in the Hub's layout instead"
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
CONTROL, USER, UNUSED = 3, 4, 5  # kinds of token
ENDS = ("eos", "eot", "eom")  # names of EOS tokens


def converted_folder(file: Path) -> Path:
    """The folder of a GGUF file's copy in the Hub's layout, converted now unless it is cached.

    Raises BadCheckpoint naming the file and what to do, for one that is truncated, of another format, or of an
    unsupported kind.
    """
    if not file.is_file():
        raise BadCheckpoint(f"{file}: no such file; give a GGUF file or a model's folder")
    folder = cache_folder("gguf") / content_hash(file)
    if (folder / "model.safetensors").is_file():
        return folder
    config, tensors, tokenizer = read(file)
    with atomic_folder(folder) as temporary:
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        files.write_tensors(temporary / "model.safetensors", tensors)
        tokenizer.save(temporary)
    return folder


def content_hash(file: Path) -> str:
    """A hash of a file's content."""
    h = hashlib.sha256(str(VERSION).encode())  # for which processors have instructions
    with file.open("rb") as f:
        while chunk := f.read(1 << 22):
            h.update(chunk)
    return h.hexdigest()[:24]


def read(file: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor], Tokenizer]:
    """A GGUF file's config.json, its tensors under the Hub's names (float32), and its tokenizer.

    Raises BadCheckpoint.
    """
    try:
        return _converted(file, *read_gguf(file))
    except BadCheckpoint:
        raise
    except Exception as error:  # metadata of another kind or size than the format's show wherever they are first used
        raise BadCheckpoint(f"{file}: damaged ({describe(error, 160)}); fetch it again, or {ALTERNATIVE}") from error


def _converted(
    file: Path, source: Sequence[Any], metadata: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, torch.Tensor], Tokenizer]:
    if metadata.get("general.architecture") != "llama":
        raise BadCheckpoint(
            f"{file}: its architecture is {metadata.get('general.architecture')!r}, only llama is "
            f"supported in GGUF; {ALTERNATIVE}"
        )
    tensors, tokenizer = _tensors(file, source, metadata), build_tokenizer(file, metadata)
    config = _config(file, metadata, tensors, tokenizer)
    shape = config_from_json(config, file)
    files.check_layers(shape.layers, tensors, file)
    files.check_names_and_shapes(Transformer.without_weights(shape), tensors, file)
    if len(tokenizer) > shape.vocab:
        raise BadCheckpoint(f"{file}: its tokenizer has {len(tokenizer)} ids, its model {shape.vocab}; {ALTERNATIVE}")
    return config, tensors, tokenizer


def read_gguf(file: Path) -> tuple[Sequence[Any], dict[str, Any]]:
    """(tensors, still quantised; metadata) of a GGUF file. Raises BadCheckpoint."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise BadCheckpoint(f"{file}: reading GGUF files needs the package gguf; install selfteach[gguf]") from None
    with file.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise BadCheckpoint(f"{file}: not a GGUF file (it does not begin with GGUF); {ALTERNATIVE}")
    try:
        check_layout(file)
        with np.errstate(all="ignore"):
            reader = GGUFReader(file)
        return reader.tensors, {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # whatever the package may raise
        raise BadCheckpoint(f"{file}: cut short or damaged ({_line(error)}); fetch it again") from error


def unpermute(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as the Hub has them: per head, first halves of all rotary pairs, then second halves.

    GGUF has the two of a pair side by side.
    """
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _tensors(file: Path, source: Sequence[Any], metadata: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    from gguf.quants import dequantize

    heads = int(_required(file, metadata, "llama.attention.head_count"))
    permuted = {"attn_q": heads, "attn_k": int(metadata.get("llama.attention.head_count_kv", heads))}
    out: dict[str, torch.Tensor] = {}
    for t in source:
        kind = t.tensor_type.name
        if kind not in TENSOR_TYPES:
            raise BadCheckpoint(
                f"{file}: tensor {t.name} is {kind}; supported are {', '.join(TENSOR_TYPES)}; quantise "
                f"it to one of these, or {ALTERNATIVE}"
            )
        stem, _, tail = t.name.rpartition(".")
        parts = stem.split(".")
        name = TOP.get(stem) if len(parts) == 1 else None
        if len(parts) == 3 and parts[0] == "blk" and parts[2] in BLOCK:
            name = f"model.layers.{parts[1]}.{BLOCK[parts[2]]}"
        if name is None or tail not in ("weight", "bias"):
            raise BadCheckpoint(f"{file}: tensor {t.name} has no place in this model; {ALTERNATIVE}")
        w = np.array(dequantize(t.data, t.tensor_type), np.float32).reshape(tuple(int(n) for n in reversed(t.shape)))
        if parts[-1] in permuted:
            w = unpermute(w, permuted[parts[-1]])
        out[f"{name}.{tail}"] = check_finite(file, t.name, torch.from_numpy(np.ascontiguousarray(w)))
    for name in ("model.embed_tokens.weight", "model.norm.weight"):
        if name not in out:
            raise BadCheckpoint(f"{file}: it lacks the tensor of {name}; fetch it again, or {ALTERNATIVE}")
    return out


def _config(
    file: Path, metadata: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], tokenizer: Tokenizer
) -> dict[str, Any]:
    """The config.json of a Llama of this shape."""
    need = lambda name: _required(file, metadata, f"llama.{name}")  # noqa: E731
    if (scaling := metadata.get("llama.rope.scaling.type", "none")) != "none":
        raise BadCheckpoint(
            f"{file}: its rotary positions are scaled ({scaling}), which is not read from GGUF; {ALTERNATIVE}"
        )
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
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv", heads)),
        "head_dim": int(metadata.get("llama.attention.key_length", width // heads)),
        "intermediate_size": int(need("feed_forward_length")),
        "rope_theta": _rounded(metadata.get("llama.rope.freq_base", 10_000.0)),
        "rms_norm_eps": _rounded(need("attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "mlp_bias": "model.layers.0.mlp.up_proj.bias" in tensors,
        "max_position_embeddings": int(need("context_length")),
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(tokenizer.eos_token_ids) if len(tokenizer.eos_token_ids) > 1 else tokenizer.eos_token_id,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }


def build_tokenizer(file: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer that the metadata describes."""
    from tokenizers import AddedToken, decoders, models, processors
    from tokenizers import Tokenizer as Inner

    get = lambda name: metadata.get(f"tokenizer.ggml.{name}")  # noqa: E731
    if get("model") != "gpt2":
        raise BadCheckpoint(
            f"{file}: its tokenizer is of the kind {get('model')!r}, only byte-level BPE (gpt2) is read from GGUF; "
            f"{ALTERNATIVE}"
        )
    tokens, merges = (
        list(_required(file, metadata, "tokenizer.ggml.tokens")),
        _required(file, metadata, "tokenizer.ggml.merges"),
    )
    kinds = get("token_type") or [1] * len(tokens)
    pre = str(get("pre") or "default")
    vocab = {t: i for i, (t, k) in enumerate(zip(tokens, kinds, strict=True)) if k != UNUSED}
    pairs = [tuple(m.split(" ", 1)) for m in merges]
    inner = Inner(models.BPE(vocab, pairs, ignore_merges=pre in WHOLE_WORDS))
    inner.pre_tokenizer = pre_tokenizer(file, pre)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, kinds, strict=True) if k == CONTROL]
    )
    inner.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, kinds, strict=True) if k == USER])
    named = {
        f"{hub}_token": tokens[i] for hub, own in SPECIAL_TOKENS.items() if (i := get(f"{own}_token_id")) is not None
    }
    if get("add_bos_token") and (bos := named.get("bos_token")):
        inner.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))]
        )
    ends = [i for name in ENDS if (i := get(f"{name}_token_id")) is not None]
    if not ends:
        raise BadCheckpoint(f"{file}: it names no EOS token (tokenizer.ggml.eos_token_id); {ALTERNATIVE}")
    config = {
        **named,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata.get("llama.context_length"),
    }
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return Tokenizer(inner, ends, config)


SPECIAL_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}  # the Hub's name -> GGUF's
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
SPLITS = {"llama-bpe": LLAMA3, "llama3": LLAMA3, "qwen2": LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")}
GPT2 = ("default", "gpt-2", "gpt2")
WHOLE_WORDS = ("llama-bpe", "llama3")  # a piece that is a token is that token, whatever merges would make of it
SINGLE_DIGITS = ("smollm", "refact", "starcoder", "command-r")


def pre_tokenizer(file: Path | str, pre: str) -> Any:
    """The pre-tokenizer of a name in a GGUF file.

    Raises BadCheckpoint for a name that is not known.
    """
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if pre in GPT2:
        return ByteLevel(add_prefix_space=False)
    if pre in SINGLE_DIGITS:  # each digit by itself, before the pattern of GPT-2 is tried
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if pre in SPLITS:
        return Sequence([Split(Regex(SPLITS[pre]), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])
    raise BadCheckpoint(
        f"{file}: its pre-tokenizer {pre!r} is not known; there are {', '.join((*GPT2, *SINGLE_DIGITS, *SPLITS))}; "
        f"{ALTERNATIVE}"
    )


def _required(file: Path, metadata: Mapping[str, Any], name: str) -> Any:
    if metadata.get(name) is None:
        raise BadCheckpoint(f"{file}: its metadata lack {name}; fetch it again, or {ALTERNATIVE}")
    return metadata[name]


def _rounded(x: float) -> float:
    """The decimal number that was stored in float32: 1e-05, not 9.999999747e-06."""
    return float(f"{float(x):.7g}")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
