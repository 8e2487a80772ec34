"""A measurement of batch invariance: whether a sequence has the same bits in any batch on this machine."""

from __future__ import annotations

import numpy as np
import torch

from ..core import random_keys
from . import sampler
from .runner import Runner

SEQUENCES, COMPARED, LONGEST = 17, 3, 5  # number of sequences, index of the compared one, index of the longest


@torch.inference_mode()
def is_batch_invariant(runner: Runner) -> bool:
    """Whether a sequence gives the same bits alone as in a batch.

    Computes one sequence alone and whole, then in chunks among others, and compares hidden states, tokens and logp.
    """
    c = runner.model.config
    n, room = min(45, c.max_length), min(150, c.max_length)
    tokens = random_keys.generator("probe").integers(0, c.vocab, (SEQUENCES, room))

    one = runner.with_new_cache(4, n)
    first = one.forward(tokens, np.array([COMPARED]), np.array([0]), np.array([n]))[0][:n]

    many, start, parts = runner.with_new_cache(SEQUENCES, room), np.zeros(SEQUENCES, np.int64), []
    for a, b in zip([0, n // 4, n // 2, n - 1], [n // 4, n // 2, n - 1, n], strict=True):
        take = np.minimum(1 + (np.arange(SEQUENCES) + a) % 5, n - start)
        take[COMPARED], take[LONGEST] = b - a, 1 if a else room - 3
        live = np.flatnonzero(take > 0)
        hidden, last = many.forward(tokens, live, start[live], take[live])
        start[live] += take[live]
        row = int(last[live == COMPARED][0])
        parts.append(hidden[row - (b - a) + 1 : row + 1])
    second = torch.cat(parts)
    return torch.equal(first, second) and all(
        torch.equal(a, b) for a, b in zip(_final_draw(one, first, 8), _final_draw(many, second, 40), strict=True)
    )


def _final_draw(runner: Runner, hidden: torch.Tensor, rows: int) -> list[torch.Tensor]:
    """The draw after the last hidden state, in a batch of `rows` rows of which some are truncated."""
    r = np.arange(rows)
    _, wide = runner.logits(hidden, np.resize(np.roll(np.arange(len(hidden)), 1), rows))
    drawn = runner.draw(
        wide, np.full(rows, 0.9), np.where(r % 2, 5, 0), np.where(r % 3 == 1, 0.8, 1.0), np.full(rows, 0.5)
    )
    return [x[0] for x in (*drawn, sampler.tempered_logprobs(wide[: rows // 8 * 8], np.full(rows, 0.9)))]
