"""Models that are given in another way than by our names and folders: objects of transformers, names of the Hub."""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.cache import cache_folder
from ..core.disk import atomic_folder
from ..core.errors import BadValue, describe
from .names import ABOUT

# What a model in the Hub's layout is made of; repositories hold the same weights in other formats beside these.
WANTED = ("*.json", "*.safetensors", "*.jinja")
# Of a config.json: what save_pretrained writes into the model's own configuration, and where that came from.
SET_BY_SAVING = ("architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path")


def located(model: Any, download: bool = False) -> str:
    """A model as a run's configuration names it: a name of ours, or the path of a folder or file.

    model     a name, a folder, a .gguf file; (model, tokenizer) of transformers, which is stored in the cache; a name
              of the Hub ("owner/name"), which is looked up in the local cache of huggingface_hub
    download  get a name of the Hub that is not there

    Raises BadValue for another kind of value, and for a name of the Hub that is not in the cache.
    """
    if isinstance(model, tuple | list):
        pair: Any = model
        if len(pair) != 2:
            raise BadValue(f"model: a pair is (model, tokenizer), and this has {len(pair)} items")
        return str(stored(*pair))
    if not isinstance(model, str | Path):
        raise BadValue(
            f"model: a name, a folder, a .gguf file, or (model, tokenizer) of transformers, not {type(model).__name__}"
        )
    name = str(model)
    if isinstance(model, Path) or not is_hub_name(name) or Path(name).exists():
        return name
    return str(hub_folder(name, download))


def is_hub_name(name: str) -> bool:
    """Whether a word can be the name of a repository of the Hub: owner/name.

    >>> is_hub_name("Qwen/Qwen2.5-0.5B"), is_hub_name("./mine"), is_hub_name("a/b/c"), is_hub_name("runs/x.gguf")
    (True, False, False, False)
    """
    owner, slash, rest = name.partition("/")
    words = (owner, rest)
    return (
        bool(slash)
        and all(w and w[0].isalnum() and all(c.isalnum() or c in "-_." for c in w) for w in words)
        and name not in ABOUT
        and not name.endswith(".gguf")
    )


def hub_folder(name: str, download: bool = False) -> Path:
    """The folder of a model of the Hub in the local cache of huggingface_hub, whose snapshot it names.

    Raises BadValue where it is not there, and `download` is False or it cannot be had.
    """
    try:
        hub = import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise BadValue(
            f"model {name}: no such folder; for a model of the Hub by its name the package huggingface_hub is"
            " missing: pip install 'selfteach[hf]'"
        ) from None
    try:
        found = hub.try_to_load_from_cache(name, "config.json")
    except ValueError as error:
        raise BadValue(f"model {name}: no such folder, and no name of the Hub ({describe(error, 120)})") from None
    if isinstance(found, str):
        return Path(found).parent
    if not download:
        raise BadValue(
            f"model {name}: no such folder, and the Hub's local cache does not hold it; give a folder, or"
            " download=True (--download) to get it from huggingface.co"
        )
    try:
        return _downloaded(hub, name)
    except Exception as error:  # of the network, of the Hub, of the disk
        raise BadValue(f"model {name}: cannot be downloaded ({describe(error, 200)})") from error


def _downloaded(hub: Any, name: str) -> Path:
    """Download what a model is made of, and say first what that is."""
    info = hub.model_info(name, files_metadata=True)
    sizes = {f.rfilename: f.size or 0 for f in info.siblings}
    if any(n.endswith(".safetensors") for n in sizes):
        sizes = {n: size for n, size in sizes.items() if any(Path(n).match(p) and "/" not in n for p in WANTED)}
    else:
        raise BadValue("it has no weights as safetensors")
    total = sum(sizes.values())
    print(
        f"downloading {name} ({info.sha[:12]}) from huggingface.co: {len(sizes)} files, {total / 1e9:.2f} GB",
        file=sys.stderr,
        flush=True,
    )
    return Path(hub.snapshot_download(name, revision=info.sha, allow_patterns=sorted(sizes)))


def stored(model: Any, tokenizer: Any) -> Path:
    """A folder of the cache, in the Hub's layout, with a model and a tokenizer of transformers, keyed by their content.

    Raises BadValue for other objects, adapters of peft that are not merged, and a tokenizer without a tokenizer.json.
    """
    for what, value in (("model", model), ("tokenizer", tokenizer)):
        if not hasattr(value, "save_pretrained"):
            raise BadValue(
                f"model: of (model, tokenizer) the {what} is one of transformers, with save_pretrained, and this is"
                f" {type(value).__name__}; give (model, tokenizer), or a folder"
            )
    if hasattr(model, "peft_config"):
        raise BadValue("model: has adapters of peft; give model.merge_and_unload(), or its base and adapter=FOLDER")
    if not hasattr(getattr(tokenizer, "backend_tokenizer", None), "to_str"):
        raise BadValue(
            f"model: its tokenizer {type(tokenizer).__name__} has no tokenizer.json; load it as a fast one"
            " (AutoTokenizer.from_pretrained(..., use_fast=True))"
        )
    folder = cache_folder("models") / content_key(model, tokenizer)
    if not folder.is_dir():
        from .hf_model import import_transformers  # with torch: a name alone does not wait for it

        import_transformers("model: it is one of transformers")  # and let it show no bars
        with atomic_folder(folder) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
    return folder


def content_key(model: Any, tokenizer: Any) -> str:
    """A hash of a model's configuration and weights, and of its tokenizer with its template."""
    import torch

    h = hashlib.blake2b(digest_size=16)
    config = {k: v for k, v in model.config.to_dict().items() if k not in SET_BY_SAVING}
    h.update(f"{type(model).__name__} {json.dumps(config, sort_keys=True, default=str)}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        h.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # dtypes that NumPy lacks are read as bytes
        h.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    chat = getattr(tokenizer, "chat_template", None)
    h.update(f"{tokenizer.backend_tokenizer.to_str()} {chat} {tokenizer.special_tokens_map}".encode())
    return h.hexdigest()
