"""The stub of `selfteach.methods`, which names every method for editors and type checkers.

python scripts/method_stub.py           write it
python scripts/method_stub.py --check   exit 1 where it is not what it should be
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "selfteach" / "methods"
STUB = FOLDER / "__init__.pyi"


def registered(file: Path) -> list[str]:
    """The functions of a file that `@method` decorates."""
    return [
        node.name
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Call) and ast.unparse(d.func) == "method" for d in node.decorator_list)
    ]


def stub() -> str:
    lines = ["# Written by scripts/method_stub.py (make format).\n"]
    for file in sorted(FOLDER.glob("*.py")):
        lines += [f"from .{file.stem} import {name} as {name}\n" for name in sorted(registered(file))]
    return "".join(lines)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(0 if STUB.read_text(encoding="utf-8") == stub() else f"{STUB} is not up to date: run make format")
    STUB.write_text(stub(), encoding="utf-8")
