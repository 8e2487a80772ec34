"""Groups of answers in words, what a reward gives them, and an engine that scores tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from selfteach.core import (
    Episode,
    Ref,
    RolloutGroup,
    RolloutRequest,
    Sampling,
    Score,
    Task,
    Trajectory,
    Tree,
)
from selfteach.core.scoring import score
from selfteach.loop.step_context import StepContext
from selfteach.model.attention import causal_attention
from selfteach.model.tokenizer import Tokenizer
from support.battery import start
from support.episodes import single_turn_group


def answered(answers: Sequence[Any], gold: str, key: str = "k", **tags: Any) -> RolloutGroup:
    group = single_turn_group([(5 + i,) for i in range(len(answers))], [None] * len(answers), key)
    for episode, answer in zip(group.episodes, answers, strict=True):
        episode.answer = answer
    task = Task(key, "p", (gold,), tags=tags)
    return group._replace(request=replace(group.request, task=task), scores={})


def paid(part: Any, *groups: RolloutGroup, context: Any = None) -> list[Score]:
    found = asyncio.run(score(part, list(groups), context, 5.0))["reward"]
    return [found[t.leaf] for g in groups for e in g.episodes for t in e.trajectories]


def plain_logp(ids: Sequence[int]) -> np.ndarray:
    """Log-probability of each token but the first, by a forward pass of its own."""
    tokens = torch.tensor(list(ids))
    with torch.no_grad():
        model = start()
        logp = model.logits(model(tokens[None], causal_attention))[0].log_softmax(-1)
    return logp[torch.arange(len(tokens) - 1), tokens[1:]].numpy()


class Knows:
    """An engine that scores: what a function of the context's text says, for each token."""

    def __init__(self, tokenizer: Tokenizer, say: Callable[[str], Sequence[float]]):
        self.tokenizer, self.say, self.asked = tokenizer, say, list[tuple[str, str]]()

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str]
    ) -> dict[str, np.ndarray]:
        self.asked.append((self.tokenizer.decode(context), self.tokenizer.decode(tokens)))
        return {n: np.asarray(self.say(self.asked[-1][0]), np.float64) for n in want}


def answered_group(
    texts: Sequence[str], gold: str, tokenizer: Tokenizer, say: Any, status: str = "stop"
) -> tuple[RolloutGroup, StepContext, Knows]:
    """A group whose answers are these texts, and a context with an engine that scores."""
    engine = Knows(tokenizer, say)
    context = StepContext(engine, tokenizer, ("policy",), {}, Sampling(), {})  # type: ignore[arg-type]
    episodes = []
    for n, text in enumerate(texts):
        tree = Tree()
        ids = tokenizer.encode(text)
        leaf = tree.add(
            tree.add(-1, tokenizer.encode("q?")),
            ids,
            action_mask=True,
            logp=np.zeros(len(ids)),
            version=0,
            sampling=Sampling(),
        )
        context.trees[f"e{n}"] = tree
        answer = text.rsplit("<answer>", 1)[-1].removesuffix("</answer>").strip()
        episodes.append(Episode(f"e{n}", tree, [Trajectory(Ref(f"e{n}", leaf), "policy", "k", status=status)], answer))
    return (
        RolloutGroup(RolloutRequest(Task("k", "q?", (gold,)), len(texts), key="k"), episodes, {}, "k"),
        context,
        engine,
    )
