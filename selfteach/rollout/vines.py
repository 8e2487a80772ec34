"""Episodes with vines: fresh continuations from the ends of steps, which tell what each state is worth and are never learned."""

from __future__ import annotations

import asyncio
from typing import Any

from ..core import Ref, Request, block
from ..core.text import cuts, last_between

SENTENCES = r"[.!?](?=\s|<)|\n+"


@block
async def vines(*, request: Request, cast: Any, k: int = 9, most: int = 6, ends: str = SENTENCES, stop: tuple[str, ...] = ("</answer>",)) -> str:
    """One turn; then `k` continuations from its beginning and from the end of each of its steps but the last (VinePPO, 2410.01679, section 4).

    ends  a pattern behind which a step ends: sentences and lines
    most  places at most; of more, as many are taken evenly, and the steps between are one

    A vine is closed with the role `vine` and learn None: judged (the reward `vine_values`) and never learned; it may be as long as a turn.
    Limits count vines like any turn: k (most + 1) + 1 must be within an episode's 64. Returns the turn's own answer.
    """
    context = cast.policy.begin(request.task.prompt)
    starts = [context.at]
    turn = await context.sample(stop=stop)
    context.close()
    places = cuts(context.pieces(turn), ends) if turn.text else []
    if len(places) > most:
        places = [places[(2 * i + 1) * len(places) // (2 * most)] for i in range(most)]
    starts += [Ref(turn.at.episode, turn.at.node, offset) for offset in places]
    grown = [context.fork(at) for at in starts for _ in range(k)]
    await asyncio.gather(*(vine.sample(stop=stop) for vine in grown))
    for vine in grown:
        vine.close(learn=None, role="vine")
    return last_between(turn.text, "answer", turn.text.strip())
