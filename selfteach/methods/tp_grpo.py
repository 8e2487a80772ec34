"""TP-GRPO (2507.23317): which thoughts of an answer were wrong is told by what the answer itself took back.

Steps of a right answer that were corrected on the way were wrong; steps of a wrong answer that its solution repeats led
to it, the others did not. Steps of one verdict in a row are one thought, rewarded by how well the policy does already.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..core import (
    Claim,
    Column,
    Method,
    Ref,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Seq,
    Term,
    Token,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..core.tagged_text import split_points
from ..credit import segments as seg
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..credit.returns import reward_to_go
from ..objective.kl import kl
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from .base import policy_method


@method(family="credit", paper="2507.23317", catalogue=157)
def tp_grpo(
    groups: int = 16,
    rollouts: int = 8,
    alpha: float = 0.5,
    adaptive: bool = True,
    merge: bool = True,
    clip: float = 0.2,
    beta: float = 0.0,
) -> Method:
    """GRPO with advantages of thoughts, by verdicts that are read from the answer itself.

        A = (R - mean R) / std R,   r_c = alpha times the share of right answers in the group
        right answer:  A on thoughts that stood, A - r_c on thoughts that it took back itself
        wrong answer:  A on thoughts that its solution repeats, 0 on the others; A on the solution

    He et al. 2025. These are the sums of later process rewards and the outcome, where rewards at the ends of thoughts
    are r_c and -r_c in turns (A and -A in wrong answers) and the last thought shares that of the solution; they are
    computed directly. There, by one description, only answers with a process reward that is not zero are learned; here
    all are, and one without a change of thought is learned as by GRPO. merge=False rewards every step instead, the
    paper's ablation: a step has A + r_c (right steps from here on - wrong ones), in a wrong answer A + A (repeated
    steps - others); adaptive=False: r_c = alpha. The generative judge is a program here (`own_verdicts`) that reads the
    same cues. Known from two descriptions: alpha is not in them (1/2 here), nor the weight of their KL (none here).
    Their outcome is 1 or -1, the same once normalised; their schedule of judging 50 steps at once is left out. alpha =
    0 is GRPO but for wrong answers, whose thoughts that came to nothing are not blamed.
    """
    base = policy_method(
        credit=(
            per_trajectory(tokens=("taken_back", "repeated_later")),
            of_thoughts(alpha=alpha, adaptive=adaptive, merge=merge),
        ),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        more=(Term(kl(kind="k3"), loss_weights=sequence_mean(), coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
    )
    return base.replace(reward=(exact_match(), own_verdicts()))


STEP = re.compile(r"(wait )?(\w+) \+ (\w+) [=~] (\w+)\.$")
THOUGHT_END = "</think>"


class Verdict(NamedTuple):
    """Of a step of a thought: whether it was taken back later, and whether the solution repeats it."""

    taken_back: bool
    repeated: bool


def verdicts(steps: Sequence[str], solution: str) -> list[Verdict | None]:
    """The verdict on each step of a thought, by the cues in it; None for what is no step.

    `wait` takes back the last step that works out the same, if its result was another, and what depends on that: each
    step until then that begins with a result taken back.

    >>> [v.taken_back for v in verdicts(["2 + 3 ~ 9.", "9 + 1 = 0.", "wait 2 + 3 = 5.", "5 + 1 = 6."], "") if v]
    [True, True, False, False]
    """
    read = [STEP.search(s.strip()) for s in steps]
    wrong = set[int]()
    for n, found in enumerate(read):
        if not found or not found[1]:
            continue
        blamed = next((k for k in range(n - 1, -1, -1) if (r := read[k]) and r.groups()[1:3] == found.groups()[1:3]), n)
        if blamed == n or (read[blamed] or found)[4] == found[4]:
            continue
        results = set[str]()
        for k in range(blamed, n):
            of = read[k]
            if of and (k == blamed or of[2] in results):
                wrong.add(k)
                results = {of[4]}
    kept = {re.sub("[~=]", "=", s.strip()) for s in re.findall(r"\w+ \+ \w+ [=~] \w+\.", solution)}
    return [
        Verdict(n in wrong, re.sub("[~=]", "=", found[0].removeprefix("wait ")) in kept) if found else None
        for n, found in enumerate(read)
    ]


@block
@provides("taken_back", "repeated_later")
def own_verdicts(*, group: RolloutGroup, context: RewardContext) -> Scores:
    """Scores of steps, 1 or 0, at their ends: whether it was taken back, and whether the solution repeats it.

    A step ends with a full stop and is an addition (`verdicts`); the thought ends with </think>.
    """
    back, again = dict[Ref, Score](), dict[Ref, Score]()
    for episode in group.episodes:
        for leaf in (t.leaf for t in episode.learned):
            tree = episode.tree
            pieces = context.tokenizer.token_bytes(tree.id[tree.begin[leaf.node] : tree.stop(leaf.node)])
            bounds = [0, *split_points(pieces, r"[.]")]
            texts = [b"".join(pieces[a:z]).decode(errors="replace") for a, z in pairwise(bounds)]
            inside = [n for n, text in enumerate(texts) if THOUGHT_END not in text]
            n_inside = next((n for n in range(len(texts)) if n not in inside), len(texts))
            rest = b"".join(pieces[bounds[n_inside] :]).decode(errors="replace")
            for end, found in zip(bounds[1:], verdicts(texts[:n_inside], rest), strict=False):
                if found is not None:
                    at = Ref(episode.id, leaf.node, end)
                    back[at], again[at] = Score(float(found.taken_back)), Score(float(found.repeated))
    return {"taken_back": back, "repeated_later": again}


@block
def of_thoughts(
    *,
    reward: Seq,
    taken_back: Token,
    repeated_later: Token,
    seq: Token,
    group: Seq,
    alpha: float = 0.5,
    adaptive: bool = True,
    merge: bool = True,
    bound: float = 0.5,
) -> dict[str, Column]:
    """The advantage of each token by the thought that it is in; see `tp_grpo`.

    Args: reward f64[S], right above `bound`; taken_back, repeated_later f64[N], at the last token of each step,
    else NaN; seq i64[N]; group i64[S]. Returns: adv f64[N]. Scope: group.

    Of a right answer in a group half right, the step of the first two tokens was taken back: 0.7071 - 0.5 * 0.5; of the
    wrong one nothing is known.

    >>> steps = {"taken_back": [np.nan, 1.0, 0.0, np.nan], "repeated_later": [np.nan, 0.0, 1.0, np.nan]}
    >>> of_thoughts(reward=[1, 0], **steps, seq=[0, 0, 0, 1], group=np.zeros(2, int))["adv"].values.round(3)
    array([ 0.457,  0.457,  0.707, -0.707])
    """
    seq, group, reward = np.asarray(seq), np.asarray(group), np.asarray(reward, np.float64)
    right = (reward > bound).astype(np.float64)
    strength = alpha * (seg.mean(right, group, seg.count(group))[group] if adaptive else np.ones(len(right)))
    whole, is_right = norm(reward=reward, group=group)["adv"].values[seq], right[seq] > 0
    stood, led = 1.0 - np.asarray(taken_back, np.float64), np.asarray(repeated_later, np.float64)
    signed, size = np.where(is_right, stood, led), np.where(is_right, strength[seq], whole)
    if merge:  # of the thought that a token is in: 0 for one that led to the answer, else -1
        change = np.where(seg.next_known(signed, seq) <= 0, -1.0, 0.0)
    else:
        change = reward_to_go(np.where(np.isnan(signed), 0.0, 2.0 * (np.nan_to_num(signed) > 0) - 1.0), seq, 1.0)
    return {"adv": Column("token", whole + size * change)}


tp_grpo.claim = Claim(
    (
        premise("accuracy", "grpo", "start", by=0.1, fails_at=0.95),  # outcomes can be learned from
        # right steps get more credit than wrong ones of the same answer
        mechanism("mean:policy/step_auc", "self", 0.5, by=0.05, fails_at=0.5),
        outcome("auc", "self", "grpo", by=0.02, fails_at=0.99),
        outcome("steps_to@0.5", "self", "grpo", relation="<", scale="ratio", by=0.2, fails_at=0.0),
        outcome("accuracy", "self", "unmerged", by=0.02, fails_at=0.99),
        outcome("auc", "self", "static", by=0.01, fails_at=0.995),
    ),
    arms={
        "grpo": ("grpo", {}, {"lr": 2e-4}),
        "unmerged": ("tp_grpo", {"merge": False}),
        "static": ("tp_grpo", {"adaptive": False, "alpha": 1.0}),
    },
    regime="mended",
    settings={"lr": 1e-4},
    first_seed=400,
    corrected=(
        "on seeds 200 to 207 the arm without merging had the values of merged thoughts in wrong answers: mechanism not "
        "shown; on 300 to 307 its rate was the best for GRPO, twice its own: does not hold here"
    ),
    idea=("main.credit", "main.reward*"),
    differs={"settings.lr": "each at the rate that is best for it"},
    because="an answer that takes a step back says which step was wrong, and one that is wrong says in its solution"
    " which steps it believed",
)
