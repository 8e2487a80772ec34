"""A hash of the code that something depends on, so that what older code computed is not taken for its result.

Imports are followed from some Python files, wherever in a file they are, through every package whose source is on this
machine. Files reached count: the modules and the `__init__` of their packages by what they run, so that comments,
docstrings, layout and a method's claim may change, and the files beside them that are not Python (C++ sources, headers,
data) by their content. Libraries count by their version. Imports under TYPE_CHECKING run nothing and are left out.
"""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import re
import sys
import typing
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType
from typing import Any

from .versions import UNKNOWN, version

IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t][^\n(]*(?:\([^)]*\))?", re.MULTILINE)
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
TYPES_ONLY = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)


def code_hash(roots: Iterable[Path]) -> str:
    """The hash of all files that `roots` reach by import, and of the versions of Python and the libraries used."""
    files, libraries = reached(roots)
    found = sorted(_content(file, *_stamp(file)) for file in files)  # their paths do not count
    found += [f"{name} {version(name)}" for name in sorted(libraries)] + [platform.python_version()]
    return hashlib.blake2b("\n".join(found).encode(), digest_size=10).hexdigest()


def reached(roots: Iterable[Path]) -> tuple[set[str], set[str]]:
    """(the files that `roots` depend on, themselves too; the names of the libraries that these import)."""
    files, libraries, waiting = set[str](), set[str](), [str(Path(root).resolve()) for root in roots]
    while waiting:
        file = waiting.pop()
        if file in files:
            continue
        files.add(file)
        if not file.endswith(".py"):
            continue
        folder = os.path.dirname(file)
        for name in _imported(file, *_stamp(file)):
            home = _home(name.partition(".")[0], folder)
            if home is None:
                libraries.add(name.partition(".")[0])
            elif home and (found := _module(name, home)):
                waiting.append(found)
        waiting += _beside(folder)
    return files, libraries


def _stamp(file: str) -> tuple[int, int]:
    about = os.stat(file)
    return about.st_mtime_ns, about.st_size


@cache
def _content(file: str, *stamp: int) -> str:
    content = Path(file).read_bytes()
    if file.endswith(".py"):
        module = _without_docstrings(_without_claims(ast.parse(content)))
        code = compile(module, "", "exec", dont_inherit=True, optimize=1)
        content = repr(_what_runs(code)).encode()
    return hashlib.blake2b(content, digest_size=10).hexdigest()


def _without_claims(module: ast.Module) -> ast.Module:
    """A module without statements `method.claim = ...`, and without the imported names that only these used."""
    body = [s for s in module.body if not (isinstance(s, ast.Assign) and _is_claim(s.targets[0]))]
    if len(body) == len(module.body):
        return module
    module.body = body
    used = {n.id for n in ast.walk(module) if isinstance(n, ast.Name)}
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.module != "__future__":
            statement.names = [a for a in statement.names if (a.asname or a.name) in used] or statement.names[:1]
    return module


def _without_docstrings(module: ast.Module) -> ast.Module:
    for node in ast.walk(module):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(node, ast.Module | ast.ClassDef | FUNCTION):
            first, *rest = typing.cast("list[ast.stmt]", body)
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                body[:] = rest or [ast.copy_location(ast.Pass(), first)]
    return module


def _is_claim(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "claim"


def _what_runs(value: Any) -> Any:
    """A code object by what it does, without file and lines; constants of a set in one order whatever their hashes."""
    if isinstance(value, CodeType):
        names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars, value.co_qualname
        counts = value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags
        consts = [_what_runs(c) for c in value.co_consts]
        return value.co_code, value.co_exceptiontable, names, counts, consts
    if isinstance(value, tuple):
        return tuple(_what_runs(v) for v in typing.cast("tuple[Any, ...]", value))
    if isinstance(value, frozenset):
        return ("frozenset", *sorted(repr(_what_runs(v)) for v in typing.cast("frozenset[Any]", value)))
    return value


@cache
def _imported(file: str, *stamp: int) -> tuple[str, ...]:
    """The full names that a file imports; of `from a import b` both a and a.b, since b may be a module."""
    above = _package(os.path.dirname(file))
    names: list[str] = []
    for node in _statements(without_types(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = above[: len(above) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
    return tuple(dict.fromkeys(names))


def without_types(text: str) -> str:
    """A source without what it imports for type checkers alone."""
    return TYPES_ONLY.sub("if TYPE_CHECKING:\n    pass\n", text)


def _statements(text: str) -> list[ast.AST]:
    """The import statements of a source: lines that begin like one, parsed alone, which takes a tenth of the time.

    Where such a line seems to be in a docstring or cannot be parsed, the whole source is parsed.
    """
    found = list(IMPORT.finditer(text))
    try:
        if not any(text.count('"""', 0, line.start()) % 2 for line in found):
            return [node for line in found for node in ast.parse(line[0].strip()).body]
    except SyntaxError:
        pass
    return list(ast.walk(ast.parse(text)))


@cache
def _package(folder: str) -> tuple[str, ...]:
    """The names of the packages that a folder is in, itself last; none for a folder without __init__.py."""
    if not os.path.isfile(os.path.join(folder, "__init__.py")):
        return ()
    return (*_package(os.path.dirname(folder)), os.path.basename(folder))


@cache
def _beside(folder: str) -> tuple[str, ...]:
    """What every module of a package depends on: the `__init__` files above it, and its files that are not Python."""
    if not _package(folder):
        return ()
    here = [f.path for f in os.scandir(folder) if f.is_file() and not f.name.endswith((".py", ".pyi", ".pyc"))]
    inits = [os.path.join(folder, "__init__.py")]
    while len(_package(folder)) > 1:
        folder = os.path.dirname(folder)
        inits.append(os.path.join(folder, "__init__.py"))
    return (*inits, *here)


@cache
def _home(top: str, folder: str) -> str | None:
    """The folder that holds a top-level module's source, as a file in `folder` imports it: "" for the standard
    library's, None for an installed library.
    """
    own = _package(folder)
    if own and top == own[0]:
        return os.path.normpath(os.path.join(folder, *[".."] * len(own)))
    if top in sys.stdlib_module_names:
        return ""
    if not own and _module(top, folder):  # a file of a user's own, and what lies beside it
        return folder
    if top != __name__.partition(".")[0] and version(top) != UNKNOWN:
        return None
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or "site-packages" in spec.origin:
        return None
    origin = os.path.dirname(spec.origin)
    return os.path.dirname(origin) if os.path.basename(spec.origin) == "__init__.py" else origin


@cache
def _module(name: str, home: str) -> str | None:
    path = os.path.join(home, *name.split("."))
    return next((f for f in (path + ".py", os.path.join(path, "__init__.py")) if os.path.isfile(f)), None)
