"""RLVR across diverse domains: a distilled generative verifier's soft reward (Su et al. 2025, arXiv 2503.23829).

Free-form answers have no rule that could verify them. A model that writes 1 or 0 after question, reference and answer
is distilled from a teacher's verdicts, and the probability of its 1 is the reward, normalised within a prompt.

    r_i = pi_v(1 | question, reference, answer_i),    A_i = (r_i - mean(r)) / std(r)
"""

from __future__ import annotations

from ..core import Claim, Method, mechanism, method, outcome, premise
from ..core.method import Home
from ..credit.advantages import center, norm
from ..credit.composers import per_trajectory
from ..reward.answer import same_text
from ..reward.verifier_model import by_verifier
from .base import with_verifier
from .grpo import grpo


@method(family="reward", paper="2503.23829", catalogue=288, home=Home("free_form", 40))
def soft_rlvr(
    groups: int = 16,
    rollouts: int = 8,
    soft: bool = True,
    zscore: bool = True,
    teacher_noise: float = 0.1,
    question: bool = False,
    beta: float = 0.01,
    warmup_minibatches: int = 1500,
    warmup_lr: float = 1e-3,
) -> Method:
    """GRPO's update on the probability that a distilled verifier gives to the answer's being right.

        soft       r = pi_v(1 | [question,] reference, answer); else 1[it is above 1/2]; 0 without an answer
        advantage  (r - mean) / std within a prompt, 0 where all are equal; zscore=False: r - mean
        teacher_noise  share of the teacher's verdicts that are wrong

    Su et al. 2025, equations 1 to 6: the z-score is theirs, within "the batch" of an answer, which is read as those to
    its prompt, four there and eight here. They run REINFORCE, REINFORCE++ and RLOO on the normalised rewards, from
    which 0.01 of the log-ratio to the reference is taken; GRPO's loss with one update on each batch is REINFORCE's but
    for a division by an answer's length, and its KL is a term beside it (`beta`). Their hard reward is a sampled
    verdict, here the more probable one; soft is better than hard there on questions of many subjects, and not by every
    learner. Their teacher is a model of 72B, whose verdicts on the rollouts of a first run (160k) are what the verifier
    learns; here it is the task's judge, wrong with probability `teacher_noise`, and it judges demonstrated answers,
    which the policy's start imitates, and written ones to their questions and to those of training (as TinyV's):
    `warmup_minibatches` of 32, twice, without the question (`question`), which theirs reads and from whose
    memory so small a model would sooner answer than compare. Theirs reads a response's last line, here the answer
    between its tags. No thinking precedes a verdict, as there. The rule is no part of the reward; its misses are
    measured beside the verifier's.
    """
    reward = by_verifier(rule=same_text(), mode="only", soft=soft, question=question)
    base = grpo(groups=groups, rollouts=rollouts, beta=beta).replace(
        reward=(reward,), credit=(per_trajectory(), norm() if zscore else center())
    )
    return with_verifier(base, warmup_minibatches, warmup_lr, noise=teacher_noise, question=question)


soft_rlvr.claim = Claim(
    (
        premise("early:reward/rule_misses", "self", 0.2, fails_at=0.1),  # answers are free in form
        # one verdict in ten that it learned from was wrong, and it errs less often than that
        mechanism("early:reward/verifier_misses", "self", 0.1, relation="<", fails_at=1.0),
        mechanism("early:reward/verifier_fooled", "self", 0.1, relation="<", fails_at=1.0),
        outcome("accuracy", "self", "rule_only", by=0.02, fails_at=0.99),
        outcome("auc", "self", "rule_only", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "judge", by=0.02, relation="~", fails_at=0.5),
        outcome("accuracy", "self", "hard", by=0.01, fails_at=0.995),
    ),
    args={"soft": True, "teacher_noise": 0.1, "beta": 0.0},
    arms={
        "rule_only": ("rule_only", {"rule": "names"}),
        "judge": "grpo",
        "hard": ("soft_rlvr", {"soft": False, "teacher_noise": 0.1, "beta": 0.0}),
    },
    regime="free_form",
    idea=("distil", "main.reward", "models", "weights"),
    because="a verifier learns what a rule cannot say, and what it is unsure of counts for less",
)
