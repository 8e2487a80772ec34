"""KnowRL (Kale and Dhami 2025, arXiv 2510.11407): a model learns what it can do from its agreement with itself.

It names tasks that it can do and tasks that it cannot; several judgements of each, of its own again, are rewarded for
agreeing. What is agreed on becomes an example of the next tasks.

    judgement: r = share of the majority where it says what the majority does, else 0
    task:      r = share of the majority where that says what the task was named for, else 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from ..core import (
    BadValue,
    Claim,
    Method,
    Questions,
    Ref,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Task,
    TaskSource,
    block,
    mechanism,
    method,
    outcome,
    premise,
    random_keys,
    stateful,
)
from ..core.answers import canonical, majority
from ..core.tagged_text import last_between
from ..curriculum.select import next_tasks
from ..rollout.single import single
from .rloo import rloo

LABELS = ("Feasible", "Infeasible")
PROPOSE = "propose"
NAME_ONE = "Name one more that is {label}.\n"
Votes = Literal["majority", "random"]


@method(family="selfreward", paper="2510.11407", catalogue=23)
def knowrl(
    groups: int = 16,
    rollouts: int = 8,
    proposals: int = 4,
    consensus: Votes = "majority",
    introspect: bool = True,
    examples: int = 2,
    bar: float = 0.75,
    seeds: int = 50,
    beta: float = 0.03,
) -> Method:
    """RLOO on tasks that the policy names as feasible or infeasible for it, and on its judgements of them.

        judgement  r_i = m / k where it says what the majority of the k judgements says, else 0;  m that majority
        task       r = m / k where the majority says what it was named for, else 0; 0 for what is no task

    Kale and Dhami 2025. Half of the `groups` prompts ask for tasks of each kind, `proposals` of each prompt, and show
    `examples` from a seed set of `seeds` of each kind and of what was agreed on since (a majority of at least `bar`
    that says what the task was named for). Each new task is judged `rollouts` times. introspect=False: the judgements
    are of the task's own questions, and nothing is named. consensus="random": a coin says what is rewarded, the
    control. Known from a description of the paper, not from code: the reward of a wrong judgement, the estimator
    (leave-one-out, with a KL) and `bar` are readings of it. The seed set, how a question is put and what is true of it
    come from the task (`TaskSource.questions`); the truth is read for metrics alone: reward/true (of a judgement),
    reward/named_true (of a task), reward/feasible (the share that says Feasible), reward/consensus.
    """
    return (
        rloo(groups=groups, rollouts=rollouts, beta=beta)
        .replace(
            select=name_and_judge(proposals=proposals, introspect=introspect, examples=examples, bar=bar, seeds=seeds),
            programs={"main": single(), PROPOSE: propose_task()},
            reward=(agreed_ability(consensus=consensus),),
        )
        .override(decode={"main": single()})
    )


@block
@stateful(lambda: {"asked": 0, "agreed": {label: [] for label in LABELS}})
def name_and_judge(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    step: int,
    state: dict[str, Any],
    proposals: int = 4,
    introspect: bool = True,
    examples: int = 2,
    bar: float = 0.75,
    seeds: int = 50,
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """Prompts for tasks of each kind in turns, then `rollouts` judgements of each task that they led to.

    A judged task's request has the key of the prompt's group as `cause` and its kind as the tag `named`; its tag `true`
    is what can be done in truth. Tasks that are no question of the source, that are tested, or named twice in a step
    are not judged. Raises BadValue for a source that cannot put new questions.
    """
    questions = source.questions
    if questions is None:
        raise BadValue(f"task {source.name}: cannot put new questions; take one that can, such as self_knowledge")
    if not introspect:
        if finished_rounds:
            return [], state
        count = n * proposals
        own = [_of_source(t) for t in next_tasks(source, seed, state["asked"], count)]
        return [RolloutRequest(task, rollouts) for task in own], {**state, "asked": state["asked"] + count}
    if not finished_rounds:
        requests: list[RolloutRequest] = []
        sets = {label: _seed_set(questions, label, seed, seeds) for label in LABELS}
        for i in range(n):
            label, draw = LABELS[i % 2], random_keys.generator(seed, step, "examples", i)
            pool = [*sets[label], *state["agreed"][label]]
            shown = [pool[int(k)] for k in draw.permutation(len(pool))[:examples]]
            prompt = "".join(f"{label}: {e}\n" for e in shown) + NAME_ONE.format(label=label)
            task = Task(f"name/{step}/{i}", prompt, (label,), tags={"category": PROPOSE})
            requests.append(RolloutRequest(task, proposals, PROPOSE))
        return requests, state
    if len(finished_rounds) == 1:
        return _new_tasks(questions, finished_rounds[0], rollouts), state
    agreed = {label: list(known) for label, known in state["agreed"].items()}
    for group in finished_rounds[1]:
        label, share = majority([e.answer for e in group.episodes])
        named = group.request.task.tags["named"]
        if (
            share >= bar
            and label == canonical(named)
            and (text := group.request.task.tags["question"]) not in agreed[named]
        ):
            agreed[named].append(text)
    return [], {**state, "agreed": agreed}


def _seed_set(questions: Questions, label: str, seed: int, seeds: int) -> list[str]:
    """The first `seeds` examples of a kind that the source composes."""
    out: list[str] = []
    for i in range(20 * seeds):
        made = questions.compose(random_keys.generator(seed, "seed set", i))
        out += [made.question] if made.answer == label else []
        if len(out) == seeds:
            break
    return out


def _new_tasks(questions: Questions, groups: Sequence[RolloutGroup], rollouts: int) -> list[RolloutRequest]:
    """Requests of judgements on the tasks that were named, each once."""
    out: dict[str, RolloutRequest] = {}
    for group in groups:
        (label,) = group.request.task.answer
        for episode in group.episodes:
            text = str(episode.answer or "")
            valid = questions.supported(text, (label,)) is not None and text not in questions.tested
            if valid and text not in out:
                out[text] = _judging(questions, text, label, rollouts, group.key)
    return list(out.values())


def _of_source(task: Task) -> Task:
    """A question of the source's own, with the tags of those that were named."""
    return replace(task, tags={**task.tags, "named": None, "question": task.id, "true": task.answer[0]})


def _judging(questions: Questions, text: str, named: str | None, rollouts: int, cause: str | None) -> RolloutRequest:
    """Judgements of one task."""
    true = next(label for label in LABELS if questions.supported(text, (label,)))
    tags = {"category": "judge", "named": named, "question": text, "true": true}
    return RolloutRequest(Task(f"judge/{text}", questions.prompt(text), (true,), tags=tags), rollouts, cause=cause)


@block
async def propose_task(*, request: RolloutRequest, rollout: RolloutContext) -> str | None:
    """One sampled turn that names a task in <question>...</question>; None where it does not."""
    context = rollout.policy.begin(request.task.prompt)
    turn = await context.sample(stop=("</question>",))
    context.close()
    return last_between(turn.text, "question", None)


@block
def agreed_ability(*, groups: Sequence[RolloutGroup], consensus: Votes = "majority") -> Scores:
    """The rewards of `knowrl`: of judgements by their majority, of tasks by whether it says what they were named for.

    An answer that is neither label has no vote and the reward 0. Of a tie nothing is the majority. consensus="random":
    a coin for each task stands for the majority.
    """
    if consensus not in ("majority", "random"):
        raise BadValue(f"agreed_ability: consensus must be majority or random, not {consensus!r}")
    known = {canonical(label): label for label in LABELS}
    out: dict[Ref, Score] = {}
    found: dict[str, tuple[str | None, float]] = {}
    judged = [g for g in groups if g.request.program != PROPOSE]
    for group in judged:
        tags = group.request.task.tags
        said = [known.get(canonical(e.answer)) for e in group.episodes]
        voted, share = majority(said, ties="none")
        label = known.get(voted)
        if consensus == "random":
            label = LABELS[random_keys.key("coin", group.key) % 2]
        found[tags["question"]] = label, share
        for episode, own in zip(group.episodes, said, strict=True):
            parts = {"consensus": share, "told": float(own is not None)}
            if own is not None:
                parts |= {"true": float(own == tags["true"]), "feasible": float(own == LABELS[0])}
            for t in episode.trajectories:
                out[t.leaf] = Score(share if own is not None and own == label else 0.0, parts)
    for group in [g for g in groups if g.request.program == PROPOSE]:
        (named,) = group.request.task.answer
        for episode in group.episodes:
            label, share = found.get(str(episode.answer), (None, 0.0))
            agreed = label == named
            parts = {"valid": float(label is not None), "consistent": float(agreed)}
            true = next(
                (g.request.task.tags["true"] for g in judged if g.request.task.tags["question"] == episode.answer), None
            )
            if true is not None:
                parts["named_true"] = float(true == named)
            for t in episode.trajectories:
                out[t.leaf] = Score(share if agreed else 0.0, parts)
    return {"reward": out}


knowrl.claim = Claim(
    (
        # judgements are mostly true, and so are their majorities
        premise("early:reward/true", "self", 0.6, by=0.0, fails_at=0.5),
        premise("accuracy", "gold", "start", by=0.2, fails_at=0.9),
        mechanism("late:reward/consensus", "self", "early:reward/consensus of self", by=0.2, fails_at=1.0),
        # both kinds are still there: it has not agreed on one
        mechanism("late:reward/feasible", "self", 0.25, by=0.0, fails_at=0.1),
        mechanism("late:reward/feasible", "self", 0.75, by=0.0, relation="<", fails_at=0.9),
        outcome("accuracy", "self", "start", by=0.2, fails_at=0.9),
        outcome("accuracy", "self", "random", by=0.2, fails_at=0.9),
        outcome("late:reward/consistent", "self", "early:reward/consistent of self", by=0.1, fails_at=1.0),
        # what is named by itself teaches as much as questions that are given
        outcome("accuracy", "self", "given", by=0.05, relation=">=", fails_at=1.0),
    ),
    arms={
        "gold": "grpo",
        "random": ("knowrl", {"consensus": "random"}),
        "given": ("knowrl", {"introspect": False}),
    },
    regime="self_knowledge",
    idea=("main.*", "decode.main"),
    first_seed=300,
    corrected="on seeds 200 to 207 it ran at 3e-4, before its regime's search for a learning rate: mechanism shown",
    because="judgements that agree with one another are more often true, and what is agreed on can be learned",
)
