"""Games between two seats: each has its own context and trajectory; what it is paid stands in its notes."""

from __future__ import annotations

import math
from typing import Any

from ..core import Request, block

SEATS = ("first", "second")


@block
async def play(
    *, request: Request, cast: Any, first: str = "policy", second: str = "policy", rotate: bool = False, stop: tuple[str, ...] = ("]",)
) -> str:
    """Play the match of a task (the tool `match`); each seat is a member of the cast, or a player that needs no model (random, expert).

    rotate  change seats in half of the episodes, by lot
    stop    what ends a move

    The trajectory of a seat has its role (first, second), is compared within that (the group's key and the role), and is noted with `payoff`
    (the seats' sum to zero), `seat` (0 or 1) and `forfeit`. Only the policy's are learned. Returns win, draw or loss of `first`.
    """
    match = await cast.tool("match")(request.task)
    seated = (second, first) if rotate and cast.random("seats").random() < 0.5 else (first, second)
    lots = cast.random("players without a model")
    contexts: dict[int, Any] = {}
    while match.turn is not None:
        seat = match.turn
        if seated[seat] not in cast.members:
            match.move(match.chosen(seated[seat], seat, float(lots.random())))
            continue
        told = match.told(seat)
        if seat not in contexts:
            contexts[seat] = cast.member(seated[seat]).begin(_prompt(request, told))
        elif isinstance(request.task.prompt, str):
            contexts[seat].append(told)
        else:
            contexts[seat].say("user", told.strip())
        turn = await contexts[seat].sample(stop=stop)
        if turn.status == "limit":
            match.forfeit(seat, "its limit is spent")
        else:
            match.move(turn.text)
    for seat, context in contexts.items():
        context.note(payoff=match.payoffs[seat], seat=seat, forfeit=float(match.forfeited == seat))
        context.close(key=SEATS[seat], learn="main" if seated[seat] == "policy" else None, role=SEATS[seat])
    own = match.payoffs[0 if seated == (first, second) else 1]
    return "win" if own > 0 else "loss" if own < 0 else "draw"


@block
async def exploitability(*, request: Request, cast: Any, member: str = "policy", tool: str = "situations") -> str:
    """How little a player can be exploited in Kuhn poker: minus its exploitability in chips, exact, as the payoff of a game that is not played.

    The chance of a move is that of its text after what its seat was told, shared among the moves that are allowed there. Figured out once
    for all episodes of a table; `score` in an evaluation is the figure, which 0 would be an equilibrium's.
    """

    async def figure() -> float:
        found = await cast.tool(tool)(request.task)
        chances: dict[tuple[int, str], list[float]] = {}
        for at in found.situations:
            logp = [await _logp(request, cast, member, at.texts, move) for move in at.moves]
            chances.setdefault((at.seat, at.card), [0.0, 0.0])[at.called] = 1 / (1 + math.exp(logp[0] - logp[1]))
        return float(found.exploitability(chances))

    value = await cast.once(f"exploitability of {member}", figure)
    context = cast.member(member).begin(request.task.prompt)
    context.note(payoff=-value)
    context.close(learn=None)
    return f"{value:.4f}"


async def _logp(request: Request, cast: Any, member: str, texts: tuple[str, ...], move: str) -> float:
    """log P(move) after what a seat was told and said in turns."""
    context = cast.member(member).begin(_prompt(request, texts[0]))
    for own, told in zip(texts[1::2], texts[2::2], strict=True):
        context.append(own)
        if isinstance(request.task.prompt, str):
            context.append(told)
        else:
            context.say("user", told.strip())
    return float((await context.score(move))["logp"].sum())


def _prompt(request: Request, told: str) -> Any:
    """What a seat's context begins with: text, or a message where the task's own prompt was made one for the model."""
    return told if isinstance(request.task.prompt, str) else [{"role": "user", "content": told.strip()}]
