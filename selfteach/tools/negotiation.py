"""Simple negotiation: two traders with five goods that they value differently; the one whose goods gain more in its own eyes wins.

The engine's rules as they are: ten turns or so, an offer stands until another is made or it is accepted, whoever rejected it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from .game import Chances, Game

BASE = {"Wheat": 5, "Wood": 10, "Sheep": 15, "Brick": 25, "Ore": 40}  # what each is worth to both about
LARGEST = 3  # of one good, in the offers of `moves` and `expert`


def opening(match: Any, seat: int) -> str:
    by = match.player(seat)
    goods = ", ".join(f"{n} {name} at {match.state['player_values'][by][name]}" for name, n in match.state["player_resources"][by].items())
    return f"negotiation, {('first', 'second')[seat]}. you have {goods}.\n"


def news(match: Any, seat: int, said: str) -> str:
    if not said:
        told = ""
    elif "[accept]" in said.lower():
        told = "they accept. "
    else:
        told = "they deny. " if "[deny]" in said.lower() else ""
    if standing(match, seat):
        told += f"they offer {_listed('offered_resources', match)} -> {_listed('requested_resources', match)}. "
    return told + options(match, seat) + "\n"


def options(match: Any, seat: int) -> str:
    return "you may [accept] [deny] [offer: ... -> ...]" if standing(match, seat) else "you may [deny] [offer: ... -> ...]"


def standing(match: Any, seat: int) -> bool:
    """True where the other's offer stands and this seat has what it asks."""
    offer = match.state["current_offer"]
    if not offer or offer["from_player"] == match.player(seat):
        return False
    have = match.state["player_resources"][match.player(seat)]
    return all(have[name] >= n for name, n in offer["requested_resources"].items())


def swaps(match: Any, seat: int) -> list[tuple[int, str, int, str]]:
    """(given, good, wanted, good): trades of up to LARGEST of one good for another that the seat can pay, no cheaper than fair."""
    have = match.state["player_resources"][match.player(seat)]
    out: list[tuple[int, str, int, str]] = []
    for (a, give), (b, want) in product(product(range(1, LARGEST + 1), BASE), repeat=2):
        if give != want and have[give] >= a and BASE[want] * b <= BASE[give] * a <= BASE[want] * b * 1.5:
            out.append((a, give, b, want))
    return out


def moves(match: Any, seat: int) -> list[str]:
    return ["[deny]", *(["[accept]"] if standing(match, seat) else []), *(_offer(*s) for s in swaps(match, seat))]


def expert(match: Any, seat: int) -> Chances:
    """A trader that takes whatever gains in its own eyes, and offers the fair trade that gains it most."""
    value = match.state["player_values"][match.player(seat)]
    if standing(match, seat):
        offer = match.state["current_offer"]
        gain = sum(value[g] * n for g, n in offer["offered_resources"].items()) - sum(value[g] * n for g, n in offer["requested_resources"].items())
        if gain > 0:
            return {"[accept]": 1.0}
    best = max(swaps(match, seat), key=lambda s: (value[s[3]] * s[2] - value[s[1]] * s[0], s), default=None)
    if best is None or value[best[3]] * best[2] <= value[best[1]] * best[0]:
        return {"[deny]": 1.0}
    return {_offer(*best): 1.0}


def _offer(a: int, give: str, b: int, want: str) -> str:
    return f"[offer: {a} {give} -> {b} {want}]"


def _listed(which: str, match: Any) -> str:
    return ", ".join(f"{n} {name}" for name, n in match.state["current_offer"][which].items())


GAME = Game("SimpleNegotiation", lambda module: module.SimpleNegotiationEnv(), opening, news, options, moves, expert)
