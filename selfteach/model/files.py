"""Models on disk, in the Hub's layout: `config.json`, `model.safetensors`, `tokenizer.json`. Written aside, synced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..core.errors import BadCheckpoint
from .tokenizer import Tokenizer
from .transformer import Config, Transformer

# our name -> the Hub's
FIELDS = {
    "vocab": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden": "intermediate_size",
    "rope_theta": "rope_theta",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
    "attention_bias": "attention_bias",
    "mlp_bias": "mlp_bias",
    "max_length": "max_position_embeddings",
}
KINDS = {"llama": ("LlamaForCausalLM", False), "qwen3": ("Qwen3ForCausalLM", True)}  # architecture, q/k norms


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the name `folder` only when whole and on disk; what was there before goes last."""
    aside = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        for file in [*aside.rglob("*"), aside]:
            handle = os.open(file, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
        if folder.exists():
            old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
            folder.rename(old)
            aside.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def save(folder: Path, model: Transformer, tokenizer: Tokenizer) -> None:
    """Write a model into an existing folder, so that transformers and vLLM load it by layout."""
    kind = "qwen3" if model.c.qk_norm else "llama"
    config = {hub: getattr(model.c, own) for own, hub in FIELDS.items()}
    config |= {"model_type": kind, "architectures": [KINDS[kind][0]], "hidden_act": "silu", "torch_dtype": "float32"}
    config |= {"bos_token_id": None, "eos_token_id": tokenizer.end, "pad_token_id": tokenizer.end}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(folder / "model.safetensors", model.names())
    tokenizer.save(folder)


def load(folder: Path) -> tuple[Transformer, Tokenizer]:
    """Read what `save` wrote. Raises BadCheckpoint naming the file and tensor that is wrong."""
    if not folder.is_dir():
        raise BadCheckpoint(f"{folder}: no such folder; a model is a folder with config.json, model.safetensors and tokenizer.json")
    config = read_config(folder / "config.json")
    tokenizer = Tokenizer.load(folder)
    if len(tokenizer) > config.vocab:
        raise BadCheckpoint(f"{folder}: its tokenizer has {len(tokenizer)} ids, its model {config.vocab}: they are not of one model")
    model = Transformer(config)
    fill(model.names(), read_tensors(folder / "model.safetensors"), folder / "model.safetensors")
    return model, tokenizer


def read_config(file: Path) -> Config:
    """The shape in a config.json. Raises BadCheckpoint for another architecture or a missing field."""
    try:
        data = json.loads(file.read_text())
    except FileNotFoundError:
        raise BadCheckpoint(f"{file}: missing; a model folder holds config.json, model.safetensors and tokenizer.json") from None
    except ValueError as error:
        raise BadCheckpoint(f"{file}: not JSON ({error})") from None
    kind = data.get("model_type")
    if kind not in KINDS:
        raise BadCheckpoint(f"{file}: model_type {kind!r} cannot be loaded; there are: {', '.join(KINDS)}")
    missing = [hub for hub in FIELDS.values() if hub not in data]
    if missing:
        raise BadCheckpoint(f"{file}: it lacks {', '.join(missing)}")
    return Config(**{own: data[hub] for own, hub in FIELDS.items()}, qk_norm=KINDS[kind][1])


def fill(target: Mapping[str, Tensor], given: Mapping[str, Tensor], file: Path | str) -> None:
    """Copy tensors by name. Raises BadCheckpoint for one that is missing, extra, or of another shape."""
    missing, extra = sorted(target.keys() - given.keys()), sorted(given.keys() - target.keys())
    if missing or extra:
        said = [f"it lacks {', '.join(missing[:3])}"] * bool(missing) + [f"it has {', '.join(extra[:3])}, which this model does not"] * bool(extra)
        raise BadCheckpoint(f"{file}: {'; '.join(said)}")
    for name, p in target.items():  # all of them before the first is copied, so that a refused file leaves the model whole
        if p.shape != given[name].shape:
            raise BadCheckpoint(f"{file}: tensor {name} has shape {tuple(given[name].shape)}, this model needs {tuple(p.shape)}")
    with torch.no_grad():
        for name, p in target.items():
            p.copy_(given[name])


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({n: t.detach().contiguous().clone() for n, t in tensors.items()}, str(file), metadata={"format": "pt"})


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Raises BadCheckpoint for a file that is missing or cut short."""
    if not file.is_file():
        raise BadCheckpoint(f"{file}: missing")
    try:
        return load_file(str(file))
    except (SafetensorError, OSError, ValueError) as error:
        raise BadCheckpoint(f"{file}: cut short or not a safetensors file ({error})") from error


def fingerprint(tensors: Mapping[str, Any], whole: bool = False) -> str:
    """A short hash of weights: 64 spread rows of every tensor (fast, at each delivery), or all of them (at checkpoints)."""
    h = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        t = torch.as_tensor(tensors[name]).detach()
        rows = t.reshape(t.shape[0] if t.ndim > 1 else 1, -1)
        if not whole and len(rows) > 64:
            rows = rows[torch.linspace(0, len(rows) - 1, 64).long()]
        h.update(name.encode())
        h.update(np.ascontiguousarray(rows.float().cpu().numpy()).tobytes())
    return h.hexdigest()


def describe(config: Config) -> dict[str, Any]:
    """The shape and the number of parameters, for people."""
    count = sum(p.numel() for p in Transformer(config).names().values())
    return {**asdict(config), "parameters": count}
