"""Runs of a few steps on the bandit task, and whether two of them are the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from selfteach import api
from selfteach.configuration import RunConfig, plan
from selfteach.core import registry
from selfteach.core.method import Method
from selfteach.loop.log import read_events

BANDIT = Path(__file__).with_name("bandit.py")
STEPS = 12
OF_THE_MACHINE = ("time/", "engine/")
TIMED = ("seconds", "tokens_per_s", "first")  # of an event: what differs between two runs that are the same


def run_config_of(model: Path, method: Method | None = None, **change: Any) -> RunConfig:
    """A run of twelve steps with a checkpoint after each, in well under a second."""
    method = method or registry.methods.get("bandit_reinforce")(groups=4, rollouts=4)
    given = {
        "model": str(model),
        "steps": STEPS,
        "max_tokens": 5,
        "lr": 0.01,
        "eval_every": 2,
        "eval_tasks": 2,
        "checkpoint_every": 1,
        **change,
    }
    run_config = plan(method, "bandit", **given)
    return replace(
        run_config, final_eval=api.EvalConfig(tasks=2, pass_at_k_tasks=1, k=2, decoder_samples=1), use=(str(BANDIT),)
    )


def same_run(one: Path, other: Path) -> None:
    """Weights and optimiser bit for bit; the same metrics of every step."""
    for file in ("model.safetensors", "optimiser.safetensors"):
        a, b = load_file(one / "last" / file), load_file(other / "last" / file)
        assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a), file
    tales = []
    for run in (one, other):
        steps = [e for e in read_events(run / "log") if e["event"] in ("step", "eval", "final_eval")]
        tales.append(
            [{k: v for k, v in e.items() if not k.startswith(OF_THE_MACHINE) and k not in TIMED} for e in steps]
        )
    assert tales[0] == tales[1]
    apart = ("log", "log_hash", "made_by", "seconds")
    states = [json.loads((run / "last" / "state.json").read_text())["state"]["map"] for run in (one, other)]
    texts = {json.dumps([pair for pair in state if pair[0] not in apart]) for state in states}
    assert len(texts) == 1  # as text, where NaN equals NaN
