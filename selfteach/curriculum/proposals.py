"""Questions that the policy makes itself: proposed from an answer, filtered, checked, asked; and demonstrations of how to propose."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import BadValue, Group, Request, Source, Task, address, block, remembers
from .select import start

PROPOSE, CHECK, SOLVE = "propose", "check", "main"  # programs of the three rounds
KINDS = (PROPOSE, CHECK, CHECK, SOLVE, CHECK, SOLVE)  # of demonstrations, in turn
_FACT = re.compile(r"the (\w+) of (\w+) is (\w+)\.")
_QUESTION = re.compile(r"what is ((?:the \w+ of )+)(\w+)\?")
Facts = Mapping[tuple[str, str], str]  # (relation, subject) -> object


@block
@remembers(lambda: {"asked": 0, "pool": []})
def propose_check_solve(
    *,
    n: int,
    rollouts: int,
    back: list[list[Group]],
    source: Source,
    seed: int,
    step: int,
    state: dict[str, Any],
    check: bool = True,
    noise: int = 4,
    searches: int = 1,
    words: int = 4,
    fresh: int = 10,
) -> tuple[list[Request], dict[str, Any]]:
    """Three rounds in a step: n questions proposed, those that pass the rules checked, n asked of the solver (SSP, 2510.18821, section 3).

    Of a training task only the answer and the number of hops are used. A question is asked if the check, which answers from the proposer's
    own evidence among that of `noise` other proposals, comes to the answer (check=False: if it passes the rules). What is missing to n is
    filled with questions of earlier steps; these are forgotten every `fresh` steps. A question that the task tests is never asked.
    searches, words: the fewest that the rules let pass.  Solvers have the key of their proposer's group as
    `cause`, and whether the corpus bears their question out as the tag `true` (None: not a question that it can be asked).
    """
    if not back:
        tasks = [source.train(start(seed) + state["asked"] + i) for i in range(n)]
        asked = [_proposing(source, t, f"{step}/{i}") for i, t in enumerate(tasks)]
        pool = [] if step % fresh == 0 else state["pool"]
        return [Request(t, 1, PROPOSE) for t in asked], {"asked": state["asked"] + n, "pool": pool}
    last = back[-1][0].request.program
    if last == PROPOSE:
        tested = {_bare(t.prompt) for t in source.test}
        passed = [g for g in back[0] if passes(_said(g), g.request.task.answer, searches, words) and _said(g)["question"] not in tested]
        if check and passed:
            return [Request(_reading(source, g, back[0], noise, (seed, step)), 1, CHECK, cause=g.key) for g in passed], state
        return _solving(source, passed if not check else [], n, rollouts, state, (seed, step))
    if last == CHECK:
        held = {g.request.cause for g in back[-1] if _right(g)}
        return _solving(source, [g for g in back[0] if g.key in held], n, rollouts, state, (seed, step))
    return [], state


@block
@remembers(int)
def proposing(*, n: int, back: list[list[Group]], source: Source, seed: int, state: int, noise: int = 4) -> tuple[list[Request], int]:
    """Demonstrations from the task's own corpus, for a model too small to propose unasked: of six one of proposing, three of reading
    evidence, and two of the task's own demonstrations, without which a tiny model forgets how to search for an answer.

    A fact is searched for from its end ("home is Klitre"), its subject from there where two are asked for, and what was found is put as a
    question. Facts whose object has a fact of the same kind are left out, since that is what a search would find.
    """
    if back:
        return [], state
    facts, tested = facts_of(source), {_bare(t.prompt) for t in source.test}
    first: dict[tuple[str, str], str] = {}
    for (relation, subject), end in facts.items():
        if (relation, end) not in facts:
            first.setdefault((relation, end), subject)
    if not first:
        raise BadValue(f"proposing: the corpus of task {source.name} has no facts to make demonstrations of; use factworld")
    out: list[Request] = []
    for i in range(state, state + n):
        lap, place = divmod(i, len(KINDS))
        kind = KINDS[place]
        if kind == SOLVE and source.demos is not None:
            own = source.demos(lap * KINDS.count(SOLVE) + KINDS[:place].count(SOLVE))
            out.append(Request(replace(own, id=f"proposing/{i}")))
            continue
        draw, question, answer, evidence = address.generator(seed, "proposing", i), "", "", list[str]()
        while not question or question in tested:
            question, answer, evidence = _backwards(first, draw)
        if kind == CHECK:
            lent = [_backwards(first, draw)[2] for _ in range(noise)]
            lines = [*evidence, *(line for lines in lent for line in lines)]
            prompt, said = (
                reading(question, [lines[int(k)] for k in draw.permutation(len(lines))]),
                f"<think>{' '.join(evidence[::-1])} so it is {answer}.</think><answer> {answer}</answer>",
            )
        else:
            steps = (f"<search>{m[1]} is {m[3]}</search><information>{m[0]}</information>" for m in map(_FACT.fullmatch, evidence) if m)
            prompt, said = proposal(answer, len(evidence)), f"{''.join(steps)}<question> {question}</question>"
        out.append(Request(Task(f"proposing/{i}", _put(source, prompt), (answer,), (said,))))
    return out, state + n


def _backwards(first: Mapping[tuple[str, str], str], draw: np.random.Generator) -> tuple[str, str, list[str]]:
    """A question of one or two hops, its answer, and the facts that lead from the answer back: (relation, end) -> subject, the engine's first."""
    keys = list(first)
    answer = here = keys[int(draw.integers(len(keys)))][1]
    phrase, evidence = "", list[str]()
    for _ in range(int(draw.integers(1, 3))):
        relations = [r for r, end in keys if end == here]
        if not relations:
            break
        relation = relations[int(draw.integers(len(relations)))]
        evidence.append(_sentence(relation, first[relation, here], here))
        phrase, here = f"{phrase}the {relation} of ", first[relation, here]
    return f"what is {phrase}{here}?", answer, evidence


def _sentence(relation: str, subject: str, end: str) -> str:
    return f"the {relation} of {subject} is {end}."


def proposal(answer: str, hops: int) -> str:
    """How the policy is asked for a question."""
    return f"propose: {hops} hops to {answer}.\n"


def reading(question: str, evidence: Sequence[str]) -> str:
    """How a question is put to somebody who has the evidence before them."""
    return f"question: {question}\n<information>{' '.join(evidence)}</information>"


def passes(said: Mapping[str, Any], answer: Sequence[str], searches: int = 1, words: int = 4) -> bool:
    """The rules for a proposal: a question of 10 to 1000 characters and so many words that does not hold its answer; something was found, by
    enough queries, none of them twice (SSP, appendix; the paper's own bounds are 10 words and 2 searches)."""
    question, queries = said["question"], said["queries"]
    if question is None or not 10 <= len(question) <= 1000 or len(question.split()) < words:
        return False
    if any(a.lower() in question.lower() for a in answer):
        return False
    return bool(said["evidence"]) and len(queries) >= searches and len(set(queries)) == len(queries)


def facts_of(source: Source) -> dict[tuple[str, str], str]:
    """What the corpus says in its simplest sentence, `the home of Triva is Klitre.`"""
    found = (_FACT.fullmatch(d.text) for d in (source.corpus() if source.corpus else ()))
    return {(m[1], m[2]): m[3] for m in found if m}


def bears_out(facts: Facts, question: str, answer: Sequence[str]) -> bool | None:
    """Whether a question has this answer in the world of these facts; None for one that they cannot be asked.

    >>> bears_out({("home", "Ann"): "Ulm", ("mayor", "Ulm"): "Bo"}, "what is the mayor of the home of Ann?", ["Bo"])
    True
    """
    found = _QUESTION.fullmatch(question)
    if found is None:
        return None
    here: str | None = found[2]
    for relation in re.findall(r"the (\w+) of ", found[1])[::-1]:
        here = facts.get((relation, here or ""))
    return here in answer


def _proposing(source: Source, task: Task, name: str) -> Task:
    answer = tuple(task.answer)[:1]
    return Task(f"propose/{name}", _put(source, proposal(answer[0], int(task.tags.get("hops", 1)))), answer, tags={"category": "propose"})


def _reading(source: Source, group: Group, all_: Sequence[Group], noise: int, place: tuple[object, ...]) -> Task:
    """The question with its evidence and that of other proposals, shuffled."""
    draw = address.generator(*place, "evidence", group.key)
    others = [g for g in all_ if g.key != group.key and _said(g)["evidence"]]
    lent = [e for k in draw.permutation(len(others))[:noise] for e in _said(others[int(k)])["evidence"]]
    lines = [*_said(group)["evidence"], *lent]
    question = _said(group)["question"]
    shuffled = [lines[int(k)] for k in draw.permutation(len(lines))]
    return Task(f"check/{group.key}", _put(source, reading(question, shuffled)), group.request.task.answer, tags={"category": "check"})


def _solving(
    source: Source, valid: Sequence[Group], n: int, rollouts: int, state: dict[str, Any], place: tuple[object, ...]
) -> tuple[list[Request], dict[str, Any]]:
    """The solver's round: what is valid, filled up from the pool; the pool with what is new."""
    facts, pool = facts_of(source), list(state["pool"])
    fresh = [(_said(g)["question"], list(g.request.task.answer), g.key) for g in valid]
    draw = address.generator(*place, "refill")
    old = [(*pool[int(k)], None) for k in draw.permutation(len(pool))[: max(0, n - len(fresh))]]
    out: list[Request] = []
    for question, answer, cause in [*fresh, *old]:
        tags = {"category": "solve", "true": bears_out(facts, question, answer)}
        out.append(
            Request(Task(f"solve/{question}", _put(source, f"question: {question}\n"), tuple(answer), tags=tags), rollouts, SOLVE, cause=cause)
        )
    return out, {**state, "pool": [*pool, *([q, a] for q, a, _ in fresh)]}


def _said(group: Group) -> dict[str, Any]:
    answer = group.episodes[0].answer
    return answer if isinstance(answer, dict) else {"question": None, "queries": [], "evidence": []}


def _right(group: Group) -> bool:
    said = str(group.episodes[0].answer or "").strip().lower()
    return any(said == a.lower() for a in group.request.task.answer)


def _bare(prompt: Any) -> str:
    return prompt.strip().removeprefix("question: ") if isinstance(prompt, str) else ""


def _put(source: Source, text: str) -> Any:
    """Text, or a message where the task's own prompts were made messages for the model."""
    return text if isinstance(source.test[0].prompt, str) else [{"role": "user", "content": text.strip()}]
