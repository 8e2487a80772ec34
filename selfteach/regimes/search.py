"""Regimes on questions over facts that a model has in memory or that an engine finds: how best to get there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.claim import premise
from ..core.regime import Regime, regime
from ..tasks.agent_demos import first_words
from ..tasks.demo_ways import WAYS, beginning
from ..tasks.free_form import BY_HEART
from .digits import BATCH, RUN, SEARCH

# A small world that even the smallest model learns by heart; what it practises first is memory and how to go each way.
WORLD: dict[str, Any] = {"entities": 120, "relations": 6, "hops": (1, 2), **BY_HEART}
WARM: dict[str, Any] = {"warm_practice_steps": 3000, "warm_steps": 300, "warm_batch": 32, "warm_lr": 2e-3}
SHARES = (0.1, 0.2, 0.1, 0.1, 0.2, 0.3)  # carefully, hastily, absently, astray, briefly, directly
AT_ONCE = (0.1, 0.1, 0.1, 0.1, 0.2, 0.4)


def memory_regime(shares: tuple[float, ...] = SHARES, **options: Any) -> Regime:
    """A regime of a model with its own memory, whose demonstrations go these ways; GRPO is its baseline."""
    return Regime(
        task="factworld",
        task_options={**WORLD, "ways": shares, **options},
        model="tiny-s",
        settings={**WARM, **RUN, "steps": 60},
        args=BATCH,
        ways={way: beginning(way) for way, share in zip(WAYS, shares, strict=True) if share},
        search=SEARCH,
    )


@regime
def search() -> Regime:
    """Questions of one and two hops, for a model that knows most facts by heart and mostly answers in a poor way."""
    return memory_regime()


@regime
def search_unclosed() -> Regime:
    """As `search`, but three demonstrations in five leave a tag open, so that form has to be learned as well.

    The longer a way is, the more often it is broken off: without a reward for form, what is soonest learned is to
    answer at once.
    """
    return replace(memory_regime(malformed=0.6), baseline="ssrl")


@regime
def worded() -> Regime:
    """Questions of one hop; every second answer is a sentence, which is as right and which a strict rule cannot read.

    The start mostly answers at once, which is right half as often as first saying what it knows.
    """
    return memory_regime(AT_ONCE, worded=0.5, hops=(1,))


@regime
def free_form() -> Regime:
    """As `worded`, but references are names or sentences, which nobody can know: a rule rejects half of what is right.

    An answer in the other form is as right, to the judge; whatever a model learns to write, the rule goes on rejecting.
    """
    options = {"referenced": 0.5, "worded": 0.5, "ways": AT_ONCE}
    return replace(memory_regime(AT_ONCE), task="free_form", task_options=options)


@regime
def unknown() -> Regime:
    """A third of the questions are about people of whom nobody said anything: to answer these is to guess.

    Demonstrations say "I don't know" there now and then, and seldom where they know. What is known is mostly looked up,
    so that it is right more often than not.
    """
    return replace(
        memory_regime((0.4, 0.1, 0.1, 0.0, 0.2, 0.2), strangers=0.3, abstain=0.3),
        args={**BATCH, "abstained": -1.0},  # as bad as a wrong answer
        baseline="truthrl",
        admits="failure",
        shows="where to abstain is as bad as to be wrong, it is forgotten, and what nobody knows is guessed",
        failure=premise("late:reward/abstained", "baseline", 0.03, relation="<", fails_at=0.05),
    )


# An agent's worlds. Every fact has a document and none is contradicted; what varies is what the model holds (of the
# relations that are not `unheld` all facts), and whether the engine understands.
AGENT: dict[str, Any] = {
    "entities": 120,
    "relations": 6,
    "hops": (1,),
    "held_out": 0.4,
    "withheld": 0.0,
    "practised": 0.6,
    "malformed": 0.05,
    "apart": True,
}
HALF: dict[str, Any] = {
    **AGENT,
    "mix": 0.5,
    "unheld": ("home", "guild", "river"),
    "looked_up": 0.4,
    "says": "decide",
}
NOISY: dict[str, Any] = {
    **AGENT,
    "mix": 0.0,
    "unheld": ("home", "mayor", "mentor", "guild", "seat", "river"),
    "looked_up": 1.0,
    "named": 0.4,
    "irrelevant": 0.4,
}
# As SHARES: more than half of the answers come without a search, and one in ten is what should be done.
NOISY_WAYS = (0.1, 0.15, 0.1, 0.1, 0.3, 0.25)


def agent_regime(options: dict[str, Any], shares: tuple[float, ...], practice: int) -> Regime:
    """A regime of an agent with an engine, whose demonstrations go these ways; Search-R1 is its baseline."""
    names = [way for way, share in zip(WAYS, shares, strict=True) if share]
    return Regime(
        task="factworld",
        task_options={**options, "ways": shares},
        model="tiny-s",
        settings={**WARM, "warm_practice_steps": practice, **RUN, "steps": 60},
        args={**BATCH, "beta": 0.0},
        baseline="search_r1",
        ways={way: first_words(way, options["says"]) for way in names},
        search=SEARCH,
    )


@regime
def half_known() -> Regime:
    """Questions of one hop; of some relations the model knows every fact, of the others only the engine does.

    It says first where it will look, which at the start fits what it knows a little more often than not. To search is
    always right, so reward for being right alone teaches to search for what is known too.
    """
    return replace(
        agent_regime({**HALF, "aware": 0.4}, (0.25, 0.0, 0.15, 0.0, 0.3, 0.3), 1600),
        admits="failure",
        shows="rewarded for being right alone, an agent looks up nearly everything, of which it knows a half",
        failure=premise("late:rollout/tool_calls_mean", "baseline", 0.9, fails_at=0.7),
    )


@regime
def seldom_searched() -> Regime:
    """As `half_known`, for a model that hardly ever searches, and of whose few searches most come to nothing."""
    return agent_regime(HALF, (0.004, 0.0, 0.016, 0.0, 0.5, 0.48), 1600)


@regime
def search_noisy() -> Regime:
    """The model holds no fact, and of the engine's results two in five are another document; to ask again helps.

    The start mostly does not search, says of every result whether it is what was sought, and is mostly wrong about what
    is not.
    """
    return agent_regime({**NOISY, "says": "judge"}, NOISY_WAYS, 3200)


@regime
def search_doubted() -> Regime:
    """As `search_noisy`, for a start that goes every way, and now and then rejects what is not what was sought.

    It does so too with what a question itself finds, of which nobody showed it anything.
    """
    return agent_regime({**NOISY, "says": "judge"}, (0.35, 0.15, 0.05, 0.05, 0.2, 0.2), 3200)


@regime
def search_fragile() -> Regime:
    """As `search_noisy`, for a model that states a goal before it searches and then whether it was reached."""
    return agent_regime({**NOISY, "says": "reflect"}, NOISY_WAYS, 3200)


# Several hops, and every result is what was asked for; what varies is whether it is asked for, how often, in what form.
HOPS: dict[str, Any] = {**NOISY, "irrelevant": 0.0, "malformed": 0.2, "says": "", "hops": (2, 3)}


@regime
def search_hops() -> Regime:
    """Questions of two and three hops for a model that holds no fact: a right answer takes a right search for each.

    The start searches in two answers of five, loses its way in some of these, and asks for most things more than once.
    """
    made = agent_regime(HOPS, (0.1, 0.0, 0.15, 0.15, 0.25, 0.35), 2400)
    # At 3e-4 it comes as far, in five steps, which leaves nothing to compare.
    return replace(made, settings={**made.settings, "lr": 1e-4}, args={**made.args, "turns": 8})


@regime
def search_rounds() -> Regime:
    """As `search_hops`, for a model that begins each round anew from a report, and asks twice for most facts.

    Half of the demonstrations go the way that is right, so that it is soon what the policy does: a question of two or
    three hops needs a search for each fact and a round for its answer, and mostly it takes more.
    """
    made = agent_regime({**HOPS, "says": "report"}, (0.5, 0.0, 0.2, 0.2, 0.05, 0.05), 2400)
    return replace(
        made,
        args={**BATCH, "turns": 8},
        baseline="iter_research",
    )


@regime
def search_experts() -> Regime:
    """Questions of one hop for a model that holds no fact and may ask four experts by name, and asks any of them.

    Each of two knows one half of the relations, a dear one all of them, a cheap one none: which it asked is all that
    its answer depends on.
    """
    shares = (0.0, 0.6, 0.0, 0.0, 0.2, 0.2)
    made = agent_regime({**NOISY, "irrelevant": 0.0, "says": "route"}, shares, 1600)
    return replace(made, baseline="router_r1")


@regime
def search_sources() -> Regime:
    """Questions of one and two hops for a model that may ask two experts by name, each of whom knows half.

    Of a question of two hops each expert knows one, and nobody knows both. What an expert does not know it mistakes.
    """
    shares = (0.0, 0.6, 0.0, 0.0, 0.2, 0.2)
    options = {"irrelevant": 0.0, "says": "route", "hops": (1, 2), "experts": ("scribe", "herald"), "across": True}
    made = agent_regime({**NOISY, **options, "entities": 200}, shares, 1600)
    return replace(made, args={**made.args, "turns": 5}, baseline="router_r1")


@regime
def search_cited() -> Regime:
    """Questions of two hops for a model that holds no fact and cites, before its answer, all pages, one, or none."""
    made = agent_regime({**HOPS, "says": "cite", "hops": (2,)}, (0.4, 0.0, 0.1, 0.1, 0.2, 0.2), 2400)
    return replace(made, args={**made.args, "turns": 5})


@regime
def search_refined() -> Regime:
    """Three hops for a model that goes on from whatever it finds, of which one in five is another document.

    It asks in any wording, each of which is misunderstood or not, so to do a step again helps, and it does not do so by
    itself. What it does after its answer, where it is let, is to say of one step after the other whether it found what
    was sought, up to the first that did not: of wrong episodes not half go wrong at their first.
    """
    options = {**NOISY, "says": "refine", "hops": (3,), "entities": 400, "irrelevant": 0.2}
    made = agent_regime(options, (0.0, 0.7, 0.0, 0.0, 0.15, 0.15), 4000)
    return replace(
        made,
        admits="failure",
        shows="an agent that goes on from what it finds stays at what three searches in a row find, 0.8 ** 3",
        failure=premise("accuracy", "baseline", 0.55, relation="<", fails_at=0.6),
    )


@regime
def search_side_by_side() -> Regime:
    """Questions of one and two hops, some of which memory answers, for all methods that search.

    The start goes every way, careful ones seldom; of what the engine finds one in five is another document. Each method
    has its own demonstrations of the same questions, which say what its agent says.
    """
    options = {**HALF, "entities": 160, "hops": (1, 2), "irrelevant": 0.2, "says": ""}
    made = agent_regime(options, (0.1, 0.15, 0.1, 0.1, 0.25, 0.3), 2400)
    settings = {**made.settings, "eval_every": 0, "final_eval_decoder_samples": 4}
    return replace(made, settings=settings, warm_seeds=4)  # of every saying


# Questions of several shapes over the same kind of world. Demonstrations find its facts, so that a model comes to hold
# many of them, unless they are `unheld`.
GRAPH_WAYS = ("carefully", "together", "hastily", "directly")


def graph_regime(world: dict[str, Any], shares: tuple[float, ...]) -> Regime:
    """A regime of an agent on a graph of facts, whose demonstrations go these ways; Search-R1 is its baseline."""
    return Regime(
        task="fact_graph",
        task_options={"entities": 120, "relations": 6, **world, "ways": shares},
        model="tiny-s",
        settings={**WARM, "warm_practice_steps": 1000, **RUN, "steps": 60},
        args={**BATCH, "beta": 0.0},
        baseline="search_r1",
        ways={way: beginning(way) for way, share in zip(GRAPH_WAYS, shares, strict=True) if share},
        search=SEARCH,
    )


@regime
def search_parts() -> Regime:
    """Two facts are asked for together, which have nothing to do with each other: one search may ask for both."""
    return graph_regime({"hops": (1,), "parts": 2}, (0.1, 0.1, 0.4, 0.4))


@regime
def search_gym() -> Regime:
    """One to three facts, each found by the one before, in a world of which one document in five is mistaken.

    The start mostly stops after the first fact, which is enough for a third of the questions, or does not search.
    """
    world = {"entities": 240, "hops": (1, 2, 3), "misaligned": 0.2, "n_test": 1000}
    return graph_regime(world, (0.15, 0.0, 0.45, 0.4))


@regime
def search_edited() -> Regime:
    """Simple questions and what three edits make of them: one to four facts, each found by the one before.

    The start mostly stops after the first fact, which is enough for a quarter of the questions, or does not search.
    """
    made = graph_regime({"hops": (1,), "edits": 3}, (0.15, 0.0, 0.45, 0.4))
    return replace(made, args={**made.args, "turns": 8})


@regime
def search_edited_unheld() -> Regime:
    """As `search_edited`, for a model that holds no fact: a right answer takes a right search for each."""
    return replace(search_edited, task_options={**search_edited.task_options, "unheld": True})


@regime
def search_untaught() -> Regime:
    """Two and three facts that stand on pages of their own, for a model that answers at once and knows no search.

    What an agent does it is shown in the run; RL alone has nothing to choose from.
    """
    return replace(
        graph_regime({"hops": (2, 3), "dispersion": 1.0, "practised": 0.0}, (0.0, 0.0, 0.0, 1.0)),
        settings={"warm_steps": 300, "warm_batch": 32, "warm_lr": 2e-3, **RUN, "steps": 60},
        admits="failure",
        shows="a model that never searches is not brought to it by outcomes alone",
        failure=premise("accuracy", "baseline", 0.3, relation="<", fails_at=0.4),
    )
