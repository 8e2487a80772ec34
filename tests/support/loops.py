"""A loop on the bandit task, and what is read off it."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from selfteach.core import (
    Method,
    registry,
)
from selfteach.core.task import TaskSource
from selfteach.loop import assemble
from selfteach.loop.run import Loop
from selfteach.model.catalog import StartModel
from support.models import mini


def bandit(**hyper_parameters: Any) -> Method:
    return registry.methods.get("bandit_reinforce")(**hyper_parameters)


def source() -> TaskSource:
    return registry.tasks.get("bandit")()


def loop_of(method: Method, letters: Any, where: TaskSource | None = None, **change: Any) -> Loop:
    given = {"steps": 50, "max_tokens": 5, "lr": 0.01, **change}
    return assemble.loop(
        method, where or source(), StartModel(mini(264), letters, False, {}), assemble.RunSettings(**given)
    )


def advance(loop: Loop, steps: int = 1) -> list[dict[str, Any]]:
    async def go() -> list[dict[str, Any]]:
        return [(await loop.advance())[0] for _ in range(steps)]

    return asyncio.run(go())


def weights_of(loop: Loop) -> dict[str, torch.Tensor]:
    return {n: p.clone() for n, p in loop.learner.weights("policy").items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
