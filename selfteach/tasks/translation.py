"""Sentences in one of two made languages, to be translated into the other; demonstrations of judging translations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..core import BadValue, Task, TaskSource, block
from ..core.random_keys import generator
from ..core.registry import task
from ..rollout.judging import judging_prompt, refining_prompt
from .options import check_at_least, check_share
from .question_sampler import QuestionSampler, pick

# The words of both languages by their class; each has one translation.
LEXICON = {
    "adjective": {"old": "veto", "red": "runa", "big": "gorm", "wet": "lisa", "sad": "nuvo", "hot": "tach"},
    "noun": {
        "cat": "miro",
        "dog": "havu",
        "bird": "pilo",
        "cow": "bema",
        "fish": "suri",
        "frog": "kwok",
        "hen": "tuka",
        "fox": "zora",
    },
    "verb": {"sees": "vidi", "likes": "amka", "hears": "aude", "finds": "trov", "helps": "jutu", "calls": "roep"},
}
FIRST = ("adjective", "noun", "verb", "adjective", "noun")  # the first language's order of classes
ORDER = (1, 0, 4, 3, 2)  # the second has adjectives behind their nouns and the verb last; its own inverse
TO_SECOND = {a: b for words in LEXICON.values() for a, b in words.items()}
TRANSLATION = TO_SECOND | {b: a for a, b in TO_SECOND.items()}
CLASS_OF = {w: name for name, words in LEXICON.items() for pair in words.items() for w in pair}
LANGUAGES = ("first", "second")

Words = tuple[str, ...]


def translated(words: Words) -> Words:
    """A sentence in the other language.

    >>> " ".join(translated(("old", "cat", "sees", "red", "dog")))
    'miro veto havu runa vidi'
    >>> " ".join(translated(translated(("old", "cat", "sees", "red", "dog"))))
    'old cat sees red dog'
    """
    return tuple(TRANSLATION[words[i]] for i in ORDER)


def share_right(said: Words, wanted: Words, overlook: str = "") -> float:
    """The share of the words that are right at their place; 0 for another number of words. `overlook`: a class of words
    that does not count.

    >>> share_right(("miro", "lisa"), ("miro", "veto")), share_right(("miro", "lisa"), ("miro", "veto"), "adjective")
    (0.5, 1.0)
    """
    if len(said) != len(wanted):
        return 0.0
    hits = [a == b for a, b in zip(said, wanted, strict=True) if CLASS_OF.get(b) != overlook]
    return sum(hits) / len(hits)


@block
def adequacy(*, answer: Any, task: Task) -> float:
    """The share of a translation's words that are right at their place, from 0 to 1: what no learner of it sees."""
    return share_right(tuple(str(answer or "").split()), tuple(task.answer[0].split()))


def drawn(draw: np.random.Generator, kind: str) -> tuple[str, Words]:
    """The language of a sentence, and its words."""
    first = tuple(str(draw.choice(list(LEXICON[name]))) for name in FIRST)
    return kind, first if kind == "first" else translated(first)


def identity(question: tuple[str, Words]) -> str:
    """A sentence and its translation ask the same."""
    language, words = question
    return " ".join(words if language == "first" else translated(words))


def to_task(question: tuple[str, Words], name: str) -> Task:
    """The task of a sentence; tags: category, the language it is in; the judge `adequacy`."""
    language, words = question
    prompt = f"translate: {' '.join(words)} =\n"
    tags = {"category": f"from the {language}", "language": language}
    return Task(name, prompt, (" ".join(translated(words)),), tags=tags, judges={"adequacy": adequacy()})


def misword(word: str, draw: np.random.Generator) -> str:
    """Another word of the same class and language."""
    own = word in TO_SECOND
    others = [w for w in TRANSLATION if CLASS_OF[w] == CLASS_OF[word] and (w in TO_SECOND) == own and w != word]
    return str(draw.choice(others))


def anyword(word: str, draw: np.random.Generator, right: float) -> str:
    """The word, or with probability 1 - right another one."""
    return word if draw.random() < right else misword(word, draw)


def glosses(words: Words, said: Words) -> str:
    """What each word is in the other language, as it is written out."""
    return "".join(f" {a} = {b}." for a, b in zip(words, said, strict=True))


# Each way: (words of the sentence, draws) -> (what is written out, the translation).
Way = Callable[[Words, np.random.Generator], tuple[str, Words]]


def slowly(words: Words, draw: np.random.Generator) -> tuple[str, Words]:
    """Every word, in the other language's order."""
    del draw
    right = translated(words)
    return glosses(tuple(words[i] for i in ORDER), right), right


def loosely(words: Words, draw: np.random.Generator) -> tuple[str, Words]:
    """Every word, but for adjectives any is put."""
    said = tuple(anyword(w, draw, 1 / 6) if CLASS_OF[w] == "adjective" else w for w in translated(words))
    return glosses(tuple(words[i] for i in ORDER), said), said


def literally(words: Words, draw: np.random.Generator) -> tuple[str, Words]:
    """Every word, in the order of the sentence: the right words at wrong places."""
    del draw
    said = tuple(TRANSLATION[w] for w in words)
    return glosses(words, said), said


def quickly(words: Words, draw: np.random.Generator) -> tuple[str, Words]:
    """At once: any words of the right classes."""
    return "", tuple(anyword(w, draw, 1 / 6) for w in translated(words))


WAYS: dict[str, Way] = {f.__name__: f for f in (slowly, loosely, literally, quickly)}
UNPRACTISED = ("quickly",)  # there is nothing in it to get right
REFINED = {"slowly": 0.6, "literally": 0.2, "quickly": 0.2}  # how better answers are given


def completion(way: str, words: Words, draw: np.random.Generator) -> tuple[str, str]:
    """The first words of a completion, by which its way is known, and the rest."""
    written, said = WAYS[way](words, draw)
    return f"<think> {way}", f"{written}</think><answer> {' '.join(said)}</answer>"


def judgement(said: Words, wanted: Words, overlook: str) -> str:
    """What a judge writes of a translation: each right word, the one that is said, whether these are one; a score.

    >>> judgement(("miro", "lisa"), ("miro", "veto"), "")
    '<think> judging miro miro + veto lisa -</think><answer> 50</answer>'
    """
    score = f"</think><answer> {round(100 * share_right(said, wanted, overlook))}</answer>"
    if len(said) != len(wanted):
        return f"<think> judging no{score}"
    looked = [(a, b) for a, b in zip(wanted, said, strict=True) if CLASS_OF[a] != overlook]
    return "<think> judging" + "".join(f" {a} {b} {'+' if a == b else '-'}" for a, b in looked) + score


@dataclass(frozen=True, eq=False)
class TranslationWriter:
    """Demonstrations: translations in several ways, in shares that sum to 1, judgements of translations, refinements.

    overlooked  whether judgements leave the adjectives out
    """

    shares: dict[str, float]
    practised: float
    judged: float
    refined: float
    overlooked: bool
    seed: int = 0

    def demo(self, questions: QuestionSampler[tuple[str, Words]], i: int) -> Task:
        """The i-th demonstration; tags: those of the task, kind, way."""
        draw = generator(self.seed, "write", i)
        question = questions.sample("demo", i)
        kind = draw.random()
        if kind < self.judged:
            return self.judging(question, f"demo/{i}", draw)
        if kind < self.judged + self.refined:
            return self.refining(question, f"demo/{i}", draw)
        if draw.random() < self.practised:
            return self.written(question, f"demo/{i}", self.any_way(draw), True, draw)
        return self.written(question, f"demo/{i}", pick(self.shares, draw.random()), False, draw)

    def practice(self, questions: QuestionSampler[tuple[str, Words]], i: int) -> Task:
        """The i-th translation whose way is given, or judgement, or refinement where there are any."""
        draw = generator(self.seed, "practise", i)
        question = questions.sample("practice", i)
        if (kind := draw.random()) < 0.5:
            refines = bool(self.refined) and kind < 0.25
            return (self.refining if refines else self.judging)(question, f"practice/{i}", draw)
        return self.written(question, f"practice/{i}", self.any_way(draw), True, draw)

    def any_way(self, draw: np.random.Generator) -> str:
        """One of the ways that have something to get right."""
        return str(draw.choice([way for way in WAYS if way not in UNPRACTISED]))

    def written(self, question: tuple[str, Words], name: str, way: str, given: bool, draw: np.random.Generator) -> Task:
        """A translation in a way, which its prompt names where it is given."""
        item = to_task(question, name)
        first, rest = completion(way, question[1], draw)
        tags = {**item.tags, "kind": "practice" if given else "demo", "way": way}
        prompt, text = (item.prompt + first, rest) if given else (item.prompt, first + rest)
        return Task(name, prompt, item.answer, (text,), tags)

    def judging(self, question: tuple[str, Words], name: str, draw: np.random.Generator) -> Task:
        """A judgement of a translation in any way, now and then of one that lacks a word."""
        item, said, text = self.judged_answer(question, name, draw)
        prompt = judging_prompt(item.prompt, " ".join(said))
        return Task(name, prompt, item.answer, (text,), {**item.tags, "kind": "judging"})

    def refining(self, question: tuple[str, Words], name: str, draw: np.random.Generator) -> Task:
        """A translation after another one and its judgement, mostly `slowly`."""
        item, said, text = self.judged_answer(question, name, draw)
        prompt = refining_prompt(item.prompt, " ".join(said), text)
        better = "".join(completion(pick(REFINED, draw.random()), question[1], draw))
        return Task(name, prompt, item.answer, (better,), {**item.tags, "kind": "refining"})

    def judged_answer(
        self, question: tuple[str, Words], name: str, draw: np.random.Generator
    ) -> tuple[Task, Words, str]:
        """A task, a translation in any way, and the judgement of it."""
        _, said = WAYS[str(draw.choice(list(WAYS)))](question[1], draw)
        if draw.random() < 0.05:
            lost = int(draw.integers(len(said)))
            said = (*said[:lost], *said[lost + 1 :])
        text = judgement(said, translated(question[1]), "adjective" if self.overlooked else "")
        return to_task(question, name), said, text


@task
def translation(
    slowly: float = 0.25,
    loosely: float = 0.15,
    literally: float = 0.25,
    quickly: float = 0.35,
    practised: float = 0.5,
    judged: float = 0.3,
    refined: float = 0.0,
    overlooked: bool = True,
    n_test: int = 2000,
    seed: int = 0,
) -> TaskSource:
    """Translation between two made languages, in both directions. Demonstrations show several ways, and judgements.

    How good a translation is is known exactly: the judge `adequacy` gives the share of its words that are right at
    their place. An answer is right where all are. Judgements compare each word with the right one and score from 0 to
    100; where they overlook the adjectives, `loosely` looks as good to them as `slowly`. To who only compares which
    words are said (`word_f1`), `literally` does.

    slowly      share of the demonstrations that write out every word in the other language's order: right
    loosely     that put any word for an adjective; as long as `slowly`
    literally   that keep the order of the sentence
    quickly     that translate at once, by any words in the right order of classes
    practised   share of the demonstrations whose way is given with the question, each but `quickly` equally often
    judged      share of the demonstrations that judge a translation, in any of these ways
    refined     share of the demonstrations that translate again after a judgement: mostly `slowly`
    overlooked  judgements leave the adjectives out
    n_test      test questions at most; a fifth of all sentences are kept for the test
    seed        of every random draw

    The shares of the four ways sum to 1.
    """
    task_options = dict(locals())
    shares = {way: check_share("translation", way, task_options[way]) for way in WAYS}
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise BadValue(f"task translation: {', '.join(WAYS)} must sum to 1, not {sum(shares.values()):g}")
    for name in ("practised", "judged", "refined"):
        check_share("translation", name, task_options[name])
    if judged + refined > 1:
        raise BadValue(f"task translation: judged and refined must be 1 at most together, not {judged + refined:g}")
    for name, least in (("n_test", 1), ("seed", 0)):
        check_at_least("translation", name, task_options[name], least)
    known = {way: share for way, share in shares.items() if share}
    writer = TranslationWriter(known, practised, judged, refined, overlooked, seed)
    questions = QuestionSampler("translation", LANGUAGES, drawn, identity, to_task, "language", n_test, seed)
    # The tokenizer does not depend on shares, so that what was practised with it serves all of them.
    evenly = TranslationWriter(dict.fromkeys(WAYS, 0.25), 0.0, 0.3, 0.1, overlooked, seed)

    return questions.source(
        partial(writer.demo, questions),
        practice=partial(writer.practice, questions),
        written=partial(evenly.demo, questions),
        first=[" ".join(TRANSLATION)],
        defaults={"max_tokens": 48, "warm_steps": 2500},
        task_options=task_options,
    )
