"""The source files of a method and a task, from which a hash of code follows imports."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ..core import registry
from ..core.blocks import Block


def source_files(method: Any, task: str) -> set[Path]:
    """The files that define the blocks of a method or of parts of it, the quantities that these read, and the task."""
    blocks = list(blocks_in(method))
    columns = {f"_{column}_" for block in blocks for column in block.columns}
    defined = [block.fn for block in blocks]
    defined += [q for name, q in registry.quantities.items() if any(f"_{name}_" in column for column in columns)]
    if task in registry.tasks:
        defined.append(registry.tasks.get(task))
    files = {inspect.getsourcefile(inspect.unwrap(getattr(value, "fn", value))) for value in defined}
    return {Path(file) for file in files if file and Path(file).is_file()}


def blocks_in(value: Any) -> Iterator[Block]:
    """Every block in a method, a stage, an update or a container, at any depth."""
    inner: Any = ()
    if isinstance(value, Block):
        yield value
        inner = value.args.values()
    elif is_dataclass(value):
        inner = [getattr(value, f.name) for f in fields(value)]
    elif isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, tuple | list):
        inner = value
    for one in inner:
        yield from blocks_in(one)
