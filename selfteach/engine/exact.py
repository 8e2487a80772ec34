"""Whether this machine gives a sequence the same bits in whatever company it is computed: tried, not trusted."""

from __future__ import annotations

import numpy as np
import torch

from ..core import address
from . import sampler
from .runner import Runner

CROWD, MINE, LONG = 17, 3, 5  # sequences, the one compared, and one that is longer than the others


@torch.inference_mode()
def exact(runner: Runner) -> bool:
    """Compute one sequence alone and whole, then in chunks among others; True where hidden states, tokens and logp agree bit for bit."""
    c = runner.model.c
    n, room = min(45, c.max_length), min(150, c.max_length)
    tokens = address.generator("probe").integers(0, c.vocab, (CROWD, room))

    one = runner.fresh(4, n)
    first = one.forward(tokens, np.array([MINE]), np.array([0]), np.array([n]))[0][:n]

    many, start, parts = runner.fresh(CROWD, room), np.zeros(CROWD, np.int64), []
    for a, b in zip([0, n // 4, n // 2, n - 1], [n // 4, n // 2, n - 1, n], strict=True):
        take = np.minimum(1 + (np.arange(CROWD) + a) % 5, n - start)
        take[MINE], take[LONG] = b - a, 1 if a else room - 3
        live = np.flatnonzero(take > 0)
        hidden, last = many.forward(tokens, live, start[live], take[live])
        start[live] += take[live]
        mine = int(last[live == MINE][0])
        parts.append(hidden[mine - (b - a) + 1 : mine + 1])
    second = torch.cat(parts)
    return torch.equal(first, second) and all(torch.equal(a, b) for a, b in zip(_last(one, first, 8), _last(many, second, 40), strict=True))


def _last(runner: Runner, hidden: torch.Tensor, rows: int) -> list[torch.Tensor]:
    """What is drawn after the last place where `rows` rows are drawn at once, ours first and some of the others truncated."""
    r = np.arange(rows)
    _, wide = runner.logits(hidden, np.resize(np.roll(np.arange(len(hidden)), 1), rows))
    drawn = runner.draw(wide, np.full(rows, 0.9), np.where(r % 2, 5, 0), np.where(r % 3 == 1, 0.8, 1.0), np.full(rows, 0.5))
    return [x[0] for x in (*drawn, sampler.tempered(wide[: rows // 8 * 8], np.full(rows, 0.9)))]
