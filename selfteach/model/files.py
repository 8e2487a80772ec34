"""Models on disk, in the Hub's layout: `config.json`, `model.safetensors` (or shards of it), `tokenizer.json`. Written aside, synced, renamed."""

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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import BadCheckpoint
from . import foreign
from .base import Model
from .hub import FAMILIES, config_of, data_of
from .tokenizer import Tokenizer
from .transformer import Config, Transformer

STORED = {"F64", "F32", "F16", "BF16"}  # kinds of tensor that are weights as they are; others are quantised
INDEX = "model.safetensors.index.json"
SHARD = 5 * 10**9  # bytes of weights in one file; more are saved in several
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}


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


def save(folder: Path, model: Model, tokenizer: Tokenizer) -> None:
    """Write a model into an existing folder, so that transformers and vLLM load it by layout."""
    ends = list(tokenizer.ends) if len(tokenizer.ends) > 1 else tokenizer.end
    save_model(folder, model, bos_token_id=None, eos_token_id=ends, pad_token_id=tokenizer.end)
    tokenizer.save(folder)


def save_model(folder: Path, model: Model, **more: Any) -> None:
    """Write config.json, with keys besides, and model.safetensors or shards of it. Raises BadValue for a shape that no family of the Hub has."""
    if isinstance(model, foreign.Foreign):
        return model.save(folder, **more)
    config = {**data_of(model.c), "torch_dtype": DTYPES[model.lm_head.weight.dtype], **more}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_shards(folder, model.names())


def load(folder: Path, dtype: torch.dtype = torch.float32, mapped: bool = False) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer; `mapped` as in `load_model`. Raises BadCheckpoint naming the file and tensor that is wrong."""
    if not folder.is_dir():
        raise BadCheckpoint(f"{folder}: no such folder; a model is a folder with config.json, model.safetensors and tokenizer.json")
    config = read_config(folder / "config.json")
    tokenizer = Tokenizer.load(folder)
    if isinstance(config, str):
        model = foreign.load(folder, config, dtype)
        _same_ids(folder, tokenizer, model.c.vocab)
        return model, tokenizer
    _same_ids(folder, tokenizer, config.vocab)  # before any weight is read
    return _weights(folder, config, dtype, mapped), tokenizer


def load_model(folder: Path, dtype: torch.dtype = torch.float32, mapped: bool = False) -> Model:
    """A model without its tokenizer: its weights, stored in whatever precision, as `dtype`. A tensor is read, converted and kept, one
    after the other, so that there is never a second copy. Raises BadCheckpoint as `load` does.

    `mapped`: tensors stored as `dtype` are not read but mapped (copied on write, page by page): for folders that nobody writes again.
    """
    config = read_config(folder / "config.json")
    return foreign.load(folder, config, dtype) if isinstance(config, str) else _weights(folder, config, dtype, mapped)


def _same_ids(folder: Path, tokenizer: Tokenizer, vocab: int) -> None:
    if len(tokenizer) > vocab:
        raise BadCheckpoint(f"{folder}: its tokenizer has {len(tokenizer)} ids, its model {vocab}: they are not of one model")


def _weights(folder: Path, config: Config, dtype: torch.dtype, mapped: bool) -> Transformer:
    model = Transformer.bare(config)
    files = shards(folder)
    where = folder / (INDEX if len(set(files.values())) > 1 else "model.safetensors")
    for name in [n for n in files if n.endswith("rotary_emb.inv_freq")]:
        del files[name]  # old files hold what follows from config.json
    twice = files.pop("lm_head.weight", None) if model.c.tied else None
    needed = {name: tuple(p.shape) for name, p in model.names().items()}
    _same_names(needed, files, where)
    for file in dict.fromkeys(files.values()):
        model.hold(_read(file, {n: s for n, s in needed.items() if files[n] == file}, dtype, mapped))
    if twice is not None:
        _, head = next(_read(twice, {"lm_head.weight": tuple(model.lm_head.weight.shape)}, dtype, mapped=True))
        if not torch.equal(head, model.lm_head.weight):
            raise BadCheckpoint(
                f"{twice}: lm_head.weight is not model.embed_tokens.weight, but config.json says tie_word_embeddings; set it to false"
            )
    return model


def shards(folder: Path) -> dict[str, Path]:
    """Tensor name -> the safetensors file that holds it. Raises BadCheckpoint where there is none, or one is missing or cut short."""
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file() or not index.is_file():
        with opened(single) as file:
            return dict.fromkeys(file.keys(), single)
    try:
        table = json.loads(index.read_text())["weight_map"]
        out = {str(name): folder / file for name, file in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(
            f"{index}: not an index of tensors ({type(error).__name__}: {error}); take it anew from where the model is from"
        ) from None
    for file in dict.fromkeys(out.values()):
        if file.parent != folder:
            raise BadCheckpoint(f"{index}: it names {file}, which is not in its folder")
        with opened(file) as shard:
            if lost := sorted({n for n, f in out.items() if f == file} - set(shard.keys())):
                raise BadCheckpoint(f"{file}: it lacks {lost[0]}, which {INDEX} says it holds; take both anew from where the model is from")
    return out


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file, open. Raises BadCheckpoint where it is missing, cut short, or another kind of file."""
    if not file.is_file():
        others = sorted(f.name for f in file.parent.glob("*") if f.suffix in (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack"))
        hint = f"; {others[0]} beside it is of another format: save it as safetensors" if others else "; the folder holds no such weights"
        raise BadCheckpoint(f"{file}: missing{hint}")
    try:
        with safe_open(str(file), framework="pt") as found:
            yield found
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadCheckpoint):
            raise
        raise BadCheckpoint(f"{file}: cut short or not a safetensors file ({error}); copy or download it again") from error


def _read(file: Path, needed: Mapping[str, tuple[int, ...]], dtype: torch.dtype, mapped: bool) -> Iterator[tuple[str, Tensor]]:
    """Tensors of one file by name and shape; all shapes are looked at before the first tensor is read."""
    with opened(file) as shard:
        for name, shape in needed.items():
            part = shard.get_slice(name)
            if part.get_dtype() not in STORED:
                raise BadCheckpoint(f"{file}: tensor {name} is stored as {part.get_dtype()}; give the model as it was before it was quantised")
            _same_shape(file, name, tuple(part.get_shape()), shape)
        for name, shape in needed.items():
            # A copy where the file might not stay as it is: what is trained must not depend on that.
            tensor = shard.get_tensor(name)
            yield name, tensor if mapped and tensor.dtype == dtype else torch.empty(shape, dtype=dtype).copy_(tensor)


def read_config(file: Path) -> Config | str:
    """The shape in a config.json, or its model_type where that is none of our families. Raises BadCheckpoint for a missing field, or one
    that is not understood."""
    try:
        data = json.loads(file.read_text())
    except FileNotFoundError:
        raise BadCheckpoint(f"{file}: missing; a model folder holds config.json, model.safetensors and tokenizer.json") from None
    except ValueError as error:
        raise BadCheckpoint(f"{file}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{file}: not a table of a model's shape")
    kind = data.get("model_type")
    if isinstance(kind, str) and kind not in FAMILIES and kind != "gemma3":  # whose text part is ours
        return kind
    return config_of(data, file)


def weights(folder: Path, like: Model) -> dict[str, Tensor]:
    """The weights that `save` wrote of a model like this one, by the names that it has for them."""
    if isinstance(like, foreign.Foreign):
        return foreign.load(folder, like.c.kind, like.lm_head.weight.dtype).names()
    return read_shards(folder)


def fill(target: Mapping[str, Tensor], given: Mapping[str, Any], file: Path | str) -> None:
    """Copy tensors by name. Raises BadCheckpoint for one that is missing, extra, or of another shape."""
    _same_names(target, given, file)
    for name, p in target.items():  # all of them before the first is copied, so that a refused file leaves the model whole
        _same_shape(file, name, tuple(given[name].shape), tuple(p.shape))
    with torch.no_grad():
        for name, p in target.items():
            have = torch.as_tensor(given[name])
            if p.data_ptr() != have.data_ptr():  # else it is the very tensor
                p.copy_(have)


def _same_names(target: Mapping[str, Any], given: Mapping[str, Any], file: Path | str) -> None:
    missing, extra = sorted(target.keys() - given.keys()), sorted(given.keys() - target.keys())
    if missing or extra:
        said = [f"it lacks {', '.join(missing[:3])}"] * bool(missing) + [f"it has {', '.join(extra[:3])}, which this model does not"] * bool(extra)
        raise BadCheckpoint(f"{file}: {'; '.join(said)}: these are not the weights that config.json describes")


def _same_shape(file: Path | str, name: str, given: tuple[int, ...], needed: tuple[int, ...]) -> None:
    if given != needed:
        raise BadCheckpoint(f"{file}: tensor {name} has shape {given}, this model needs {needed}: config.json is of another model")


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file. Only views, and tensors named twice, are copied for it."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        t = tensor.detach().contiguous()
        memory = t.untyped_storage()
        own = memory.data_ptr() not in seen and memory.nbytes() == t.nbytes
        seen.add(memory.data_ptr())
        out[name] = t if own else t.clone()
    save_file(out, str(file), metadata={"format": "pt"})


def write_shards(folder: Path, tensors: Mapping[str, Tensor], limit: int | None = None) -> None:
    """Weights as model.safetensors; above `limit` bytes (None: SHARD) as model-00001-of-0000N.safetensors and an index of them.

    A tensor is in one file, which is above the limit only where that tensor is. Files of an earlier save do not stay.
    """
    parts: list[dict[str, Tensor]] = [{}]
    room = limit = SHARD if limit is None else limit
    for name, tensor in tensors.items():
        if tensor.nbytes > room and parts[-1]:
            parts.append({})
            room = limit
        parts[-1][name] = tensor
        room -= tensor.nbytes
    for old in [*folder.glob("model-*-of-*.safetensors"), folder / "model.safetensors", folder / INDEX]:
        old.unlink(missing_ok=True)
    if len(parts) == 1:
        return write_tensors(folder / "model.safetensors", tensors)
    table: dict[str, str] = {}
    for n, part in enumerate(parts, 1):
        file = f"model-{n:05d}-of-{len(parts):05d}.safetensors"
        write_tensors(folder / file, part)
        table |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": table}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def read_shards(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's model.safetensors, or of its shards. Raises BadCheckpoint as `shards` does."""
    return {name: t for file in dict.fromkeys(shards(folder).values()) for name, t in read_tensors(file).items()}


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Raises BadCheckpoint for a file that is missing or cut short."""
    with opened(file) as found:
        return {name: found.get_tensor(name).clone() for name in found.keys()}  # noqa: SIM118


def fingerprint(tensors: Mapping[str, Any], whole: bool = False, dtype: torch.dtype | None = None) -> str:
    """A short hash of weights, rounded to a type: 64 spread rows of every tensor (fast, at each delivery), or all of them (at checkpoints)."""
    h = hashlib.blake2b(digest_size=8)
    for name in sorted(tensors):
        t = torch.as_tensor(tensors[name]).detach()
        rows = t.reshape(t.shape[0] if t.ndim > 1 else 1, -1)
        if not whole and len(rows) > 64:
            rows = rows[torch.linspace(0, len(rows) - 1, 64).long()]
        h.update(name.encode())
        h.update(np.ascontiguousarray(rows.to(dtype or rows.dtype).float().cpu().numpy()).tobytes())
    return h.hexdigest()


def describe(model: Model) -> dict[str, Any]:
    """The shape and the number of parameters, for people."""
    return {**asdict(model.c), "parameters": sum(p.numel() for p in model.names().values())}
