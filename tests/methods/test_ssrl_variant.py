"""SSRL with one piece exchanged: what changes, and what the programs of its variants play."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.episodes import full_text, scripted_context, spans
from support.loops import advance, equal, loop_of

from selfteach.core import BadValue, RolloutRequest, Task, registry
from selfteach.loop.episode import play
from selfteach.methods import ssrl, ssrl_variant
from selfteach.methods.ssrl import search_format
from selfteach.methods.ssrl_variant import format_with_found, search_again, search_written_by

SMALL: dict[str, Any] = {"groups": 4, "rollouts": 3}


def changed(**change: Any) -> dict[str, str | None]:
    """What a variant has in the place of what SSRL has."""
    return {place: there for place, _, there in ssrl(**SMALL).diff(ssrl_variant(**SMALL, **change))}


def test_as_it_stands_the_variant_is_ssrl() -> None:
    assert changed() == {}


def test_an_algorithm_brings_its_credit_and_update_and_as_many_answers() -> None:
    assert changed(algorithm="reinforce_pp") == {"credit.1": "norm(by='batch')", "groups": "12", "rollouts": "1"}
    dapo = changed(algorithm="dapo")
    assert dapo["select"] == "refill(rounds=4)" and dapo["credit.1"] == "drop_zero_variance_groups()"
    ppo = changed(algorithm="ppo")
    assert (ppo["groups"], ppo["rollouts"]) == ("12", "1") and ppo["credit.1"] == "gae(lam=1.0)"
    made = ssrl_variant(**SMALL, algorithm="ppo")
    assert [u.params for u in made.stage.updates] == [("critic",), ("policy",)]
    assert made.stage.updates[1] == ssrl(**SMALL).stage.updates[0]
    for algorithm in ("grpo", "dapo", "ppo", "reinforce_pp"):  # what it writes to itself is learned by none
        assert "mask=('information',)" in str(ssrl_variant(algorithm=algorithm).stage.credit[0])


def test_without_labels_the_vote_on_the_tests_questions_is_the_reward() -> None:
    found = changed(labels=False)
    assert found["select"] == "pool(size=400, held_out=True)" and "majority_vote" in str(found["reward.0"])
    assert "search_format" in str(found["reward.0"]) and found.keys() == {"select", "reward.0"}


def answer_and_text(block: Any, tokenizer: Any, *texts: str) -> tuple[str | None, str]:
    """(answer, the whole text) of an episode whose turns are these."""
    context = scripted_context(block, list(texts), tokenizer)
    found = asyncio.run(play(context, [RolloutRequest(Task("t", "Q: "))]))[0].episodes[0]
    return found.answer, full_text(found, tokenizer)


def test_what_thinks_again_may_change_its_answer(tags: Any) -> None:
    first, then = "<think>a</think><answer>Ulm</answer>", "or not</think><answer>Bonn</answer>"
    assert answer_and_text(search_again(), tags, first, then) == ("Bonn", f"Q: {first}<think>{then}")
    assert answer_and_text(search_again(), tags, first, "or not")[0] == "Ulm"  # it did not come to another
    assert answer_and_text(search_again(), tags, "no tags")[0] is None


def test_in_the_place_of_an_answer_it_thinks_once_more(tags: Any) -> None:
    longer = search_again(unanswered=True)
    first, then = "<think>a</think>", "b</think><search>q</search><answer>Bonn</answer>"
    for before in (first, ""):
        answer, text = answer_and_text(longer, tags, f"{before}<answer>Ulm</answer>", then)
        assert answer == "Bonn" and text == f"Q: {before}<think>{then}"  # nothing is left of the other answer
    assert answer_and_text(longer, tags, first)[0] is None


def test_a_frozen_copy_writes_the_information_from_all_that_is_said_before(tags: Any) -> None:
    def reply(text: str, rng_key: int) -> str:
        written = "the sea</information>" if text.endswith("<information>") else "<search>q</search>"
        return "<answer>a</answer>" if "</information>" in text else written

    context: Any = scripted_context(search_written_by(), reply, tags, model_roles=("policy", "provider"))
    found = asyncio.run(play(context, [RolloutRequest(Task("t", "Q: "))]))[0].episodes[0]
    assert found.answer == "a"
    information = "<information>the sea</information>"
    assert full_text(found, tags) == f"Q: <search>q</search>{information}<answer>a</answer>"
    assert spans(found, tags, "information") == information
    assert ("provider", "Q: <search>q</search><information>") in [(c[0], c[1]) for c in context.engine.calls]


def test_what_a_frozen_copy_writes_counts_in_the_format(tags: Any) -> None:
    def reply(text: str, rng_key: int) -> str:
        if "</information>" in text:
            return "<think>u</think><answer>a</answer>"
        return "the sea</information>" if text.endswith("<information>") else "<think>t</think><search>q</search>"

    context: Any = scripted_context(search_written_by(), reply, tags, model_roles=("policy", "provider"))
    group = asyncio.run(play(context, [RolloutRequest(Task("t", "Q: "))]))[0]
    leaf = group.episodes[0].trajectories[0].leaf
    # two thoughts and a search: 1; of the policy's own words alone it is a search without its information: 0
    assert format_with_found(path=context.path(leaf), context=context).value == 1.0
    assert search_format(text=context.text(leaf)).value == 0.0
    assert "format_with_found" in changed(provider="frozen")["reward.0"]


def test_another_model_is_taught_first_and_stands_still_while_the_policy_learns(letters: Any) -> None:
    spread = registry.blocks.get("spread")()
    method = ssrl_variant(groups=2, rollouts=3, provider="other", provider_steps=2, batch=3).replace(reward=(spread,))
    loop = loop_of(method, letters)
    kept = lambda name: {n: p.clone() for n, p in loop.learner.weights(name).items()}  # noqa: E731
    policy, provider = kept("policy"), kept("provider")
    assert equal(policy, provider)
    advance(loop, 2)
    assert equal(policy, kept("policy")) and not equal(provider, kept("provider"))
    provider = kept("provider")
    (metrics,) = advance(loop)
    assert metrics["stage"] == "main" and not equal(policy, kept("policy")) and equal(provider, kept("provider"))


def test_another_model_is_the_frozen_copy_but_for_its_weights() -> None:
    frozen, other = ssrl_variant(**SMALL, provider="frozen"), ssrl_variant(**SMALL, provider="other")
    assert [stage.name for stage in other.stages] == ["provider", "main"] and other.stages[0].until == 150
    assert other.stage == frozen.stage and other.models == frozen.models and other.decode == frozen.decode
    assert [str(other.eval_program(stage)) for stage in other.stages] == ["search_written_by()"] * 2
    given = ssrl_variant(**SMALL, provider="other", provider_model="a/path")
    assert given.stages == frozen.stages and given.weights["provider"].source == "a/path"
    assert ssrl_variant(**SMALL, provider="other", provider_steps=0).stages == frozen.stages
    with pytest.raises(BadValue, match="provider_model a/path is read with provider='other' alone"):
        ssrl_variant(provider_model="a/path")


def test_another_model_is_taught_before_labels_are_and_before_votes() -> None:
    made = ssrl_variant(**SMALL, provider="other", labels=False, labelled_steps=3)
    assert [(s.name, s.until) for s in made.stages] == [("provider", 150), ("labelled", 3), ("main", None)]
    paid = [" ".join(map(str, stage.reward)) for stage in made.stages]
    assert paid[0] == "" and "exact_match" in paid[1] and "majority_vote(" in paid[2]
    assert all("format_with_found" in text for text in paid[1:])
