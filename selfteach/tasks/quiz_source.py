"""A quiz as a task: its questions, warm start, corpus and tools, and the options that worlds share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import BadValue
from ..core.task import TaskSource
from ..tools.experts import ask_expert
from ..tools.search import search
from .agent_demos import SAYINGS
from .demos import TAGS
from .options import check_at_least, check_number, check_share
from .questions import FactQuestions
from .quiz import Quiz
from .quiz_demos import WARM_BATCH, QuizDemos


def source_of(quiz: Quiz, name: str, task_options: Mapping[str, Any], top: int = 1, some: bool = False) -> TaskSource:
    """The TaskSource of a quiz; `top` results from its search tool, or the first `some` of them."""
    for lacking in {quiz.looked_up > 0, quiz.looked_up >= 1}:
        quiz.question("train", 0, shown=True, lacking=lacking)
    if quiz.named:
        quiz.question("train", 0, shown=True, lacking=True, testing=True)
    if not quiz.test:
        raise BadValue(f"task {name}: held_out={quiz.held_out!r} leaves nothing to test on; make it larger")
    demos = QuizDemos(quiz)
    longest, with_names = max(quiz.hops), {"experts": quiz.experts} if quiz.experts else {}
    by_hops = {n: sum(t.tags["hops"] == n for t in quiz.test) for n in quiz.hops}
    return TaskSource(
        name=name,
        train=quiz.train,
        test=quiz.test,
        demos=demos.demo,
        practice=demos.practice if quiz.ways else None,
        experts=demos.expert if quiz.is_agent and SAYINGS[quiz.says].verdict else None,
        words=demos.words,
        tags=(*TAGS, *SAYINGS[quiz.says].tags),
        corpus=quiz.corpus,
        questions=FactQuestions(name, quiz.corpus, [t.prompt for t in quiz.test]),
        tools={
            "search": search(top=top, some=some, **({"noise": quiz.irrelevant} if quiz.irrelevant else {})),
            **({"experts": ask_expert(**with_names)} if SAYINGS[quiz.says].route else {}),
        },
        defaults={
            "max_tokens": (64 if quiz.irrelevant else 32) * longest + 32,
            "by": "hops",
            "words": True,
            "lr": 2e-4,
            "warm_steps": demos.warm_steps,
            "warm_batch": WARM_BATCH,
            "warm_lr": 2e-3,
        },
        task_options=dict(task_options),
        about={
            "entities": len(quiz.world.entities),
            "facts": len(quiz.world.facts),
            "withheld facts": len(quiz.withheld_facts),
            "held-out entities": len(quiz.held_out_entities),
            "items of memory": len(demos.memories),
            "test questions by hops": by_hops,
            "kinds of question by hops": {n: len(quiz.templates(n, False)) for n in quiz.hops},
        },
    )


def check(task: str, **options: Any) -> None:
    """Check the options that worlds share. Raises BadValue naming the option, its value and the range."""
    for name in ("held_out", "withheld", "mix", "noise", "conflicts", "abstain", "nobody"):
        check_share(task, name, options[name])
    if check_number(task, "noisy", options["noisy"]) < 0:
        raise BadValue(
            f"task {task}: noisy must be 0 or more (distractors as a share of the facts), not {options['noisy']!r}"
        )
    for name in ("n_test", "top"):
        check_at_least(task, name, options[name], 1)
    hops = options["hops"]
    if (
        not isinstance(hops, tuple | list)
        or not hops
        or any(h not in (1, 2, 3, 4) for h in hops)
        or len(set(hops)) != len(hops)
    ):
        raise BadValue(f"task {task}: hops must be different numbers from 1 to 4, such as (1, 2, 3), not {hops!r}")
