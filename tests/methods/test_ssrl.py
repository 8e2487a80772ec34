"""SSRL by hand: the format score, the masked information, entropy-guided search."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from support.battery import Study, groups_of, of, same, same_gradient, with_weigh
from support.by_hand import token_gradient
from support.episodes import scripted_context, single_turn_group

from selfteach.core import Block, RolloutRequest, Sampling, Task
from selfteach.loop.episode import play
from selfteach.methods.ssrl import entropy_guided, query_uncertainty, search_format
from selfteach.rollout.search import RETRY


def episode(context: Any) -> Any:
    return asyncio.run(play(context, [RolloutRequest(Task("t", "Q: "))]))[0].episodes[0]


def form(text: str) -> float:
    return search_format(text=text).value


T, S, I, A = "<think>t</think>", "<search>q</search>", "<information>i</information>", "<answer>a</answer>"


@pytest.mark.parametrize(
    "text,value",
    [
        (T + A, 1 / 2),  # T 1, S 0: 1/2 * 1/1
        (T + S + I + T + A, 1.0),  # T 2, S 1: 1 * 2/2
        (T + S + I + A, 1 / 4),  # T 1, S 1: 1/2 * 1/2
        (T + S + I + S + I + A, 1 / 6),  # T 1, S 2: 1/2 * 1/3
        (T + S + I + T + S + I + A, 2 / 3),  # T 2, S 2: 1 * 2/3
        (T + S + I + T + S + I + T + A, 1.0),  # T 3, S 2
        (T + T + A, 1 / 2),  # T 2, S 0: 1 * 1/2
        (T * 3 + A, 1 / 3),
        (T * 3 + S + I + A, 2 / 3),  # T 3, S 1
        (T * 8 + A, 1 / 8),
        (f" {T}\n\n{A}\n", 1 / 2),  # space around and between is fine
        ("<think>two\nlines</think>" + A, 1 / 2),  # a thought may have lines
        (T + S + "<information>i\nj</information>" + T + A, 1.0),
        (T + "<search> q </search>" + I + T + A, 1.0),
        # what stands between tags is not looked at: T 1, S 0, and T 2, S 1
        (T + "so" + A, 1 / 2),
        (T + S + "\nI read: " + I + T + A, 1.0),
        (T + A + A, 1 / 2),  # nor are other tags in the middle
    ],
)
def test_well_formed_texts(text, value):
    assert form(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text,why",
    [
        ("", "does not run"),
        ("a", "does not run"),
        ("so " + T + A, "does not run"),
        (A, "does not run"),
        (T, "does not run"),
        (A + T, "does not run"),
        (T + A + T, "does not run"),
        (T + A + "end", "does not run"),
        (T * 9 + A, "more than 8 thoughts"),
        (T + "<answer></answer>", "empty"),
        (T + "<think> </think>" + A, "empty"),
        (T + "<answer>your answer</answer>", "placeholder"),
        ("<think>Your Thoughts here</think>" + A, "placeholder"),
        (T + "<search>your query</search>" + I + A, "placeholder"),
        (T + S + "<information>your information</information>" + A, "placeholder"),
        (T + "<search>a\nb</search>" + I + A, "more than one line"),
        (T + "<search>\na\n</search>" + I + A, "more than one line"),  # the lines of the tags count
        (T + S + A, "without its information"),
        (T + S + T + I + A, "without its information"),  # not at once
        (T + I + A, "without its information"),  # none was asked for
        (T + S + I + I + A, "without its information"),
        (T + "<search>q<search>r</search></search>" + I + A, "without its information"),
        ("<think>t<answer>a</answer></think>" + A, "does not run"),
        (T + "<answer>a", "does not run"),
        ("<think>t" + A, "does not run"),
        (T + "<b>" + A, "strange tags: b"),
        (T + "<plan>p</plan>" + A, "strange tags: plan"),
        (T + "<answer>a</think>", "does not run"),
    ],
)
def test_malformed_texts_score_zero_with_a_reason(text, why):
    got = search_format(text=text)
    assert got.value == 0.0 and why in got.why and got.error is None


@pytest.mark.parametrize(
    "text", [T + "so" + A, T + S + " " + I + "x" + A, T + "<think>t<think>u</think></think>" + A, T + "<think>u" + A]
)
def test_a_strict_score_refuses_text_between_tags_and_tags_that_are_open_or_nested(text):
    got = search_format(text=text, strict=True)
    assert form(text) > 0 and got.value == 0.0 and "text between" in got.why


def test_a_strict_score_is_the_same_for_what_is_closed():
    for text in (T + A, T + S + I + T + A, f" {T}\n\n{S} {I}{A}\n"):
        assert search_format(text=text, strict=True).value == form(text) > 0


def test_a_placeholder_counts_in_its_own_tag_alone():
    assert form("<think>your query is about t</think>" + A) == pytest.approx(1 / 2)


def test_the_largest_number_of_thoughts_is_a_hyper_parameter():
    assert form(T * 9 + A) == 0.0 and search_format(thoughts=9)(text=T * 9 + A).value == pytest.approx(1 / 9)


@pytest.mark.parametrize("with_tags,chances", [(False, (1 / 4, 1 / 8)), (True, (1 / 2, 1 / 4, 1 / 8, 1.0))])
def test_uncertainty_of_a_query_by_hand(tags, with_tags, chances):
    # A drawn chance of p per token gives -p log2 p: 1/2 -> 1/2, 1/4 -> 1/2, 1/8 -> 3/8, 1 -> 0. The tags do not count.
    async def main(*, request: RolloutRequest, rollout: Any) -> float:
        context = rollout.policy.begin(request.task.prompt)
        turn = await context.sample(stop=("</search>",))
        node = turn.at.node
        rows = slice(context.tree.begin[node], context.tree.stop(node))
        assert context.tree.size(node) == 5  # x <search> a b </search>
        context.tree._tokens["logp"][rows] = np.log([0.01, 1 / 2, 1 / 4, 1 / 8, 1.0])
        return await query_uncertainty(context, turn, with_tags)

    context = scripted_context(Block(main), ["x<search>ab</search>"], tags)
    e = episode(context)
    by_hand = {1 / 2: 1 / 2, 1 / 4: 1 / 2, 1 / 8: 3 / 8, 1.0: 0.0}
    assert e.why == "" and e.answer == pytest.approx(sum(by_hand[p] for p in chances) / len(chances), abs=1e-6)


def test_what_is_drawn_greedily_is_as_uncertain_as_at_temperature_1(tags):
    # Drawn greedily all queries have logp 0, and none rises above the one before. Scored anew: 1/8 -> 3/8, the first;
    # 1/2 and 1 -> 1/4, which falls: memory; 1/4 -> 1/2, which rises: the engine.
    outside, queries = list[str](), iter(["<search>a</search>", "<search>bc</search>", "<search>d</search>"])
    p = {"a": [1 / 8], "bc": [1 / 2, 1.0], "d": [1 / 4]}

    def reply(text: str, rng_key: int) -> str:
        return "<information>own</information>" if text.endswith("c</search>") else next(queries, "<answer>z</answer>")

    context = scripted_context(
        entropy_guided(turns=5),
        reply,
        tags,
        tools={"search": lambda q: outside.append(q) or "tool"},
        sampling=Sampling(temperature=0.0, max_tokens=200),
    )
    asked = list[tuple[str, str]]()

    async def score(model_role, before, ids, want):
        asked.append((tags.decode(before), tags.decode(ids)))
        query = asked[-1][1].removeprefix("<search>")
        return {"logp": np.concatenate([[np.log(0.01)], np.log(p[query])]).astype(np.float32)}

    context.engine.score = score
    e = episode(context)
    assert e.why == "" and e.answer == "z" and outside == ["a", "d"]
    assert asked[0][1] == "<search>a" and asked[1][0].endswith("<information>tool</information>")


def test_a_turn_without_a_query_has_no_uncertainty(tags):
    async def main(*, request: RolloutRequest, rollout: Any) -> float:
        context = rollout.policy.begin(request.task.prompt)
        return await query_uncertainty(context, await context.sample(stop=("</search>",)))

    for written in ("xy", "x<search></search>"):
        assert episode(scripted_context(Block(main), [written], tags)).answer == 0.0


@pytest.mark.parametrize(
    "chances,asked",
    [
        # -p log2 p: 0.5 -> .500, 0.9 -> .137, 0.25 -> .5, 0.1 -> .332, 0.36788 -> .531 (the most there is)
        ([0.9, 0.5, 0.1], [1, 2]),  # .137 first: outside; .500 rose: outside; .332 fell: memory
        ([0.5, 0.9, 0.1], [1, 3]),  # .500 first; .137 fell: memory; .332 rose over .137
        ([0.1, 0.1, 0.1], [1]),  # equal is not risen
    ],
)
def test_entropy_guided_uses_the_engine_where_uncertainty_rose(tags, chances, asked):
    outside = []
    queries = {"n": 0}

    def reply(text, rng_key):
        if text.endswith("</search>"):
            return "<information>own</information>"
        queries["n"] += 1
        return f"<search>{'abc'[queries['n'] - 1]}</search>" if queries["n"] <= len(chances) else "<answer>z</answer>"

    context = scripted_context(
        entropy_guided(turns=5), reply, tags, tools={"search": lambda q: outside.append(q) or "tool"}
    )
    generate = context.engine.generate

    async def with_chance(model_role, context, sampling, rng_key):
        done = await generate(model_role, context, sampling, rng_key)
        p = chances[min(queries["n"], len(chances)) - 1]
        return done._replace(logp=np.full(len(done.ids), np.log(p), np.float32))

    context.engine.generate = with_chance
    e = episode(context)
    assert e.why == "" and e.answer == "z"
    assert outside == ["abc"[n - 1] for n in asked]
    assert e.cost["calls"] == len(asked)
    assert e.cost["turns"] == 3 + (3 - len(asked)) + 1  # three queries, own memory for the others, the answer


def test_the_tags_of_a_query_are_not_what_its_uncertainty_is_of(tags):
    # Tags have the chance 1. The first query is one token of .5, the second two of .531 / 2: lower, though with both
    # tags it would be higher, .266 / 2 above .5 / 3
    outside, queries = list[str](), iter(["<search>a</search>", "<search>bc</search>", "<answer>z</answer>"])
    reply = lambda text, rng_key: "<information>own</information>" if text.endswith("</search>") else next(queries)  # noqa: E731
    tools = {"search": lambda q: outside.append(q) or "tool"}
    context = scripted_context(entropy_guided(), reply, tags, tools=tools)
    generate = context.engine.generate

    async def with_chances(model_role, context, sampling, rng_key):
        done = await generate(model_role, context, sampling, rng_key)
        p = [1.0, 0.5, 1.0] if len(done.ids) == 3 else [1.0, 0.1, 0.5, 1.0][: len(done.ids)]
        return done._replace(logp=np.log(np.resize(p, len(done.ids))).astype(np.float32))

    context.engine.generate = with_chances
    assert episode(context).answer == "z" and outside == ["a"]


def test_a_guided_episode_ends_at_an_answer_and_an_invalid_turn_is_answered(tags):
    ask, answer = "<search>q</search>", "<answer>z</answer>"
    tools = {"search": lambda q: "tool"}
    for replies, turns, got in (
        ([answer, ask], 1, "z"),
        (["no tags", answer], 2, "z"),
        ([ask, "no tags", answer], 3, "z"),
    ):
        e = episode(scripted_context(entropy_guided(), replies, tags, tools=tools))
        assert (e.why, e.cost["turns"], e.answer) == ("", turns, got)
    e = episode(scripted_context(entropy_guided(invalid=""), ["no tags", answer], tags, tools=tools))
    assert (e.cost["turns"], e.answer) == (1, None)


def test_guided_search_has_a_last_turn_for_the_answer(tags):
    stops: list[tuple[str, ...]] = []

    def reply(text: str, rng_key: int) -> str:
        if text.endswith("</search>"):
            return "<information>own</information>"
        return "<answer>z</answer>" if len(stops) > 3 else "<search>q</search>"

    context = scripted_context(entropy_guided(), reply, tags, tools={"search": lambda q: "tool"})
    generate = context.engine.generate

    async def noted(model_role, ids, sampling, rng_key):
        if "</information>" not in sampling.stop:
            stops.append(sampling.stop)
        return await generate(model_role, ids, sampling, rng_key)

    context.engine.generate = noted
    assert episode(context).answer == "z"
    assert stops == [("</search>", "</answer>")] * 4


@pytest.mark.parametrize("name", ["ssrl", "search_r1"])
def test_a_turn_that_is_neither_query_nor_answer_is_told_so(tags, name):
    program = of(name).decode["search"]
    assert program.hyper_parameters["invalid"] == RETRY
    seen: list[str] = []

    def reply(text: str, rng_key: int) -> str:
        seen.append(text)
        return "well" if len(seen) == 1 else "<answer>z</answer>"

    e = episode(scripted_context(program, reply, tags, tools={"search": lambda q: "tool"}))
    assert e.answer == "z" and seen[1] == "Q: well" + RETRY


def test_ssrl_searches_in_three_turns_at_most_before_the_last():
    for name in ("search", "entropy_guided"):
        assert of("ssrl").decode[name].hyper_parameters["turns"] == 3


def test_the_loss_is_a_mean_over_tokens_with_a_dual_clip():
    # Rewards 0 and 1: A = (r - 1/2) / std, std over n - 1 = sqrt(1/2), so A = -/+ a, a = 0.5 / sqrt(0.5). Answers of 1
    # and 3 tokens: at ratio 1 the gradient of each token is -A / 4, of a mean over all tokens, not over answers.
    a = 0.5 / np.sqrt(0.5)
    group = [single_turn_group([(4,), (5, 6, 7)], [0.0, 1.0])]
    method = of("ssrl", beta=0.0)
    assert token_gradient(method, group, [-1.0] * 4) == pytest.approx([a / 4, -a / 4, -a / 4, -a / 4], abs=1e-6)
    # The ratio of the bad answer's token is 4, above the dual clip at 3: it has no gradient; at 2 it has 2 a / 4.
    assert token_gradient(method, group, [np.log(4) - 1, -1, -1, -1])[0] == 0.0
    assert token_gradient(method, group, [np.log(2) - 1, -1, -1, -1])[0] == pytest.approx(2 * a / 4, abs=1e-6)


def test_ssrl_without_format_reward_mask_and_kl_is_grpo():
    same(of("ssrl", format=0.0, mask=False, beta=0.0, verl=False), of("grpo"))
    same(of("ssrl", format=0.0, mask=False, beta=0.0), with_weigh(of("grpo"), "token_mean"))
    bare = of("ssrl", format=0.0, mask=False, beta=0.0, verl=False)
    differ = {place for place, _, _ in bare.diff(of("grpo", groups=48, rollouts=5))}
    decoders = {"decode.self", "decode.search", "decode.entropy_guided"}
    assert differ == {"program.main", "reward.0", "credit.0", "update.term.0", *decoders}  # dual=None, mask=() are said


@pytest.mark.parametrize("name", ["answer_only", "think_then_answer"])
def test_the_baselines_are_ssrl_with_another_program_and_exact_match_alone(name):
    same(of(name, beta=0.0), with_weigh(of("grpo"), "token_mean"))
    rows = {row[0] for row in of(name).diff(of("ssrl", mask=False))}
    decoders = {"decode.self", "decode.search", "decode.entropy_guided"}
    assert rows == {"program.main", "reward.0", "credit.0", *decoders}  # mask=() is said


def test_a_thinker_s_answer_ends_where_it_searches(tags):
    program = of("think_then_answer").stage.programs["main"]
    for written, answer in (("t</think><answer>z</answer>", "z"), ("t</think><search>q</search>", None)):
        e = episode(scripted_context(program, [written], tags))
        assert e.cost["turns"] == 1 and (e.answer == answer if answer else e.answer.endswith("<search>"))


def test_the_mask_removes_a_span_from_every_loss_term():
    study = {}
    for mask in (True, False):
        groups = groups_of()
        for g in groups:
            for e in g.episodes:
                for node in range(1, len(e.tree.parent)):
                    e.tree.mark(node, 0, 1, "information")  # the first token of every turn
        study[mask] = Study(of("ssrl", mask=mask), groups)
    turns = sum(len(e.tree.parent) - 1 for g in groups_of() for e in g.episodes)
    assert (
        study[False].batch.size("token") - study[True].batch.size("token")
        == turns
        == study[True].dropped["dropped/masked:information"]
    )
    assert set(study[True].batch.get("seq")) == set(study[False].batch.get("seq"))
    with pytest.raises(AssertionError):
        same_gradient(study[True], study[False])
