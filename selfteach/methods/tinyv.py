"""TinyV, a small verifier for what a rule rejects (Xu et al. 2025, arXiv 2505.14625).

A rule that compares texts rejects right answers of another form, which weakens what GRPO learns. A small language
model, trained on such answers, is asked about what the rule rejects, and about nothing else.

    r = 1 where the rule accepts, else v(question, reference, answer)
"""

from __future__ import annotations

from typing import Literal

from ..core import Claim, Method, mechanism, method, outcome, premise
from ..core.method import Home
from ..reward.answer import same_text
from ..reward.verifier_model import by_verifier
from .base import with_verifier
from .grpo import grpo


@method(family="reward", paper="2505.14625", catalogue=341, home=Home("free_form", 40))
def tinyv(
    groups: int = 16,
    rollouts: int = 8,
    mode: Literal["addon", "only", "mixed"] = "addon",
    weight: float = 1.0,
    written: bool = True,
    question: bool = False,
    beta: float = 0.001,
    warmup_minibatches: int = 1500,
    warmup_lr: float = 1e-3,
) -> Method:
    """GRPO on a rule, and on a small verifier's verdict where the rule rejects.

        addon  r = 1 where the rule accepts, else weight v,    v = 1 where the verifier says that the answer is right
        only   r = v
        mixed  r = weight v + (1 - weight) [the rule accepts]

    Xu et al. 2025; the modes, and that only the extracted answer is shown, are the released code's, as are an
    unreadable verdict as 0, G = 8 and beta 0.001 (of the loss, there as much in the reward too). Where there is no
    answer theirs asks about the end of the text; here that is 0. The rule is `same_text`, which knows no other form
    than the reference's. The verifier is a second copy of the run's model and learns in a first stage, twice on
    `warmup_minibatches` of 32 answers: demonstrated ones that the rule rejects, and `written` ones, to their questions
    and to those of training. In the paper a large model writes the reference in other words; here a program puts it
    into those of another right answer, and the wrong one beside it is what is right for another question. Labels, of
    which two large models agree there, are the task's judge's. It does not read the question (`question`), from whose
    memory so small a model would sooner answer than compare; and it has to learn each name, which theirs knows. Its
    verdict is what is more probable, as at temperature 0.

    Metrics (`by_verifier`): reward/rule_misses, reward/verifier_misses, reward/verifier_fooled, reward/asked.
    """
    reward = by_verifier(rule=same_text(), mode=mode, weight=weight, question=question)
    base = grpo(groups=groups, rollouts=rollouts, beta=beta).replace(reward=(reward,))
    return with_verifier(base, warmup_minibatches, warmup_lr, rule=same_text(), written=written, question=question)


tinyv.claim = Claim(
    (
        # the rule rejects a fifth of what is right, at least
        premise("early:reward/rule_misses", "self", 0.2, fails_at=0.1),
        # the verifier finds most of these, is seldom fooled, and what is paid in the end is not what fools it
        mechanism("mean:reward/verifier_misses", "self", 0.2, relation="<", fails_at=1.0),
        mechanism("mean:reward/verifier_fooled", "self", 0.1, relation="<", fails_at=1.0),
        mechanism("late:reward/fooled", "self", 0.03, relation="<", fails_at=0.1),
        outcome("auc", "self", "rule_only", by=0.02, fails_at=0.99),
        outcome("accuracy", "self", "rule_only", by=0.02, fails_at=0.99),
        # as good as one who knows the truth
        outcome("accuracy", "self", "judge", by=0.02, relation="~", fails_at=0.5),
    ),
    args={"mode": "addon", "beta": 0.0},
    arms={"rule_only": ("rule_only", {"rule": "names"}), "judge": "grpo"},
    regime="free_form",
    first_seed=400,
    corrected=(
        "on seeds 200 to 207, in worded, the rule soon missed nothing, and the verifier had learned the names in"
        " demonstrations alone, half of those in training: not tested here. On seeds 300 to 311 how often it was fooled"
        " was that of the last steps, where a tenth of the answers is wrong, of a few questions, and what is left of"
        " these is what fools it: mechanism not shown"
    ),
    idea=("distil", "main.reward", "models", "weights"),
    because="what a rule rejects for its form is paid for all the same, so that no group is without its right answers",
)
