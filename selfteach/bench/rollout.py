"""The works of `bench rollout`: equal lengths beside the peers, uneven lengths, episodes of many turns, forks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..model.transformer import Config
from .roofline import rollout
from .systems import PRECISIONS, ours, own, peers
from .workloads import Options, Work, lengths, prompts

PARTS = ("fixed", "uneven", "turns", "forks")
WIDTHS, NEW = {"tiny": (64, 256)}, {"tiny": 128}  # and for others (16, 64), 64
PROMPT, WAVES = 32, 4
TURNS, DRAWN, SEEN, TRUNK, FORKS = 200, 8, 8, 1024, 16


def works(o: Options, folder: Path, c: Config) -> Iterator[Work]:
    """The works of a model, in the order of PARTS; equal and uneven lengths once per width.

    Rates count drawn tokens.
    """
    new, widths = NEW.get(o.model, 64), o.widths or WIDTHS.get(o.model, (16, 64))
    precisions = ours(o)
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
        yield Work(
            "fixed",
            f"{width} x {new} tokens after {PROMPT}",
            (*own("rollout", precisions, part="fixed"), *peers(o, folder)),
            {**base, "width": width},
            lambda number, width=width: {"round": number, "prompts": prompts(c.vocab, width, PROMPT, number)},
            {d: rollout(c, width, PROMPT, new, d) for d in PRECISIONS},
        )
    best = precisions[-1:]
    for width in widths if "uneven" in o.only else ():
        count = WAVES * width
        yield Work(
            "uneven",
            f"{count} sequences, {width} at once, of geometric lengths (mean {new // 3}, at most {new}), beside "
            "batches that wait for their longest",
            (*own("rollout", best, part="uneven"), *own("rollout", best, "fixed batches", part="batches")),
            {**base, "width": width, "slots": o.slots or width},
            lambda number, n=count: {
                "prompts": prompts(c.vocab, n, PROMPT, number),
                "lengths": lengths(n, new, number),
            },
        )
    if "turns" in o.only:
        width = min(16, *widths)
        yield Work(
            "turns",
            f"{width} episodes of {TURNS} turns, {DRAWN} tokens drawn and {SEEN} seen in each",
            tuple(own("rollout", best, part="turns")),
            {**base, "width": width, "turns": TURNS, "new": DRAWN, "length": PROMPT + TURNS * (DRAWN + SEEN)},
            lambda number: {
                "prompts": prompts(c.vocab, width, PROMPT, number),
                "seen": prompts(c.vocab, TURNS, SEEN, "seen", number),
            },
        )
    if "forks" in o.only:
        yield Work(
            "forks",
            f"a trunk of {TRUNK} tokens and {FORKS} forks of it, a token each",
            tuple(own("rollout", best, part="forks")),
            {**base, "width": FORKS, "slots": 2 * FORKS, "length": TRUNK + 8},
            lambda number: {"prompts": prompts(c.vocab, 1, TRUNK, number)},
        )
