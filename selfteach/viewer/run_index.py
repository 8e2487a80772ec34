"""The runs and results in the folders that were given: the only files that the page can reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..analysis.claim_results import result_folders
from ..core.errors import BadValue
from ..loop.log import EVENTS
from ..loop.run_folder import FIGURES, RunSummary, find_runs, read_config, summary_of
from .curve_data import curve_page
from .regime_data import regime_page, regimes_page
from .result_data import claim_page, find_results, kind_of, ledger_page, result_page
from .rollout_data import RolloutReader, as_written

FRESH_SECONDS = 4.0  # so long a listing of folders stands
READ_SECONDS = 0.4  # so long one answer reads summaries; what is left comes with the next
MOST_ROWS = 4000  # of an answer
Parameters = dict[str, str]


class ViewerData:
    """What the page asks for, by name and parameters, as plain values. Threads may ask at once."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises BadValue for a folder that does not exist."""
        for folder in folders:
            if not folder.is_dir():
                raise BadValue(f"{folder}: no such folder; give folders of runs, or runs")
        self.folders = [f.resolve() for f in folders]
        self.rollouts = RolloutReader()
        self._runs: dict[str, tuple[Path, Path]] = {}  # id -> (folder, that of those given which it is in)
        self._results: dict[str, tuple[Path, str]] = {}
        self._summaries: dict[Path, tuple[tuple[float, ...], RunSummary]] = {}
        self._listed = -FRESH_SECONDS
        self._lock = threading.Lock()
        self.answers: dict[str, Callable[[Parameters], Any]] = {
            "home": self._home,
            "curves": self._curves,
            "config": lambda p: read_config(self.run(p)),
            "steps": lambda p: {"steps": self.rollouts.steps(self.run(p))},
            "rows": self._rows,
            "search": lambda p: {"rows": self.rollouts.step(self.run(p), number(p, "step")).search(p.get("q", ""))},
            "episode": lambda p: self.rollouts.step(self.run(p), number(p, "step")).episode(p.get("episode", "")),
            "follow": lambda p: self.rollouts.follow(self.run(p), p.get("task", ""), number(p, "after", -1)),
            "result": self._result,
            "ledger": lambda _: ledger_page(self.ledger_folders()),
            "claim": lambda p: claim_page(self.ledger_folders(), p.get("method", "")),
            "regimes": lambda _: regimes_page(self.regime_folders()),
            "regime": lambda p: regime_page(self.regime_folders(), p.get("name", "")),
        }

    def answer(self, name: str, parameters: Parameters) -> Any:
        """The answer to a request. Raises BadValue for one that cannot be answered, BadCheckpoint for a broken file."""
        if name not in self.answers:
            raise BadValue(f"nothing is called {name!r} here")
        return self.answers[name](parameters)

    def run(self, parameters: Parameters) -> Path:
        """The folder of the run that is asked for. Raises BadValue where it is none of those that were found, or leads
        elsewhere by a link.
        """
        self._list()
        known = self._runs.get(parameters.get("run", ""))
        if known is None:
            raise BadValue(f"no run is called {parameters.get('run', '')!r} here")
        run, root = known
        files = [run / "config.json", run / "log", run / "log" / EVENTS, run / "log" / "rollouts"]
        if "step" in parameters:
            files.append(run / "log" / "rollouts" / f"{number(parameters, 'step'):06d}.npz")
        if any(not f.resolve().is_relative_to(root) for f in files):
            raise BadValue(f"{run.name}: its log is a link that leads out of {root}")
        return run

    def ledger_folders(self) -> list[str | Path]:
        """Where the ledger's results are: folders given that hold nothing else, ./results, and those of the library."""
        own = [f for f in self.folders if (files := [*f.glob("*.json")]) and all(map(_is_claim, files))]
        return [*own, *result_folders()]

    def regime_folders(self) -> list[Path]:
        """Where results of regimes are: the folder `regimes` beside the ledger's results."""
        return [Path(folder) / "regimes" for folder in self.ledger_folders()]

    def ids(self) -> list[str]:
        """The runs that were found."""
        self._list()
        return list(self._runs)

    def _list(self) -> None:
        with self._lock:
            if time.monotonic() - self._listed < FRESH_SECONDS:
                return
            runs: dict[str, tuple[Path, Path]] = {}
            results: dict[str, tuple[Path, str]] = {}
            for root in self.folders:
                for run in find_runs(root):
                    runs[_free(runs, _id(root, run))] = (run, root)
                for file, kind in find_results(root):
                    results[_free(results, _id(root, file))] = (file, kind)
            self._runs, self._results, self._listed = runs, results, time.monotonic()

    def _home(self, _: Parameters) -> dict[str, Any]:
        self._list()
        end, rows, waiting = time.monotonic() + READ_SECONDS, [], 0
        for name, (run, _root) in self._runs.items():
            found = self._summary(run, read=time.monotonic() < end)
            waiting += found is None
            rows.append({"id": name, **(found.to_json() if found else {"name": run.name})})
        results = [{"id": name, "kind": kind, "name": file.stem} for name, (file, kind) in self._results.items()]
        return {
            "folders": [f.name or str(f) for f in self.folders],
            "runs": rows,
            "waiting": waiting,
            "results": results,
        }

    def _summary(self, run: Path, read: bool) -> RunSummary | None:
        known = self._summaries.get(run)
        state = tuple(_stat(f) for f in (run / "log" / EVENTS, run / FIGURES, run / "config.json"))
        if known and known[0] == state and known[1].state not in ("live", "starting"):
            return known[1]
        if not read:
            return known[1] if known else None
        try:
            found = summary_of(run)
        except (KeyError, TypeError, ValueError, AttributeError):  # one broken run does not hide the others
            found = RunSummary(run.name, "", "", "", None, "", "broken", 0, None, None, None, 0.0, False)
        self._summaries[run] = (state, found)
        return found

    def _curves(self, p: Parameters) -> dict[str, Any]:
        steps = (number(p, "first"), number(p, "last")) if "first" in p else None
        run = self.run(p)
        with as_written(run / "log" / EVENTS):
            return curve_page(run, number(p, "offset", 0), p.get("mark", ""), steps)

    def _rows(self, p: Parameters) -> dict[str, Any]:
        step = self.rollouts.step(self.run(p), number(p, "step"))
        first, count = number(p, "first", 0), min(number(p, "count", MOST_ROWS), MOST_ROWS)
        return {"total": len(step.places), "first": first, "rows": step.rows(first, count)}

    def _result(self, p: Parameters) -> dict[str, Any]:
        self._list()
        if p.get("id") not in self._results:
            raise BadValue(f"no result is called {p.get('id', '')!r} here")
        return result_page(self._results[p["id"]][0])


def number(p: Parameters, name: str, otherwise: int | None = None) -> int:
    """A whole number among the parameters. Raises BadValue."""
    word = p.get(name, "")
    if not word and otherwise is not None:
        return otherwise
    if not (word.isascii() and word.removeprefix("-").isdigit()) or len(word) > 18:
        raise BadValue(f"{name} must be a whole number, not {word[:40]!r}")
    return int(word)


def _id(root: Path, at: Path) -> str:
    return "/".join([root.name, *at.relative_to(root).parts])


def _free(taken: dict[str, Any], name: str) -> str:
    names: Iterator[str] = (name if n == 1 else f"{name} ({n})" for n in range(1, len(taken) + 2))
    return next(n for n in names if n not in taken)


def _stat(file: Path) -> float:
    try:
        found = file.stat()
        return found.st_mtime + found.st_size
    except OSError:
        return -1.0


def _is_claim(file: Path) -> bool:
    return kind_of(file) == "reproduce"
