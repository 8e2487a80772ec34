"""Cooper, co-optimising policy and reward model (Hong et al. 2025, arXiv 2508.05613).

A reward model that judges against the reference answer is trained along with the policy, against reward hacking, on
pairs of an answer o+ that a precise rule certifies and its corruption o-.

    policy:        r_i = sigmoid(R(q, reference, o_i)), GRPO
    reward model:  -log sigmoid(R(o+) - R(o-))
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from ..core import (
    Block,
    Claim,
    Example,
    Method,
    ModelRole,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Segment,
    Seq,
    Stage,
    Task,
    TaskSource,
    Term,
    Token,
    Update,
    WeightSpec,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
    stateful,
)
from ..core.answers import reference_answer
from ..core.errors import BadValue
from ..core.lazy import torch
from ..core.random_keys import generator, key
from ..core.scoring import score
from ..core.tagged_text import last_between
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..curriculum.select import reviewed
from ..objective.kl import kl
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from ..objective.preference import bradley_terry
from ..objective.segments import seq_last
from ..reward.answer import exact_match
from ..rollout.single import single
from .rule_only import certifying

REFERENCE = "reference"  # the span of the reference answer, at the end of the reward model's input


@method(family="reward", paper="2508.05613", catalogue=184)
def cooper(
    groups: int = 16,
    rollouts: int = 8,
    clip: float = 0.2,
    beta: float = 0.001,
    rm_warmup_steps: int = 120,
    rm_warmup_lr: float = 1e-3,
    rm_lr: float = 3e-4,
    unlabelled: tuple[str, ...] = (),
    rule: Literal["terse", "worked"] = "terse",
    unread: float = 0.0,
    update: bool = True,
) -> Method:
    """GRPO on a reward model that judges against the reference answer and is trained along with the policy.

        policy:        r_i = sigmoid(R(q, reference, o_i)), GRPO, + beta KL to the reference model (k3)
        reward model:  -log sigmoid(R(o+) - R(o-))        o+ certified by a rule, o- its corruption

    Hong et al. 2025, section 3; beta is the released script's, whose means are over tokens, not answers. Here R is the
    run's model with a scalar head and weights of its own; the first step is its supervised training on
    `rm_warmup_steps` minibatches of 32 labelled pairs (binary cross-entropy as there, and the pairwise loss, without
    which it takes far longer). The corruption is made by a program that changes the result, in place of an LLM that
    rewrites the answer.

        unlabelled  ways (tag `way`) of which the labelled pairs have none, as a policy comes to answers that no labels
                    foresaw
        rule        precise, with low recall: `terse` reads sums without words only, `worked` asks that every step
                    written is right by the task's judge of steps
        unread      share of the questions whose reference the rule cannot read, so that it certifies nothing there
        rm_lr       learning rate of R beside the policy: of a step it has one update on a pair per group
        update      False: R is frozen after its first step
    """
    first = Stage(
        name="grade",
        select=labelled_answers(without=unlabelled),
        programs={"main": read_for_appraisal()},
        reward=(),
        credit=(labelled(),),
        updates=(
            Update(
                ("rm",),
                (Term(right_or_wrong(), on=("rm",)), Term(bradley_terry(), on=("rm",))),
                minibatches=rm_warmup_steps,
                lr=rm_warmup_lr,
            ),
        ),
        groups=32 * rm_warmup_steps,
        rollouts=1,
        until=1,
        data=True,
    )
    learn = Update(("rm",), (Term(bradley_terry(), on=("rm",)),), lr=rm_lr)
    near = (Term(kl(), loss_weights=sequence_mean(), coef=beta),) if beta else ()
    policy = Update(("policy",), (Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()), *near))
    second = Stage(
        select=reviewed(program="appraise"),
        programs={"main": single(), "appraise": appraise()},
        reward=(reward_model_score(other_rewards=(("rule", certifying(rule, unread)), ("right", exact_match()))),),
        credit=(per_trajectory(), certified_pairs(wrong=exact_match()), norm()),
        updates=(policy, learn) if update else (policy,),
        groups=groups,
        rollouts=rollouts,
    )
    return Method(
        stages=(first, second),
        weights={"policy": WeightSpec(), "ref": WeightSpec(), "rm": WeightSpec()},
        models={
            "policy": ModelRole(("policy",)),
            "ref": ModelRole(("ref",)),
            "rm": ModelRole(("rm",), heads=("scalar",)),
        },
    )


@block
@stateful(int)
def labelled_answers(
    *,
    n: int,
    finished_rounds: list[list[RolloutGroup]],
    source: TaskSource,
    state: int,
    without: tuple[str, ...] = (),
) -> tuple[list[RolloutRequest], int]:
    """The next `n` demonstrations of the source, one episode of each, but those that go a way (tag) in `without`.

    Raises BadValue where nearly all of them do.
    """
    if finished_rounds or source.demos is None:
        return [], state
    found = list[RolloutRequest]()
    first = state
    while len(found) < n:
        item = source.demos(state)
        state += 1
        if item.tags.get("way") not in without:
            found.append(RolloutRequest(item, 1))
        if state - first > 1000 * (len(found) + 1):
            raise BadValue(f"labelled_answers: of {state - first} demonstrations only {len(found)} go another way")
    return found, state


@block
async def appraise(*, request: RolloutRequest, rollout: RolloutContext, model_role: str = "rm") -> float:
    """The reward model scores an answer: the place `output` of the request's help, given task and reference answer.

    Note: worth, the sigmoid of the scalar head after the last token.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    context.append(rollout.response_ids(request.help["output"]))
    reference = f"\n {reference_answer(request.task)}"
    quantities = await context.score(reference, want=("scalar_after",))
    context.append(reference, span=REFERENCE)
    worth = (
        1 + math.tanh(float(quantities["scalar_after"][-1]) / 2)
    ) / 2  # the sigmoid, which this way cannot overflow
    context.note(worth=worth)
    context.close(learn=None)
    return worth


@block
async def read_for_appraisal(*, request: RolloutRequest, rollout: RolloutContext, model_role: str = "rm") -> str:
    """A demonstration as the reward model's input, and a counterpart of the other label; the note `label` is 0 or 1.

    The counterpart of a wrong demonstration is the task's solution (the tag), that of a right one the same text with a
    reference answer that is off by one or two.
    """
    task, text = request.task, request.task.data[0]
    gold, answer = reference_answer(task).strip(), last_between(text, "answer", "")
    reference = f"\n {gold}"  # last, so that its tokens can attend to equal ones before
    texts = [(text, reference, float(answer == gold))]
    if answer != gold and "solution" in task.tags:
        texts.append((task.tags["solution"], reference, 1.0))
    elif answer == gold and gold.isdigit():
        off = int(rollout.random("reference").choice([-2, -1, 1, 2]))
        texts.append((text, f"\n {abs(int(gold) + off) if int(gold) + off != -int(gold) else int(gold) + 1}", 0.0))
    for text, reference, label in texts:
        context = rollout.model_role(model_role).begin(task.prompt)
        context.append(text)
        context.adopt(reference, span=REFERENCE)
        context.note(label=label)
        context.close(learn=model_role)
    return answer


@block
async def reward_model_score(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    deadline: float,
    other_rewards: tuple[tuple[str, Block], ...] = (),
) -> Scores:
    """The note `worth` of the reward model's episode about an answer, as the answer's reward; unknown without one.

    other_rewards: (name, reward) of the answers, whose values are parts of the score; with one named `right` also the
    part `agreed`, whether worth > 1/2 agrees with it. The answer of an episode is at `output` of its request's help.
    The reward model's episodes are scored with their worth too; they are not learned.
    """
    worth: dict[Ref, float | None] = {}
    out: dict[Ref, Score] = {}
    for group in (g for g in groups if "output" in g.request.help):
        for tree, leaf in [(e.tree, t.leaf) for e in group.episodes for t in e.trajectories]:
            value = worth[group.request.help["output"]] = tree.number(leaf.node, "worth")
            out[leaf] = Score(value, error=None if value is not None else "its program wrote no note worth")
    answers = [g for g in groups if "output" not in g.request.help]
    others = {name: (await score(reward, answers, context, deadline))["reward"] for name, reward in other_rewards}
    for at in [t.leaf for g in answers for _, t in g.learned]:
        parts = {name: value for name, scores in others.items() if (value := scores[at].value) is not None}
        value = worth.get(at)
        if value is not None and "right" in parts:
            parts["agreed"] = float((value > 0.5) == (parts["right"] >= 1.0))
        error = None if value is not None else "no episode of the reward model about this answer has a note worth"
        out[at] = Score(value, parts, error=error)
    return {"reward": out}


@block
def right_or_wrong(*, scalar_after: Token, seq: Token, label: Seq) -> Seq:
    """Binary cross-entropy of sigmoid(R) with a label, R the scalar head after a text's last token.

    Args: scalar_after f[N]; seq i64[N]; label f[S] in [0, 1]. Returns: l f[S].

    >>> import torch
    >>> right_or_wrong(scalar_after=torch.tensor([5.0, 0.0]), seq=torch.tensor([0, 0]), label=torch.tensor([1.0]))
    tensor([0.6931])
    """
    return torch.nn.functional.binary_cross_entropy_with_logits(
        seq_last(scalar_after, seq, len(label)), label, reduction="none"
    )


@block
@provides("label")
def labelled(*, groups: Sequence[RolloutGroup], model_role: str = "rm") -> list[Example]:
    """Each closed trajectory as an example of `model_role`, with its note `label` as a column per seq.

    Within an episode, examples with a higher label are preferred over those with a lower one.
    """
    closed = [(e.tree, t.leaf) for g in groups for e in g.episodes for t in e.trajectories]
    labels = {leaf.name: v for tree, leaf in closed if (v := tree.number(leaf.node, "label")) is not None}
    examples = per_trajectory(groups=groups, model_role=model_role)
    label, episode = [labels[x.name] for x in examples], [x.name.rsplit(":", 1)[0] for x in examples]
    rows: dict[str, list[int]] = {}
    for i, name in enumerate(episode):
        rows.setdefault(name, []).append(i)
    return [
        replace(
            x, given={**x.given, "label": ("seq", own)}, preferred_over=tuple(j for j in rows[name] if label[j] < own)
        )
        for x, own, name in zip(examples, label, episode, strict=True)
    ]


@block
def certified_pairs(
    *,
    groups: Sequence[RolloutGroup],
    context: RewardContext,
    certified: str = "rule",
    wrong: Block | None = None,
    model_role: str = "rm",
    tries: int = 4,
) -> list[Example]:
    """Pairs of a certified answer and the same answer with its result changed, at most one per group (section 3.3).

    certified  the part of the reward that is 1 for a certified answer; one such answer of a group, if any, is drawn
    wrong      a reward that must reject the corruption; a pair of which it accepts `tries` corruptions is left out

    Both examples are the input of `model_role` about the answer, learned at its last token. Their reward is 0 and their
    key their own, so that they do not affect advantages. Raises BadValue without `wrong`.
    """
    if wrong is None:
        raise BadValue("certified_pairs needs wrong=, a reward that must reject the corruption, such as exact_match()")
    about = {g.request.help["output"]: g for g in groups if "output" in g.request.help}
    out: list[Example] = []
    for group in groups:
        scores = group.scores.get("reward", {})
        candidates = [at for at, s in scores.items() if s.parts.get(certified, 0.0) >= 1.0 and at in about]
        if not candidates:
            continue
        at = min(candidates, key=lambda ref: key("certified", ref.episode))
        episode = about[at].episodes[0]
        view = context.path(episode.trajectories[0].leaf)
        ids, end = view.ids.tolist(), len(view.ids) - sum(s == REFERENCE for s in view.spans)
        prompt, answer, reference = ids[: view.prompt], ids[view.prompt : end], ids[end:]
        corruption = corrupted(
            context.tokenizer.decode(answer), group.request.task, wrong, (at.episode, "corrupt"), tries
        )
        if corruption is None:
            continue
        texts = [(*prompt, *own, *reference) for own in (answer, context.tokenizer.encode(corruption).tolist())]
        out += [_whole_text(text, model_role, group, at, n) for n, text in enumerate(texts)]
        out[-2] = replace(out[-2], preferred_over=(len(out) - 1,))
    return out


def _whole_text(ids: tuple[int, ...], model_role: str, group: RolloutGroup, at: Ref, number: int) -> Example:
    """An input of the reward model as an example, learned at its last token."""
    return Example(
        (Segment(ids[:-1], None), Segment(ids[-1:], model_role)),
        model_role,
        f"{group.key}/certified",
        f"{at.episode}/certified:{number}",
        given={"reward": ("seq", 0.0), "truncated": ("seq", 0.0)},
        labels={"task": group.request.task.id, "role": model_role},
    )


def corrupted(text: str, task: Task, wrong: Block, rng_key: tuple[object, ...], tries: int = 4) -> str | None:
    """The text with the number in its last <answer> changed, from its last computation (`= 9`) on.

    The number is off by 1, 2 or 10 and not below 0, drawn at the RNG key; None where `wrong` accepts all tries.

    >>> task = Task("t", "2 + 3 + 4 =", "9")
    >>> corrupted("2 + 3 = 5. 5 + 4 = 9.<answer> 9</answer>", task, exact_match(), (1,))
    '2 + 3 = 5. 5 + 4 = 7.<answer> 7</answer>'
    """
    answer = last_between(text, "answer", "")
    if not re.fullmatch(r"\d+", answer):
        return None
    draw = generator(*rng_key)
    for _ in range(tries):
        other = str(abs(int(answer) + int(draw.choice([-10, -2, -1, 1, 2, 10]))))
        if float(wrong(answer=other, task=task).value or 0.0) < 1.0 and other != answer:
            computed = [m.start() for m in re.finditer(rf"(?<== ){answer}(?!\d)", text)]
            begin = computed[-1] if computed else text.rindex("<answer>")
            return text[:begin] + re.sub(rf"(?<!\d){answer}(?!\d)", other, text[begin:])
    return None


MISSES = {"unread": 0.37}  # of what is right, by the paper

cooper.claim = Claim(
    (
        # the rule misses as much as the paper's, and the frozen reward model pays for what is wrong
        premise("mean:reward/rule_misses", "rule_only", 0.2, fails_at=0.1),
        premise("late:reward/mean", "static", "late:reward/right of static", by=0.2, fails_at=0.9),
        # the one that learns on comes to agree with the truth
        mechanism("late:reward/agreed", "self", "late:reward/agreed of static", by=0.1, fails_at=0.95),
        outcome("accuracy", "self", "static", by=0.1, fails_at=0.92),
        outcome("accuracy", "self", "slow", by=0.1, fails_at=0.92),
        outcome("accuracy", "self", "start", by=0.2, fails_at=0.85),
        outcome("accuracy", "self", "rule_only", by=0.02, fails_at=0.99),
    ),
    args={"update": True, "rm_lr": 1e-3, **MISSES},
    arms={
        "static": ("cooper", {"update": False, **MISSES}),
        "slow": ("cooper", {"update": False, **MISSES}, {"lr": 3.75e-5}),  # which is best for a frozen one
        "rule_only": ("rule_only", MISSES, {"lr": 3e-4}),
    },
    regime="unforeseen",
    settings={"lr": 7.5e-5},
    differs={"settings.lr": "each at the rate that is best for it, and the frozen reward model at the method's, too"},
    first_seed=500,
    corrected="on seeds 200 to 207 the frozen reward model was seldom hacked, for it knew too much: not tested here; "
    "on 300 to 315 the rule missed one right answer in 300, where the paper's misses 37 %: does not hold here; on 400 "
    "to 407 the rate was that of the frozen one's regime, twice that which is best for the method, and half of the "
    "runs were hacked: does not hold here",
    idea=("grade", "main.select", "main.program", "main.reward", "main.credit", "main.update", "models", "weights"),
    because=(
        "a frozen reward model is exploited; one that continues to learn from answers that a precise rule certifies "
        "is not"
    ),
)
