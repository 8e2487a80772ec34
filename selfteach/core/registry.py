"""Registries by name: of methods, tasks, regimes, blocks and quantities.

A third party adds an entry from a file of its own (importing the file registers it) or through an entry point of the
group `selfteach`, whose value is a module to import. The library's own modules are imported when a registry is
first read.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from . import trust as trust_record
from .errors import BadValue, describe, unknown

T = TypeVar("T")
Build = Callable[..., Any]
REGISTERING_PACKAGES = (
    "model",
    "curriculum",
    "rollout",
    "reward",
    "credit",
    "objective",
    "tools",
    "tasks",
    "analysis",
    "methods",
)
_loaded: set[str] = set()


class Registry(Generic[T]):
    """Names to values. Duplicates raise; the error for an unknown name lists the nearest ones.

    `packages` are those whose modules register entries; they are imported when the registry is first read.
    """

    def __init__(self, kind: str, packages: Sequence[str] = REGISTERING_PACKAGES) -> None:
        self.kind = kind
        self.packages = packages
        self._entries: dict[str, T] = {}

    def add(self, name: str, value: T) -> T:
        """Register `value`. Raises BadValue where the name is taken by something else."""
        have = self._entries.get(name)
        if have is not None and _origin(have) != _origin(value):
            raise BadValue(f"two {self.kind}s are called {name!r}: {_where(have)} and {_where(value)}; rename one")
        self._entries[name] = value
        return value

    def get(self, name: str) -> T:
        """The entry of that name. Raises UnknownName with the nearest names."""
        if name not in self._entries:
            load_all(self.packages)
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        if name not in self._entries:
            load_all(self.packages)
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_all(self.packages)
        return iter(sorted(self._entries))

    def items(self) -> list[tuple[str, T]]:
        """(name, entry) in the order of names."""
        return [(n, self._entries[n]) for n in self]


def _function(value: Any) -> Any:
    return inspect.unwrap(getattr(value, "build", None) or getattr(value, "fn", None) or value)


def _origin(value: Any) -> tuple[str, str]:
    fn = _function(value)
    code = getattr(fn, "__code__", None)
    return (code.co_filename if code else getattr(fn, "__module__", ""), getattr(fn, "__qualname__", repr(fn)))


def _where(value: Any) -> str:
    file, name = _origin(value)
    return f"{name} in {file}"


methods: Registry[Any] = Registry("method", ("methods",))
tasks: Registry[Any] = Registry("task", ("tasks",))
regimes: Registry[Any] = Registry("regime", ("regimes",))
blocks: Registry[Any] = Registry("block")
quantities: Registry[Any] = Registry("quantity", ("model.quantities", "methods"))


def load_all(packages: Sequence[str] = REGISTERING_PACKAGES) -> None:
    """Import all modules of some of the library's packages, then the entry points; each once in a process."""
    missing = [p for p in (*packages, "entry points") if p not in _loaded]
    _loaded.update(missing)
    for name in missing:
        if name == "entry points":
            for entry in importlib.metadata.entry_points(group="selfteach"):
                entry.load()
            continue
        package = importlib.import_module(f"selfteach.{name}")
        for info in pkgutil.walk_packages(getattr(package, "__path__", []), package.__name__ + "."):
            importlib.import_module(info.name)


def load_file(path: str | Path, named_by: str | Path | None = None, trust: bool = False) -> Any:
    """Run one file of a user's own, so that what it registers can be used by name: the one place where this is done.

    Returns its module.

    named_by  the configuration that names it; None: the user did, by `--use` or in Python, which is consent
    trust     the user consents to what a configuration names, too

    Raises BadValue where it cannot be imported, or must not be (core/trust.py).
    """
    file = Path(path).resolve()
    if not file.is_file():
        wanted = "--use takes a Python file that registers methods, tasks or blocks"
        raise BadValue(f"{path}: no such file; {wanted if named_by is None else f'{named_by} names it'}")
    name = user_module(file.name)
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(file):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadValue(f"{path}: not a Python file; --use takes a file that ends in .py")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadValue(f"{path}: cannot be read ({error.strerror})") from None
    if named_by is not None:
        trust_record.check(file, content, named_by, trust)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # What was read and checked is what runs: no second reading, and no bytecode that lies beside it.
        exec(compile(content, str(file), "exec", dont_inherit=True), module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # one that exits, too
        sys.modules.pop(name, None)
        raise BadValue(f"{path}: importing it raised {describe(error)}") from error
    trust_record.remember(file, content)
    return module


def user_files() -> list[str]:
    """The files of a user's own that were run here (`load_file`), in that order."""
    return [str(m.__file__) for n, m in sys.modules.items() if n.startswith(user_module("")) and m.__file__]


def user_module(file: str) -> str:
    """The name under which a user's file is imported, by the name of the file."""
    return f"selfteach_user_{Path(file).stem}"


def task(fn: Build) -> Build:
    """Register a function that returns a TaskSource as a task; its arguments, all with defaults, are the task's
    options.
    """
    for p in inspect.signature(fn).parameters.values():
        if p.default is p.empty:
            raise BadValue(f"task {fn.__name__}: option {p.name!r} needs a default")
    return tasks.add(fn.__name__, fn)
