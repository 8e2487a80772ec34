"""Simple negotiation: two traders with five goods that they value differently; the larger gain in own value wins.

The engine's rules as they are: ten turns or so; an offer stays open until another is made or it is accepted, whoever
rejected it.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from .game import Game, MoveProbabilities

if TYPE_CHECKING:
    from .games import Match

BASE = {"Wheat": 5, "Wood": 10, "Sheep": 15, "Brick": 25, "Ore": 40}  # what each is worth to both, about
LARGEST = 3  # of one good, in the offers of `moves` and `expert`


def opening(match: Match, seat: int) -> str:
    """The seat, and its goods with their values to it."""
    player = match.player(seat)
    goods = ", ".join(
        f"{n} {name} at {match.state['player_values'][player][name]}"
        for name, n in match.state["player_resources"][player].items()
    )
    return f"negotiation, {('first', 'second')[seat]}. you have {goods}.\n"


def update(match: Match, seat: int, opponent_text: str) -> str:
    """What the opponent did, its offer where one is open, and what may be done."""
    if not opponent_text:
        text = ""
    elif "[accept]" in opponent_text.lower():
        text = "they accept. "
    else:
        text = "they deny. " if "[deny]" in opponent_text.lower() else ""
    if can_accept(match, seat):
        text += f"they offer {_goods('offered_resources', match)} -> {_goods('requested_resources', match)}. "
    return text + options(match, seat) + "\n"


def options(match: Match, seat: int) -> str:
    """The kinds of legal move, in words."""
    return (
        "you may [accept] [deny] [offer: ... -> ...]"
        if can_accept(match, seat)
        else "you may [deny] [offer: ... -> ...]"
    )


def can_accept(match: Match, seat: int) -> bool:
    """True where the opponent's offer is open and this seat has what it requests."""
    offer = match.state["current_offer"]
    if not offer or offer["from_player"] == match.player(seat):
        return False
    have = match.state["player_resources"][match.player(seat)]
    return all(have[name] >= n for name, n in offer["requested_resources"].items())


def swaps(match: Match, seat: int) -> list[tuple[int, str, int, str]]:
    """(count given, good, count wanted, good): trades of one good for another that the seat can pay.

    Up to LARGEST of each, at a base value of 1 to 1.5 times what is wanted.
    """
    have = match.state["player_resources"][match.player(seat)]
    out: list[tuple[int, str, int, str]] = []
    for (a, give), (b, want) in product(product(range(1, LARGEST + 1), BASE), repeat=2):
        if give != want and have[give] >= a and BASE[want] * b <= BASE[give] * a <= BASE[want] * b * 1.5:
            out.append((a, give, b, want))
    return out


def moves(match: Match, seat: int) -> list[str]:
    """Denying, accepting where that is possible, and the offers of `swaps`."""
    return ["[deny]", *(["[accept]"] if can_accept(match, seat) else []), *(_offer(*s) for s in swaps(match, seat))]


def expert(match: Match, seat: int) -> MoveProbabilities:
    """A trader that accepts whatever gains in its own value, and offers the fair trade that gains it most."""
    value = match.state["player_values"][match.player(seat)]
    if can_accept(match, seat):
        offer = match.state["current_offer"]
        gain = sum(value[g] * n for g, n in offer["offered_resources"].items()) - sum(
            value[g] * n for g, n in offer["requested_resources"].items()
        )
        if gain > 0:
            return {"[accept]": 1.0}
    best = max(swaps(match, seat), key=lambda s: (value[s[3]] * s[2] - value[s[1]] * s[0], s), default=None)
    if best is None or value[best[3]] * best[2] <= value[best[1]] * best[0]:
        return {"[deny]": 1.0}
    return {_offer(*best): 1.0}


def _offer(a: int, give: str, b: int, want: str) -> str:
    return f"[offer: {a} {give} -> {b} {want}]"


def _goods(which: str, match: Match) -> str:
    return ", ".join(f"{n} {name}" for name, n in match.state["current_offer"][which].items())


GAME = Game("SimpleNegotiation", lambda module: module.SimpleNegotiationEnv(), opening, update, options, moves, expert)
