"""Evaluation of a policy on held-out tasks: accuracy, pass@k, majority vote, length, calls; overall and by tag."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any, NamedTuple

import numpy as np

from ..core.answers import canonical, f1, gold_answers, majority
from ..core.blocks import Block
from ..core.errors import ScoringFailed
from ..core.scoring import score
from ..core.search_record import (
    citation_precision,
    cited_by,
    documents_found,
    facts_of,
    pieces_of,
    searches_of,
    told_by_tools,
)
from ..core.task import Ref, RolloutRequest, Task
from ..core.tool_calls import SEARCH
from ..core.tree import Episode, RolloutGroup, Score
from .conversation import re_render_counts
from .episode import play
from .step_context import StepContext
from .text_limit import CUT

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
SHOWN = 5  # failures that are shown with their reason


@dataclass
class Result:
    """The results of a program on some tasks: right and scored samples of each, answers, length, calls.

    A sample that failed has no score: it is neither right nor wrong, and counted in `failed` or `unscored`. Without a
    judge nothing is right or wrong; with a reward of the user's each sample has that too.
    """

    tasks: list[Task]
    right: list[int]
    scored: list[int]
    answers: list[list[Any]]
    rewards: list[list[float]] = field(default_factory=list[list[float]])  # of each task's samples, where known
    is_judged: bool = True  # whether there is a judge of right and wrong
    score: float = float("nan")  # mean score, for tasks whose answers are not just right or wrong
    majority: float = float("nan")  # share of tasks whose most frequent answer (the earliest of equals) is right
    majorities: dict[int, float] = field(default_factory=dict[int, float])  # 2, 4, 8 ... -> that of so many samples
    distinct: float = float("nan")  # different right answers to a task (core.answers), mean over tasks
    length: float = 0.0
    length_right: float = float("nan")  # of the samples that are right, and of those that are wrong
    length_wrong: float = float("nan")
    calls: float = 0.0
    f1: float = float("nan")  # of the words of answers and gold answers, where it is asked for
    by_calls: dict[int, list[int]] = field(default_factory=dict[int, list[int]])  # calls -> right and scored answers
    wrong_calls: float = 0.0  # of typed functions, that did not fit
    re_rendered: float = 0.0  # times that a chat template re-rendered a conversation, per episode
    searches: Mapping[str, float] = field(default_factory=dict[str, float])  # per answer, by what became of them
    # (whether the model holds the answer, whether it asked for it) -> answers
    decisions: Counter[tuple[bool, bool]] = field(default_factory=Counter[tuple[bool, bool]])
    citations: list[float] = field(default_factory=list[float])  # the precision of each answer that cites
    cut_text: float = 0.0  # characters of tools' text that were left out (loop/text_limit.py)
    failed: int = 0  # episodes whose program raised
    unscored: int = 0  # other answers without a score: the judge raised, was too late or gave none
    failures: list[str] = field(default_factory=list[str])  # the first of both, "episode: reason"

    @property
    def accuracy(self) -> float:
        """Mean share of right samples; a sample without a score is not counted."""
        return (
            float(np.mean([c / n for c, n in zip(self.right, self.scored, strict=True) if n]))
            if any(self.scored)
            else float("nan")
        )

    @property
    def reward(self) -> float:
        """Mean of the user's reward over the samples of a task, and over tasks; NaN without one."""
        return float(np.mean(known)) if (known := [np.mean(r) for r in self.rewards if r]) else float("nan")

    def error(self) -> float:
        """Standard error of the accuracy over tasks."""
        shares = [c / n for c, n in zip(self.right, self.scored, strict=True) if n]
        return float(np.std(shares, ddof=1) / len(shares) ** 0.5) if len(shares) > 1 else float("nan")

    def pass_at(self, k: int) -> float:
        """The unbiased estimate of at least one right in k, averaged over tasks that have k samples."""
        found = [pass_at(k, n, c) for c, n in zip(self.right, self.scored, strict=True) if n >= k]
        return float(np.mean(found)) if found else float("nan")

    def by(self, tag: str, rewards: bool = False) -> dict[str, float]:
        """Accuracy of the tasks (or their mean reward) by the value of a tag."""
        found: dict[str, list[float]] = defaultdict(list)
        shares = [c / n if n else None for c, n in zip(self.right, self.scored, strict=True)]
        means = [float(np.mean(r)) if r else None for r in self.rewards]
        for task, value in zip(self.tasks, means if rewards else shares, strict=True):
            if tag in task.tags and value is not None:
                found[str(task.tags[tag])].append(value)
        return {k: float(np.mean(v)) for k, v in sorted(found.items())}

    def decided(self) -> dict[str, float]:
        """How well searches go with what the model holds (F1_aware of AdaSearch, 2512.16883): positive is that memory
        suffices, and an answer without a search says so.

            precision = held / answers without a search
            recall    = held / answers to what the model holds
            F1        = 2 held / (answers without a search + answers to what the model holds)

        where held counts answers without a search to what the model holds. A share of none is left out.
        """
        held = self.decisions[True, False]
        said, true = held + self.decisions[False, False], held + self.decisions[True, True]
        of = {"precision": (held, said), "recall": (held, true), "f1": (2 * held, said + true)}
        return {f"{SEARCH}decision_{name}": part / whole for name, (part, whole) in of.items() if whole}

    def figures(
        self, ks: Sequence[int] = (), tags: Sequence[str] = ("hops",), by_calls: bool = False
    ) -> dict[str, float]:
        """Everything by name: accuracy, stderr, pass@k, maj@n, distinct, length, calls, accuracy/hops=2 ...; reward,
        where there is one of the user's; without a judge nothing of what is right or wrong.

        by_calls: also accuracy/calls=2 ..., of the answers with so many calls, and their share/calls=2 of all.
        """
        out: dict[str, float] = {}
        if self.is_judged:
            out |= {"accuracy": self.accuracy, "stderr": self.error(), "score": self.score}
        if self.rewards:
            out["reward"] = self.reward
            for tag in () if self.is_judged else tags:
                out |= {f"reward/{tag}={v}": r for v, r in self.by(tag, rewards=True).items()}
        out["length"] = self.length
        if self.is_judged:
            out |= {"length_right": self.length_right, "length_wrong": self.length_wrong}
        out |= {"calls": self.calls, "failed": float(self.failed), "unscored": float(self.unscored)}
        if self.wrong_calls:
            out["wrong_calls"] = self.wrong_calls
        out |= self.searches
        if not np.isnan(self.f1):
            out["f1"] = self.f1
        if self.re_rendered:
            out["re_rendered"] = self.re_rendered
        if not self.is_judged:
            return out
        most = max(self.scored, default=0)
        out |= {f"pass@{k}": self.pass_at(k) for k in ks if k <= most}
        out |= {f"maj@{k}": self.majorities[k] for k in ks if k in self.majorities}
        if most > 1:
            out |= {"maj": self.majority, "distinct": self.distinct}
        for tag in tags:
            out |= {f"accuracy/{tag}={v}": a for v, a in self.by(tag).items()}
        total = sum(n for _, n in self.by_calls.values())
        for calls, (right, n) in sorted(self.by_calls.items()) if by_calls else ():
            out |= {f"accuracy/calls={calls}": right / n, f"share/calls={calls}": n / total}
        return out

    def counts(self) -> str:
        """Right samples of each task as one base-36 digit; "-" where there are 36, or one has no score."""
        most = max(self.scored, default=0)
        pairs = zip(self.right, self.scored, strict=True)
        return "".join(DIGITS[c] if n == most and c < len(DIGITS) else "-" for c, n in pairs)


def pass_at(k: int, n: int, c: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one (Chen et al. 2021,
    eq. 1).

    >>> pass_at(1, 4, 1), pass_at(2, 4, 1), pass_at(4, 4, 1)
    (0.25, 0.5, 1.0)
    """
    return 1.0 - comb(n - c, k) / comb(n, k)


async def evaluate(
    context: StepContext,
    tasks: Sequence[Task],
    judge: Block | None,
    k: int = 1,
    wave: int = 16,
    on_progress: Callable[[int, int], None] | None = None,
    max_unscored: float = 1.0,
    reward_seconds: float = 60.0,
    reward: Block | None = None,
    words: bool = False,
) -> Result:
    """Run the program `main` of a context `k` times on every task, `wave` tasks at a time, and score the answers.

    judge: a reward; a score of 1 or more is right, or where it has the part `success`, one with that; None: nothing is
    right or wrong. reward: measured besides. words: whether answers are names or phrases, of whose words F1 is taken
    too. on_progress: called with the tasks done and their number.
    max_unscored: the share of all samples that may fail or have no score; reward_seconds: the deadline of judge and
    reward.

    Raises ScoringFailed as soon as more than that have none: accuracy over the others could not be believed.
    """
    result = Result([], [], [], [], is_judged=judge is not None)
    cost: Counter[str] = Counter()
    tokens: dict[bool, list[float]] = {True: [], False: []}
    values: list[float] = []
    overlaps: list[float] = []
    played = right = distinct = judged = 0
    voted: defaultdict[int, list[bool]] = defaultdict(list)
    for at in range(0, len(tasks), wave):
        groups = await play(
            context,
            [RolloutRequest(t, k, key=f"eval/{at + i}") for i, t in enumerate(tasks[at : at + wave])],
            round_=at,
        )
        for group in groups:
            found = await _scores(judge, group, context, reward_seconds)
            scores = [(e.answer, _value(e, found, result)) for e in group.episodes]
            if reward is not None:
                found = await _scores(reward, group, context, reward_seconds)
                values_of = (_value(e, found, result, of_reward=True) for e in group.episodes)
                result.rewards.append([v.value for v in values_of if v is not None])
            known = [(a, v) for a, v in scores if v is not None]
            judged += bool(known)
            result.tasks.append(group.request.task)
            result.scored.append(len(known))
            values += [v.value for _, v in known]
            result.right.append(sum(v.right for _, v in known))
            result.answers.append([a for a, _ in scores])
            distinct += len({canonical(a) for a, v in known if v.right})
            right += _majority_is_right(known)
            for votes in (2**i for i in range(1, len(known).bit_length())):
                voted[votes].append(_majority_is_right(known[:votes]))
            for episode, (_, value) in zip(group.episodes, scores, strict=True):
                cost.update(episode.cost)
                cost.update(_searched(episode, group.request.task, context))
                played += 1
                if words and episode.status != "error" and (gold := gold_answers(group.request.task)):
                    overlaps.append(_overlap(episode.answer, gold))
                result.citations += _citations(episode, group.request.task, context)
                if "known" in group.request.task.tags:
                    known_to_it = bool(group.request.task.tags["known"])
                    result.decisions[known_to_it, episode.cost.get("calls", 0.0) > 0] += 1
                if value is not None:
                    of_calls = result.by_calls.setdefault(int(episode.cost.get("calls", 0)), [0, 0])
                    of_calls[0], of_calls[1] = of_calls[0] + value.right, of_calls[1] + 1
                    tokens[value.right].append(episode.cost.get("tokens", 0))
        context.trees.clear()
        _check(result, len(tasks) * k, max_unscored)
        if on_progress:
            on_progress(min(at + wave, len(tasks)), len(tasks))
    result.length, result.calls = (cost[c] / max(1, played) for c in ("tokens", "calls"))
    result.length_right, result.length_wrong = (float(np.mean(t or [np.nan])) for t in (tokens[True], tokens[False]))
    shown = {w: n / max(1, played) for w, n in sorted(cost.items()) if w.startswith(SEARCH)}
    shown |= result.decided()
    if result.citations:
        shown[f"{SEARCH}citation_precision"] = float(np.mean(result.citations))
    result.searches = shown if cost["calls"] else {}  # of a program that never asks there is nothing to say
    result.wrong_calls = cost["wrong_tool_calls"] / max(1, played)
    result.re_rendered = sum(re_render_counts([cost]).values()) / max(1, played)
    result.cut_text = cost[CUT]
    result.f1 = float(np.mean(overlaps)) if overlaps else float("nan")
    result.score = float(np.mean(values)) if values else float("nan")
    result.majorities = {k: float(np.mean(found)) for k, found in voted.items()}
    result.majority, result.distinct = right / max(1, judged), distinct / max(1, judged)
    return result


def _searched(episode: Episode, task: Task, context: StepContext) -> dict[str, float]:
    """What an episode's searches were worth, where its task says what the policy holds (tag `known`, which is left out
    where nobody knows: preparation.source_of) and which sentences support the answer (tag `chain`).

    search/needless  calls for a question that memory answers
    search/missed    1 where nothing was asked although memory does not
    search/recall    the share of the supporting sentences that were found, not what the policy wrote itself
    """
    calls, out = episode.cost.get("calls", 0.0), dict[str, float]()
    if "known" in task.tags:
        known = bool(task.tags["known"])
        out |= {f"{SEARCH}needless": calls * known, f"{SEARCH}missed": float(not known and not calls)}
    if facts := facts_of(task):
        found = [told for t in episode.trajectories for told in told_by_tools(t, context)] if calls else []
        out[f"{SEARCH}recall"] = sum(any(fact in told for told in found) for fact in facts) / len(facts)
    return out


def _citations(episode: Episode, task: Task, context: StepContext) -> list[float]:
    """The precision of what an episode's answer cites, as CaRR and SearchLLM learn it; none where it cites nothing, or
    its task does not say what supports the answer.
    """
    out = list[float]()
    for t in episode.learned if facts_of(task) else ():
        cited = cited_by(pieces_of(context.path(t.leaf), context))
        found = documents_found(searches_of(episode, t, context)) if cited else []
        out += citation_precision(cited, found, facts_of(task)).values()
    return out


def _overlap(answer: Any, gold: Sequence[str]) -> float:
    """The F1 of an answer's words against the gold answer that fits best."""
    return max(f1("" if answer is None else str(answer), one) for one in gold)


def _majority_is_right(known: Sequence[tuple[Any, Verdict]]) -> bool:
    """Whether the most frequent of these answers (the earliest of equals) is right; where none votes, it is not."""
    best, _ = majority([a for a, _ in known])
    return best is not None and next(v.right for a, v in known if canonical(a) == best)


async def _scores(
    block: Block | None, group: RolloutGroup, context: StepContext, seconds: float
) -> Mapping[Ref, Score] | None:
    return None if block is None else (await score(block, [group], context, seconds)).get("reward", {})


class Verdict(NamedTuple):
    """A score, and whether the answer is right: its part `success`, where it has one, else it, is 1 or more."""

    value: float
    right: bool


def _value(
    episode: Episode, found: Mapping[Ref, Score] | None, result: Result, of_reward: bool = False
) -> Verdict | None:
    """The score of an episode; None, counted with its reason, where it failed or its judge gave none.

    An episode that closed nothing (it came to a limit) has no answer, which is a wrong one; a reward of it is unknown.
    found: None where there is no judge. of_reward: of the user's reward, beside the judge.
    """
    verdict = next((found[t.leaf] for t in reversed(episode.trajectories) if t.leaf in found), None) if found else None
    if episode.status == "error":
        if of_reward:  # counted already
            return None
        result.failed += 1
        why = episode.why
    elif found is None:
        return None
    elif verdict is not None and verdict.value is not None:
        return Verdict(verdict.value, verdict.parts.get("success", verdict.value) >= 1.0)
    elif verdict is None and not of_reward and (episode.status == "limit" or not episode.trajectories):
        return Verdict(0.0, False)
    else:
        result.unscored += 1
        why = (verdict.error or verdict.why or "no value") if verdict else "no trajectory that a reward scores"
    if len(result.failures) < SHOWN:
        result.failures.append(f"{episode.id}: {why}")
    return None


def failure_lines(result: Result, total: int) -> str:
    """What failed, counted, and the first failures with their reason, a line each; "" where all is well."""
    if not result.failures:
        return ""
    counted = f"of {total} episodes {result.failed} failed, and {result.unscored} answers have no score"
    return "\n  ".join([counted, *result.failures])


def _check(result: Result, total: int, limit: float) -> None:
    if (result.failed + result.unscored) / max(1, total) > limit:
        raise ScoringFailed(
            f"this evaluation cannot be believed (limit {limit:.0%}): {failure_lines(result, total)}\n"
            "fix the judge, tool or program, or allow more with --max-unscored"
        )
