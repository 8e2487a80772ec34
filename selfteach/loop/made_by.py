"""What a run is computed by: its configuration, kernels, and the user's own files. Checkpoints hold it, so that a run
that goes on by others says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..kernels import decode, layer_ops, matmul_bf16
from ..kernels.build import used
from ..model import devices
from ..model.base import Model
from ..model.transformer import Transformer
from .settings import RunSettings

SHOWN = 5  # values that were changed, in a message


def load_kernels(settings: RunSettings, model: Model, learns: bool = True) -> dict[str, str]:
    """The kernels of a run, built now where they were not: source -> key of its library, or "torch: reason".

    learns: False: those of the engine alone.
    """
    device = devices.resolve_device(settings.device)
    if device != "cpu" or not isinstance(model, Transformer):
        return {}
    decode.decode_library()
    sources = [decode.SOURCE]
    if learns:
        layer_ops.layer_ops()
        sources.insert(0, layer_ops.SOURCE)
    if learns and devices.resolve_dtype(settings.dtype, device) == "bfloat16":
        matmul_bf16.bf16_matmul()
        sources.append(matmul_bf16.SOURCE)
    return {s.name: used.get(s.name, "torch: not asked for") for s in sources}


def file_hashes(files: Sequence[str]) -> dict[str, str]:
    """File -> hash of its content, "" where it cannot be read."""
    out: dict[str, str] = {}
    for name in files:
        try:
            out[name] = hashlib.blake2b(Path(name).read_bytes(), digest_size=16).hexdigest()
        except OSError:
            out[name] = ""
    return out


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between what a checkpoint was made by and what goes on from it, a line each."""
    for name, how in now["kernels"].items():
        was = before.get("kernels", {}).get(name)
        if was is not None and (was != how) and not (_by_torch(was) and _by_torch(how)):
            words = [how if _by_torch(how) else "another build", was if _by_torch(was) else "another build"]
            yield f"{name}: computed by {words[0]} now, by {words[1]} before; from here on bits are others"
    was, is_now = _flat(before.get("config", now["config"])), _flat(now["config"])
    if changed := [n for n in {**was, **is_now} if was.get(n) != is_now.get(n)]:
        shown = "; ".join(f"{n} was {was.get(n)}, is {is_now.get(n)}" for n in changed[:SHOWN])
        more = f" and {len(changed) - SHOWN} more" * (len(changed) > SHOWN)
        yield f"config.json: was changed since the checkpoint was written ({shown}{more}); it is followed from here on"
    for name, content in now["files"].items():
        if before.get("files", {}).get(name, content) != content:
            yield f"{name}: was edited since the checkpoint was written; steps from here on are made by what it is now"


def _flat(config: Any, at: str = "") -> dict[str, Any]:
    """The values of nested mappings and lists by their path."""
    if not isinstance(config, dict | list):
        return {at: config}
    items: Any = cast(Any, config).items() if isinstance(config, dict) else enumerate(cast("list[Any]", config))
    return {k: v for name, value in items for k, v in _flat(value, f"{at}.{name}" if at else str(name)).items()}


def _by_torch(how: str) -> bool:
    return how.startswith("torch: ")
