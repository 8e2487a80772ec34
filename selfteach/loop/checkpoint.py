"""Checkpoints: all that a run needs to continue with the same bits. Written under a temporary name, synced, renamed.

RUN/config.json              the resolved configuration
RUN/checkpoints/000040/      model.safetensors config.json tokenizer.json, other weight groups, the optimiser,
                             state.json; with LoRA adapter/ in place of the model, which is written when the run is
                             done
RUN/last                     a link to the newest
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ..core.errors import BadCheckpoint, BadValue, SelfteachError, quoted
from ..core.serial import from_json, to_json
from ..model.files import atomic_folder

FORMAT = 3  # raise it with what a checkpoint or config.json holds, or what its names mean


def pack_state(value: Any, arrays: dict[str, np.ndarray], at: str = "") -> Any:
    """A state as JSON, with its arrays moved into `arrays` under their path in the state."""
    if isinstance(value, np.ndarray):
        arrays[at] = np.array(value, order="C")  # not ascontiguousarray, which gives a number a dimension
        return {"array": at}
    if isinstance(value, Mapping) and not isinstance(value, tuple):
        return {"map": [[to_json(k), pack_state(v, arrays, f"{at}/{n}")] for n, (k, v) in enumerate(value.items())]}
    if isinstance(value, list):
        return {"list": [pack_state(v, arrays, f"{at}/{n}") for n, v in enumerate(value)]}
    if type(value) is tuple:
        return {"tuple_of": [pack_state(v, arrays, f"{at}/{n}") for n, v in enumerate(value)]}
    return {"value": to_json(value)}


def unpack_state(data: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """What `pack_state` was given."""
    kind, inside = next(iter(data.items()))
    if kind == "array":
        return arrays[inside]
    if kind == "map":
        return {from_json(k): unpack_state(v, arrays) for k, v in inside}
    if kind == "list":
        return [unpack_state(v, arrays) for v in inside]
    if kind == "tuple_of":
        return tuple(unpack_state(v, arrays) for v in inside)
    return from_json(inside)


def write(run: Path, step: int, state: Mapping[str, Any], fill: Callable[[Path], None], keep: int = 2) -> Path:
    """Write checkpoint `step` (`fill` puts models and optimisers into the folder), point `last` to it, drop the oldest
    beyond `keep`.

    What `last` names is never dropped, whatever `keep` is, and nothing of a later step, from which a run went back.
    """
    folder = run / "checkpoints" / f"{step:06d}"
    arrays: dict[str, np.ndarray] = {}
    packed = pack_state(dict(state), arrays)
    try:
        with atomic_folder(folder) as temporary:
            fill(temporary)
            save_file(arrays, str(temporary / "state.safetensors"))
            (temporary / "state.json").write_text(json.dumps({"format": FORMAT, "step": step, "state": packed}) + "\n")
        link = run / f".last-{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("checkpoints") / folder.name)
        os.replace(link, run / "last")
    except OSError as error:
        raise disk_error(error, folder) from error
    written = list((run / "checkpoints").iterdir())
    earlier = sorted((p for p in written if p.name.isdigit() and int(p.name) < step), key=lambda p: int(p.name))
    unfinished = [p for p in written if p.name.startswith(".")]  # left by a kill
    for old in earlier[: max(0, len(earlier) - (max(keep, 1) - 1))] + unfinished:
        shutil.rmtree(old, ignore_errors=True)
    for link in run.glob(".last-*"):
        link.unlink(missing_ok=True)
    return folder


def read(run: Path) -> tuple[Path, int, dict[str, Any]] | None:
    """(folder, step, state) of the newest checkpoint; None where a run was killed before its first.

    Raises BadCheckpoint.
    """
    folder = run / "last"
    if not folder.exists():
        return None
    file = folder / "state.json"
    try:
        data = json.loads(file.read_text())
        check_format(file, data.get("format") if isinstance(data, dict) else None)
        arrays = load_file(str(folder / "state.safetensors"))
    except SelfteachError:
        raise
    except (OSError, ValueError) as error:
        raise BadCheckpoint(
            f"{file}: broken ({error}); remove {folder.resolve()} and point {run / 'last'} to an older one"
        ) from error
    except Exception as error:
        raise BadCheckpoint(f"{folder / 'state.safetensors'}: broken ({error})") from error
    try:
        return folder.resolve(), int(data["step"]), dict(unpack_state(data["state"], arrays))
    except SelfteachError:
        raise
    except Exception as error:
        raise BadCheckpoint(f"{file}: not a state that a run wrote ({type(error).__name__}: {error})") from error


def check_format(file: Path, written: Any) -> None:
    """Raises BadCheckpoint where a file was written under another format than FORMAT."""
    if written != FORMAT:
        raise BadCheckpoint(
            f"{file}: checkpoint format {written}, this selfteach reads {FORMAT}; resume with the version that "
            "wrote it, or train again"
        )


def claim_folder(run: Path, config: Mapping[str, Any], resume: bool) -> None:
    """Make the run's folder and write its configuration, or check that the folder holds the same one.

    Raises BadValue for a folder that holds another run, or something else.
    """
    file = run / "config.json"
    text = json.dumps(config, indent=1) + "\n"
    try:
        if file.exists():
            have = json.loads(file.read_text())
            ours = json.loads(text)
            if have != ours:
                differ = sorted(k for k in {*have, *ours} if have.get(k) != ours.get(k))
                raise BadValue(
                    f"{run}: holds a run of another configuration (other: {', '.join(differ)}); give another "
                    f"--out, or --resume {quoted(run)}"
                )
            if not resume:
                raise BadValue(
                    f"{run}: holds this run already; continue with --resume {quoted(run)}, or give another --out"
                )
            return
        if run.exists() and any(run.iterdir()):
            raise BadValue(f"{run}: is not empty and holds no run; give another --out")
        run.mkdir(parents=True, exist_ok=True)
        temporary = run / ".config.json.new"
        temporary.write_text(text)
        os.replace(temporary, file)
    except json.JSONDecodeError as error:
        raise BadCheckpoint(f"{file}: not JSON ({error})") from None
    except OSError as error:
        raise disk_error(error, run) from error


def disk_error(error: OSError, at: Path) -> SelfteachError:
    """One clear line for a full disk or a folder that cannot be written."""
    if error.errno == errno.ENOSPC:
        return SelfteachError(
            f"{at}: the disk is full; free some space and continue with --resume (the last checkpoint is complete)"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return SelfteachError(f"{at}: cannot be written to ({error.strerror}); give another --out")
    return SelfteachError(f"{at}: {error.strerror or error}")
