"""The workloads of `bench rollout`: equal lengths beside the peers, uneven lengths, multi-turn episodes, forks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..model.transformer import Config
from .roofline import rollout
from .systems import PRECISIONS, peers, precisions, selfteach
from .workloads import Options, Workload, lengths, prompts

WORKLOADS = ("fixed", "uneven", "turns", "forks")
WIDTHS, NEW = {"tiny": (64, 256)}, {"tiny": 128}  # of other models (16, 64) and 64
PROMPT, WAVES = 32, 4
TURNS, SAMPLED, OBSERVED, PREFIX, FORKS = 200, 8, 8, 1024, 16


def workloads(o: Options, folder: Path, c: Config) -> Iterator[Workload]:
    """The workloads of a model, in the order of WORKLOADS; equal and uneven lengths once per width.

    Rates count sampled tokens.
    """
    new, widths = NEW.get(o.model, 64), o.widths or WIDTHS.get(o.model, (16, 64))
    ours = precisions(o)
    base = {
        "kind": "rollout",
        "folder": str(folder),
        "prompt": PROMPT,
        "new": new,
        "slots": o.slots,
        "length": PROMPT + new,
        "wave": 64,
    }
    for width in widths if "fixed" in o.only else ():
        yield Workload(
            "fixed",
            f"{width} x {new} tokens after {PROMPT}",
            (*selfteach("rollout", ours, workload="fixed"), *peers(o, folder)),
            {**base, "width": width},
            lambda number, width=width: {"round": number, "prompts": prompts(c.vocab, width, PROMPT, number)},
            {d: rollout(c, width, PROMPT, new, d) for d in PRECISIONS},
        )
    best = ours[-1:]
    for width in widths if "uneven" in o.only else ():
        count = WAVES * width
        yield Workload(
            "uneven",
            f"{count} sequences, {width} at once, of geometric lengths (mean {new // 3}, at most {new}), beside "
            "static batches",
            (
                *selfteach("rollout", best, workload="uneven"),
                *selfteach("rollout", best, "static batches", workload="static_batches"),
            ),
            {**base, "width": width, "slots": o.slots or width},
            lambda number, n=count: {
                "prompts": prompts(c.vocab, n, PROMPT, number),
                "lengths": lengths(n, new, number),
            },
        )
    if "turns" in o.only:
        width = min(16, *widths)
        yield Workload(
            "turns",
            f"{width} episodes of {TURNS} turns, {SAMPLED} tokens sampled and {OBSERVED} observed in each",
            tuple(selfteach("rollout", best, workload="turns")),
            {**base, "width": width, "turns": TURNS, "new": SAMPLED, "length": PROMPT + TURNS * (SAMPLED + OBSERVED)},
            lambda number: {
                "prompts": prompts(c.vocab, width, PROMPT, number),
                "observations": prompts(c.vocab, TURNS, OBSERVED, "observations", number),
            },
        )
    if "forks" in o.only:
        yield Workload(
            "forks",
            f"a prefix of {PREFIX} tokens and {FORKS} forks of it, a token each",
            tuple(selfteach("rollout", best, workload="forks")),
            {**base, "width": FORKS, "slots": 2 * FORKS, "length": PREFIX + 8},
            lambda number: {"prompts": prompts(c.vocab, 1, PREFIX, number)},
        )
