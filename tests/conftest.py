"""What the tests share: a cache of their own, small tokenizers and models, hand-made episodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfteach.core import Episode, Group, Part, Ref, Request, Sampling, Score, Task, Trajectory, Tree, registry
from selfteach.engine.scripted import ScriptedEngine
from selfteach.loop.table import Limits, Table
from selfteach.model import files
from selfteach.model.tokenizer import Tokenizer, make
from selfteach.model.transformer import Config, Transformer

BANDIT = Path(__file__).parent / "bandit.py"
TAGS = tuple(f"<{slash}{t}>" for t in ("think", "search", "information", "answer") for slash in ("", "/"))
MINI: dict[str, Any] = {"width": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "hidden": 48}


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One cache for all tests, so that a warm start is trained once; and one thread, so that bits are the same everywhere."""
    before = os.environ.get("SELFTEACH_CACHE")
    os.environ["SELFTEACH_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    yield
    os.environ.pop("SELFTEACH_CACHE")
    if before is not None:
        os.environ["SELFTEACH_CACHE"] = before


@pytest.fixture(scope="session")
def tags() -> Tokenizer:
    """Bytes, with the tags of a search kept whole."""
    return make(["ab"], TAGS, 256 + len(TAGS) + 1)


@pytest.fixture(scope="session")
def letters() -> Tokenizer:
    """Bytes alone: a tag is many tokens."""
    return make(["ab"], (), 257)


def mini(vocab: int, seed: int = 0, **shape: Any) -> Transformer:
    return Transformer(Config(vocab=vocab, **{**MINI, "max_length": 128, **shape})).initialise(seed)


@pytest.fixture(scope="session")
def mini_folder(tmp_path_factory: pytest.TempPathFactory, letters: Tokenizer) -> Path:
    """A very small model on disk, with a vocabulary of bytes."""
    folder = tmp_path_factory.mktemp("mini")
    files.save(folder, mini(264), letters)
    return folder


@pytest.fixture(scope="session", autouse=True)
def user_file() -> None:
    registry.load_file(BANDIT)


def table_of(program: Part, replies: Any, tokenizer: Tokenizer, *, logp: float = -0.5, length: int = 1024, **more: Any) -> Table:
    """A table with a scripted engine and one program."""
    engine = ScriptedEngine(replies, tokenizer, logp=logp, length=length)
    given: dict[str, Any] = {"members": ("policy",), "tools": {}, "sampling": Sampling(max_tokens=200), "limits": Limits(), **more}
    return Table(engine, tokenizer, programs={"main": program}, **given)


def told(episode: Episode, tokenizer: Tokenizer, trajectory: int = -1) -> str:
    """The whole text of a trajectory, prompt included."""
    leaf = episode.trajectories[trajectory].leaf
    return tokenizer.decode(episode.tree.id[episode.tree.places(leaf.node, leaf.offset)])


def spans(episode: Episode, tokenizer: Tokenizer, span: str) -> str:
    """The text of the tokens that carry a span, in the order of the arena."""
    tree = episode.tree
    return tokenizer.decode(tree.id[[tree.spans[s] == span for s in tree.span]])


def said_group(texts: Sequence[tuple[int, ...]], rewards: Sequence[float | None], key: str = "k", prompt: tuple[int, ...] = (1, 2, 3)) -> Group:
    """A group of one-turn episodes with given tokens and rewards."""
    episodes, scores = [], {}
    for n, (text, reward) in enumerate(zip(texts, rewards, strict=True)):
        tree = Tree()
        root = tree.add(-1, prompt)
        leaf = tree.add(root, text, chosen=True, logp=np.full(len(text), -1.0), version=0, sampling=Sampling())
        at = Ref(f"train/0/0/{key}/{n}", leaf)
        episodes.append(Episode(at.episode, tree, [Trajectory(at, "policy", key)]))
        scores[at] = Score(reward)
    return Group(Request(Task(key, "p"), len(texts), key=key), episodes, {"reward": scores}, key)
