"""SPEC-RL: acceptance by enumeration, unbiased rollouts at lenience 1, and the token counts of a run."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support.episodes import full_text, scripted_context, single_turn_group
from support.models import mini
from support.runs import run_config_of, same_run

from selfteach import api
from selfteach.configuration import task_source
from selfteach.core import BadValue, Ref, Sampling, Task, Tree, random_keys, registry
from selfteach.core.protocols import Completion
from selfteach.core.task import RolloutRequest
from selfteach.engine.builtin import BuiltinEngine
from selfteach.engine.reference import draw
from selfteach.loop.episode import play
from selfteach.loop.log import read_events
from selfteach.loop.step_context import StepContext
from selfteach.methods.spec_rl import from_draft, revisit, same_draw

# Logits of three ids: the first token, then the second given the first. An answer is two tokens: nine of them.
THEN = np.array([[0.0, 0.2, 0.4], [0.7, 0.6, -0.3], [-0.9, 0.5, 0.9], [0.1, -0.2, 0.3]])
NOW = np.array([[0.3, -0.5, 0.9], [1.2, 0.1, -0.7], [-0.4, 0.8, 0.2], [0.5, -1.1, 0.6]])
ANSWERS = list(itertools.product(range(3), repeat=2))
PROMPT = "say"  # three bytes


def probabilities(context: np.ndarray) -> np.ndarray:
    """f64[9]: the probability of each answer."""
    p = np.exp(context) / np.exp(context).sum(1, keepdims=True)
    return np.array([p[0, a] * p[1 + a, b] for a, b in ANSWERS])


class Enumerable:
    """An engine over the bytes 0, 1, 2 whose policy is a context, so that the probability of every answer is known."""

    def __init__(self, context: np.ndarray):
        self.context, self.sampled = context, 0

    def _logits(self, ids: np.ndarray) -> np.ndarray:
        return self.context[0 if not len(ids) else 1 + ids[-1]]

    async def generate(self, model_role, context, sampling, at):
        ids, logp = list(context[len(PROMPT) :]), []
        assert sampling.max_tokens == 2 - len(ids), "what is left of an answer of two"
        new: list[int] = []
        while len(ids) < 2:
            token, lp = draw(self._logits(np.array(ids)), sampling, float(random_keys.uniform(at, len(new))))
            ids.append(token)
            new.append(token)
            logp.append(lp)
        self.sampled += len(new)
        return Completion(np.array(new, np.int32), np.array(logp, np.float32), "stop", 0, {})

    async def score(self, model_role, context, tokens, want=("logp",)):
        ids, out = list(context[len(PROMPT) :]), {"logp": [], "cdf_below": []}
        for token in tokens:
            z = self._logits(np.array(ids))
            p = np.exp(z) / np.exp(z).sum()
            out["logp"].append(np.log(p[token]))
            out["cdf_below"].append(p[:token].sum())
            ids.append(token)
        return {n: np.array(out[n]) for n in want}


def visit(engine, tokenizer, lenience, n, drafts=(), find=None, step=0, sampling=None):
    """One request of n episodes: their ids and Refs, the step's context, the group."""
    programs = {"main": same_draw(stop=()) if lenience == 1 else from_draft(lenience=lenience, stop=())}
    context = StepContext(
        engine, tokenizer, ("policy",), {}, sampling or Sampling(max_tokens=2), programs, where=("train", step)
    )
    context.find = find
    (group,) = asyncio.run(
        play(context, [RolloutRequest(Task("t", PROMPT), n, help={"shared_rng_key": "t/0", "drafts": drafts})])
    )
    assert {e.status for e in group.episodes} == {"done"}, group.episodes[0].why
    refs = [e.trajectories[0].leaf for e in group.episodes]
    paths = [context.path(r) for r in refs]
    return [tuple(p.ids[p.prompt :].tolist()) for p in paths], refs, context, group


def revisited(tokenizer, lenience, n):
    first, now = Enumerable(THEN), Enumerable(NOW)
    _, refs, old, _ = visit(first, tokenizer, lenience, n)
    ids, _, context, group = visit(now, tokenizer, lenience, n, refs, old.tree, step=1)
    return ids, now.sampled, context, group


N = 2000


def test_at_lenience_one_the_turn_is_a_sample_of_the_current_policy_at_the_same_uniforms(letters):
    ids, sampled, _, _ = revisited(letters, 1.0, 400)
    fresh, _, _, _ = visit(Enumerable(NOW), letters, 1.0, 400)
    assert ids == fresh and sampled < 0.6 * 800


def test_at_lenience_one_rollouts_have_the_current_policys_distribution(letters):
    ids, _, _, _ = revisited(letters, 1.0, N)
    count = Counter(ids)
    shares, want = np.array([count[y] / N for y in ANSWERS]), probabilities(NOW)
    assert (abs(shares - want) < 3.3 * np.sqrt(want * (1 - want) / N)).all()
    assert abs(want - probabilities(THEN)).max() > 0.08, "the policies differ by much more than that"


def by_the_papers_rule(lenience: float) -> np.ndarray:
    """f64[9]: the probability of each answer, by enumeration of drafts and of places of the first rejection."""
    soft = lambda z: np.exp(z) / np.exp(z).sum(-1, keepdims=True)  # noqa: E731
    then, now, out = soft(THEN), soft(NOW), dict.fromkeys(ANSWERS, 0.0)
    for (a, b), p in zip(ANSWERS, probabilities(THEN), strict=True):
        one = min(1.0, lenience * now[0, a] / then[0, a])
        two = min(1.0, lenience * now[1 + a, b] / then[1 + a, b])
        out[a, b] += p * one * two
        for y in ANSWERS:
            out[y] += p * (1 - one) * now[0, y[0]] * now[1 + y[0], y[1]]
            if y[0] == a:
                out[y] += p * one * (1 - two) * now[1 + a, y[1]]
    return np.array([out[y] for y in ANSWERS])


def test_the_papers_rule_is_biased_and_is_the_one_used_above_one(letters):
    """Draft (1/2, 1/2), now (.8, .2): a is accepted, b with probability .4, and the new sample is a with .8: .5 + .5 *
    .6 * .8 = .74, not .8.
    """
    assert 0.5 + 0.5 * (1 - min(1, 0.2 / 0.5)) * 0.8 == pytest.approx(0.74)
    bias = [abs(by_the_papers_rule(l) - probabilities(NOW)).sum() for l in (1.0, 1.6487, 1e9)]
    assert 0.02 < bias[0] < bias[1] < bias[2] and bias[2] == pytest.approx(
        abs(probabilities(THEN) - probabilities(NOW)).sum()
    )
    ids, _, _, _ = revisited(letters, 1.2, N)
    count, want = Counter(ids), by_the_papers_rule(1.2)
    assert all(abs(count[y] / N - w) < 3.3 * np.sqrt(w * (1 - w) / N) for y, w in zip(ANSWERS, want, strict=True))


def test_accepted_tokens_have_their_new_log_probability_and_are_not_sampled(letters):
    ids, sampled, context, group = revisited(letters, 1.0, 50)
    p, kept = probabilities(NOW), 0
    for y, e in zip(ids, group.episodes, strict=True):
        path = context.path(e.trajectories[0].leaf)
        assert path.action_mask[path.prompt :].all() and path.logp[path.prompt :].sum() == pytest.approx(
            np.log(p[ANSWERS.index(y)]), abs=1e-6
        )
        kept += 2 - int(e.cost.get("tokens", 0))
    assert 0 < kept == 100 - sampled


def test_a_real_engine_continues_after_the_accepted_part(letters):
    """Drafts of one model verified by another: token for token a new sample of that one at the same uniforms."""
    sampling, model_roles = Sampling(max_tokens=12), {"policy": ("policy",)}

    def engine(seed):
        import torch

        model = mini(264)
        with torch.no_grad():
            for i, p in enumerate(model.named_tensors().values()):
                p.add_(0.15 * seed * torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
        return BuiltinEngine({"policy": model}, dict.fromkeys(model_roles, "policy"), letters, slots=8)

    _, refs, old, _ = visit(engine(0), letters, 1.0, 24, sampling=sampling)
    ids, _, _, group = visit(engine(1), letters, 1.0, 24, refs, old.tree, step=1, sampling=sampling)
    fresh, _, _, _ = visit(engine(1), letters, 1.0, 24, sampling=sampling)
    assert ids == fresh
    notes = [n for e in group.episodes for n in e.tree.notes.values()]
    assert sum(n["kept"] for n in notes) > 0 and any(n["kept"] < n["draft"] for n in notes)
    again, _, _, last = visit(engine(0), letters, 1.0, 24, refs, old.tree, step=2, sampling=sampling)
    assert again == [tuple(old.path(r).ids[3:].tolist()) for r in refs], "under the same weights all of it is accepted"
    assert not any(e.cost.get("tokens") for e in last.episodes)
    status = [t.status for e in last.episodes for t in e.trajectories]
    assert status == ["length" if len(y) == 12 else "stop" for y in again]


def test_drafts_at_another_temperature_are_refused(letters):
    with pytest.raises(AssertionError, match="temperature 1"):
        _, refs, old, _ = visit(Enumerable(THEN), letters, 1.0, 1)
        visit(
            Enumerable(NOW), letters, 1.0, 1, refs, old.tree, step=1, sampling=Sampling(temperature=0.7, max_tokens=2)
        )
    with pytest.raises(AssertionError, match="must be 1"):
        visit(Enumerable(THEN), letters, 0.5, 1)
    with pytest.raises(BadValue):
        asyncio.run(
            from_draft(lenience=0.5)(
                request=RolloutRequest(Task("t", "p")), rollout=scripted_context(from_draft(), ["a"], letters)
            )
        )


def test_a_task_that_occurs_twice_in_a_step_has_two_rng_keys():
    source = task_source("bandit", {})

    def call(state, back):
        return revisit(n=5, rollouts=2, finished_rounds=back, source=source, seed=0, state=state, size=4)

    requests, state = call({"asked": 0, "last": {}}, [])
    assert len({r.help["shared_rng_key"] for r in requests}) == 5 and len({r.task.id for r in requests}) == 4
    assert state == {"asked": 5, "last": {}} and all(r.help["drafts"] == (None, None) for r in requests)


def test_the_drafts_of_a_visit_are_the_rollouts_of_the_last_and_none_for_more():
    source = task_source("bandit", {})
    given = {"n": 1, "source": source, "seed": 0, "size": 1}
    (request,), state = revisit(rollouts=2, finished_rounds=[], state={"asked": 0, "last": {}}, **given)
    group = single_turn_group([(5,), (6,)], [1.0, 0.0])._replace(request=request)
    assert revisit(rollouts=2, finished_rounds=[[group]], state=state, **given)[0] == []
    _, state = revisit(rollouts=2, finished_rounds=[[group]], state=state, **given)
    (request,), state = revisit(rollouts=3, finished_rounds=[], state=state, **given)
    assert request.help["drafts"] == (*[e.trajectories[0].leaf for e in group.episodes], None) and state["asked"] == 2
    (request,), _ = revisit(rollouts=3, finished_rounds=[], state={"asked": 128, "last": {}}, **{**given, "size": 128})
    plain = revisit(n=1, source=source, seed=0, rollouts=3, finished_rounds=[], state={"asked": 128, "last": {}})
    assert plain[0] == [request]  # a pool of 128 unless told otherwise: the 129th is the first of the second round


def test_a_run_counts_sampled_tokens_and_resumes_to_the_same_bits(mini_folder: Path, tmp_path: Path):
    method = registry.methods.get("spec_rl")(groups=4, rollouts=4, size=4, lenience=1.0)
    paid = registry.methods.get("bandit_reinforce")(groups=4, rollouts=4)
    method = method.replace(reward=paid.stage.reward, credit=paid.stage.credit)
    run_config = run_config_of(mini_folder, method, steps=4, eval_every=0)
    assert api.train(run_config, tmp_path / "whole").done
    steps = [e for e in read_events(tmp_path / "whole" / "log") if e["event"] == "step"]
    assert steps[0]["tokens/generated"] == steps[0]["tokens/sampled"]
    assert all(e["tokens/generated"] < e["tokens/sampled"] for e in steps[1:]) and all(
        e["policy/logprob_mismatch_mean"] < 1e-3 for e in steps
    )
    out = tmp_path / "again"

    def interrupt(event):
        if event["event"] == "step" and event["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.train(run_config, out, interrupt)
    assert api.train(run_config, out, resume=True).done
    same_run(tmp_path / "whole", out)


def test_a_draft_is_never_kept_up_to_the_middle_of_a_stop(letters):
    # The draft `x</ab` is rejected at `b`. What is left ends in `</a`, which may be the beginning of `</answer>`, so
    # that only `x` is kept; of `x</` + `y` the same, and `xy` is kept up to where it is rejected.
    for draft, kept in (("x</ab", 1), ("x</y", 1), ("xyz", 2), ("<b", 0)):
        tree = Tree()
        ids = letters.encode(draft)
        prompt = tree.add(-1, letters.encode(PROMPT))
        leaf = tree.add(prompt, ids, action_mask=True, logp=np.full(len(ids), -1.0), version=0, sampling=Sampling())
        table = scripted_context(from_draft(lenience=2.0), ["z</answer>"], letters, sampling=Sampling(max_tokens=20))
        table.find = {"old": tree}.__getitem__

        async def now(role, context, tokens, want):
            logp = np.full(len(tokens), -0.5)
            logp[-1] = -np.inf  # the last token of the draft cannot be drawn any more
            return {"logp": logp, "cdf_below": np.zeros(len(tokens))}

        table.engine.score = now
        (group,) = asyncio.run(
            play(table, [RolloutRequest(Task("t", PROMPT), 1, help={"drafts": (Ref("old", leaf),)})])
        )
        (episode,) = group.episodes
        assert episode.why == "" and full_text(episode, letters).startswith(PROMPT + draft[:kept] + "z</answer>")
        assert list(episode.tree.notes.values()) == [{"kept": kept, "draft": len(ids)}]
        assert table.engine.calls[0][2].max_tokens == 20 - kept
