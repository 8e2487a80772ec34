"""Composers that show the learner more than the path as it was: the same tokens after another prompt, a position after the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import Example, Group, Segment, block
from . import recipe


@block
def each_blind(
    *, groups: Sequence[Group], cast: Any, stream: str | tuple[str, ...] | None = None, mask: tuple[str, ...] = (), member: str | None = "policy"
) -> list[Example]:
    """`each`, with a view `blind` of every example: its prompt with nothing asked in it, so that `logp_blind` is what the tokens would
    have been worth to one who has not read the question. What a template puts around a question stays."""
    found = recipe.examples(groups, stream, mask, member)
    prompts = {e.id: g.request.task.prompt for g in groups for e in g.episodes}
    return [replace(x, views={**x.views, "blind": tuple(cast.tokenizer.blank(prompts[_episode(x)]).tolist())}) for x in found]


@block
def each_probed(
    *,
    groups: Sequence[Group],
    cast: Any,
    token: int | None = None,
    probe: str = "verify",
    stream: str | tuple[str, ...] | None = None,
    mask: tuple[str, ...] = (),
    member: str | None = "policy",
) -> list[Example]:
    """`each`, with one more token after every answer that ended by itself: a reserved one that nobody said, of the stream `probe`.

    Its log-probability there is a number that the policy can be taught to say of its own answer. token None: one that no text spells.
    The score `self_reward` (of the reward `probed`) is a column per seq, NaN where there is none; scores per token or step are NaN there.
    """
    reserved = cast.tokenizer.spare if token is None else token
    out: list[Example] = []
    for x in recipe.examples(groups, stream, mask, member):
        x = replace(x, given={"self_reward": ("seq", np.nan), **x.given})
        if not x.given["truncated"][1]:
            longer = {n: (unit, v if unit == "seq" else np.append(v, np.nan)) for n, (unit, v) in x.given.items()}
            x = replace(x, parts=(*x.parts, Segment((reserved,), probe)), given=longer)
        out.append(x)
    return out


def _episode(example: Example) -> str:
    return example.name.rsplit(":", 1)[0]
