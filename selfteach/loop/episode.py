"""Episodes: programs run with models and tools, and limits that end with a status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ..core.contexts import RolloutContext
from ..core.errors import EngineLost, describe, unknown
from ..core.task import RolloutRequest
from ..core.tree import Episode, RolloutGroup, Tree
from ..core.user_code import guarded
from .rollout_context import EpisodeContext
from .step_context import StepContext


async def play(
    step_context: StepContext,
    requests: Sequence[RolloutRequest],
    round_: int = 0,
    scored: Callable[[RolloutGroup], Awaitable[None]] | None = None,
) -> list[RolloutGroup]:
    """Run the episodes of some requests concurrently; `scored` is awaited for each group as it comes in.

    An episode whose program raises is kept with the status `error`, also where every episode would (an unknown model
    or tool, a bad prompt). Returns one group per request, in order. Raises UnknownName for an unknown program.
    """
    limit = asyncio.Semaphore(step_context.max_concurrent)

    async def group(number: int, request: RolloutRequest) -> RolloutGroup:
        name = "/".join(str(w) for w in step_context.where) + f"/{round_}/{number}"
        request = replace(request, key=request.key or name)
        episodes = [Episode(f"{name}/{i}", Tree()) for i in range(request.n)]
        await asyncio.gather(*(one(request, episode, (round_, number, i)) for i, episode in enumerate(episodes)))
        made = RolloutGroup(request, episodes, {}, str(request.key))
        if scored is not None:
            await scored(made)
        return made

    async def one(request: RolloutRequest, episode: Episode, place: tuple[object, ...]) -> None:
        step_context.trees[episode.id] = episode.tree
        program = step_context.programs.get(request.program)
        if program is None:
            raise unknown("program of this stage", request.program, step_context.programs)
        async with limit:
            rollout: RolloutContext = EpisodeContext(
                step_context, request, episode, (step_context.seed, *step_context.where, *place)
            )
            clock = asyncio.timeout(step_context.limits.seconds)
            try:
                async with clock:
                    episode.answer = await guarded(program(request=request, rollout=rollout))
            except EngineLost:
                raise  # nothing else will be sampled in this step
            except Exception as error:
                if isinstance(error, TimeoutError) and clock.expired():
                    episode.status, episode.why = (
                        "limit",
                        f"its time limit of {step_context.limits.seconds:g} s is reached",
                    )
                else:
                    episode.status, episode.why = "error", describe(error)

    return list(await asyncio.gather(*(group(n, r) for n, r in enumerate(requests))))
