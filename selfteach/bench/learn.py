"""The works of `bench learn`: a batch of equal sequences beside the plain loops, and groups that share a long prompt
beside the same apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..model.transformer import Config
from .roofline import Need, learn
from .systems import PRECISIONS, ours, own, peers
from .workloads import Options, Work, sequences

PARTS = ("fixed", "trunks")
BATCH = {"tiny": (256, 32, 128)}  # sequences, prompt, learned tokens; for others:
OTHER = (16, 64, 192)
MICRO = {"tiny": 32}  # sequences in the plain loops' micro-batches; for others 4
SIBLINGS, LONGER = 8, 4


def works(o: Options, folder: Path, c: Config) -> Iterator[Work]:
    """The works of a model, in the order of PARTS.

    Rates count the tokens that had to be computed: a shared prompt once.
    """
    count, prompt, new = BATCH.get(o.model, OTHER)
    base = {"kind": "learn", "folder": str(folder), "vocab": c.vocab, "micro": MICRO.get(o.model, 4), "apart": False}
    precisions = ours(o)
    if "fixed" in o.only:
        for n in o.widths or (count,):
            need = learn(c, [(prompt, [new])] * n)
            yield Work(
                "fixed",
                f"{n} x {prompt + new} tokens, {new} of them learned",
                (*own("learn", precisions), *peers(o, folder)),
                {**base, "sequences": sequences(c.vocab, n, 1, prompt, new), "tokens": need.tokens},
                need=dict.fromkeys(PRECISIONS, need),
            )
    if "trunks" in o.only:
        groups, own_new = max(1, count // 4 // SIBLINGS), new // 2
        data = sequences(c.vocab, groups, SIBLINGS, LONGER * own_new, own_new)
        need = shared(c, data)
        yield Work(
            "trunks",
            f"{groups} groups of {SIBLINGS}, prompts of {LONGER * own_new}, answers of {own_new}: prompts shared, and "
            "each by itself",
            (*own("learn", precisions[-1:]), *own("learn", precisions[-1:], "apart", apart=True)),
            {**base, "sequences": data, "tokens": need.tokens},
            need=dict.fromkeys(PRECISIONS, need),
        )


def shared(c: Config, data: list[dict[str, Any]]) -> Need:
    """What sequences need where those of one group share their prompt."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for s in data:
        groups.setdefault(s["group"], []).append(s)
    return learn(c, [(len(g[0]["prompt"]), [len(s["response"]) for s in g]) for g in groups.values()])
