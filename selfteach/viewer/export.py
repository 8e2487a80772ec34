"""The page with its data as one file: no server, no network, and by its policy nothing but its own script runs."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.disk import write_whole
from ..core.errors import BadCheckpoint, BadValue, SelfteachError, describe
from .run_index import ViewerData
from .server import as_json, page_files

# Modules in the order in which they are put together; their top-level names must differ (tests/viewer).
MODULES = (
    "util.js",
    "charts.js",
    "curves.js",
    "tokens.js",
    "rollouts.js",
    "trees.js",
    "results.js",
    "regimes.js",
    "app.js",
)
LIBRARY = "uPlot.iife.min.js"
STYLES = ("uPlot.min.css", "style.css")
EVEN_STEPS = 5
MOST_RUNS = 200
TABLES = {"ledger": ("claim", "method"), "regimes": ("regime", "name")}  # what a row opens, and by what


def export_page(data: ViewerData, file: Path, steps: list[int] | str = "", most: int = 24_000_000) -> dict[str, Any]:
    """Write the page of all runs into a file: curves of each, rollouts of some steps, results and the ledger.

    A file that ends in .json.gz gets what the page shows, without the page; `write_page` puts the two together.
    steps   "all", numbers of steps, or "": five of each run, evenly
    most    bytes of data before they are compressed; curves come first, then rollouts, step by step of each run
    Returns {"runs", "rollouts", "bytes", "left_out"}. Raises BadValue for folders without a run.
    """
    data_alone = file.name.endswith(".json.gz")
    answers, about = collected(data, steps, most, () if data_alone else ("ledger",))
    if not data_alone:
        return {**about, "bytes": write_page(answers, file)}
    packed = _packed(answers)
    write_whole(file, packed)
    return {**about, "bytes": len(packed)}


def write_page(answers: Mapping[str, Any], file: Path) -> int:
    """Write what the page shows, as `collected` and `table_answers` give it, with the page into one file.

    Returns its bytes.
    """
    text = _page(_packed(answers)).encode()
    write_whole(file, text)
    return len(text)


def read_answers(file: Path) -> dict[str, Any]:
    """What `export_page` wrote into a file that ends in .json.gz. Raises BadCheckpoint for another."""
    try:
        return json.loads(gzip.decompress(file.read_bytes()))
    except (OSError, EOFError, ValueError) as error:
        raise BadCheckpoint(
            f"{file}: not what selfteach view --export FILE.json.gz wrote ({describe(error)})"
        ) from None


def table_answers(*tables: str) -> dict[str, Any]:
    """What the page shows of "ledger" and "regimes", each row opened: of ./results and what comes with the library."""
    store = _Store(ViewerData([]), 0)
    store.keep("home", {}, {"folders": [], "runs": [], "waiting": 0, "results": []})
    _add_tables(store, tables)
    return store.answers


def collected(
    data: ViewerData, steps: list[int] | str = "", most: int = 24_000_000, tables: Sequence[str] = ("ledger",)
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page shows of all runs and results, by the key that it asks by; and {"runs", "rollouts", "left_out"}.

    Arguments as in `export_page`, and which tables are added. Raises BadValue for folders without a run.
    """
    store, left = _Store(data, most), list[str]()
    home = data.answer("home", {})
    while home["waiting"]:
        home = data.answer("home", {})
    names = [r["id"] for r in home["runs"]]
    if not names:
        raise BadValue(f"{', '.join(map(str, data.folders))}: holds no run; give the folder that train printed")
    if len(names) > MOST_RUNS:
        left.append(f"runs beyond the first {MOST_RUNS}")
        names = names[:MOST_RUNS]
        home["runs"] = home["runs"][:MOST_RUNS]
    store.keep("home", {}, home)
    for name in names:
        store.add("curves", {"run": name, "offset": "0", "mark": ""})
        store.add("config", {"run": name})
    for result in home["results"]:
        store.add("result", {"id": result["id"]})
    _add_tables(store, tables)
    rollouts, cut = 0, False
    for name in names:
        logged = data.rollouts.steps(data.run({"run": name}))
        taken: list[int] = []
        for step in _chosen(logged, steps):
            count = _add_step(store, name, step) if not store.full else None
            if count is None:
                cut = True
                continue
            taken.append(step)
            rollouts += count
        store.keep("steps", {"run": name}, {"steps": taken, "of": len(logged)})
    if cut:
        left.append(f"rollouts of some steps, which did not fit into {most / 1e6:g} MB (--megabytes)")
    return store.answers, {"runs": len(names), "rollouts": rollouts, "left_out": "; ".join(left)}


class _Store:
    """Answers by the key under which the page asks for them."""

    def __init__(self, data: ViewerData, most: int) -> None:
        self.data, self.left, self.answers = data, most, dict[str, Any]()

    @property
    def full(self) -> bool:
        return self.left <= 0

    def keep(self, name: str, parameters: dict[str, str], value: Any) -> Any:
        key = name + "?" + "&".join(f"{k}={v}" for k, v in sorted(parameters.items()))
        self.answers[key] = value
        self.left -= len(as_json(value))
        return value

    def add(self, name: str, parameters: dict[str, str]) -> Any:
        """Ask and keep; an answer that cannot be had is its error."""
        try:
            return self.keep(name, parameters, self.data.answer(name, parameters))
        except (SelfteachError, OSError) as error:
            self.keep(name, parameters, {"error": str(error)})
            return None


def _add_tables(store: _Store, tables: Sequence[str]) -> None:
    for table in tables:
        one, name = TABLES[table]
        for row in (store.add(table, {}) or {"rows": []})["rows"]:
            store.add(one, {name: row[name]})


def _add_step(store: _Store, name: str, step: int) -> int | None:
    """Add the rollouts of a step; returns how many, None where they do not fit or cannot be read."""
    where = {"run": name, "step": str(step)}
    try:
        found = store.data.rollouts.step(store.data.run(where), step)
        rows = found.rows(0, len(found.places))
        episodes = {name: found.episode(name) for name in dict.fromkeys(r["episode"] for r in rows)}
    except (SelfteachError, OSError):
        return None
    if len(as_json(episodes)) > store.left:
        store.left = 0
        return None
    store.keep("rows", {**where, "first": "0"}, {"total": len(rows), "first": 0, "rows": rows})
    for episode, content in episodes.items():
        store.keep("episode", {**where, "episode": episode}, content)
    return len(rows)


def _chosen(logged: list[int], steps: list[int] | str) -> list[int]:
    if steps == "all" or (not steps and len(logged) <= EVEN_STEPS):
        return logged
    if isinstance(steps, list):
        return [s for s in steps if s in set(logged)]
    return [logged[round(i * (len(logged) - 1) / (EVEN_STEPS - 1))] for i in range(EVEN_STEPS)]


def _packed(answers: Mapping[str, Any]) -> bytes:
    return gzip.compress(as_json(answers).encode(), mtime=0)


def _page(data: bytes) -> str:
    files = {name: content.decode() for name, content in page_files().items()}
    library = files[LIBRARY]
    script = '(() => {\n"use strict";\n' + "".join(_inlined(files[name]) for name in MODULES) + "})();\n"
    style = "\n".join(files[name] for name in STYLES)
    for text in (library, script, style):
        assert "</script" not in text.lower() and "</style" not in text.lower()
    policy = (
        f"default-src 'none'; script-src '{_hash(library)}' '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    html = re.sub(r"\s*<(?:link|script)\b[^>]*>(?:</script>)?", "", files["index.html"])
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n</head>'
    packed = base64.b64encode(data).decode()  # no text in it can end the element
    body = (
        f'<script type="application/octet-stream" id="data">{packed}</script>\n<script>{library}</script>\n'
        f"<script>{script}</script>\n</body>"
    )
    return html.replace("</head>", head, 1).replace("</body>", body, 1)


def _inlined(module: str) -> str:
    """A module's text without its imports and exports, to stand beside the others in one script."""
    text = re.sub(r"^import [^;]*;\n", "", module, flags=re.MULTILINE)
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
