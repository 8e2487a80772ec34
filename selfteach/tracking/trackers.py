"""The trackers there are, by name. Each needs a package of its own, which is an extra of that name."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ..core.errors import BadValue, unknown
from ..core.extras import optional
from ..core.serial import plain
from .tracker import RunAbout, Tracker

PROJECT = "selfteach"  # of runs, where a service groups them by project
COLUMNS = ("task", "prompt", "response", "answer", "reward", "advantage", "tokens", "status")


def resolve(given: Sequence[str | Tracker]) -> dict[str, Tracker]:
    """Trackers by name. Raises UnknownName for a name that is none, BadValue for a package that is missing."""
    if isinstance(given, str):
        given = [given]
    found: dict[str, Tracker] = {}
    for item in given:
        name = item if isinstance(item, str) else type(item).__name__
        if isinstance(item, str) and item not in TRACKERS:
            raise unknown("tracker for log", item, TRACKERS)
        if not isinstance(item, str) and any(not callable(getattr(item, n, None)) for n in CALLS):
            raise BadValue(f"log: {name} is no tracker; give a name ({', '.join(TRACKERS)}), or one with {CALLS}")
        found[name] = TRACKERS[item]() if isinstance(item, str) else item
    return found


CALLS = ("start", "log", "table", "warning", "finish")


class JsonLines:
    """Metrics and completions as JSON lines: RUN/metrics.jsonl, one object a step or evaluation, and
    RUN/completions.jsonl, one a rollout.
    """

    def start(self, about: RunAbout) -> str:
        """Open the files, to append to them."""
        mode = "a" if about.key is not None else "w"
        self.metrics, self.completions = (
            self._opened(about.folder / name, mode) for name in ("metrics.jsonl", "completions.jsonl")
        )
        return "files"

    @staticmethod
    def _opened(file: Path, mode: str) -> IO[str]:
        if mode == "a" and file.exists():  # a line that a kill cut short
            with file.open("r+b") as f:
                f.truncate(f.read().rfind(b"\n") + 1)
        return file.open(mode, encoding="utf-8")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a line of metrics."""
        self._write(self.metrics, {"step": step, **values})

    def table(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a line for each rollout."""
        for row in rows:
            self._write(self.completions, {"step": step, **row})

    def warning(self, step: int, rule: str, text: str) -> None:
        """Write a line with the warning."""
        self._write(self.metrics, {"step": step, "warning": rule, "text": text})

    def finish(self, status: str) -> None:
        """Close the files."""
        self.metrics.close()
        self.completions.close()

    def _write(self, file: IO[str], row: Mapping[str, Any]) -> None:
        file.write(json.dumps(plain(dict(row)), ensure_ascii=False) + "\n")
        file.flush()


class TensorBoard:
    """Event files in RUN/tensorboard: `tensorboard --logdir runs`."""

    def __init__(self) -> None:
        optional("tensorboard", "tensorboard", "log tensorboard")
        self.module = optional("torch.utils.tensorboard", "tensorboard", "log tensorboard")

    def start(self, about: RunAbout) -> str:
        """Begin a file; the configuration is the text `config`."""
        self.writer = self.module.SummaryWriter(str(about.folder / "tensorboard"), flush_secs=5)
        if about.key is None:
            self.writer.add_text("config", _code(json.dumps(plain(about.config), indent=1)))
        return "files"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # before it counts as told: a kill loses nothing, and nothing is written twice

    def table(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table in Markdown, the text `completions`."""
        head = "| " + " | ".join(COLUMNS) + " |\n" + "| --- " * len(COLUMNS) + "|\n"
        lines = ["| " + " | ".join(_markdown(row.get(c)) for c in COLUMNS) + " |" for row in rows]
        self.writer.add_text("completions", head + "\n".join(lines), step)
        self.writer.flush()

    def warning(self, step: int, rule: str, text: str) -> None:
        """Write a text under the rule's name."""
        self.writer.add_text(f"warnings/{rule}", text, step)
        self.writer.flush()

    def finish(self, status: str) -> None:
        """Close the file."""
        self.writer.close()


class WeightsAndBiases:
    """A run in the folder RUN/wandb, offline unless WANDB_MODE says otherwise: `wandb sync RUN/wandb/offline-run-*`."""

    def __init__(self) -> None:
        self.wandb = optional("wandb", "wandb", "log wandb")

    def start(self, about: RunAbout) -> str:
        """Begin the run, or go on with that of the same id."""
        key = about.key or secrets.token_hex(4)
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=key,
            name=about.folder.name,
            dir=str(about.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            config=plain(dict(about.config)),
            settings=self.wandb.Settings(silent=True, console="off"),
        )
        return key

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log them; wandb wants steps to rise, and those of an evaluation and of the next step are the same."""
        self.run.log(dict(values), step=step)

    def table(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table `completions`."""
        data = [[step, *(row.get(c) for c in COLUMNS)] for row in rows]
        self.run.log({"completions": self.wandb.Table(columns=["step", *COLUMNS], data=data)}, step=step)

    def warning(self, step: int, rule: str, text: str) -> None:
        """Raise an alert."""
        self.run.alert(title=rule, text=f"step {step}: {text}", level="WARN")

    def finish(self, status: str) -> None:
        """End the run; its exit code is 0 where it is done."""
        self.run.finish(exit_code=0 if status == "done" else 1)


class MLflow:
    """A run of the experiment `selfteach` at MLFLOW_TRACKING_URI, else in mlflow.db and mlartifacts beside the run's
    folder: `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db`. In names, characters that MLflow refuses are
    written as _.
    """

    def __init__(self) -> None:
        self.mlflow = optional("mlflow", "mlflow", "log mlflow")
        self.entities = optional("mlflow.entities", "mlflow", "log mlflow")

    def start(self, about: RunAbout) -> str:
        """Begin the run, or set that of the key running again."""
        beside, given = about.folder.resolve().parent, os.environ.get("MLFLOW_TRACKING_URI")
        self.client = self.mlflow.MlflowClient(tracking_uri=given or f"sqlite:///{beside / 'mlflow.db'}")
        if about.key is not None:
            self.key = about.key
            self.client.update_run(self.key, status="RUNNING")
            return self.key
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self.client.get_experiment_by_name(name)
        files = None if given else (beside / "mlartifacts").as_uri()
        number = experiment.experiment_id if experiment else self.client.create_experiment(name, files)
        self.key = str(self.client.create_run(number, run_name=about.folder.name).info.run_id)
        config = plain(dict(about.config))
        self.client.log_dict(self.key, config, "config.json")
        settings = {"method": config["method"].get("name"), "task": config.get("task"), "model": config.get("model")}
        settings |= config.get("settings") or {}
        parameters = [self.entities.Param(_plain_name(k), str(v)[:500]) for k, v in settings.items()]
        self.client.log_batch(self.key, params=parameters[:100])
        return self.key

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log them in one call."""
        now = int(1000 * time.time())
        metrics = [self.entities.Metric(_plain_name(name), value, now, step) for name, value in values.items()]
        self.client.log_batch(self.key, metrics=metrics)

    def table(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write an artifact completions/STEP.json, a table by columns."""
        table = {"columns": list(COLUMNS), "data": [[row.get(c) for c in COLUMNS] for row in rows]}
        self.client.log_dict(self.key, plain(table), f"completions/{step:06d}.json")

    def warning(self, step: int, rule: str, text: str) -> None:
        """Set a tag."""
        self.client.set_tag(self.key, f"warning.{rule}", f"step {step}: {text}"[:500])

    def finish(self, status: str) -> None:
        """End the run."""
        states = {"done": "FINISHED", "stopped": "KILLED"}
        self.client.set_terminated(self.key, states.get(status, "FAILED"))


class Trackio:
    """A run in trackio's own local store (TRACKIO_DIR): `trackio show --project selfteach`."""

    def __init__(self) -> None:
        self.trackio = optional("trackio", "trackio", "log trackio")

    def start(self, about: RunAbout) -> str:
        """Begin the run, or go on with that of the same name."""
        name = about.key or f"{about.folder.name}-{secrets.token_hex(3)}"
        self.run = self.trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=name,
            config=plain(dict(about.config)),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return name

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log them."""
        self.run.log(dict(values), step=step)

    def table(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Log a table `completions`."""
        frame = optional("pandas", "trackio", "log trackio").DataFrame([{c: r.get(c) for c in COLUMNS} for r in rows])
        self.run.log({"completions": self.trackio.Table(dataframe=frame)}, step=step)

    def warning(self, step: int, rule: str, text: str) -> None:
        """Log it as a text; an alert of trackio would print, and the run has said it."""
        self.run.log({f"warnings/{rule}": text}, step=step)

    def finish(self, status: str) -> None:
        """Write what waits."""
        self.run.finish()


TRACKERS: Mapping[str, Callable[[], Tracker]] = {
    "wandb": WeightsAndBiases,
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "trackio": Trackio,
    "jsonl": JsonLines,
}


def _plain_name(name: str) -> str:
    """A name with the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _code(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


def _markdown(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", "<br>")
