"""ZeroSearch, search learned without an engine (Sun et al. 2025, arXiv 2505.04588).

A model that was fine-tuned to write useful or noisy documents, as one word of its prompt says, stands in for the engine
in training, and the share of noisy ones grows. The trained policy then uses a real engine.

    p_i = p_s + (b^(i/m) - 1) / (b - 1) (p_e - p_s)        chance of noisy documents at step i of m
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..core import (
    BadValue,
    Claim,
    Document,
    Home,
    Method,
    ModelRole,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Stage,
    Task,
    TaskSource,
    Term,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    random_keys,
    reads_items,
    stateful,
)
from ..core.answers import reference_answer
from ..core.tagged_text import last_between, last_message
from ..core.tool_calls import SEARCH
from ..credit.composers import per_trajectory
from ..curriculum.select import next_tasks
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..reward.answer import states_gold
from ..reward.overlap import word_f1
from ..rollout.search import RETRY, search_agent, self_search
from ..rollout.single import read
from .search_r1 import search_r1

USEFUL, NOISY = "useful", "noisy"
SHOWN = 200  # demonstrations whose documents are those of a task without a corpus
WORD = re.compile(r"\w+")
SEARCHED = re.compile(r"<search>([^<]*)</search>\s*<information>([^<]*)</information>")  # (query, what was found)


@method(family="search", paper="2505.04588", catalogue=16, home=Home("factworld", 40))
def zerosearch(
    groups: int = 48,
    rollouts: int = 5,
    turns: int = 5,
    noise_start: float = 0.0,
    noise_end: float = 0.5,
    noise_steps: int = 60,
    base: float = 4.0,
    f1: bool = True,
    simulator_steps: int = 150,
    simulator_lr: float = 1e-3,
    batch: int = 32,
    beta: float = 0.001,
) -> Method:
    """Search-R1 whose engine is a model that writes the documents, ever more of them noisy.

        p_i = noise_start + (base^(i/m) - 1) / (base - 1) (noise_end - noise_start),   m = noise_steps

    Sun et al. 2025 and the released code: up to five turns, documents masked out of the loss, the F1 of the answer as
    the reward, b = 4, and the quality is drawn at each search. Noise goes from 0 to 0.5 in 203 steps, as in the code by
    now (in the paper's appendix F to 0.75, to 0.25, or from 0.25 to 0.5, by the model). Their default learner is
    REINFORCE; their GRPO, with five rollouts, is taken here. The simulator's prompt has the word useful or noisy, the
    question, its gold answer and the query, as theirs. It is the run's model, fine-tuned in a first stage of
    `simulator_steps` steps on the searches of the task's demonstrations: a useful document is what was found and led
    on, a noisy one another of the same subject (which does not answer the query), one document where they have five;
    there a model judges which are useful, here a rule (`is_useful`). f1=False: whether the answer contains a gold one,
    which led to long answers there. Evaluation is with the real engine; the decoder `simulated` has the simulator,
    without noise.
    """
    engine = search_agent(turns=turns, invalid=RETRY)
    teach = Stage(
        name="simulator",
        select=simulator_lessons(),
        programs={"main": read(model_role="simulator")},
        reward=(),
        credit=(per_trajectory(model_role="simulator"),),
        updates=(Update(("simulator",), (Term(nll(), loss_weights=token_mean()),), lr=simulator_lr),),
        groups=batch,
        rollouts=1,
        until=simulator_steps,
        data=True,
    )
    learn = (
        search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta)
        .replace(
            select=ever_noisier(start=noise_start, end=noise_end, steps=noise_steps, base=base, after=simulator_steps),
            programs={"main": engine.replace(answerer=simulated())},
            reward=(word_f1() if f1 else contains_gold(),),
        )
        .override(
            weights={"simulator": WeightSpec()},
            models={"simulator": ModelRole(("simulator",))},
            decode={"main": engine, "simulated": engine.replace(answerer=simulated()), "self": self_search()},
        )
    )
    return learn.override(stages=(teach, *learn.stages)) if simulator_steps else learn


@block
async def simulated(
    *,
    query: str,
    request: RolloutRequest,
    rollout: RolloutContext,
    model_role: str = "simulator",
    temperature: float = 0.8,
    max_tokens: int = 48,
) -> str:
    """What the simulator writes for a query: noisy with the chance that the request's `help` gives as `noisy`.

    The quality is drawn anew at each search; the temperature is the released configuration's. Counted:
    search/useful_gold and search/noisy_gold, documents of each kind that state a gold answer of the question.
    """
    chance = float(request.help.get("noisy", 0.0))
    kind = NOISY if rollout.random(f"quality of the documents at {rollout.spent}").random() < chance else USEFUL
    context = rollout.model_role(model_role).begin(simulator_prompt(kind, request.task, query))
    document = (await context.sample(temperature=temperature, max_tokens=max_tokens)).text.strip()
    if states_gold(document, request.task):
        rollout.count(f"{SEARCH}{kind}_gold")
    return document


def simulator_prompt(kind: str, task: Task, query: str) -> str:
    """What the simulator is asked: what kind of document, the question, its answer, and the query."""
    return f"{kind}: {last_message(task.prompt).strip()} {reference_answer(task)}\n{query}\n{kind}:"


def noise_at(step: int, start: float, end: float, steps: int, base: float) -> float:
    """The chance of noisy documents at a step; `end` from step `steps` on.

    >>> [round(noise_at(i, 0.25, 0.5, 100, 4.0), 4) for i in (0, 50, 100, 150)]  # (4^0.5 - 1) / 3 = 1/3 of the way
    [0.25, 0.3333, 0.5, 0.5]
    """
    if base <= 0 or base == 1:
        raise BadValue(f"zerosearch: base must be above 0 and not 1, not {base}")
    progress = min(step / steps, 1.0) if steps > 0 else 1.0
    return start + (base**progress - 1) / (base - 1) * (end - start)


@block
@stateful(int)
def ever_noisier(
    *,
    n: int,
    rollouts: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    seed: int,
    step: int,
    state: int,
    start: float = 0.0,
    end: float = 0.5,
    steps: int = 60,
    base: float = 4.0,
    after: int = 150,
) -> tuple[list[RolloutRequest], int]:
    """The next `n` training tasks, with the chance of noisy documents in `help`; its steps count from `after`."""
    if finished_rounds:
        return [], state
    chance = noise_at(max(0, step - after), start, end, steps, base)
    tasks = next_tasks(source, seed, state, n)
    return [RolloutRequest(task, rollouts, help={"noisy": chance}) for task in tasks], state + n


@block
def contains_gold(*, answer: Any, task: Task) -> float:
    """Whether an answer contains a gold answer, whatever else it says (the released code's exact match)."""
    return float(states_gold(answer, task))


@block
@stateful(lambda: {"next": 0, "waiting": []})
@reads_items(
    "demos", "their searches teach the model that writes the documents, which simulator_steps=0 leaves untaught"
)
def simulator_lessons(
    *, n: int, finished_rounds: list[list[RolloutGroup]], source: TaskSource, seed: int, state: dict[str, Any]
) -> tuple[list[RolloutRequest], dict[str, Any]]:
    """Lessons for the simulator: useful searches of the task's demonstrations, a useful and a noisy document in turn.

    The answer is the one that the demonstration gives, whether that is right or not: that it is copied from the prompt
    is what is to be learned, so that the simulator need not know it. Noisy is another document, of a thing that the
    query names where there is one, and none that answers the query in its own way: the corpus may know better than the
    demonstration, and an engine's noise contradicts nothing. State: which demonstration is next, and what is left of
    the last. Of a task without a corpus (rows, whatever engine there is) the documents are those of demonstrations.
    Raises BadValue for a task without demonstrations or without searches in them.
    """
    if finished_rounds:
        return [], state
    if source.demos is None:
        raise BadValue(f"task {source.name}: has no demonstrations whose documents could be learned; take factworld")
    shown = [] if source.corpus is not None else [d for i in range(SHOWN) for d in searches_shown(source.demos(i))]
    documents = [Document("", found) for _, found in shown] if source.corpus is None else source.corpus()
    by_title: dict[str, list[str]] = {}
    for document in documents:
        by_title.setdefault(document.title, []).append(document.text)
    at, waiting = int(state["next"]), [tuple(lesson) for lesson in state["waiting"]]
    out, last = list[RolloutRequest](), at + 100 * n
    while len(out) < n:
        if not waiting:
            if at == last:
                raise BadValue(f"task {source.name}: its demonstrations hardly ever search; take one where they do")
            waiting, at = useful_searches(source.demos(at)), at + 1
            continue
        question, answer, query, written = waiting.pop(0)
        kind = (USEFUL, NOISY)[len(out) % 2]
        if kind == NOISY:
            related = [d for name in names_in(query) for d in by_title.get(name, [])]
            draw = random_keys.generator(seed, "simulator", at, len(waiting))
            written = _another(written, query, related, [d.text for d in documents], draw)
        prompt = simulator_prompt(kind, Task("", question, answer), query)
        out.append(RolloutRequest(Task(f"simulator/{at}/{len(waiting)}", prompt, data=(f" {written}",)), 1))
    return out, {"next": at, "waiting": waiting}


def useful_searches(demo: Task) -> list[tuple[str, str, str, str]]:
    """(question, answer, query, document) of the searches of a demonstration that were of use."""
    text = last_message(demo.prompt) + str(demo.data[0])
    given, searches = last_between(text, "answer", ""), searches_shown(demo)
    if not (given and searches):
        return []
    after = [*(query for query, _ in searches[1:]), given]
    question = text.partition("<")[0]
    return [
        (question, given, query, found)
        for (query, found), then in zip(searches, after, strict=True)
        if is_useful(found, query, then)
    ]


def searches_shown(demo: Task) -> list[tuple[str, str]]:
    """(query, what was found) of the searches of a demonstration."""
    return SEARCHED.findall(last_message(demo.prompt) + str(demo.data[0]))


def is_useful(document: str, query: str, then: str) -> bool:
    """Whether a document has the names of its query, and one that was gone on with: in the next query, or the answer.

    >>> [is_useful("the home of Ann is Ulm.", q, "Ulm") for q in ("home of Ann", "home of Bob")]
    [True, False]
    >>> [is_useful("the home of Ann is Ulm.", "home of Ann", then) for then in ("mayor of Ulm", "Ann home")]
    [True, False]
    """
    new = [word for word in names_in(then) or [then] if word not in query]
    return bool(new) and all(name in document for name in [*new, *names_in(query)])


def names_in(query: str) -> list[str]:
    """The words of a query that begin with a capital letter."""
    return [word for word in query.split() if word[0].isupper()]


def _another(useful: str, query: str, related: list[str], every: list[str], draw: np.random.Generator) -> str:
    """A document without all words of the query that is not the useful one: a related one if there is one, else any."""
    asked = set(WORD.findall(query))
    for documents in (related, every):
        if options := [d for d in documents if d != useful and not asked <= set(WORD.findall(d))]:
            return options[int(draw.integers(len(options)))]
    return useful


COUNTED = "mean:rollout/search/"

zerosearch.claim = Claim(
    (
        premise("accuracy", "engine", "start", by=0.2, fails_at=0.85),  # there is something to learn with the engine
        # one word of its prompt says what the simulator writes; here each is drawn half of the time
        mechanism(f"{COUNTED}useful_gold_mean", "fixed", f"{COUNTED}noisy_gold_mean of fixed", by=0.2, fails_at=5.0),
        # what is learned from what it writes, by a policy that never saw an engine, is of use with one
        mechanism("accuracy", "self", "start", by=0.2, fails_at=0.85),
        outcome("accuracy", "self", "engine", by=0.03, relation=">=", fails_at=1.0),
        outcome("accuracy", "self", "fixed", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "ever_easier", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "without_noise", by=0.02, fails_at=0.99),
    ),
    arms={
        "engine": ("search_r1", {"turns": 5}, {"steps": 60}),  # of answers of one word F1 is exact match
        "fixed": ("zerosearch", {"noise_start": 0.5, "noise_end": 0.5}),
        "ever_easier": ("zerosearch", {"noise_start": 0.5, "noise_end": 0.0}),
        "without_noise": ("zerosearch", {"noise_start": 0.0, "noise_end": 0.0}),
    },
    regime="search_noisy",
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 the simulator wrote at temperature 1, where the released configuration has 0.8: does not"
        " hold here"
    ),
    settings={"steps": 210, "eval_every": 0},  # 150 of the simulator, 60 of the policy
    idea=("main.select", "main.program", "main.reward", "simulator", "simulator.*", "decode", "models", "weights"),
    differs={"settings.steps": "the policy has 60 steps in every arm; where there is a simulator, that has 150 before"},
    because="documents that a model writes are as good to learn searching from, and their quality can be chosen",
)
