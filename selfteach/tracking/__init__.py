"""What a run logs, given besides to TensorBoard, Weights & Biases, MLflow, trackio or files of JSON lines.

    with tracked(["tensorboard"], folder, run_config.to_json(), show) as observer:
        carry_out(run_config, folder, observer)

Each tracker works in a thread of its own, so one that raises or hangs is named once and left behind by the run.
"""

from __future__ import annotations

from .feed import kept_names, tracked
from .tracker import RunAbout, Tracker
from .trackers import TRACKERS, resolve

__all__ = ["TRACKERS", "RunAbout", "Tracker", "kept_names", "resolve", "tracked"]
