"""Pages of the site that are made from the code (docs/conf.py): all methods, and the Python API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import selfteach
from selfteach.core import registry
from selfteach.core.method import MethodEntry


def write_pages(folder: Path) -> None:
    """Write the pages into a folder; one that has not changed is not written again."""
    folder.mkdir(exist_ok=True)
    for name, text in (("methods.md", methods_page()), ("api.rst", api_page())):
        file = folder / name
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def methods_page() -> str:
    """A section per family and method: what it does, its source, its hyper-parameters, its claim."""
    families: dict[str, list[MethodEntry[...]]] = {}
    for _, entry in sorted(registry.methods.items()):
        families.setdefault(entry.family, []).append(entry)
    out = [
        "# Methods",
        "Every method is a value: `selfteach train NAME`, or `from selfteach.methods import NAME`. `selfteach methods "
        "NAME` prints its whole table. What became of its claim is in [the ledger](../ledger.md).",
    ]
    for family, entries in sorted(families.items()):
        out += [f"## {family}", *(part for entry in entries for part in _section(entry))]
    return "\n\n".join(out) + "\n"


def _section(entry: MethodEntry[...]) -> list[str]:
    first, _, rest = entry.doc.partition("\n\n")
    source = f"[{entry.paper}](https://arxiv.org/abs/{entry.paper})" if entry.paper[:4].isdigit() else entry.paper
    values = ", ".join(f"`{k}={p.default!r}`" for k, p in entry.hyper_parameters.items())
    out = [f"### {entry.name}", first, f"Source: {source}. Hyper-parameters: {values or 'none'}."]
    out += [f"```text\n{rest}\n```"] * bool(rest)
    return out + ([f"Claim: {entry.claim.because}."] if entry.claim is not None else [])


def api_page() -> str:
    """The public names of the package, from their docstrings."""
    title = "Python API"
    about = "Names are imported when they are first asked for, so that ``import selfteach`` costs nothing."
    out = [f"{title}\n{'=' * len(title)}", about]
    for name in selfteach.__all__:
        kind = "class" if isinstance(getattr(selfteach, name), type) else "function"
        out.append(f".. auto{kind}:: selfteach.{name}" + ("\n   :members:" if kind == "class" else ""))
    return "\n\n".join(out) + "\n"


def escaped_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show a docstring as it is written: its first paragraph as text, formulas and lists below it as they stand."""
    end = lines.index("") if "" in lines else len(lines)
    first, rest = lines[:end], lines[end:]
    text = [line.replace("\\", "\\\\").replace("*", "\\*").replace("`", "``").replace("_ ", "\\_ ") for line in first]
    body = ["", "::", "", *(f"   {line}" for line in rest), ""] if any(rest) else []
    lines[:] = [*text, *body]
