"""ZeroSearch by hand: the schedule of noise, the simulator's lessons and prompt, F1, the real engine afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.agents import ANN, ULM, played
from support.battery import of

from selfteach.core import BadValue, Block, Document, RolloutRequest, Task, TaskSource
from selfteach.methods.zerosearch import (
    ever_noisier,
    noise_at,
    simulated,
    simulator_lessons,
    simulator_prompt,
    useful_searches,
)
from selfteach.rollout.search import search_agent


def engine(*, source: TaskSource):
    return lambda query: ULM


ENGINE = {"search": Block(engine)}


@pytest.mark.parametrize(
    "step,base,chance",
    [
        (0, 4.0, 0.25),
        (30, 4.0, 0.25 + 0.25 / 3),  # (4^0.5 - 1) / 3
        (60, 4.0, 0.5),
        (90, 4.0, 0.5),
        (30, 9.0, 0.25 + 0.25 / 4),  # (9^0.5 - 1) / 8
    ],
)
def test_noise_grows_slowly_at_first(step, base, chance):
    assert noise_at(step, 0.25, 0.5, 60, base) == pytest.approx(chance)
    stage = of("zerosearch", base=base, noise_steps=60, noise_start=0.25, noise_end=0.5, simulator_steps=7).stage
    source = TaskSource("t", lambda i: ANN, ())
    more = {"n": 2, "rollouts": 1, "finished_rounds": [], "source": source, "seed": 0, "step": 7 + step, "state": 0}
    requests, _ = stage.select(**more)
    assert [r.help["noisy"] for r in requests] == pytest.approx([chance] * 2)  # counted from the policy's first step


def test_a_base_of_one_has_no_curve():
    with pytest.raises(BadValue, match="base must be above 0 and not 1"):
        noise_at(0, 0.25, 0.5, 60, 1.0)
    given = {"n": 1, "rollouts": 1, "finished_rounds": [], "source": TaskSource("t", lambda i: ANN, ()), "seed": 0}
    requests, state = ever_noisier(**given, step=9, state=3, start=0.1, end=0.7, steps=6, base=2.0, after=3)
    assert requests[0].help["noisy"] == pytest.approx(0.7) and state == 4


@pytest.mark.parametrize("noisy,kind", [(0.0, "useful"), (1.0, "noisy")])
def test_the_simulator_is_told_what_to_write_and_writes_the_result(tags, noisy, kind):
    replies = ["<search>home of Ann</search>", f" {ULM}</search>", "<answer> Ulm</answer>"]
    program = search_agent(answerer=simulated(model_role="simulator", max_tokens=40), turns=3)
    request = RolloutRequest(ANN, key="t", help={"noisy": noisy})
    context, group = played(program, replies, tags, request=request, model_roles=("policy", "simulator"))
    role, prompt, sampling = context.engine.calls[1][:3]
    assert (role, sampling.max_tokens, sampling.temperature) == ("simulator", 40, 0.8)
    assert prompt == f"{kind}: question: what is the home of Ann? Ulm\nhome of Ann\n{kind}:"
    tree = group.episodes[0].tree
    path = tree.places(group.episodes[0].trajectories[0].leaf.node)
    said = tags.decode(tree.id[path])
    assert f"<information>{ULM}</information>" in said  # its tags are none of the agent's
    assert not tree.action_mask[path][[tree.spans[s] == "information" for s in tree.span[path]]].any()
    assert "calls" not in group.episodes[0].cost  # no engine was asked
    replies[1] = ULM
    _, group = played(program, replies, tags, request=request, model_roles=("policy", "simulator"))
    counted = {w: n for w, n in group.episodes[0].cost.items() if w.startswith("search/")}
    assert counted == {f"search/{kind}_gold": 1}  # what is written is what the scripted simulator says, in both cases


def test_lessons_have_what_was_found_and_what_is_related_and_useless():
    """The answer is the one that the demonstration found, which need not be right: it is to be copied, not known."""
    found = "<search>home of Ann</search><information>the home of Ann is Rome.</information><judge> Yes</judge>"
    demo = Task("d", f"{ANN.prompt}<think>", ("Ulm",), (f"x</think>{found}<answer> Rome</answer>",))
    others = [
        Task("m", "note\n", data=("nothing is searched",)),
        Task("w", ANN.prompt, ("Ulm",), (f"{found}<answer> Ulm</answer>",)),  # answers something else
        Task("e", ANN.prompt, ("Ulm",), (f"{found.replace('of Ann is', 'of Bob is')}<answer> Rome</answer>",)),
    ]
    texts = ["the guild of Ann is Smiths.", "the home of Ann is Bonn."]  # the second would answer the query too
    documents = [Document("Po", "a river."), *(Document("Ann", text) for text in texts)]
    source = TaskSource(
        "t", lambda i: ANN, (), demos=lambda i: others[i] if i < 3 else demo, corpus=lambda: documents, tools=ENGINE
    )
    begun = {"next": 0, "waiting": []}
    requests, state = simulator_lessons(n=4, finished_rounds=[], source=source, seed=0, state=begun)
    given = Task("t", ANN.prompt, ("Rome",))
    useful, noisy = (simulator_prompt(kind, given, "home of Ann") for kind in ("useful", "noisy"))
    want = [(useful, " the home of Ann is Rome."), (noisy, " the guild of Ann is Smiths.")] * 2
    assert [(r.task.prompt, r.task.data[0]) for r in requests] == want and state == {"next": 7, "waiting": []}
    with pytest.raises(BadValue, match="has no demonstrations whose documents"):
        simulator_lessons(n=1, finished_rounds=[], source=TaskSource("t", lambda i: ANN, ()), seed=0, state=begun)


def test_a_task_without_a_corpus_has_the_documents_of_its_demonstrations():
    """Rows with completions: the noisy document is what another demonstration found."""

    def demo(i: int) -> Task:
        found = ULM if i % 2 else "the guild of Bob is Smiths."
        query, answer = ("home of Ann", "Ulm") if i % 2 else ("guild of Bob", "Smiths")
        said = f"<search>{query}</search> <information>{found}</information><answer>{answer}</answer>"
        return Task(f"d{i}", "question: who?\n", (answer,), (said,))

    source, begun = TaskSource("rows", lambda i: ANN, (), demos=demo), {"next": 0, "waiting": []}
    requests, _ = simulator_lessons(n=2, finished_rounds=[], source=source, seed=0, state=begun)
    # the first lesson is useful, of Bob; the second noisy, in place of what was found of Ann
    assert [r.task.data[0] for r in requests] == [" the guild of Bob is Smiths."] * 2


def test_every_search_that_led_on_is_a_lesson_of_its_own_query():
    hop = "<search>home of Ann</search><information>the home of Ann is Ulm.</information>"
    vain = "<search>mayor Ulm</search><information>the river of Ulm is Po.</information>"
    then = "<search>mayor of Ulm</search><information>the mayor of Ulm is Bob.</information>"
    demo = Task("d", "question: who?\n", ("Bob",), (f"{hop}{vain}{then}<answer> Bob</answer>",))
    both = [("home of Ann", "the home of Ann is Ulm."), ("mayor of Ulm", "the mayor of Ulm is Bob.")]
    assert useful_searches(demo) == [("question: who?\n", "Bob", *lesson) for lesson in both]
    example = ("What?", f"{then}<answer> Bob</answer>")  # a chat model's examples are no searches of its own
    shown = [{"role": "assistant", "content": text} for text in example]
    chat = replace(demo, prompt=[*shown, {"role": "user", "content": "Who?"}])
    assert useful_searches(chat) == [("Who?", "Bob", *lesson) for lesson in both]
    source = TaskSource("t", lambda i: ANN, (), demos=lambda i: demo, corpus=lambda: [Document("Po", "a river.")])
    begun = {"next": 0, "waiting": []}
    requests, state = simulator_lessons(n=3, finished_rounds=[], source=source, seed=0, state=begun)
    assert [r.task.data[0] for r in requests] == [" the home of Ann is Ulm.", " a river.", " the home of Ann is Ulm."]
    more, _ = simulator_lessons(n=1, finished_rounds=[], source=source, seed=0, state=state)
    assert more[0].task.data[0] == " the mayor of Ulm is Bob."  # what was left of the second demonstration


def test_without_f1_a_long_answer_is_right_that_contains_the_gold_one():
    reward = of("zerosearch", f1=False).stage.reward[0]
    assert reward(answer="Rom or Ulm or Po", task=ANN) == 1.0 and reward(answer="Rom", task=ANN) == 0.0


def test_it_learns_from_the_simulator_and_is_measured_with_the_engine():
    method = of("zerosearch", turns=3, simulator_lr=1e-4, batch=5, beta=0.0)
    teach, learn = method.stages
    assert (teach.updates[0].params, teach.updates[0].lr, teach.groups) == (("simulator",), 1e-4, 5)
    assert "answerer=simulated()" in str(learn.programs["main"]) and learn.updates[0].params == ("policy",)
    assert "answerer" not in str(method.eval_program(learn)) and "turns=3" in str(method.eval_program(learn))
    assert learn.reward[0].name == "word_f1" and of("zerosearch", f1=False).stage.reward[0].name == "contains_gold"
