"""Claims that were open and were measured again, with a warm start for each seed, under the same numbers of seeds.

Their first measurement had eight warm starts for all seeds, and seeds of one start count as one. Some of its runs are
in the second, too: those whose start is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .figures import counted
from .verdict import NOT_SHOWN, NOT_TESTED, SHOWN


class Earlier(NamedTuple):
    """What the first measurement was: its first seed, how many there were, and what it had come to."""

    first_seed: int
    seeds: int
    verdict: str


EARLIER: Mapping[str, Earlier] = {
    "bapo": Earlier(800, 8, SHOWN),
    "barl": Earlier(300, 12, SHOWN),
    "c3po": Earlier(400, 8, SHOWN),
    "chord_mu": Earlier(300, 12, NOT_SHOWN),
    "clip_delta": Earlier(400, 12, SHOWN),
    "gspo": Earlier(300, 24, SHOWN),
    "guide": Earlier(200, 16, NOT_SHOWN),
    "iter_research": Earlier(300, 12, NOT_TESTED),
    "kimi": Earlier(300, 16, NOT_SHOWN),
    "lead": Earlier(300, 12, NOT_SHOWN),
    "nlpo": Earlier(300, 12, SHOWN),
    "per_step_dpo": Earlier(500, 12, NOT_TESTED),
    "reseek": Earlier(200, 12, NOT_SHOWN),
    "rlpr": Earlier(300, 24, NOT_SHOWN),
    "sar": Earlier(500, 12, NOT_TESTED),
    "sec": Earlier(300, 24, SHOWN),
    "spa": Earlier(200, 12, NOT_SHOWN),
    "ssr_zero": Earlier(200, 12, NOT_SHOWN),
    "tempo": Earlier(200, 12, SHOWN),
    "temporal_self_rewarding": Earlier(400, 16, NOT_SHOWN),
}


def measured_before(r: Mapping[str, Any]) -> str:
    """What a result's claim had come to before, as a sentence; "": it was measured once under these seeds."""
    before = EARLIER.get(r.get("method", ""))
    if before is None or r["seeds"][0] != before.first_seed or "experiment" in r:
        return ""
    return (
        f"Measured twice from seed {before.first_seed} on: {counted(before.seeds, 'seed')} of 8 warm starts had come to"
        f" {before.verdict}."
    )


def second_measurements(results: Sequence[Mapping[str, Any]]) -> str:
    """How many claims were measured twice, and what that does to their verdicts, in words; "": none."""
    twice = [r for r in results if measured_before(r)]
    changed = sum(r["verdict"] != EARLIER[r["method"]].verdict for r in twice)
    if not twice:
        return ""
    return (
        f"{len(twice)} of the claims had been left open by seeds of eight warm starts, and were measured again, with a"
        f" start for each seed, under the same numbers: of {changed} the verdict is another now. Alpha was spent on the"
        " looks at the second measurement alone, so that these err somewhat more often than the others; their sections"
        " say what had been there before."
    )
