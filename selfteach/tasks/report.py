"""Reports: a table of facts is told in a short text of a demanded style, which can be done well in many ways.

Whether it is done well is checked point by point; a reference by grammar shows one way to do it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..core.blocks import Block, block
from ..core.errors import BadValue
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import Task, TaskSource
from ..core.tree import Score
from .options import check_at_least, check_number, check_range, check_share
from .question_sampler import QuestionSampler, solution_tags

# kind of fact -> two ways of saying it; its values
FACTS: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "home": (("lives in", "is at home in"), ("oslo", "rome", "ulm", "riga", "bonn", "turin")),
    "craft": (("works as", "earns as"), ("smith", "baker", "tailor", "cook", "pilot", "nurse")),
    "pet": (("keeps a", "owns a"), ("cat", "dog", "goat", "crow", "hen", "horse")),
    "colour": (("likes", "wears"), ("red", "blue", "green", "black", "white", "grey")),
    "drink": (("drinks", "asks for"), ("tea", "milk", "cider", "water", "juice", "cocoa")),
    "month": (("was born in", "came in"), ("march", "april", "may", "june", "july", "august")),
}
NAMES = ("anna", "bela", "cora", "dora", "egon", "fritz", "gerda", "hugo")
GREETING, CLOSING, LINK = "dear reader", "thank you", "also"
STYLES = ("greet", "link", "close")  # what may be demanded: a greeting, LINK between sentences, a closing
FILLER = ("this is well known", "more could be said")
CHECKLIST = ("content", "order", *STYLES)  # what a task says is asked for; the others go without saying
UNSAID = ("true", "once", "brief")
Fact = tuple[str, str]
TAGS = ("<answer>", "</answer>")


class Request(NamedTuple):
    """What is asked: a report on somebody, the facts in order, and the style."""

    name: str
    facts: tuple[Fact, ...]
    styles: tuple[str, ...]

    @property
    def prompt(self) -> str:
        """The table and the demands in words."""
        told = " ; ".join(f"{kind} {value}" for kind, value in self.facts)
        return f"report {self.name} : {told} | {' '.join(self.styles) or 'plain'} =\n"


class Sentences(NamedTuple):
    """What a report says: its sentences, and of those that state a fact (kind, value, whether LINK begins it)."""

    all: tuple[str, ...]
    facts: tuple[tuple[str, str, bool], ...]


def sentences_of(text: str, name: str) -> Sentences:
    """Read a report about somebody.

    >>> sentences_of("dear reader . anna lives in oslo . also anna wears red .", "anna").facts
    (('home', 'oslo', False), ('colour', 'red', True))
    """
    sentences = tuple(" ".join(s.split()) for s in text.split(".") if s.strip())
    said = list[tuple[str, str, bool]]()
    for sentence in sentences:
        for kind, (phrases, _) in FACTS.items():
            found = re.fullmatch(rf"({LINK} )?{name} (?:{'|'.join(phrases)}) (\w+)", sentence)
            if found:
                said.append((kind, found[2], bool(found[1])))
    return Sentences(sentences, tuple(said))


def grade(text: str, request: Request, constraint: str) -> float:
    """How far a report satisfies a constraint: 1 fully, 0.5 partly, 0 not.

        content  all, some, or none of the facts are stated
        order    of the facts stated, all, some or no neighbours stand as in the table; 0 for fewer than two
        greet    where demanded: the greeting is first, somewhere, or missing; else whether there is none
        close    the same for the closing, at the end
        link     where demanded: LINK begins all, some or none of the facts but the first; else none, some or all
        true, once, brief   nothing false is stated; nothing twice; there is nothing else

    Raises BadValue for another constraint.
    """
    read = sentences_of(text, request.name)
    stated = [(kind, value) for kind, value, _ in read.facts]
    match constraint:
        case "content":
            return graded(sum(fact in stated for fact in request.facts), len(request.facts))
        case "order":
            at = [request.facts.index(fact) for fact in stated if fact in request.facts]
            return graded(sum(a <= b for a, b in itertools.pairwise(at)), len(at) - 1)
        case "greet" | "close":
            words, place = (GREETING, 0) if constraint == "greet" else (CLOSING, -1)
            if constraint not in request.styles:
                return float(words not in read.all)
            return 1.0 if read.all and read.all[place] == words else 0.5 * (words in read.all)
        case "link":
            linked, of = sum(link for _, _, link in read.facts[1:]), len(read.facts) - 1
            return graded(linked, of) if constraint in request.styles else 1 - graded(linked, max(of, 1))
        case "true":
            return float(all(fact in request.facts for fact in stated))
        case "once":
            return float(len(set(read.all)) == len(read.all) and len({k for k, _ in stated}) == len(stated))
        case "brief":
            known = len(read.facts) + sum(s in (GREETING, CLOSING) for s in read.all)
            return float(known == len(read.all))
        case _:
            raise BadValue(f"task report: no constraint {constraint!r}; there are {', '.join((*CHECKLIST, *UNSAID))}")


def graded(count: int, of: int) -> float:
    """1 where all are, 0.5 where some are, 0 where none is or there are none.

    >>> graded(3, 3), graded(1, 3), graded(0, 3), graded(0, 0)
    (1.0, 0.5, 0.0, 0.0)
    """
    return 0.0 if count <= 0 or of <= 0 else 1.0 if count >= of else 0.5


@block
def well_reported(*, answer: Any, task: Task) -> Score:
    """The mean grade of a report over all constraints, 1 where every one is fully satisfied. Parts: each grade."""
    request = Request(*task.tags["request"])
    parts = {name: grade(str(answer or ""), request, name) for name in (*CHECKLIST, *UNSAID)}
    missing = [name for name, value in parts.items() if value < 1]
    return Score(sum(parts.values()) / len(parts), parts, f"not {', '.join(missing)}" if missing else "")


@block
def constraint_grade(
    *, text: str, constraint: str, name: str = "", facts: tuple[Fact, ...] = (), styles: tuple[str, ...] = ()
) -> float:
    """The judge of a constraint by its name (`grade`), of the report that a task asks for."""
    return grade(text, Request(name, tuple((k, v) for k, v in facts), tuple(styles)), constraint)


@dataclass(frozen=True, eq=False)
class Reports:
    """Tasks and demonstrations. Chances are of a demonstration, or of each fact or demand in it.

    kept      a fact is stated; ordered: facts stand as in the table; obeyed: a demand of style is met
    false     a fact is stated with another value; repeated: a sentence stands twice; padded: a filler stands in it
    """

    kept: float
    ordered: float
    obeyed: dict[str, float]
    false: float
    repeated: float
    padded: float
    seed: int = 0

    @staticmethod
    def draw(draw: np.random.Generator, facts: int) -> Request:
        """A random request of so many facts."""
        kinds = [list(FACTS)[int(i)] for i in draw.permutation(len(FACTS))[:facts]]
        told = tuple((kind, str(draw.choice(FACTS[kind][1]))) for kind in kinds)
        return Request(str(draw.choice(NAMES)), told, tuple(s for s in STYLES if draw.random() < 0.5))

    @staticmethod
    def to_task(request: Request, name: str) -> Task:
        """The task of a request.

        tags  request; reference, a text by grammar, also the answer; key_points (for every two facts alternative lists
              of phrases of the reference, and whom it is about); checklist, the constraints that are said; held_out,
              those that are not; style, (constraint, weight) of the checks of style; target_length in words; difficulty
        """
        phrases = [f"{FACTS[kind][0][0]} {value}" for kind, value in request.facts]
        reference = text_of(request, phrases)
        pairs = [range(i, min(i + 2, len(phrases))) for i in range(0, len(phrases), 2)]
        points = tuple((tuple(phrases[i] for i in p), tuple(request.facts[i][1] for i in p)) for p in pairs)
        judge: Block = constraint_grade(name=request.name, facts=request.facts, styles=request.styles)
        tags = {
            "request": tuple(request),
            "reference": reference,
            "key_points": (*points, ((request.name,),)),
            "checklist": CHECKLIST,
            "held_out": UNSAID,
            "style": tuple((style, 1 / len(STYLES)) for style in STYLES),
            "target_length": len(reference.split()),
            "category": f"{len(request.facts)} facts",
            "difficulty": len(request.facts),
            **solution_tags("<answer>", f" {reference}</answer>"),
        }
        return Task(name, request.prompt, reference, tags=tags, verifier=well_reported(), judges={"constraint": judge})

    def demo(self, questions: QuestionSampler[Request], i: int) -> Task:
        """The i-th demonstration, which is careless."""
        return self._told(questions, "demo", i, True)

    def practice(self, questions: QuestionSampler[Request], i: int) -> Task:
        """The i-th item that is practised before: a report as it should be, in either wording."""
        return self._told(questions, "practice", i, False)

    def _told(self, questions: QuestionSampler[Request], kind: str, i: int, careless: bool) -> Task:
        request, draw = questions.sample(kind, i), generator(self.seed, "tell", kind, i)
        facts = list(request.facts)
        if careless:
            facts = [f for f in facts if draw.random() < self.kept] or facts[:1]
            facts = facts if draw.random() < self.ordered else [facts[int(j)] for j in draw.permutation(len(facts))]
            facts = [(k, str(draw.choice(FACTS[k][1])) if draw.random() < self.false else v) for k, v in facts]
        phrases = [f"{FACTS[k][0][int(draw.random() < 0.5)]} {v}" for k, v in facts]
        styles = tuple(s for s in STYLES if (s in request.styles) == (not careless or draw.random() < self.obeyed[s]))
        if careless and draw.random() < self.repeated:
            phrases.append(phrases[int(draw.integers(len(phrases)))])
        filler = [str(draw.choice(FILLER))] if careless and draw.random() < self.padded else []
        text = text_of(request._replace(styles=styles), phrases, filler)
        item = self.to_task(request, f"{kind}/{i}")
        tags = {**item.tags, "kind": kind}
        return Task(item.id, item.prompt, item.answer, (f"<answer> {text}</answer>",), tags)


def text_of(request: Request, phrases: Sequence[str], filler: Sequence[str] = ()) -> str:
    """A report in the style of the request: these phrases about its person, and then the filler.

    >>> text_of(Request("anna", (), ("greet", "link")), ["lives in oslo", "likes red"])
    'dear reader . anna lives in oslo . also anna likes red .'
    """
    link = f"{LINK} " if "link" in request.styles else ""
    said = [f"{link if n else ''}{request.name} {phrase}" for n, phrase in enumerate(phrases)]
    opening, ending = [GREETING] * ("greet" in request.styles), [CLOSING] * ("close" in request.styles)
    return " ".join(f"{s} ." for s in (*opening, *said, *filler, *ending))


@task
def report(
    facts: tuple[int, int] = (3, 4),
    kept: float = 0.85,
    ordered: float = 0.5,
    obeyed: tuple[float, float, float] = (0.7, 0.4, 0.7),
    false: float = 0.05,
    repeated: float = 0.15,
    padded: float = 0.2,
    n_test: int = 400,
    seed: int = 0,
) -> TaskSource:
    """Tell a table of facts about a person in a short text, in table order and in the style that is demanded.

        report anna : home oslo ; pet cat ; colour red | greet link =
        <answer> dear reader . anna lives in oslo . also anna owns a cat . also anna likes red .</answer>

    Every fact can be said in two ways, so there is no one answer; what makes a good one is graded by program, point by
    point (`grade`), some of which the prompt does not mention. Right is what satisfies all of them fully.

    facts     (fewest, most) facts in a table, at most 6
    kept      chance that a demonstration states a fact
    ordered   chance that it states them in the table's order
    obeyed    chances that it follows the demand of greeting, LINK between facts and closing, where one is made or not
    false     chance that it states a fact with another value
    repeated  chance that it says something twice
    padded    chance that it says something else
    n_test    test questions
    seed      of every random draw
    """
    task_options = dict(locals())
    low, high = check_range("report", "facts", facts, 2, len(FACTS))
    for name in ("kept", "ordered", "false", "repeated", "padded"):
        check_share("report", name, task_options[name])
    if len(obeyed) != len(STYLES) or not all(0 <= check_number("report", "obeyed", s) <= 1 for s in obeyed):
        raise BadValue(f"task report: obeyed must be {len(STYLES)} shares ({', '.join(STYLES)}), not {obeyed!r}")
    check_at_least("report", "n_test", n_test, 1)
    reports = Reports(kept, ordered, dict(zip(STYLES, obeyed, strict=True)), false, repeated, padded, seed)
    questions = QuestionSampler(
        "report", tuple(range(low, high + 1)), reports.draw, str, reports.to_task, "facts", n_test, seed
    )
    return questions.source(
        partial(reports.demo, questions),
        practice=partial(reports.practice, questions),
        tags=TAGS,
        defaults={"max_tokens": 16 * high + 24, "by": "category", "warm_practice_steps": 1000, "warm_steps": 300},
        task_options=task_options,
    )
