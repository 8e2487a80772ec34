"""Drafts: which tokens stay, by hand; that at lenience 1 a turn is one of the policy's own; and what a run counts."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import mini, table_of
from test_resume import job_of, same_run

from selfteach import api
from selfteach.core import BadValue, Sampling, Task, address, registry
from selfteach.core.protocols import Completion
from selfteach.core.task import Request
from selfteach.curriculum.select import revisit
from selfteach.engine.builtin import BuiltinEngine
from selfteach.engine.reference import draw
from selfteach.loop.episode import play
from selfteach.loop.log import read_events
from selfteach.loop.table import Table
from selfteach.rollout.drafts import from_draft, half_stopped

# Logits of three ids: the first token, then the second given the first. An answer is two tokens: nine of them.
THEN = np.array([[0.0, 0.2, 0.4], [0.7, 0.6, -0.3], [-0.9, 0.5, 0.9], [0.1, -0.2, 0.3]])
NOW = np.array([[0.3, -0.5, 0.9], [1.2, 0.1, -0.7], [-0.4, 0.8, 0.2], [0.5, -1.1, 0.6]])
ANSWERS = list(itertools.product(range(3), repeat=2))
PROMPT = "say"  # three bytes


def chances(table: np.ndarray) -> np.ndarray:
    """f64[9]: the chance of each answer."""
    p = np.exp(table) / np.exp(table).sum(1, keepdims=True)
    return np.array([p[0, a] * p[1 + a, b] for a, b in ANSWERS])


class Enumerable:
    """An engine over the bytes 0, 1, 2 whose policy is a table, so that all that it can say is known with its chance."""

    def __init__(self, table: np.ndarray):
        self.table, self.drawn = table, 0

    def _logits(self, said: np.ndarray) -> np.ndarray:
        return self.table[0 if not len(said) else 1 + said[-1]]

    async def generate(self, member, context, sampling, at):
        said, logp = list(context[len(PROMPT) :]), []
        new: list[int] = []
        while len(said) < 2:
            token, lp = draw(self._logits(np.array(said)), sampling, float(address.uniform(at, len(new))))
            said.append(token)
            new.append(token)
            logp.append(lp)
        self.drawn += len(new)
        return Completion(np.array(new, np.int32), np.array(logp, np.float32), "stop", 0, {})

    async def score(self, member, context, tokens, want=("logp",)):
        said, out = list(context[len(PROMPT) :]), {"logp": [], "cdf_below": []}
        for token in tokens:
            z = self._logits(np.array(said))
            p = np.exp(z) / np.exp(z).sum()
            out["logp"].append(np.log(p[token]))
            out["cdf_below"].append(p[:token].sum())
            said.append(token)
        return {n: np.array(out[n]) for n in want}


def visit(engine, tokenizer, lenience, n, drafts=(), find=None, step=0, sampling=None):
    """One request of n episodes; (ids said, Ref) of each."""
    programs = {"main": from_draft(lenience=lenience, stop=())}
    table = Table(engine, tokenizer, ("policy",), {}, sampling or Sampling(max_tokens=2), programs, where=("train", step))
    table.find = find
    (group,) = asyncio.run(play(table, [Request(Task("t", PROMPT), n, help={"lots": "t/0", "drafts": drafts})]))
    assert {e.status for e in group.episodes} == {"done"}, group.episodes[0].why
    refs = [e.trajectories[0].leaf for e in group.episodes]
    paths = [table.path(r) for r in refs]
    return [tuple(p.ids[p.prompt :].tolist()) for p in paths], refs, table, group


def revisited(tokenizer, lenience, n):
    first, now = Enumerable(THEN), Enumerable(NOW)
    _, refs, old, _ = visit(first, tokenizer, lenience, n)
    said, _, table, group = visit(now, tokenizer, lenience, n, refs, old.tree, step=1)
    return said, now.drawn, table, group


N = 2000


def test_at_lenience_one_the_turn_is_what_the_policy_of_now_says_at_the_same_uniforms(letters):
    said, drawn, _, _ = revisited(letters, 1.0, 400)
    fresh, _, _, _ = visit(Enumerable(NOW), letters, 1.0, 400)
    assert said == fresh and drawn < 0.6 * 800


def test_at_lenience_one_rollouts_are_distributed_as_fresh_ones(letters):
    said, _, _, _ = revisited(letters, 1.0, N)
    count = Counter(said)
    found, want = np.array([count[y] / N for y in ANSWERS]), chances(NOW)
    assert (abs(found - want) < 3.3 * np.sqrt(want * (1 - want) / N)).all()
    assert abs(want - chances(THEN)).max() > 0.08, "the policies differ by much more than that"


def by_the_papers_rule(lenience: float) -> np.ndarray:
    """f64[9]: the chance of each answer by enumeration over drafts and places of the first rejection, the rest drawn from NOW."""
    soft = lambda z: np.exp(z) / np.exp(z).sum(-1, keepdims=True)  # noqa: E731
    then, now, out = soft(THEN), soft(NOW), dict.fromkeys(ANSWERS, 0.0)
    for (a, b), p in zip(ANSWERS, chances(THEN), strict=True):
        one = min(1.0, lenience * now[0, a] / then[0, a])
        two = min(1.0, lenience * now[1 + a, b] / then[1 + a, b])
        out[a, b] += p * one * two
        for y in ANSWERS:
            out[y] += p * (1 - one) * now[0, y[0]] * now[1 + y[0], y[1]]
            if y[0] == a:
                out[y] += p * one * (1 - two) * now[1 + a, y[1]]
    return np.array([out[y] for y in ANSWERS])


def test_the_papers_rule_is_only_near_the_policy_and_is_what_is_done_above_one(letters):
    """Then (1/2, 1/2), now (.8, .2): a stays, b with chance .4, and what is drawn anew is a with .8: .5 + .5 * .6 * .8 = .74, not .8."""
    assert 0.5 + 0.5 * (1 - min(1, 0.2 / 0.5)) * 0.8 == pytest.approx(0.74)
    bias = [abs(by_the_papers_rule(l) - chances(NOW)).sum() for l in (1.0, 1.6487, 1e9)]
    assert 0.02 < bias[0] < bias[1] < bias[2] and bias[2] == pytest.approx(abs(chances(THEN) - chances(NOW)).sum())
    said, _, _, _ = revisited(letters, 1.2, N)
    count, want = Counter(said), by_the_papers_rule(1.2)
    assert all(abs(count[y] / N - w) < 3.3 * np.sqrt(w * (1 - w) / N) for y, w in zip(ANSWERS, want, strict=True))


def test_what_stays_is_learned_with_its_new_chance_and_costs_no_draw(letters):
    said, drawn, table, group = revisited(letters, 1.0, 50)
    p, kept = chances(NOW), 0
    for y, e in zip(said, group.episodes, strict=True):
        path = table.path(e.trajectories[0].leaf)
        assert path.chosen[path.prompt :].all() and path.logp[path.prompt :].sum() == pytest.approx(np.log(p[ANSWERS.index(y)]), abs=1e-6)
        kept += 2 - int(e.cost.get("tokens", 0))
    assert 0 < kept == 100 - drawn


def test_a_real_engine_draws_on_where_a_draft_is_left(letters):
    """Drafts of one model read by another: token for token what that one says afresh at the same uniforms."""
    sampling, members = Sampling(max_tokens=12), {"policy": ("policy",)}

    def engine(seed):
        import torch

        model = mini(264)
        with torch.no_grad():
            for i, p in enumerate(model.names().values()):
                p.add_(0.15 * seed * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
        return BuiltinEngine({"policy": model}, dict.fromkeys(members, "policy"), letters, slots=8)

    _, refs, old, _ = visit(engine(0), letters, 1.0, 24, sampling=sampling)
    said, _, _, group = visit(engine(1), letters, 1.0, 24, refs, old.tree, step=1, sampling=sampling)
    fresh, _, _, _ = visit(engine(1), letters, 1.0, 24, sampling=sampling)
    assert said == fresh
    notes = [n for e in group.episodes for n in e.tree.notes.values()]
    assert sum(n["kept"] for n in notes) > 0 and any(n["kept"] < n["draft"] for n in notes)
    again, _, _, last = visit(engine(0), letters, 1.0, 24, refs, old.tree, step=2, sampling=sampling)
    assert again == [tuple(old.path(r).ids[3:].tolist()) for r in refs], "under the same weights all of it stays"
    assert not any(e.cost.get("tokens") for e in last.episodes)
    status = [t.status for e in last.episodes for t in e.trajectories]
    assert status == ["length" if len(y) == 12 else "stop" for y in again]


def test_drafts_are_refused_where_their_chances_mean_something_else(letters):
    with pytest.raises(AssertionError, match="temperature 1"):
        _, refs, old, _ = visit(Enumerable(THEN), letters, 1.0, 1)
        visit(Enumerable(NOW), letters, 1.0, 1, refs, old.tree, step=1, sampling=Sampling(temperature=0.7, max_tokens=2))
    with pytest.raises(AssertionError, match="must be 1"):
        visit(Enumerable(THEN), letters, 0.5, 1)
    assert half_stopped("12</ans", ("</answer>",)) and not half_stopped("12</answer>", ("</answer>",)) and not half_stopped("12", ("</answer>",))
    with pytest.raises(BadValue):
        asyncio.run(from_draft(lenience=0.5)(request=Request(Task("t", "p")), cast=table_of(from_draft(), ["a"], letters)))


def test_a_task_that_is_twice_in_a_step_has_lots_of_its_own():
    source = api.source_of("bandit", {})
    call = lambda state, back: revisit(n=5, rollouts=2, back=back, source=source, seed=0, state=state, size=4)  # noqa: E731
    requests, state = call({"asked": 0, "last": {}}, [])
    assert len({r.help["lots"] for r in requests}) == 5 and len({r.task.id for r in requests}) == 4
    assert state == {"asked": 5, "last": {}} and all(r.help["drafts"] == (None, None) for r in requests)


def test_a_run_with_drafts_counts_what_was_drawn_and_resumes_to_the_same_bits(mini_folder: Path, tmp_path: Path):
    method = registry.methods.get("spec_rl")(groups=4, rollouts=4, size=4, lenience=1.0)
    paid = registry.methods.get("bandit_reinforce")(groups=4, rollouts=4)
    method = method.but(reward=paid.stage.reward, credit=paid.stage.credit)
    job = job_of(mini_folder, method, steps=4, eval_every=0)
    assert api.train(job, tmp_path / "whole").done
    steps = [e for e in read_events(tmp_path / "whole" / "log") if e["event"] == "step"]
    assert steps[0]["tokens/drawn"] == steps[0]["tokens/sampled"]
    assert all(e["tokens/drawn"] < e["tokens/sampled"] for e in steps[1:]) and all(e["gap/mean"] < 1e-3 for e in steps)
    out = tmp_path / "again"

    def interrupt(event):
        if event["event"] == "step" and event["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.train(job, out, interrupt)
    assert api.train(job, out, resume=True).done
    same_run(tmp_path / "whole", out)
