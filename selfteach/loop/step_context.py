"""The context of a step's episodes: engine, tokenizer, tools, limits and trees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.blocks import Block
from ..core.contexts import PathView, own_tokens
from ..core.errors import unknown
from ..core.protocols import Engine
from ..core.scoring import Processes
from ..core.task import Ref, Sampling
from ..core.tree import Tree
from ..model.tokenizer import Tokenizer

Tool = Callable[[Any], Any]


@dataclass(frozen=True)
class EpisodeLimits:
    """Limits of an episode, which ends with the status `limit` where one is reached.

    tool_seconds  of one tool call;  characters: of one text that a tool or a task gives (loop/text_limit.py)
    """

    tokens: int = 4096
    turns: int = 64
    calls: int = 64
    seconds: float = 600.0
    tool_seconds: float = 30.0
    characters: int = 1 << 20


@dataclass
class StepContext:
    """What the episodes of one step share.

    programs        program name -> block
    where           words of the RNG key of its episodes, after the seed
    max_concurrent  episodes that run at once
    trees           episode id -> its tree
    find            gives the tree of an earlier step's episode, from the log
    shared          name -> a value that its episodes share (RolloutContext.once)
    processes       in which rewards are called that are; None: in this one
    stored          states of blocks as the step began, by their keys (core.blocks.state_key)
    """

    engine: Engine | None
    tokenizer: Tokenizer
    model_roles: tuple[str, ...]
    tools: Mapping[str, Tool]
    sampling: Sampling
    programs: Mapping[str, Block]
    seed: int = 0
    where: tuple[object, ...] = ("train", 0)
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    max_concurrent: int = 1024
    trees: dict[str, Tree] = field(default_factory=dict)
    find: Callable[[str], Tree] | None = None
    shared: dict[str, asyncio.Future[Any]] = field(default_factory=dict)
    processes: Processes | None = None
    stored: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def tree(self, episode: str) -> Tree:
        """The tree of an episode, of this step or an earlier one. Raises UnknownName where there is none."""
        if episode in self.trees:
            return self.trees[episode]
        if self.find is None:
            raise unknown("episode", episode, self.trees)
        return self.find(episode)

    def path(self, at: Ref) -> PathView:
        """The tokens from a root to a place, of this step or an earlier one."""
        tree = self.tree(at.episode)
        places = tree.places(at.node, at.offset)
        nodes = tree.path(at.node, at.offset)
        prompt = nodes[0][1] if tree.sampling[nodes[0][0]] < 0 else 0
        return PathView(
            tree.id[places],
            tree.action_mask[places],
            [tree.spans[s] for s in tree.span[places]],
            prompt,
            tree.logp[places],
        )

    def text(self, at: Ref) -> str:
        """What the policy itself wrote from after the prompt to a place: what rewards read."""
        path = self.path(at)
        return self.tokenizer.decode(path.ids[own_tokens(path)])

    def whole_text(self, at: Ref) -> str:
        """The text from after the prompt (the root) to a place, whoever wrote it: what programs read."""
        path = self.path(at)
        return self.tokenizer.decode(path.ids[path.prompt :])
