"""Hand-made episodes and groups, and a context that plays programs against scripted replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from selfteach.core import Block, Episode, Ref, RolloutGroup, RolloutRequest, Sampling, Score, Task, Trajectory, Tree
from selfteach.engine.scripted import ScriptedEngine
from selfteach.loop.step_context import EpisodeLimits, StepContext
from selfteach.model.tokenizer import Tokenizer


def scripted_context(
    program: Block, replies: Any, tokenizer: Tokenizer, *, logp: float = -0.5, length: int = 1024, **more: Any
) -> StepContext:
    """A context with a scripted engine and one program."""
    engine = ScriptedEngine(replies, tokenizer, logp=logp, length=length)
    given: dict[str, Any] = {
        "model_roles": ("policy",),
        "tools": {},
        "sampling": Sampling(max_tokens=200),
        "limits": EpisodeLimits(),
        **more,
    }
    return StepContext(engine, tokenizer, programs={"main": program}, **given)


def full_text(episode: Episode, tokenizer: Tokenizer, trajectory: int = -1) -> str:
    """The whole text of a trajectory, prompt included."""
    leaf = episode.trajectories[trajectory].leaf
    return tokenizer.decode(episode.tree.id[episode.tree.places(leaf.node, leaf.offset)])


def spans(episode: Episode, tokenizer: Tokenizer, span: str) -> str:
    """The text of the tokens that carry a span, in the order of the arena."""
    tree = episode.tree
    return tokenizer.decode(tree.id[[tree.spans[s] == span for s in tree.span]])


def single_turn_group(
    texts: Sequence[tuple[int, ...]],
    rewards: Sequence[float | None],
    key: str = "k",
    prompt: tuple[int, ...] = (1, 2, 3),
) -> RolloutGroup:
    """A group of one-turn episodes with given tokens and rewards."""
    episodes, scores = [], {}
    for n, (text, reward) in enumerate(zip(texts, rewards, strict=True)):
        tree = Tree()
        root = tree.add(-1, prompt)
        leaf = tree.add(root, text, action_mask=True, logp=np.full(len(text), -1.0), version=0, sampling=Sampling())
        at = Ref(f"train/0/0/{key}/{n}", leaf)
        episodes.append(Episode(at.episode, tree, [Trajectory(at, "policy", key)]))
        scores[at] = Score(reward)
    return RolloutGroup(RolloutRequest(Task(key, "p"), len(texts), key=key), episodes, {"reward": scores}, key)
