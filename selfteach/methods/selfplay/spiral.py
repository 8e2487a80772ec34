"""SPIRAL: self-play on zero-sum games with a baseline for each role."""

from __future__ import annotations

from ...core import Check, Claim, Member, Method, Stage, Term, Update, Weights, method
from ...credit.baseline import role_baseline
from ...credit.compose import each
from ...curriculum.select import uniform
from ...objective.policy import clipped_ratio
from ...objective.weigh import sequence_sum
from ...reward.noted import noted
from ...rollout.play import exploitability, play


@method(
    family="selfplay",
    paper="2506.24119",
    catalogue=96,
    claim=Claim(
        (
            Check("score+exploitability", "self", "start", by=0.05),
            Check("score+exploitability", "self", "fixed", by=0.0),
            Check("score+expert", "self", "fixed", by=0.0),
            Check("mean:grad_norm", "self", "shared", by=0.0, relation="<"),
        ),
        arms={"fixed": ("spiral", {"opponent": "random", "groups": 256}), "shared": ("spiral", {"roles": False})},
        task="games",
        steps=60,
        because="an opponent that grows with the policy leaves no weakness unpunished, and a seat that is worth more is no merit of its moves",
    ),
)
def spiral(groups: int = 128, opponent: str = "self", roles: bool = True, decay: float = 0.95, every: int = 20, clip: float = 0.2) -> Method:
    """Self-play on zero-sum games: one policy in both seats, each seat's payoff over a moving average of its own game and role.

        A_p = R_p - b[game, p],  b <- decay b + (1 - decay) R_p        loss = mean over seats of the sum over its tokens of -min(r A, clip(r) A)

    Liu et al. 2025, equations 4 to 6 and algorithm 1: no group, no division by a standard deviation or a length. Chosen: b takes a step's
    games together (credit.role_baseline); a move that is not allowed twice in a row forfeits, as the task has it.

    opponent  self; random or expert (players that need no model); past: the policy of at most `every` updates ago, in the cast.
              Against another the policy sits in either seat by lot and one trajectory a game is learned, so equal data is twice the groups.
    roles     False: one baseline for both seats, as the paper's ablation has it
    """
    second = "policy" if opponent == "self" else opponent
    made = Method(
        stages=(
            Stage(
                select=uniform(),
                programs={"main": play(second=second, rotate=second != "policy")},
                reward=(noted(),),
                credit=(each(), role_baseline(decay=decay, by=("category", "role") if roles else ("category",))),
                updates=(Update(("policy",), (Term(clipped_ratio(low=clip, high=clip), weigh=sequence_sum()),)),),
                groups=groups,
                rollouts=1,
            ),
        ),
        decode={
            "random": play(second="random", rotate=True),
            "expert": play(second="expert", rotate=True),
            "exploitability": exploitability(),
        },
    )
    if opponent != "past":
        return made
    return made.with_(weights={"past": Weights("start", follow="policy", every=every)}, cast={"past": Member(("past",))})
