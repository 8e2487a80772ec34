"""AdaCtrl (Huang et al. 2025, arXiv 2505.18822): a label of difficulty before the answer, and a length to match.

An answer begins with one of two tags, which say that the question is easy or hard. It is rewarded for the tag that the
group's own accuracy gives the question, and then for being short where that is easy. Whoever asks may set the tag.

    R   = r + calibration r_d + length r_l        r = 1 right, -1 wrong
    r_d = 1 the tag that accuracy gives, 0 the other one, -1 none
    r_l = (1 + cos(pi l/T))/2 easy, (1 - cos(pi l/T))/2 hard; 0 where the tag is another,   T the group's longest
"""

from __future__ import annotations

from ..core import (
    BadValue,
    Block,
    Claim,
    Method,
    RewardContext,
    RolloutGroup,
    Score,
    Scores,
    Term,
    block,
    mechanism,
    method,
    outcome,
    premise,
)
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from ..reward.answer_verdicts import judge_groups
from ..reward.length import on_cosine, tokens_of
from ..rollout.single import single
from .base import policy_method


@method(family="efficiency", paper="2505.18822", catalogue=126)
def adactrl(
    groups: int = 16,
    rollouts: int = 8,
    easy: str = "<think> slowly",
    hard: str = "<think> twice",
    threshold: float = 0.625,
    calibration: float = 0.5,
    length: float = 0.5,
    lengthen: bool = True,
    low: float = 0.2,
    high: float = 0.28,
) -> Method:
    """GRPO with rewards for telling how hard a question is, and for a length that fits it.

        R = r + calibration r_d + length r_l

    Huang et al. 2025; from the released code (its native_multi_threads; the manager that its script names pays r_l for
    the easy tag and a right answer alone, whatever the label): both coefficients 1/2, right is 1 and wrong -1, a
    question is easy where more than `threshold` of its answers are right, r_l is a cosine over the group's longest
    answer, longer is better where it is hard (`lengthen`; the paper only shortens the easy ones), the clip 0.2 and
    0.28, and a token-level loss. easy, hard: how an answer begins, for which the policy needs demonstrations: [Easy]
    and [Hard] in the paper, here the two ways of `digit_sum` that are right, of which one checks itself. calibration =
    length = 0 is GRPO. decode: `easy` and `hard`, in which the tag is set by whoever asks. The code's overlong penalty,
    and its filter of groups that are all right or all wrong, are left out.
    """
    return (
        policy_method(
            credit=(per_trajectory(), norm()),
            term=Term(clipped_ratio(low=low, high=high), loss_weights=token_mean()),
            groups=groups,
            rollouts=rollouts,
        )
        .replace(
            reward=(
                labelled_difficulty(
                    judge=exact_match(),
                    easy=easy,
                    hard=hard,
                    threshold=threshold,
                    calibration=calibration,
                    length=length,
                    lengthen=lengthen,
                ),
            )
        )
        .override(decode={"easy": single(prefix=easy), "hard": single(prefix=hard)})
    )


@block
async def labelled_difficulty(
    *,
    group: RolloutGroup,
    context: RewardContext,
    deadline: float,
    judge: Block | None = None,
    easy: str = "[Easy]",
    hard: str = "[Hard]",
    threshold: float = 0.625,
    calibration: float = 0.5,
    length: float = 0.5,
    lengthen: bool = True,
) -> Scores:
    """The reward of `adactrl`. judge: right from 1 on; None: exact_match.

    Parts: those of the judge; easy, 1 where the question is; agrees, 1 where the tag says what accuracy does;
    tagged_easy, 1 for the tag `easy`. Unknown rewards stay unknown, and count in no accuracy.
    """
    if not easy.strip() or not hard.strip() or easy.startswith(hard) or hard.startswith(easy):
        raise BadValue(f"labelled_difficulty: easy and hard must be two texts to tell apart, not {easy!r} and {hard!r}")
    verdicts = await judge_groups(judge, [group], context, deadline)
    known = [
        (t.leaf, tokens_of(e, t))
        for e in group.episodes
        for t in e.trajectories
        if t.leaf in verdicts and verdicts[t.leaf].value is not None
    ]
    right = [(verdicts[at].value or 0.0) >= 1.0 for at, _ in known]
    longest = max((n for _, n in known), default=1)
    is_easy = sum(right) > threshold * len(right)
    out: Scores = {"reward": dict(verdicts)}
    for (at, tokens), is_right in zip(known, right, strict=True):
        text = context.text(at).lstrip()
        tag = "easy" if text.startswith(easy.lstrip()) else "hard" if text.startswith(hard.lstrip()) else ""
        agrees = tag == ("easy" if is_easy else "hard")
        fits = 0.0
        if agrees and (is_easy or lengthen):
            fits = on_cosine(tokens, longest, 1.0, 0.0) if is_easy else on_cosine(tokens, longest, 0.0, 1.0)
        value = (1.0 if is_right else -1.0) + calibration * (float(agrees) if tag else -1.0) + length * fits
        have = verdicts[at]
        parts = {"easy": float(is_easy), "agrees": float(agrees), "tagged_easy": float(tag == "easy")}
        out["reward"][at] = Score(value, {**have.parts, **parts}, have.why, have.error)
    return out


adactrl.claim = Claim(
    (
        # the baseline's tags say nothing of difficulty, and its right answers are longer than one way needs (28 tokens)
        premise("length_right", "untold", 30.0, by=0.0, fails_at=29.0),
        # whoever asks can choose, since demonstrations of what is called hard are long
        premise("length+hard", "self", "length+easy of self", by=0.3, scale="ratio", fails_at=1e6),
        mechanism("late:reward/agrees", "self", "untold", by=0.15, fails_at=1.0),
        outcome("length", "self", "untold", by=0.1, relation="<", scale="ratio", fails_at=30.0),
        outcome("accuracy", "self", "untold", by=0.03, relation=">=", fails_at=1.0),
    ),
    arms={"untold": ("adactrl", {"calibration": 0.0, "length": 0.0})},
    regime="verbose",
    idea=("main.reward",),
    because="a policy that is paid for saying how hard a question is to itself answers briefly where it is easy",
)
