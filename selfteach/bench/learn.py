"""The workloads of `bench learn`: a batch of sequences of equal length beside plain loops in torch; groups that share a
long prompt, beside the same sequences with a prompt each.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..model.transformer import Config
from .roofline import Cost, learn
from .systems import PRECISIONS, peers, precisions, selfteach
from .workloads import Options, Workload, sequences

WORKLOADS = ("fixed", "shared_prefix")
BATCH = {"tiny": (256, 32, 128)}  # sequences, prompt tokens, response tokens
DEFAULT_BATCH = (16, 64, 192)
MICRO = {"tiny": 32}  # sequences in the plain loops' micro-batches; of other models 4
GROUP_SIZE = 8
PROMPT_RATIO = 4  # tokens of a shared prompt to those of a response


def workloads(o: Options, folder: Path, c: Config) -> Iterator[Workload]:
    """The workloads of a model, in the order of WORKLOADS.

    Rates count the tokens that had to be computed: a shared prompt once.
    """
    count, prompt, new = BATCH.get(o.model, DEFAULT_BATCH)
    base = {"kind": "learn", "folder": str(folder), "vocab": c.vocab, "micro": MICRO.get(o.model, 4), "separate": False}
    ours = precisions(o)
    if "fixed" in o.only:
        for n in o.widths or (count,):
            cost = learn(c, [(prompt, [new])] * n)
            yield Workload(
                "fixed",
                f"{n} x {prompt + new} tokens, {new} of them trained on",
                (*selfteach("learn", ours), *peers(o, folder)),
                {**base, "sequences": sequences(c.vocab, n, 1, prompt, new), "tokens": cost.tokens},
                costs=dict.fromkeys(PRECISIONS, cost),
            )
    if "shared_prefix" in o.only:
        groups, response = max(1, count // 4 // GROUP_SIZE), new // 2
        data = sequences(c.vocab, groups, GROUP_SIZE, PROMPT_RATIO * response, response)
        cost = shared_prefix_cost(c, data)
        yield Workload(
            "shared_prefix",
            f"{groups} groups of {GROUP_SIZE}, prompts of {PROMPT_RATIO * response}, responses of {response}: "
            "prompts shared, and separate",
            (*selfteach("learn", ours[-1:]), *selfteach("learn", ours[-1:], "separate prompts", separate=True)),
            {**base, "sequences": data, "tokens": cost.tokens},
            costs=dict.fromkeys(PRECISIONS, cost),
        )


def shared_prefix_cost(c: Config, data: list[dict[str, Any]]) -> Cost:
    """The cost of sequences where those of one group share their prompt."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for s in data:
        groups.setdefault(s["group"], []).append(s)
    return learn(c, [(len(g[0]["prompt"]), [len(s["response"]) for s in g]) for g in groups.values()])
