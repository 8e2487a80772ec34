"""An engine in other processes that is lost: the run ends with a checkpoint of before the step, and goes on from it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.loops import bandit, equal, loop_of, weights_of

from selfteach.core import registry
from selfteach.core.errors import EngineLost
from selfteach.loop.session import Session


class Lost:
    """An engine that is lost in the middle of a step, once."""

    def __init__(self, engine: Any, after: int) -> None:
        self.engine, self.left = engine, after
        self.capabilities = replace(engine.capabilities, remote=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def generate(self, *given: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise EngineLost("engine: no server answers for 60 s; start one, then resume")
        return await self.engine.generate(*given, **named)


def session(letters: Any, folder: Path, after: int | None) -> Session:
    made = loop_of(bandit(), letters, steps=6)
    if after is not None:
        made.engine = Lost(made.engine, after)
    return Session(made, registry.blocks.get("exact_match")(), folder, checkpoint_every=100)


def test_a_lost_engine_leaves_a_checkpoint_and_the_run_goes_on_to_the_same_weights(
    letters: Any, tmp_path: Path
) -> None:
    whole = session(letters, tmp_path / "whole", None)
    whole.open()
    asyncio.run(whole.run())
    drawn = sum(e.cost["turns"] for g in whole.loop.current_step[0] for e in g.episodes)
    first = session(letters, tmp_path / "run", int(drawn * 3.5))  # in the middle of the fourth step
    first.open()
    with pytest.raises(EngineLost, match="no server answers"):
        asyncio.run(first.run())
    assert (tmp_path / "run" / "last").resolve().name.endswith("3")
    again = session(letters, tmp_path / "run", None)
    assert again.open() and again.loop.state.step == 3
    asyncio.run(again.run())
    assert equal(weights_of(whole.loop), weights_of(again.loop))
