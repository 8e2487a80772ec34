"""Runs on disk as the viewer finds them: made by the log's own writer, of hand-made episodes, without any training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from selfteach.core import Episode, Ref, RolloutGroup, RolloutRequest, Sampling, Score, Task, Trajectory, Tree
from selfteach.loop.log import RunLog
from selfteach.model.tokenizer import Tokenizer
from selfteach.viewer.run_index import ViewerData
from selfteach.viewer.server import ViewerServer
from support.servers import answering

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> </script><!-- ]]> "
    "\x1b[31mred\x1b[0m \u202eright to left\u202c \u0645\u0631\u062d\u0628\u0627 ${1+1} {{2}} &lt;b&gt;"
)


class LearnedTokens:
    """What the log keeps of a batch: names, lengths and advantages of its examples, learned by policy version 2; the
    gap is that of the first example alone.
    """

    def __init__(self, advantages: dict[str, Sequence[float]]) -> None:
        self.names, self._values = list(advantages), [list(v) for v in advantages.values()]
        self.columns = dict.fromkeys(("adv", "logprob_gap", "learner_version"))

    def lengths(self) -> np.ndarray:
        return np.array([len(v) for v in self._values])

    def get(self, name: str, unit: str = "token") -> np.ndarray:
        if name == "learner_version":
            return np.array([2])
        if name == "logprob_gap":
            rest = sum(map(len, self._values[1:]))
            return np.concatenate([np.linspace(-1e-6, 2e-6, len(self._values[0])), np.full(rest, np.nan)])
        return np.concatenate([np.array(v, np.float32) for v in self._values])


def episode_of(name: str, tokenizer: Tokenizer, prompt: str, response: str, version: int = 0) -> Episode:
    """An episode of a prompt and one sampled turn."""
    tree, ids = Tree(), tokenizer.encode(response)
    root = tree.add(-1, tokenizer.encode(prompt))
    logp = -np.linspace(0.1, 2.0, len(ids))
    turn = tree.add(root, ids, action_mask=True, logp=logp, version=version, sampling=Sampling(max_tokens=99))
    return Episode(name, tree, [Trajectory(Ref(name, turn), "policy", name.rpartition("/")[0])], response[:9])


def group_of(name: str, tokenizer: Tokenizer, task: str, prompt: str, responses: Sequence[str]) -> RolloutGroup:
    """A group whose episodes are rewarded 1, 0, 1, 0 ..."""
    made = [episode_of(f"{name}/{i}", tokenizer, prompt, text) for i, text in enumerate(responses)]
    scores = {
        e.trajectories[0].leaf: Score(float(i % 2 == 0), {"answer": float(i % 2 == 0)}, f"why {i}")
        for i, e in enumerate(made)
    }
    return RolloutGroup(RolloutRequest(Task(task, prompt, ("4",)), n=len(made)), made, {"reward": scores}, name)


def learned_of(groups: Sequence[RolloutGroup]) -> Any:
    """Every episode of some groups learned, with an advantage of +-0.5."""
    return LearnedTokens(
        {
            f"{e.id}:{e.trajectories[0].leaf.node}": [0.5 if i % 2 == 0 else -0.5] * int(e.tree.action_mask.sum())
            for g in groups
            for i, e in enumerate(g.episodes)
        }
    )


def step_event(step: int, **more: Any) -> dict[str, Any]:
    """The metrics of a step."""
    known = {
        "reward/mean": 0.3 + step / 100,
        "rollout/length_mean": 20 - step / 10,
        "policy/entropy_estimate": 0.5,
        "policy/grad_norm": 0.1,
        "tokens/sampled": 100,
        "tokens/total": 100 * (step + 1),
        "time/rollout_s": 1.0,
        "time/learn_s": 0.5,
        "time/step_s": 1.6,
        "tokens_per_s": 100.0,
        "stage": "main",
    }
    return {"step": step, "steps": 40, "first": 0, "seconds": 1.6, **known, **more}


def write_run(
    folder: Path,
    tokenizer: Tokenizer,
    steps: int = 4,
    seed: int = 0,
    responses: Sequence[str] = ("2 + 2 = 4", "5", "four", "<answer> 4</answer>"),
    done: bool = True,
    method: str = "grpo",
    prompt: str = "compute: 2 + 2 =\n",
) -> Path:
    """A run's folder with its configuration, tokenizer, log and rollouts; two groups in each step."""
    folder.mkdir(parents=True)
    config = {
        "format": 3,
        "method": {"name": method},
        "task": "chain_sum",
        "model": "tiny",
        "settings": {"seed": seed, "steps": 40},
        "warm": {"seed": seed},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "last").mkdir()
    tokenizer.save(folder / "last")
    log = RunLog(folder / "log")
    log.event("final_eval", when="start", step=0, figures={"greedy": 0.2, "accuracy": 0.1}, counts=COUNTS)
    for step in range(steps):
        groups = [
            group_of(f"train/{step}/{g}/0", tokenizer, f"train/{g}" if g else "train/same", prompt, responses)
            for g in range(2)
        ]
        log.rollouts(step, groups, learned_of(groups))
        log.event("step", **step_event(step))
        if step % 2:
            log.event("eval", step=step + 1, questions=50, samples=0, accuracy=0.5)
    if done:
        figures = {"before": {}, "after": {"accuracy": 0.6, "greedy": 0.7}, "steps": steps, "tokens": 400}
        (folder / "figures.json").write_text(json.dumps(figures))
    return folder


COUNTS = {"greedy": "10110", "questions": [0, 1, 2, 3, 4], "samples": 2}


@contextmanager
def viewing(folder: Path) -> Iterator[str]:
    """The address, with its token, of a page over a folder."""
    with answering(lambda port: ViewerServer(ViewerData([folder]), "token", port).application()) as address:
        yield f"{address}/?token=token"
