"""What a file of a user's own can bring: quantities, a tool, a program, rewards; and which names are refused."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfteach.core import (
    BadValue,
    Method,
    RewardContext,
    RolloutContext,
    UnknownName,
    block,
    provides,
    quantity,
    registry,
)
from selfteach.core.contexts import ModelContext
from selfteach.core.protocols import Tokenizer
from selfteach.loop import assemble, method_on_task
from selfteach.model import catalog

FILE = '''
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from selfteach.core import (
    Column, GroupRows, Method, RewardContext, RolloutContext, RolloutGroup, RolloutRequest, Score, Scores, Seq, Stage,
    Term, Token,
    Update, block, method, quantity,
)
from selfteach.credit.composers import per_trajectory
from selfteach.curriculum.select import uniform
from selfteach.objective.loss_weights import token_mean

SEEN = {}


@quantity
def odds(*, logits: Tensor, ids: Tensor) -> Tensor:
    """The token's logit above the mean logit."""
    return logits.gather(-1, ids[:, None]).squeeze(-1) - logits.mean(-1)


@quantity
def group_share(*, rows: GroupRows, reward: Seq, seq: Token) -> Tensor:
    """A token's probability times its reward, as a share of the sum over its group."""
    p = rows.hidden.new_zeros(len(rows.ids))
    for at, logprobs in rows.chunks():
        p[at] = logprobs.gather(-1, rows.ids[at][:, None]).squeeze(-1).exp()
    return p * reward[seq] / (p * reward[seq]).sum()


@block
def reverser(*, suffix: str = "") -> Callable[[str], str]:
    """A tool: the query backwards."""
    return lambda query: query[::-1] + suffix


@block
async def ask_back(*, request: RolloutRequest, rollout: RolloutContext, tool: str = "reverser") -> str:
    """A turn, what a tool makes of the question, and another turn."""
    context = rollout.policy.begin(request.task.prompt)
    SEEN.update(rollout=rollout, model=context)
    await context.sample(max_tokens=2)
    context.append(await rollout.tool(tool)(request.task.prompt), span="observation")
    turn = await context.sample(max_tokens=2)
    context.close()
    return turn.text


@block
def long_text(*, group: RolloutGroup, context: RewardContext) -> Scores:
    """1 plus the share of the path's ids, with the observation's, that are even."""
    SEEN.update(rewards=context)
    leaves = [t.leaf for e in group.episodes for t in e.trajectories]
    whole = [context.tokenizer.decode(context.path(leaf).ids) for leaf in leaves]
    assert all("yas!" in text for text in whole) and context.tokenizer.encode("yas!").tolist()
    return {"reward": {leaf: Score(1.0 + float((context.path(leaf).ids % 2 == 0).mean())) for leaf in leaves}}


@block
def by_share(
    *, group_share: Token, ref_odds: Token, logp: Token, reward: Seq, group: Seq, seq: Token
) -> dict[str, Column]:
    """A token's share of its group, above the mean share."""
    SEEN.update(share=group_share, odds=ref_odds, logp=logp, reward=reward, group=group, seq=seq)
    return {"adv": Column("token", group_share - group_share.mean())}


@block
def raise_odds(*, odds: Token, adv: Token) -> Token:
    """-A times the quantity, whose gradient it has."""
    return -odds * adv


@method(family="test", paper="", catalogue=0)
def asks_back(groups: int = 2, rollouts: int = 3) -> Method:
    """Everything here at once."""
    update = Update(("policy",), (Term(raise_odds(), loss_weights=token_mean()),))
    stage = Stage(
        uniform(), {"main": ask_back()}, (long_text(),), (per_trajectory(), by_share()), (update,), "main",
        groups, rollouts,
    )
    return Method((stage,), tools={"reverser": reverser(suffix="!")})
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The file's module, whose names are forgotten after the test."""
    registry.load_all()
    for table in (registry.methods, registry.blocks, registry.quantities):
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    file = tmp_path / "asks.py"
    file.write_text(FILE)
    registry.load_file(file)
    yield sys.modules["selfteach_user_asks"]
    del sys.modules["selfteach_user_asks"]


def test_a_method_of_a_users_own_with_quantities_tool_and_program_trains(own: Any, mini_folder: Path):
    task = registry.tasks.get("bandit")()
    start = catalog.build(str(mini_folder), task)
    loop = assemble.loop(registry.methods.get("asks_back")(), task, start, assemble.RunSettings(steps=2, lr=1e-2))
    before = {n: p.clone() for n, p in loop.learner.weights("policy").items()}
    for _ in range(2):
        metrics, groups, batch = asyncio.run(loop.advance())
        assert batch is not None and metrics["policy/loss/raise_odds"] != 0 and metrics["policy/grad_norm"] > 0
        # of each episode: two turns by the policy, and between them say! backwards, which nobody learns
        assert metrics["tokens/learned"] == metrics["tokens/sampled"] == len(batch.place)
        assert {e.cost["calls"] for g in groups for e in g.episodes} == {1}
        seen = own.SEEN
        value = np.exp(seen["logp"]) * seen["reward"][seen["seq"]]
        group = seen["group"][seen["seq"]]
        for g in range(2):  # the group quantity, from the token's own log-probability
            assert seen["share"][group == g] == pytest.approx(value[group == g] / value[group == g].sum(), abs=1e-6)
        assert np.isfinite(seen["odds"]).all() and seen["odds"].std() > 0
    assert isinstance(seen["rollout"], RolloutContext) and isinstance(seen["model"], ModelContext)
    assert isinstance(seen["rewards"], RewardContext) and isinstance(seen["rewards"].tokenizer, Tokenizer)
    assert any(not np.array_equal(before[n], p) for n, p in loop.learner.weights("policy").items())


def test_what_a_quantity_may_name():
    with pytest.raises(UnknownName, match="no input of the quantity odd is called 'logitz'; did you mean logits"):

        @quantity
        def odd(*, logitz: Any) -> Any: ...

    with pytest.raises(BadValue, match="'ids' must be a named argument without a default"):

        @quantity
        def other(ids: Any) -> Any: ...


# ---- names are checked before any work


@block
def by_completions(*, completions: list[str]) -> float:
    """A reward as TRL writes it."""
    return float(len(completions))


@block
def by_worth(*, worth: Any) -> dict[str, Any]:
    """An assigner of a column that somebody must give."""
    return {"adv": worth}


@block
@provides("worth")
def gives_worth(*, groups: Any) -> list[Any]:
    """A composer of it."""
    return []


def changed(method: Method, **change: Any) -> Method:
    return replace(method, stages=(replace(method.stages[0], **change),))


def test_names_that_nobody_provides_are_refused_before_any_work():
    task, grpo = registry.tasks.get("bandit")(), registry.methods.get("grpo")()
    method_on_task.check(grpo, task)
    with pytest.raises(UnknownName, match="no input of the reward by_completions is called 'completions'"):
        method_on_task.check(changed(grpo, reward=(by_completions(),)), task)
    inner = registry.blocks.get("weighted")(parts=((1.0, by_completions()),))
    with pytest.raises(UnknownName, match="reward by_completions"):
        method_on_task.check(changed(grpo, reward=(inner,)), task)
    credit = grpo.stages[0].credit
    with pytest.raises(UnknownName, match="no column that the assigner by_worth can read is called 'worth'"):
        method_on_task.check(changed(grpo, credit=(*credit, by_worth())), task)
    method_on_task.check(changed(grpo, credit=(gives_worth(), *credit, by_worth())), task)
    (update,) = grpo.stages[0].updates
    term = replace(update.terms[0], fn=update.terms[0].fn.reading(adv="advantage"))
    with pytest.raises(UnknownName, match="no column that the term clipped_ratio can read is called 'advantage'"):
        method_on_task.check(changed(grpo, updates=(replace(update, terms=(term,)),)), task)
