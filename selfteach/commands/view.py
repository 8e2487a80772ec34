"""The command `selfteach view`: a local web page of runs, or the same as one file."""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import BadValue
from ..core.extras import optional
from .arguments import Parser, add_typed
from .common import print_json, print_note
from .serve import answer, listening

if TYPE_CHECKING:
    from ..viewer.run_index import ViewerData

ABOUT = """Read runs in the browser: curves, rollouts token by token, trees, comparisons, the ledger; live runs too.

RUNS are folders of runs, or runs (default: runs). The page is served to this machine alone, and opens only by the
address with its token that is printed; it loads nothing from elsewhere, and reads no file outside of RUNS but the
ledger's results (./results, and those of the library). Needs the extra selfteach[view].
"""
EXAMPLES = """examples:
  selfteach view                                          every run in runs/, in the browser
  selfteach view runs/grpo-1 runs/ssrl-1 --port 8260      on a machine far away: ssh -L 8260:127.0.0.1:8260 it
  selfteach view runs/grpo-1 --export grpo.html           one file to send, which needs no server and no network

what comes out: the address on stdout, with --json as one line {"url": ...}; of --export the file, {"file": ...,
"bytes": ..., "rollouts": ...}. Ctrl-C ends it. docs/viewer.md has the rest."""


def parser() -> Parser:
    """The options of `view`."""
    made = Parser("view", usage="selfteach view [RUNS ...] [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("runs", metavar="RUNS", nargs="*", help="folders of runs, or runs (default: runs)")
    add_typed(made, "port", int, "the port; 0: any that is free", 0)
    made.add_argument("--no-open", action="store_true", help="print the address and open no browser")
    made.add_argument(
        "--export",
        metavar="FILE.html",
        help="write the page with its data into one file instead; as FILE.json.gz the data alone",
    )
    made.add_argument(
        "--steps",
        metavar="N,N|all",
        help="steps whose rollouts --export takes along (default: five, evenly over a run)",
    )
    add_typed(
        made,
        "megabytes",
        float,
        "of data that --export takes along, which the file holds compressed; what does not fit is left out, and said",
        24.0,
    )
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach view`; returns the exit code."""
    given = vars(parser().read(words))
    port = given.get("port", 0)
    if not 0 <= port <= 65535:
        raise BadValue(f"selfteach view: --port must be between 0 and 65535, not {port}")
    folders = [Path(word) for word in given.get("runs") or ["runs"]]
    if not given.get("runs") and not folders[0].is_dir():
        raise BadValue("selfteach view: there is no folder runs here; give the folders of runs: selfteach view DIR")
    from ..viewer.run_index import ViewerData

    data = ViewerData(folders)
    if "export" in given:
        return _export(data, given)
    for name in ("steps", "megabytes"):
        if name in given:
            raise BadValue(f"selfteach view: --{name} goes with --export alone; leave it out")
    uvicorn = optional("uvicorn", "view", "selfteach view")
    optional("starlette", "view", "selfteach view")
    with listening("127.0.0.1", port) as listener:
        from ..viewer.server import ViewerServer

        port, token = listener.getsockname()[1], secrets.token_urlsafe(24)
        application = ViewerServer(data, token, port).application()
        url = f"http://127.0.0.1:{port}/?token={token}"
        if given.get("json"):
            print_json({"url": url})
        else:
            print(url, flush=True)
            print_note(f"{len(data.ids())} runs in {', '.join(map(str, folders))}; Ctrl-C ends the page")
        if not given.get("no_open") and not given.get("json") and has_screen():
            webbrowser.open(url)
        answer(uvicorn, application, listener)
    return 0


def has_screen() -> bool:
    """Whether a browser can open a window here; without one a browser of text would take the terminal."""
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _export(data: ViewerData, given: dict[str, Any]) -> int:
    from ..viewer.export import export_page

    for name in ("port", "no_open"):
        if name in given:
            raise BadValue(f"selfteach view: --{name.replace('_', '-')} does not go with --export; leave it out")
    size = given.get("megabytes", 24.0)
    if not 0 < size <= 4096:
        raise BadValue(f"selfteach view: --megabytes must be above 0 and at most 4096, not {size:g}")
    file = Path(given["export"])
    about = export_page(data, file, _steps(given.get("steps")), int(size * 1e6))
    if given.get("json"):
        print_json({"file": str(file), **about})
    else:
        print(file)
        left = f"; left out: {about['left_out']}" if about["left_out"] else ""
        print_note(f"{about['runs']} runs, {about['rollouts']} rollouts, {about['bytes'] / 1e6:.1f} MB{left}")
    return 0


def _steps(word: str | None) -> list[int] | str:
    """Steps as `0,10,20`; "all"; "" for those that are chosen. Raises BadValue."""
    if word in (None, "all"):
        return "all" if word else ""
    parts = word.split(",")
    if not all(p.isascii() and p.isdigit() and len(p) < 10 for p in parts):
        raise BadValue(f"selfteach view: --steps must be numbers of steps as 0,10,20, or all, not {word!r}")
    return [int(p) for p in parts]
