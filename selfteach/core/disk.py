"""What goes wrong with disks and folders, as one line that says what to do; and files that are written whole or not."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from .cache import cache_root
from .errors import BadValue, SelfteachError

OWNED = ".owned"  # the lock of an OwnFolder
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
# What a program's own mistake does not cause.
CAUSED = {*FULL, *CLOSED, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENAMETOOLONG, errno.ELOOP}


def disk_error(error: OSError, at: str | Path) -> SelfteachError:
    """One clear line for a full disk, or for a file or folder that cannot be written to."""
    if error.errno in FULL:
        why = "" if error.errno == errno.ENOSPC else f" ({error.strerror})"
        do = "or set SELFTEACH_CACHE to a folder on another disk" if in_cache(at) else "and continue with --resume"
        saved = "" if in_cache(at) else " (the last checkpoint is complete)"
        return SelfteachError(f"{at}: the disk is full{why}; free some space {do}{saved}")
    if error.errno in CLOSED:
        do = "set SELFTEACH_CACHE to a folder of your own" if in_cache(at) else "give another --out"
        return SelfteachError(f"{at}: cannot be written to ({error.strerror}); {do}")
    return SelfteachError(f"{at}: {error.strerror or error}")


def in_cache(at: str | Path) -> bool:
    """Whether a path lies in the cache folder."""
    with contextlib.suppress(OSError, SelfteachError):
        return Path(at).resolve().is_relative_to(cache_root().resolve())
    return False


@contextmanager
def file_lock(file: Path, busy: Callable[[], None]) -> Generator[None]:
    """Hold a lock file, which the system releases where the process is killed.

    busy: called where another holds it; unless that raises, it is waited for.
    """
    try:
        import fcntl
    except ImportError:  # Windows: no lock
        yield
        return
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w", encoding="utf-8")
    with lock, _not_in_forks(lock.fileno()):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy()
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        yield


class OwnFolder:
    """A new folder of this process, removed when it is closed, collected, or the process ends.

    prefix  of its name
    shared  the folder that it is made in, which other machines may see; None: `local` or this machine's temporary one.
            There what processes with this prefix left that were killed is removed as well

    Raises SelfteachError where it cannot be made.
    """

    def __init__(self, prefix: str, shared: Path | None = None, local: Path | None = None) -> None:
        parent = shared or local or Path(tempfile.gettempdir())
        if shared is None:
            for left in parent.glob(f"{prefix}*"):
                _remove_abandoned(left)
        with disk_errors(parent):
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        held = contextlib.ExitStack()
        held.enter_context(file_lock(self.path / OWNED, lambda: None))
        self.close = weakref.finalize(self, _remove_owned, self.path, held)


def _remove_owned(folder: Path, held: contextlib.ExitStack) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    held.close()


def _remove_abandoned(folder: Path) -> None:
    """Remove an OwnFolder whose process is no more, as is seen by its lock."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        with (folder / OWNED).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


_locks: set[int] = set()  # descriptors of the locks that this process holds


@contextmanager
def _not_in_forks(descriptor: int) -> Generator[None]:
    """Inside the `with` a fork gives up its copy, which would hold the lock as long as it lives."""
    _locks.add(descriptor)
    try:
        yield
    finally:
        _locks.discard(descriptor)


def _give_up_locks() -> None:
    for descriptor in _locks:
        with contextlib.suppress(OSError), open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), descriptor)
    _locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_give_up_locks)


@contextmanager
def disk_errors(at: str | Path) -> Generator[None]:
    """Raise an OSError of writing to `at`, or below it, as the one line of `disk_error`; also one of a library in Rust,
    which is of a kind of its own and says "(os error 28)".
    """
    try:
        yield
    except OSError as error:
        raise disk_error(error, at) from error
    except Exception as error:
        if (number := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise disk_error(OSError(int(number[1]), os.strerror(int(number[1]))), at) from error


def content_hash(path: Path) -> str:
    """The hash of a file's bytes, read once for each state of the file."""
    about = path.stat()
    key = str(path), about.st_mtime_ns, about.st_size
    if key not in _hashes:
        with path.open("rb") as f:
            _hashes[key] = hashlib.file_digest(f, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
    return _hashes[key]


_hashes: dict[tuple[str, int, int], str] = {}


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_folder(folder: Path) -> Generator[Path]:
    """A temporary folder to write into, renamed to `folder` when it is complete and synced to disk.

    A folder of that name is removed last. Raises SelfteachError where the disk is full or cannot be written to.
    """
    temporary = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    with disk_errors(folder):
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            yield temporary
            for file in [*temporary.rglob("*"), temporary]:
                sync(file)
            if folder.exists():
                old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
                folder.rename(old)
                temporary.rename(folder)
                shutil.rmtree(old, ignore_errors=True)
            else:
                temporary.rename(folder)
            sync(folder.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, sync it and rename it. Raises SelfteachError as `disk_error` says."""
    if not file.name:
        raise BadValue(f"{str(file)!r}: is no name of a file; give one")
    temporary = file.with_name(f".{file.name}.{os.getpid()}.new")
    with disk_errors(file):
        try:
            with temporary.open("wb") as f:
                f.write(content if isinstance(content, bytes) else content.encode("utf-8"))
                f.flush()
                os.fsync(f.fileno())
            os.replace(temporary, file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
