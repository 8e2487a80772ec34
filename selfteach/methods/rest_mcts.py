"""ReST-MCTS* (2406.03816): tree search that makes the training data of the policy and of a value model.

A value model guides a tree search over the lines of an answer. Each line's value is inferred from its distance to a
right answer and is the value model's target; the policy imitates the right answers.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..core import (
    Claim,
    Episode,
    Example,
    Method,
    ModelContext,
    ModelRole,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Segment,
    Stage,
    Task,
    Term,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.blocks import Array
from ..core.tagged_text import last_between
from ..credit.composers import per_trajectory
from ..credit.example_recipes import labels
from ..credit.keep import right_only
from ..curriculum.select import experts, uniform
from ..objective.likelihood import weighted_nll
from ..objective.loss_weights import sequence_mean, token_mean
from ..objective.value import success_loss
from ..reward.answer import exact_match
from ..reward.step_verdicts import sibling_auc
from ..rollout.single import single
from ..rollout.slips import altered
from ..rollout.value_model import Valuation, values_by

Stop = tuple[str, ...]
UNVISITED = 1.0  # what UCT adds to the value of a line without a visit: a visited one of a larger sum is before it


@method(family="treesearch", paper="2406.03816", catalogue=38)
def rest_mcts(
    groups: int = 16,
    tokens: int = 320,
    branch: int = 3,
    iteration: int = 5,
    value_lr: float = 3e-5,
    value_epochs: int = 2,
    value_warmup: int = 60,
    value_warmup_lr: float = 1e-3,
    by_search: bool = True,
) -> Method:
    """Self-training on tree searches: the policy imitates right answers, a value model learns the lines' values.

        v_k = max(0, v_{k-1} + (1 - v_{k-1}) r_k / m_k)
        policy:       -log pi(right answers)
        value model:  (sigmoid(V(x, lines)) - v)^2

        tokens        the sampling budget of a question, in training and in decoding: no line is begun once so many
                      were sampled. A small one ends short answers alone, so that it must hold several whole ones
        iteration     steps whose searches use the weights of its beginning (`Stage.sync`)
        value_lr      its learning rate on searches, of which each shows few lines: at a rate as large as at first it
                      unlearns within five steps to tell a slip from a right line
        value_epochs  passes of the value model over the lines of a step, 2 or 3 in the released code
        value_warmup  minibatches of 16 demonstrations that the value model is trained on in a first stage, at the rate
                      value_warmup_lr; 0: none
        by_search     False: whole answers within the budget, filtered by being right (ReST-EM), without lines, so that
                      the value model stays as the first stage left it

    Zhang et al. 2024, sections 3.1 to 3.3 (`line_search`, `inferred_values`) and, for the initial value model, 4.1: the
    lines of right solutions, and wrong lines in the place of each (there written by a language model, here
    `with_slips`). One that has not learned to tell a slip from a right line ranks by how far and how usual an answer
    is, and best-of-n then finds what is worse than one sample: look at vm/loss and at best_of before comparing. Chosen
    here: an answer ends where the policy ends it, without the self-critic; one batch is one step; a value is a
    sigmoid (there linear under MSE, cut to [0, 1] when read); no second filter of policy data (value >= 0.2, length).
    """
    full = line_search(tokens=tokens, branch=branch, expansions=tokens, stop_early=False)
    main = full.replace(finish=False) if by_search else best_of(tokens=tokens, n=tokens)
    value = Term(success_loss().reading(critic_value="vm_scalar_after"), on=("value",), loss_weights=token_mean())
    imitate = Term(weighted_nll(), loss_weights=sequence_mean())
    warmup = Stage(
        name="value",
        select=experts(),
        programs={"main": with_slips()},
        reward=(),
        credit=(line_values(),),
        updates=(Update(("vm",), (value,), lr=value_warmup_lr, minibatches=max(1, value_warmup)),),
        groups=16 * value_warmup,
        rollouts=1,
        until=1,
    )
    return Method(
        stages=(
            *((warmup,) if value_warmup else ()),
            Stage(
                select=uniform(),
                programs={"main": main},
                reward=(answered(),),
                credit=(per_trajectory(), line_values(), right_only()),
                updates=(Update(("vm",), (value,), epochs=value_epochs, lr=value_lr), Update(("policy",), (imitate,))),
                groups=groups,
                rollouts=1,
                sync=iteration,
            ),
        ),
        weights={"policy": WeightSpec(), "ref": WeightSpec(), "vm": WeightSpec("start")},
        models={
            "policy": ModelRole(("policy",)),
            "ref": ModelRole(("ref",)),
            "vm": ModelRole(("vm",), heads=("scalar",)),
        },
        decode={"main": single(), "mcts": full, "best_of": best_of(tokens=tokens, n=tokens)},
    )


@dataclass(eq=False)
class Line:
    """A node of the search: the text up to a line's end, with its value and visits; prior: the value model's own."""

    context: Any
    parent: Line | None = None
    depth: int = 0
    value: float = 0.0
    prior: float = 0.0
    visits: int = 0
    ended: bool = False
    below: list[Line] = field(default_factory=list["Line"])

    @property
    def finished(self) -> bool:
        """Whether the line ends an answer."""
        return self.ended and not self.below

    def expandable(self, max_depth: int) -> bool:
        """Whether this line or one below it can be expanded."""
        return (
            not self.ended
            and self.depth < max_depth
            and (not self.below or any(c.expandable(max_depth) for c in self.below))
        )

    def uct(self, exploration: float) -> float:
        """V + exploration sqrt(2 ln N_parent / N); V + UNVISITED for an unvisited line, as in the released code."""
        if not self.visits or self.parent is None:
            return self.value + UNVISITED
        return self.value + exploration * math.sqrt(2 * math.log(max(1, self.parent.visits)) / self.visits)

    def back_up(self) -> None:
        """Count a visit up to the root; an inner node's value is the visit-weighted mean of its children's."""
        self.visits += 1
        node = self.parent
        while node is not None:
            node.visits += 1
            node.value = sum(c.visits * c.value for c in node.below) / sum(c.visits for c in node.below)
            node = node.parent


@block
async def line_search(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    value_model: str = "vm",
    expansions: int = 320,
    tokens: int = 320,
    branch: int = 3,
    lookahead: int = 3,
    exploration: float = 0.7,
    lookahead_weight: float = 0.5,
    threshold: float = 0.9,
    stop_early: bool = False,
    finish: bool = True,
    max_depth: int = 16,
    stop: tuple[str, ...] = (".",),
) -> str | None:
    """MCTS* over lines (algorithm 2): select by UCT, sample `branch` next lines, simulate, back up.

        value_model  the model role whose scalar head values a text: its sigmoid after the last token
        expansions   at most
        tokens       no expansion is begun once so many tokens were sampled (0: no such bound)
        lookahead    lines sampled in simulation from the best new one (the paper's greedy rollout), whose value becomes
                     (1 - lookahead_weight) value + lookahead_weight (largest value of the simulated lines)
        threshold    with `stop_early`, a finished answer of this value ends the search
        finish       where no answer ended, the policy goes on from the line of the largest value to the answer's end;
                     in evaluation alone, as in the released code: in training such a search teaches nothing
        stop         what ends a line; a line without it ends the answer, in place of the paper's self-critic

    Every line has the notes value, prior (what the value model said of it at first), visits and ended. Finished answers
    are closed as trajectories. A limit of the episode ends the search. Returns the answer of the largest value. The
    released MCTS_Task has this exploration, lookahead and threshold, the script for MATH 0.5, 1 and 0.8. There what
    ended can be selected again, and a selected leaf of the threshold's value, finished or not, ends an evaluation.
    """
    root, lines, at_limit = Line(rollout.policy.begin(request.task.prompt)), list[Line](), False
    value_of = values_by(request, rollout, value_model)
    best: Line | None = None
    for _ in range(expansions):
        is_found = stop_early and best is not None and best.value >= threshold
        if is_found or at_limit or not root.expandable(max_depth) or (tokens and rollout.spent >= tokens):
            break
        node = root
        while node.below:
            node = max((c for c in node.below if c.expandable(max_depth)), key=lambda c: c.uct(exploration))
        more, at_limit = await _expand(node, value_of, branch, stop)
        lines += more
        if at_limit:
            break
        if not node.below:
            node.ended = True  # every sampled line was empty
            continue
        top = max(node.below, key=lambda c: c.value)
        simulated, at_limit = await _simulate(top, value_of, lookahead, stop)
        if simulated is not None:
            top.value = (1 - lookahead_weight) * top.value + lookahead_weight * simulated
        top.back_up()
        best = max((c for c in lines if c.ended), key=lambda c: c.value, default=None)
    for line in lines:
        line.context.note(value=line.value, prior=line.prior, visits=line.visits, ended=float(line.finished))
    done = [c for c in lines if c.finished]
    if finish and not done and not at_limit:
        done = [max(lines, key=lambda c: c.value, default=root)]
        await done[0].context.sample(stop=("</answer>",))
    for line in done:
        line.context.close()
    return last_between(rollout.text(max(done, key=lambda c: c.value).context.at), "answer", None) if done else None


@block
async def best_of(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    value_model: str = "vm",
    n: int = 320,
    tokens: int = 320,
    stop: tuple[str, ...] = ("</answer>",),
) -> str | None:
    """Best of n: whole answers, of which the one of the largest value is returned.

    At most `n` are sampled, and none is begun once so many `tokens` were sampled (0: no such bound).
    """
    start, value_of = rollout.policy.begin(request.task.prompt), values_by(request, rollout, value_model)
    answers: list[tuple[float, int, Any]] = []
    while len(answers) < n and not (tokens and rollout.spent >= tokens):
        context = start.fork()
        turn = await context.sample(stop=stop)
        if turn.status == "limit":
            break
        answers.append((await value_of(context), -len(answers), context))
        context.close()
    return last_between(rollout.text(max(answers)[2].at), "answer", None) if answers else None


@block
async def with_slips(
    *, request: RolloutRequest, rollout: RolloutContext, stop: str = ".", model_role: str = "policy"
) -> str:
    """A right demonstration as a tree of lines: its own, and beside each a wrong one, `altered`, at which it ends.

    From one of the wrong ones, drawn, the policy goes on to an answer: what is ranked later are whole answers, whose
    slips are far from their ends. Notes of every line: ended, and right, which is read at the ends.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    lines = re.findall(rf"[^{re.escape(stop)}]*{re.escape(stop)}|.+", request.task.data[0], re.DOTALL)
    draw = rollout.random("slips")
    followed = int(draw.integers(len(lines)))
    for number, line in enumerate(lines):
        if (wrong := altered(line, draw)) is not None:
            slip = context.fork()
            slip.adopt(wrong)
            slip.note(ended=1.0, right=0.0)
            if number == followed:
                await _go_on(slip, wrong, request.task, stop)
        context.adopt(line)
        context.note(ended=float(number == len(lines) - 1), right=1.0)
    return request.task.data[0]


async def _go_on(context: ModelContext, line: str, task: Task, stop: str) -> None:
    """Sample lines after this one to the end of an answer, with the notes of `with_slips`."""
    answer, limit = line, False
    while not (limit or _ends_answer(line, (stop,))):
        context.note(ended=0.0)
        turn = await context.sample(stop=(stop, "</answer>"))
        line, answer, limit = turn.text, answer + turn.text, turn.status == "limit"
    right = exact_match(answer=last_between(answer, "answer", None), task=task).value or 0.0
    context.note(ended=1.0, right=right)


@block
def answered(*, group: RolloutGroup, context: RewardContext) -> Scores:
    """`exact_match` of the last <answer> in each trajectory's own text, for episodes with several answers.

    Part step_auc, where the task judges steps: the chance that the value model values a right line above a wrong one
    that was sampled in the same place.
    """
    task, out = group.request.task, dict[Ref, Score]()
    area = sibling_auc(group, context, "prior")
    for leaf in [t.leaf for _, t in group.learned]:
        found = Score.of(exact_match(answer=last_between(context.text(leaf), "answer", None), task=task))
        out[leaf] = found if area is None else replace(found, parts={**found.parts, "step_auc": area})
    return {"reward": out}


@block
@provides("target")
def line_values(
    *, groups: Sequence[RolloutGroup], model_role: str = "policy", loss_stream: str = "value", bound: float = 0.5
) -> list[Example]:
    """One example per line of the search trees whose value can be inferred: the text up to the line's end.

    Its one row is the line's last token, its value the column `target`, per sequence. Each line counts once, however
    many answers pass through it. bound: the reward of a right answer is above it, or else the note `right` of its line.
    """
    out: list[Example] = []
    for group, episode in [(g, e) for g in groups for e in g.episodes]:
        lines, parent, right = _tree(group, episode, bound)
        values = inferred_values(parent, right)
        for node, value in [(n, v) for n, v in zip(lines[1:], values[1:], strict=True) if not np.isnan(v)]:
            *before, (last, size) = episode.tree.path(node)
            segments = [Segment(Ref(episode.id, at), None, 0, end) for at, end in before]
            segments += [Segment(Ref(episode.id, last), None, 0, size - 1)] * (size > 1)
            segments.append(Segment(Ref(episode.id, last), loss_stream, size - 1, size))
            key, name = f"{group.key}/{loss_stream}", f"{episode.id}:{loss_stream}{node}"
            example = Example(tuple(segments), model_role, key, name, given={"target": ("seq", float(value))})
            out.append(replace(example, labels=labels(group, model_role)))
    return out


def inferred_values(parent: Sequence[int], right: Sequence[bool | None]) -> Array:
    """f64[K]: the value of each node of a tree, inferred from the verdicts on its leaves (equations 1 to 3).

        v_root = 0
        v = max(0, v_parent + (1 - v_parent) r / m)
        r = 1 where a right leaf is below, -1 where none is

    m is 1 at a right leaf, and at an inner node one more than the least of its children; where no right leaf is below,
    it is that of the nearest ancestor with one. So a path of n steps to a right answer rises by 1/n a step, and a wrong
    step falls. (m is the paper's m_k + 1.)

    Args: parent: of each node, -1 for the root, which comes first; every node comes after its parent. right: the
    verdict on a leaf that ended an answer, else None. Returns: NaN where no such leaf is below, and for a whole tree
    without a right leaf.

    >>> inferred_values([-1, 0, 1, 1, 0], [None, None, True, False, False])  # 1/2; 1/2 + 1/2; 1/2 - 1/2 / 2; -1/3
    array([0.  , 0.5 , 1.  , 0.25, 0.  ])
    """
    n = len(parent)
    steps, ended = np.full(n, np.inf), np.zeros(n, bool)
    for i in range(n - 1, -1, -1):
        ended[i] |= right[i] is not None
        if right[i]:
            steps[i] = 1
        if parent[i] >= 0:
            steps[parent[i]] = min(steps[parent[i]], steps[i] + 1)
            ended[parent[i]] |= ended[i]
    value = np.full(n, np.nan)
    if not n or np.isinf(steps[0]):
        return value
    value[0] = 0.0
    for i in range(1, n):
        before = value[parent[i]]
        if ended[i]:
            sign = 1 if np.isfinite(steps[i]) else -1
            steps[i] = steps[i] if sign > 0 else steps[parent[i]]
            value[i] = max(0.0, before + (1 - before) * sign / steps[i])
    return value


async def _expand(node: Line, value_of: Valuation, branch: int, stop: tuple[str, ...]) -> tuple[list[Line], bool]:
    """The distinct next lines among `branch` samples, with their values; and whether a limit of the episode was met."""
    forks = [node.context.fork() for _ in range(branch)]
    turns = await asyncio.gather(*(c.sample(stop=(*stop, "</answer>")) for c in forks))
    distinct = {
        t.text: Line(c, node, node.depth + 1, ended=_ends_answer(t.text, stop))
        for c, t in reversed(list(zip(forks, turns, strict=True)))
        if t.text
    }
    node.below = list(distinct.values())[::-1]
    values = await asyncio.gather(*(value_of(c.context) for c in node.below))
    for line, value in zip(node.below, values, strict=True):
        line.value = line.prior = value
    return node.below, any(t.status == "limit" for t in turns)


async def _simulate(line: Line, value_of: Valuation, lookahead: int, stop: Stop) -> tuple[float | None, bool]:
    """The largest value along up to `lookahead` lines sampled from here, or None; and whether a limit was met."""
    values: list[float] = []
    context, ended = line.context.fork(), line.ended
    while len(values) < lookahead and not ended:
        turn = await context.sample(stop=(*stop, "</answer>"))
        if not turn.text:
            return max(values, default=None), turn.status == "limit"
        ended = _ends_answer(turn.text, stop)
        values.append(await value_of(context))
    return max(values, default=None), False


def _ends_answer(text: str, stop: tuple[str, ...]) -> bool:
    return "</answer>" in text or not any(s in text for s in stop)


def _tree(group: RolloutGroup, episode: Episode, bound: float) -> tuple[list[int], list[int], list[bool | None]]:
    """The lines of a search, the root first: node, index of the parent among them, verdict where an answer ended."""
    tree, notes = episode.tree, episode.tree.notes
    verdicts = {at.node: s.value for at, s in group.scores.get("reward", {}).items() if at.episode == episode.id}
    lines, parent, right = [-1], [-1], list[bool | None]([None])
    for node in sorted(n for n, note in notes.items() if "ended" in note and tree.size(n)):
        above = next((n for n, _ in tree.path(node)[-2::-1] if n in lines), -1)
        value = verdicts.get(node, tree.number(node, "right")) if notes[node]["ended"] else None
        lines.append(node)
        parent.append(lines.index(above))
        right.append(None if value is None else value > bound)
    return lines, parent, right


SEARCHES = {"final_eval_tasks": 100, "final_eval_decoder_samples": 2, "episode_turns": 640}

# An answer has forty tokens, and half of a search looks ahead. In 60 minibatches a value model learns from some starts
# to tell a slip from a right line, and from others not.
OWN: dict[str, Any] = {"groups": 8, "tokens": 640, "value_warmup": 240}

rest_mcts.claim = Claim(
    (
        premise("accuracy", "self", "start", by=0.1, fails_at=0.95),  # searches end answers that can be learned from
        # the value model puts right lines above wrong ones, and so finds what is better than one sample
        mechanism("late:reward/step_auc", "self", 0.5, by=0.15, fails_at=0.6),
        mechanism("accuracy+best_of", "self", "accuracy of self", by=0.02, fails_at=0.99),
        # within the same budget: where no further line is to be found, a search ends sooner
        mechanism("length+mcts", "self", "length+best_of of self", by=0.15, relation="<=", scale="ratio", fails_at=1.0),
        outcome("accuracy+mcts", "self", "accuracy+best_of of self", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "filtered", by=0.03, fails_at=0.98),
    ),
    arms={"filtered": ("rest_mcts", {"by_search": False, **OWN})},
    args=OWN,
    regime="deep",
    settings={"steps": 30, "lr": 3e-4, "eval_every": 5, **SEARCHES},
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 the value model learned from searches at the rate of its first stage, at which it "
        "unlearned within five steps to tell a slip from a right line: mechanism not shown"
    ),
    idea=("main.program.main",),
    because="lines that led to a right answer show where answers go wrong, so search finds what sampling misses",
)
