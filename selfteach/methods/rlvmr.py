"""RLVMR (2507.22844): an agent says what kind of thought a turn follows, and rules say whether it was such a thought.

A plan is rewarded where the episode succeeds, an exploration where it does something new, a reflection where it follows
a failure and does something else that can be done. Rewards are compared among turns of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

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
    Step,
    Term,
    Token,
    Tree,
    block,
    mechanism,
    method,
    outcome,
    premise,
    provides,
)
from ..credit.advantages import norm
from ..credit.composers import per_trajectory
from ..objective.kl import kl
from ..objective.loss_weights import sequence_mean
from ..objective.policy import clipped_ratio
from ..reward.answer import exact_match
from .base import policy_method

THOUGHTS = ("plan", "explore", "reflect", "monitor")


@method(family="credit", paper="2507.22844", catalogue=158)
def rlvmr(
    groups: int = 16,
    rollouts: int = 8,
    alpha: float = 0.5,
    rewarded: tuple[str, ...] = ("plan", "explore", "reflect"),
    over: Literal["batch", "group"] = "batch",
    format_penalty: float = 0.1,
    clip: float = 0.2,
    beta: float = 0.01,
) -> Method:
    """GRPO whose advantage is mixed, turn by turn, with that of a rule's reward for the kind of thought it follows.

        R_k = the episode's return, less format_penalty where turn k says no kind
        r_k = 1 where the rule of the turn's kind holds, else 0
        A_k = alpha (R_k - mean R) / std R        mean, std of R: over all turns of the group
            + (1 - alpha) (r_k - mean r) / std r  mean, std of r: over the batch's turns of the same kind; 0 where a
                                                  turn says no kind
        plan      the episode succeeds
        explore   the action can be carried out and is on something that no action was on before
        reflect   the turn before failed, and this action is another one, on something, and can be carried out
        monitor   none

    Zhang et al. 2025. rewarded: the kinds that have a rule. How much a rule pays cancels in the normalisation, so that
    it is 1. alpha 0.5, KL 0.01 and the penalty are the paper's. As in the released code the penalty is in R before that
    is normalised: where all episodes of a group fail, it is all that its turns differ in, and where one turn in ten
    says no kind, that one has about -3 and the others +0.3, times alpha.

    The released code adds the two parts (each weight 1 in its two scripts, 0.5 by default), compares turns of one kind
    within the group (over="group"), and takes any action that was not said before for an exploration and any other one
    for a reflection, also where they fail. The paper asks of an exploration a new object or location only: that it can
    be carried out is ours. It has a reflection after a sequence of failures, the code and we after one. An action on
    something is one of two words or more: where `look` and `quit` counted, a policy learned in ten steps to explore by
    giving up. alpha = 1, no penalty and no KL: GRPO, with an episode in its statistics as often as it has turns.
    """
    base = policy_method(
        credit=(
            per_trajectory(steps=("rule_reward", "thought")),
            mix_by_thought(alpha=alpha, over=over, format_penalty=format_penalty),
        ),
        term=Term(clipped_ratio(low=clip, high=clip), loss_weights=sequence_mean()),
        more=(Term(kl(kind="k3"), loss_weights=sequence_mean(), coef=beta),) if beta else (),
        groups=groups,
        rollouts=rollouts,
    )
    return base.replace(reward=(exact_match(), thought_rules(rewarded=rewarded)))


@block
@provides("rule_reward", "thought")
def thought_rules(
    *, group: RolloutGroup, context: RewardContext, rewarded: tuple[str, ...] = ("plan", "explore", "reflect")
) -> Scores:
    """Scores of each turn in an environment: `thought`, the number of its kind, and `rule_reward` (see `rlvmr`).

    The kind is the turn's first word (-1: it says none), what follows is its action. Reads the notes `executable` of
    turns and `success` of episodes.
    """
    rules, kinds = dict[Ref, Score](), dict[Ref, Score]()
    for episode in group.episodes:
        for t in episode.trajectories:
            tree = episode.tree
            turns = [n for n, _ in tree.path(t.leaf.node) if tree.number(n, "turn_reward") is not None]
            texts = [own_text(tree, n, context) for n in turns]
            could = [bool(tree.number(n, "executable")) for n in turns]
            success = bool(tree.number(t.leaf.node, "success"))
            for node, (kind, right) in zip(turns, judged(texts, could, success), strict=True):
                at = Ref(episode.id, node)
                kinds[at] = Score(float(THOUGHTS.index(kind)) if kind else -1.0)
                rules[at] = Score(float(right and kind in rewarded))
    return {"rule_reward": rules, "thought": kinds}


def own_text(tree: Tree, node: int, context: RewardContext) -> str:
    """What was sampled in a turn."""
    rows = slice(tree.begin[node], tree.stop(node))
    return context.tokenizer.decode(tree.id[rows][tree.action_mask[rows]])


def judged(texts: Sequence[str], could: Sequence[bool], success: bool) -> list[tuple[str, bool]]:
    """(kind, whether its rule holds) of each turn of an episode; ("", False) for a turn that says no kind.

    could: whether the turn's action could be carried out.

    >>> judged(["plan go hall", "explore go hall", "reflect open box"], [True, False, True], True)
    [('plan', True), ('explore', False), ('reflect', True)]
    """
    out, said, touched = list[tuple[str, bool]](), list[str](), set[str]()
    for n, text in enumerate(texts):
        first, _, rest = text.strip().partition(" ")
        kind = first if first in THOUGHTS else ""
        action = rest.strip() if kind else text.strip()
        name = action.partition(" ")[2]
        right = {
            "plan": success,
            "explore": could[n] and name not in {"", *touched},
            "reflect": n > 0 and not could[n - 1] and could[n] and bool(name) and action != said[-1],
        }.get(kind, False)
        said.append(action)
        touched |= {name} if could[n] else set()
        out.append((kind, right))
    return out


@block
def mix_by_thought(
    *,
    reward: Seq,
    rule_reward: Step,
    thought: Step,
    step: Token,
    seq: Step,
    group: Step,
    batch: Token,
    alpha: float = 0.5,
    over: Literal["batch", "group"] = "batch",
    format_penalty: float = 0.1,
    eps: float = 1e-6,
) -> dict[str, Column]:
    """Mix the advantage of each turn's episode with that of its rule among turns that follow a thought of its kind.

        A_k = alpha (R_k - mean R) / (std R + eps) + (1 - alpha) (r_k - mean r) / (std r + eps)

    R_k is the reward of the turn's episode, less format_penalty where the turn says no kind; its statistics are over
    the turns of the group. The second part is 0 where a turn says no kind.

    Args: reward f64[S]; of each turn rule_reward, thought (-1 or NaN: none) f64[K] and seq, group i64[K]; step i64[N];
    batch, named so that the batch is not split. Returns: adv f64[N]. Scope: batch.

    A failure of three turns: R = 0, 0, -0.1 is 0.5774, 0.5774 and -1.1547 standard deviations from the mean, and of
    two explorations one holds, 0.7071 from it each.

    >>> turns = {"step": [0, 1, 2], "seq": [0, 0, 0], "group": [0, 0, 0], "batch": [0, 0, 0]}
    >>> given = {"rule_reward": [1.0, 0.0, np.nan], "thought": [1.0, 1.0, np.nan], **turns}
    >>> mix_by_thought(reward=[0.0], **given)["adv"].values.round(4)
    array([ 0.6422, -0.0649, -0.5773])
    """
    kind = np.nan_to_num(np.asarray(thought, np.float64), nan=-1.0).astype(np.int64)
    outcome_reward = np.asarray(reward, np.float64)[np.asarray(seq)] - np.where(kind < 0, format_penalty, 0.0)
    outcome_part = norm(reward=outcome_reward, group=group, eps=eps)["adv"].values
    within = np.asarray(group) if over == "group" else np.zeros_like(kind)
    _, same = np.unique(np.stack([within, kind]), axis=1, return_inverse=True)
    rule = norm(reward=np.nan_to_num(np.asarray(rule_reward, np.float64)), group=same.ravel(), eps=eps)["adv"].values
    of_turn = alpha * outcome_part + (1 - alpha) * np.where(kind < 0, 0.0, rule)
    return {"adv": Column("token", of_turn[np.asarray(step)])}


rlvmr.claim = Claim(
    (
        premise("mean:reward/repeated", "grpo", 0.1, fails_at=0.05),  # agents do repeat themselves
        # what leads on gets more credit than what does not, within one episode
        mechanism("early:policy/step_auc", "self", 0.5, by=0.05, fails_at=0.5),
        mechanism("late:reward/executable", "self", "grpo", by=0.0, fails_at=1.0),
        outcome("accuracy", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("auc", "self", "grpo", by=0.03, fails_at=0.98),
        outcome("late:reward/repeated", "self", "grpo", by=0.2, relation="<", scale="ratio", fails_at=0.0),
    ),
    arms={"grpo": ("grpo", {"beta": 0.01})},
    args={"beta": 0.01},
    regime="turns",
    idea=("main.credit", "main.reward*"),
    because="rules say of a turn whether it was a plan that came true, a step to something new, or an answer to a"
    " failure, which the return of the whole episode does not",
)
