"""Models on disk, in the Hub's layout: `config.json`, `model.safetensors` (or shards of it), `tokenizer.json`.

Folders are written under a temporary name, synced, and renamed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..core.errors import BadCheckpoint
from . import hf_model
from .base import Model
from .hf_config import FAMILIES, check_numbers, config_from_json, config_to_json
from .outside_files import check_finite, read_json
from .tokenizer import Tokenizer
from .transformer import Config, Transformer

PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}  # others are quantised
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9  # bytes of weights in one file; more are saved in several
STORED_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def save(folder: Path, model: Model, tokenizer: Tokenizer) -> None:
    """Write a model and its tokenizer into an existing folder, in the layout of transformers and vLLM."""
    eos = list(tokenizer.eos_token_ids) if len(tokenizer.eos_token_ids) > 1 else tokenizer.eos_token_id
    save_model(folder, model, bos_token_id=None, eos_token_id=eos, pad_token_id=tokenizer.eos_token_id)
    tokenizer.save(folder)


def save_model(folder: Path, model: Model, **more: Any) -> None:
    """Write config.json, with `more` keys, and model.safetensors or shards of it.

    Raises BadValue for a shape that no family of the Hub has.
    """
    if isinstance(model, hf_model.HFModel):
        return model.save(folder, **more)
    config = {**config_to_json(model.config), "torch_dtype": DTYPES[model.lm_head.weight.dtype], **more}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_shards(folder, model.named_tensors())


def load(folder: Path, dtype: torch.dtype = torch.float32, mapped: bool = False) -> tuple[Model, Tokenizer]:
    """A model and its tokenizer; `mapped` as in `load_model`.

    Raises BadCheckpoint naming the file and tensor that is wrong.
    """
    if not folder.is_dir():
        raise BadCheckpoint(
            f"{folder}: no such folder; a model is a folder with config.json, model.safetensors and tokenizer.json"
        )
    config = read_config(folder / "config.json")
    tokenizer = Tokenizer.load(folder)
    if isinstance(config, str):
        model = hf_model.load(folder, config, dtype)
        _check_vocab(folder, tokenizer, model.config.vocab)
        return model, tokenizer
    _check_vocab(folder, tokenizer, config.vocab)  # before any weight is read
    return _load_transformer(folder, config, dtype, mapped), tokenizer


def load_model(folder: Path, dtype: torch.dtype = torch.float32, mapped: bool = False) -> Model:
    """A model without its tokenizer, in `dtype` whatever the stored precision.

    Tensors are read and converted one after the other, so that there is never a second copy. Raises BadCheckpoint as
    `load` does.

    mapped  tensors stored as `dtype` are memory-mapped (copied on write, page by page): for folders that are not
            written again
    """
    config = read_config(folder / "config.json")
    return (
        hf_model.load(folder, config, dtype)
        if isinstance(config, str)
        else _load_transformer(folder, config, dtype, mapped)
    )


def _check_vocab(folder: Path, tokenizer: Tokenizer, vocab: int) -> None:
    if len(tokenizer) > vocab:
        raise BadCheckpoint(
            f"{folder}: its tokenizer has {len(tokenizer)} ids, its model {vocab}: "
            "they are not of one model; use the model's own tokenizer"
        )


def _load_transformer(folder: Path, config: Config, dtype: torch.dtype, mapped: bool) -> Transformer:
    files = shard_files(folder)
    check_layers(config.layers, files, folder / "config.json")
    model = Transformer.without_weights(config)
    where = folder / (INDEX if len(set(files.values())) > 1 else "model.safetensors")
    for name in [n for n in files if n.endswith("rotary_emb.inv_freq")]:
        del files[name]  # old files hold these, which config.json determines
    head_file = files.pop("lm_head.weight", None) if model.config.tied else None
    needed = {name: tuple(p.shape) for name, p in model.named_tensors().items()}
    _check_names(needed, files, where)
    for file in dict.fromkeys(files.values()):
        model.assign(_read(file, {n: s for n, s in needed.items() if files[n] == file}, dtype, mapped))
    if head_file is not None:
        _, head = next(_read(head_file, {"lm_head.weight": tuple(model.lm_head.weight.shape)}, dtype, mapped=True))
        if not torch.equal(head, model.lm_head.weight):
            raise BadCheckpoint(
                f"{head_file}: lm_head.weight is not model.embed_tokens.weight, but config.json says "
                "tie_word_embeddings; set it to false"
            )
    return model


def check_layers(layers: int, names: Collection[str], file: Path) -> None:
    """Raise BadCheckpoint where a config.json describes more layers than there are tensors, before any is built."""
    if layers > len(names):
        raise BadCheckpoint(
            f"{file}: describes {layers} layers, and its weights have {len(names)} tensors in all; they are not of one"
            " model, download both again"
        )


def check_names_and_shapes(model: Model, given: Mapping[str, Any], file: Path) -> None:
    """Raise BadCheckpoint where tensors are not, by name and shape, those of a model."""
    needed = model.named_tensors()
    _check_names(needed, given, file)
    for name, tensor in needed.items():
        _check_shape(file, name, tuple(given[name].shape), tuple(tensor.shape))


def shard_files(folder: Path) -> dict[str, Path]:
    """The safetensors file of each tensor, by name.

    Raises BadCheckpoint where there is none, or one is missing or cut short.
    """
    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file() or not index.is_file():
        with open_safetensors(single) as file:
            return dict.fromkeys(file.keys(), single)
    try:
        table = read_json(index)["weight_map"]
        out = {str(name): folder / file for name, file in table.items()}
    except BadCheckpoint:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadCheckpoint(
            f"{index}: not an index of tensors ({type(error).__name__}: {error}); download it again"
        ) from None
    for file in dict.fromkeys(out.values()):
        if file.parent != folder:
            raise BadCheckpoint(f"{index}: it names {file}, which is not in its folder")
        with open_safetensors(file) as shard:
            if lost := sorted({n for n, f in out.items() if f == file} - set(shard.keys())):
                raise BadCheckpoint(f"{file}: it lacks {lost[0]}, which {INDEX} says it holds; download both again")
    return out


@contextmanager
def open_safetensors(file: Path) -> Generator[Any]:
    """An open safetensors file. Raises BadCheckpoint where it is missing, truncated, or of another format."""
    if not file.is_file():
        others = sorted(
            f.name for f in file.parent.glob("*") if f.suffix in (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
        )
        hint = (
            f"; {others[0]} beside it is of another format: save it as safetensors"
            if others
            else "; the folder holds no such weights"
        )
        raise BadCheckpoint(f"{file}: missing{hint}")
    try:
        with safe_open(str(file), framework="pt") as file_handle:
            yield file_handle
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, BadCheckpoint):
            raise
        raise BadCheckpoint(
            f"{file}: cut short or not a safetensors file ({error}); copy or download it again"
        ) from error


def _read(
    file: Path, needed: Mapping[str, tuple[int, ...]], dtype: torch.dtype, mapped: bool
) -> Iterator[tuple[str, Tensor]]:
    """Tensors of one file by name and shape; all shapes are checked before the first tensor is read."""
    with open_safetensors(file) as shard:
        for name, shape in needed.items():
            part = shard.get_slice(name)
            if part.get_dtype() not in PLAIN_DTYPES:
                raise BadCheckpoint(
                    f"{file}: tensor {name} is stored as {part.get_dtype()}; give the model as it was before it was "
                    "quantised"
                )
            _check_shape(file, name, tuple(part.get_shape()), shape)
        for name, shape in needed.items():
            # A copy where the file might not stay as it is: what is trained must not depend on that.
            tensor = shard.get_tensor(name)
            if mapped and tensor.dtype == dtype:  # of our own cache
                yield name, tensor
            else:
                yield name, check_finite(file, name, torch.empty(shape, dtype=dtype).copy_(tensor))


def read_config(file: Path) -> Config | str:
    """The shape in a config.json, or its model_type where that is none of our families.

    Raises BadCheckpoint for a missing field, or one that is not understood.
    """
    try:
        data = read_json(file)
    except FileNotFoundError:
        raise BadCheckpoint(
            f"{file}: missing; a model folder holds config.json, model.safetensors and tokenizer.json"
        ) from None
    kind = data.get("model_type")
    if isinstance(kind, str) and kind not in FAMILIES and kind != "gemma3":  # whose text part is ours
        check_numbers(data, file)
        return kind
    return config_from_json(data, file)


def load_weights(folder: Path, like: Model) -> dict[str, Tensor]:
    """The weights that `save` wrote for a model like this one, by its parameter names, to be copied at once."""
    if isinstance(like, hf_model.HFModel):
        return hf_model.load(folder, like.config.kind, like.lm_head.weight.dtype).named_tensors()
    return read_shards(folder)


def copy_tensors(target: Mapping[str, Tensor], given: Mapping[str, Any], file: Path | str) -> None:
    """Copy tensors by name. Raises BadCheckpoint for one that is missing, extra, or of another shape."""
    check_tensors(target, given, file)  # all before the first is copied, so that a refused file changes nothing
    with torch.no_grad():
        for name, p in target.items():
            tensor = torch.as_tensor(given[name])
            if p.data_ptr() != tensor.data_ptr():  # else it is the same tensor
                p.copy_(tensor)


def check_tensors(target: Mapping[str, Any], given: Mapping[str, Any], file: Path | str) -> None:
    """Raise BadCheckpoint where given tensors are not, by name and shape, those of `target`."""
    _check_names(target, given, file)
    for name, p in target.items():
        _check_shape(file, name, tuple(given[name].shape), tuple(p.shape))


def _check_names(target: Mapping[str, Any], given: Mapping[str, Any], file: Path | str) -> None:
    missing, extra = sorted(target.keys() - given.keys()), sorted(given.keys() - target.keys())
    if missing or extra:
        problems = [f"it lacks {', '.join(missing[:3])}"] * bool(missing) + [
            f"it has {', '.join(extra[:3])}, which this model does not"
        ] * bool(extra)
        raise BadCheckpoint(f"{file}: {'; '.join(problems)}: these are not the weights that config.json describes")


def _check_shape(file: Path | str, name: str, given: tuple[int, ...], needed: tuple[int, ...]) -> None:
    if given != needed:
        raise BadCheckpoint(
            f"{file}: tensor {name} has shape {given}, this model needs {needed}: config.json is of another model"
        )


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file. Only views, and tensors under two names, are copied for it."""
    out: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        t = tensor.detach().contiguous()
        storage = t.untyped_storage()
        own = storage.data_ptr() not in seen and storage.nbytes() == t.nbytes
        seen.add(storage.data_ptr())
        out[name] = t if own else t.clone()
    save_file(out, str(file), metadata={"format": "pt"})


def stream_tensors(
    file: Path, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], tensor: Callable[[str], Tensor]
) -> None:
    """Write a safetensors file of tensors that are made as they are written, one at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        begin, end = end, end + dtype.itemsize * math.prod(shape)
        header[name] = {"dtype": STORED_DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, shape) in shapes.items():
            t = tensor(name).detach()
            if t.dtype != dtype or tuple(t.shape) != shape:
                raise BadCheckpoint(f"{file}: {name} is {t.dtype} {tuple(t.shape)}, not {dtype} {shape}")
            out.write(t.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def write_shards(folder: Path, tensors: Mapping[str, Tensor], limit: int | None = None) -> None:
    """Write weights as model.safetensors; above `limit` bytes (None: SHARD_BYTES) in shards with an index.

    Shards are model-00001-of-0000N.safetensors; one is above the limit only where a single tensor is. Files of an
    earlier save are removed.
    """
    parts: list[dict[str, Tensor]] = [{}]
    room = limit = SHARD_BYTES if limit is None else limit
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
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def read_shards(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's model.safetensors, or of its shards, mapped (`read_tensors`).

    Raises BadCheckpoint as `shard_files` does.
    """
    shards = dict.fromkeys(shard_files(folder).values())
    return {name: t for file in shards for name, t in read_tensors(file, mapped=True).items()}


def read_tensors(file: Path, mapped: bool = False) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises BadCheckpoint where it is missing or truncated.

    mapped  views of the file, for those who copy them at once: a checkpoint is then in memory only once
    """
    with open_safetensors(file) as shard:
        tensors = ((name, shard.get_tensor(name)) for name in shard.keys())  # noqa: SIM118
        return {name: t if mapped else t.clone() for name, t in tensors}


def fingerprint(tensors: Mapping[str, Any], whole: bool = False, dtype: torch.dtype | None = None) -> str:
    """A short hash of weights, rounded to `dtype`: of 64 evenly spaced rows of every tensor, or with `whole` of all.

    The first is fast, for each delivery to an engine; the second is for checkpoints.
    """
    h, names = hashlib.blake2b(digest_size=8), sorted(tensors)
    together = 1 if whole else 32  # a copy from a GPU waits for all that it computes: one for many tensors
    for some in (names[i : i + together] for i in range(0, len(names), together)):
        read = [_read_numbers(torch.as_tensor(tensors[name]).detach(), whole, dtype) for name in some]
        if len({numbers.device for numbers in read}) == 1 and len(read) > 1:
            read = torch.cat(read).cpu().split([len(numbers) for numbers in read])
        for name, numbers in zip(some, read, strict=True):
            h.update(name.encode())
            h.update(np.ascontiguousarray(numbers.cpu().numpy()).tobytes())
    return h.hexdigest()


def _read_numbers(t: Tensor, whole: bool, dtype: torch.dtype | None) -> Tensor:
    """The numbers of a tensor that its fingerprint is taken of, in float32, where the tensor is."""
    rows = t.reshape(t.shape[0] if t.ndim > 1 else 1, -1)
    if not whole and len(rows) > 64:
        rows = rows[_spaced_rows(len(rows), t.device)]
    return rows.to(dtype or rows.dtype).float().reshape(-1)


@cache
def _spaced_rows(n: int, device: torch.device) -> Tensor:
    """Which 64 of `n` rows: computed on the CPU, so that they are the same everywhere."""
    return torch.linspace(0, n - 1, 64).long().to(device)


def describe(model: Model) -> dict[str, Any]:
    """The shape and the number of parameters, for reports."""
    return {**asdict(model.config), "parameters": sum(p.numel() for p in model.named_tensors().values())}
