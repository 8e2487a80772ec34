"""Checkpoints: all that a run needs to continue with the same bits. Written under a temporary name, synced, renamed.

RUN/config.json              the resolved configuration
RUN/checkpoints/000040/      model.safetensors config.json tokenizer.json, other weight groups, the optimiser,
                             state.json; with LoRA adapter/ in place of the model, which is written when the run is
                             done
                             state.json has the sizes and hashes of all the others, checked before they are read
RUN/last                     a link to the newest
RUN/.lock                    held by the process that trains
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from ..core.disk import atomic_folder, disk_error, disk_errors, file_lock, write_whole
from ..core.errors import BadCheckpoint, BadValue, SelfteachError, quoted
from ..core.serial import from_json, to_json
from .run_folder import find as find

FORMAT = 3  # raise it with what a checkpoint or config.json holds, or what its names mean
STATE = "state.safetensors"  # the arrays of state.json
LOCK = ".lock"  # of a run's folder
OURS = (LOCK, ".config.json.")  # what may be in a folder before its config.json is


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
    with atomic_folder(folder) as temporary:
        fill(temporary)
        save_file(arrays, str(temporary / STATE))
        write_state(temporary, {"format": FORMAT, "step": step, "state": packed})
    with disk_errors(folder):
        link = run / f".last-{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("checkpoints") / folder.name)
        if (run / "last").is_dir() and not (run / "last").is_symlink():  # a copy that has folders in place of links
            shutil.rmtree(run / "last")
        os.replace(link, run / "last")
    written = [p for p in (run / "checkpoints").iterdir() if p.name.isdigit()]
    earlier = sorted((p for p in written if int(p.name) < step), key=lambda p: int(p.name))
    for old in earlier[: max(0, len(earlier) - (max(keep, 1) - 1))]:
        shutil.rmtree(old, ignore_errors=True)
    clear_unfinished(run)
    return folder


def clear_unfinished(run: Path) -> None:
    """Remove what a kill left of checkpoints and files that were being written; a checkpoint that was moved aside for
    another of its step, which then never came, is put back.
    """
    for aside in (run / "checkpoints").glob(".*.old-*"):
        folder = aside.with_name(aside.name[1:].partition(".")[0])
        if not folder.exists():
            aside.rename(folder)
    for folder in (run / "checkpoints").glob(".*"):
        shutil.rmtree(folder, ignore_errors=True)
    for unfinished in (*run.glob(".last-*"), *run.glob(".*.new")):
        unfinished.unlink(missing_ok=True)


def write_state(folder: Path, data: Mapping[str, Any]) -> None:
    """Write state.json, last of a checkpoint's files: with the sizes and hashes of the others, and its own."""
    write_whole(folder / "state.json", _sealed({**data, "files": checksums(folder)}))


def leave_out(folder: Path, name: str) -> None:
    """Remove a file of a checkpoint that nothing needs any more; what is not there need not be."""
    if not (folder / name).exists():
        return
    data = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    data["files"].pop(name, None)
    write_whole(folder / "state.json", _sealed(data))
    (folder / name).unlink()


def _sealed(data: Mapping[str, Any]) -> str:
    """The text of state.json, with its own hash."""
    content = {k: v for k, v in data.items() if k != "checksum"}
    return json.dumps({**content, "checksum": _hash(json.dumps(content).encode())}) + "\n"


def checksums(folder: Path) -> dict[str, list[Any]]:
    """[size, hash] of every file in a folder but state.json, by its path there."""
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f != folder / "state.json")
    return {f.relative_to(folder).as_posix(): [f.stat().st_size, _file_hash(f)] for f in files}


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _file_hash(file: Path) -> str:
    h = hashlib.blake2b(digest_size=16)
    with file.open("rb") as f:
        while chunk := f.read(1 << 22):
            h.update(chunk)
    return h.hexdigest()


def step_of(folder: Path) -> int:
    """The step that a checkpoint says it is of. Raises BadCheckpoint where it says nothing."""
    file = folder / "state.json"
    try:
        return int(json.loads(file.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadCheckpoint(f"{file}: broken ({error}); copy the run again") from error


def read(run: Path, state_alone: bool = False) -> tuple[Path, int, dict[str, Any]] | None:
    """(folder, step, state) of the newest checkpoint; None where a run was killed before its first.

    state_alone  look at no other file of it, which takes long where a model is large

    Raises BadCheckpoint where a file that it looks at is not as it was written.
    """
    if (folder := find(run)) is None:
        return None
    file, shown = folder / "state.json", run / "last" / "state.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        check_format(shown, data.get("format") if isinstance(data, dict) else None)
    except SelfteachError:
        raise
    except (OSError, ValueError) as error:
        raise BadCheckpoint(
            f"{shown}: broken ({error}); remove {folder} and point {run / 'last'} to an older one"
        ) from error
    _check_files(run, folder, data, [STATE] if state_alone else None)
    try:
        arrays = load_file(str(folder / STATE))
    except Exception as error:
        raise BadCheckpoint(f"{folder / STATE}: broken ({error})") from error
    try:
        return folder, int(data["step"]), dict(unpack_state(data["state"], arrays))
    except SelfteachError:
        raise
    except Exception as error:
        raise BadCheckpoint(f"{file}: not a state that a run wrote ({type(error).__name__}: {error})") from error


def _check_files(run: Path, folder: Path, data: Mapping[str, Any], names: Collection[str] | None) -> None:
    """Raise BadCheckpoint for the first file of a checkpoint (of those named) that is not as `write` left it."""
    do = f"remove {folder} and point {run / 'last'} to an older one"
    content = {k: v for k, v in data.items() if k != "checksum"}
    if data.get("checksum") != _hash(json.dumps(content).encode()):
        raise BadCheckpoint(f"{folder / 'state.json'}: changed since it was written (checksum); {do}")
    for name, (size, expected) in data["files"].items():
        if names is not None and name not in names:
            continue
        try:
            have = (folder / name).stat().st_size
            wrong = f"cut short, {have} of {size} bytes" if have < size else "checksum"
            if have == size and _file_hash(folder / name) == expected:
                continue
        except OSError as error:
            wrong = "missing" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise BadCheckpoint(f"{folder / name}: changed since it was written ({wrong}); {do}")


def check_format(file: Path, written: Any) -> None:
    """Raises BadCheckpoint where a file was written under another format than FORMAT."""
    if written != FORMAT:
        raise BadCheckpoint(
            f"{file}: checkpoint format {written}, this selfteach reads {FORMAT}; resume with the version that "
            "wrote it, or train again"
        )


@contextmanager
def claimed(run: Path, config: Mapping[str, Any], resume: bool) -> Generator[None]:
    """Make the run's folder, write its configuration, and hold its lock inside the `with`.

    Raises BadValue for a folder that holds another run, or something else, or that another process trains in.
    """
    check_folder(run, config, resume)
    with held(run):
        check_folder(run, config, resume)  # another process may have come first
        text = json.dumps(config, indent=1) + "\n"
        if not (resume and (run / "config.json").exists()):
            write_whole(run / "config.json", text)
        yield


@contextmanager
def held(run: Path) -> Generator[None]:
    """Hold the lock of a run's folder inside the `with`. Raises BadValue where another process trains in it."""

    def busy() -> None:
        raise BadValue(f"{run}: another process is training in this folder; wait until it ends, or give another --out")

    with file_lock(run / LOCK, busy):
        yield


def check_folder(run: Path, config: Mapping[str, Any], resume: bool) -> None:
    """Check that a folder is free for a run, or (resume) holds it. A run of which nothing was saved leaves it free.

    Raises BadValue for a folder that holds another run, or something else.
    """
    file = run / "config.json"
    try:
        if not file.exists():
            if run.exists() and any(not p.name.startswith(OURS) for p in run.iterdir()):
                raise BadValue(f"{run}: is not empty and holds no run; give another --out")
            return
        if not resume and find(run) is None and not (run / "last").is_symlink():
            return
        have, ours = json.loads(file.read_text(encoding="utf-8")), json.loads(json.dumps(config))
    except SelfteachError:
        raise
    except ValueError as error:
        raise BadCheckpoint(f"{file}: not JSON ({error})") from None
    except OSError as error:
        raise disk_error(error, run) from error
    if have != ours:
        differ = sorted(k for k in {*have, *ours} if have.get(k) != ours.get(k))
        raise BadValue(
            f"{run}: holds a run of another configuration (other: {', '.join(differ)}); give another "
            f"--out, or --resume {quoted(run)}"
        )
    if not resume:
        raise BadValue(f"{run}: holds this run already; continue with --resume {quoted(run)}, or give another --out")
