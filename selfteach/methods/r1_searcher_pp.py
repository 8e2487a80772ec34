"""R1-Searcher++, dynamic knowledge acquisition (Song et al. 2025, arXiv 2505.17005).

Right answers that took the fewest searches of their group are paid more where the group disagrees about how many it
takes, and what was found is learned: right rollouts, rewritten so that they recall it, are imitated.

    R    = answer - 2 [the form is wrong] + group
    group = min(2 sigma^2, eta) for the right answers with the fewest searches, else 0;  sigma of their numbers
    loss = policy gradient + mu * nll(rewritten rollouts)
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..core import (
    Claim,
    Column,
    Home,
    Method,
    Ref,
    RewardContext,
    RolloutContext,
    RolloutGroup,
    RolloutRequest,
    Score,
    Scores,
    Seq,
    Task,
    TaskSource,
    Term,
    Update,
    block,
    mechanism,
    method,
    outcome,
    premise,
    stateful,
)
from ..core.answers import normalise
from ..core.search_record import own_text, pieces_of
from ..credit.composers import per_trajectory
from ..curriculum.select import next_tasks
from ..objective.kl import kl
from ..objective.likelihood import nll
from ..objective.loss_weights import token_mean
from ..objective.policy import clipped_ratio
from ..reward.agent_record import count_searches, fault
from ..reward.answer import states_gold
from ..rollout.search import RETRY, search_agent
from .search_r1 import search_r1

MEMORY = "memory"  # the loss stream and role of rewritten rollouts


@method(family="search", paper="2505.17005", catalogue=272, home=Home("factworld", 40))
def r1_searcher_pp(
    groups: int = 16,
    rollouts: int = 16,
    turns: int = 8,
    eta: float = 2.0,
    penalty: float = 2.0,
    mu: float = 0.1,
    beta: float = 1e-4,
) -> Method:
    """REINFORCE++ on answers that search, paid for searching less where less suffices, which remember what they find.

        R_i  = [right, in at most ten words] - penalty [the form is wrong] + group_i
        group_i = min(2 sigma^2, eta) where i is right with the fewest searches of its group, else 0
        A_i  = (R_i - mean of all) / std of all
        loss = -min(rho A, clip(rho) A) + beta KL + mu nll(rewritten right rollouts)

    Song et al. 2025, from notes on the paper, which confirm its settings (16 rollouts, 8 searches, KL 1e-4, eta = 2,
    mu = 0.1) and not that the group's reward is 2 sigma^2, as remembered; sigma is the standard deviation of the
    searches of the right answers of a group. Right is to contain a gold answer, here as whole words. A document that
    the agent invents is a fault of form, there as here. There, a fine-tuned model rewrites a right rollout so that it
    recalls what it found; here a program puts what was found into one thought, as this policy recalls, and a decision
    to search becomes one for memory. Its tags <internal>, <external> and <document> are <think>, <search> and
    <information> here; the warm start stands for its supervised first stage. eta=0: without the group's reward. mu=0:
    without memories.
    """
    terms = (
        Term(clipped_ratio(), loss_weights=token_mean()),
        *((Term(kl(), loss_weights=token_mean(), coef=beta),) if beta else ()),
        *((Term(nll(), on=(MEMORY,), loss_weights=token_mean(), coef=mu),) if mu else ()),
    )
    base = search_r1(groups=groups, rollouts=rollouts, turns=turns, beta=beta).replace(
        reward=(fewest_searches(eta=eta, penalty=penalty),),
        credit=(per_trajectory(), norm_of_answers()),
        updates=(Update(("policy",), terms),),
    )
    if not mu:
        return base
    programs = {"main": search_agent(turns=turns, invalid=RETRY), MEMORY: remember()}
    return base.replace(select=then_remembered(), programs=programs)


@block
def fewest_searches(*, group: RolloutGroup, context: RewardContext, eta: float = 2.0, penalty: float = 2.0) -> Scores:
    """The reward of R1-Searcher++; 0 for a rewritten rollout, which is imitated whatever it is worth.

    Parts: answer, format, searches, group; where the task says what the model holds (tag `known`), searches_known or
    searches_unknown, and recalled_unknown: right without a search although the model did not hold it.
    """
    rows: list[tuple[Ref, bool, str, int]] = []
    out: dict[Ref, Score] = {}
    task = group.request.task
    for episode in group.episodes:
        for t in episode.trajectories:
            if t.learn == MEMORY:
                out[t.leaf] = Score(0.0)
                continue
            pieces = pieces_of(context.path(t.leaf), context)
            # a token of its own may reach past </search>, into the opening tag of what was found
            invented = "a document of its own" if "</information>" in own_text(pieces) else ""
            is_right = contains_gold(episode.answer, task)
            rows.append((t.leaf, is_right, fault(pieces) or invented, count_searches(pieces)))
    right = [count for _, is_right, _, count in rows if is_right]
    extra = min(2.0 * float(np.var(right)), eta) if right else 0.0
    for leaf, is_right, why, count in rows:
        added = extra if is_right and count == min(right) else 0.0
        parts = {"answer": float(is_right), "format": float(not why), "searches": float(count), "group": added}
        if "known" in task.tags:
            parts[f"searches_{'known' if task.tags['known'] else 'unknown'}"] = float(count)
            if not task.tags["known"]:
                parts["recalled_unknown"] = float(is_right and not count)
        out[leaf] = Score(is_right - penalty * bool(why) + added, parts, why)
    return {"reward": out}


def contains_gold(answer: Any, task: Task, most: int = 10) -> bool:
    """Whether an answer of at most `most` words contains a gold answer, word after word.

    >>> po = Task("t", "", ("river Po",))
    >>> contains_gold("the river Po", po), contains_gold("the Po river", po), contains_gold("river Po " * 6, po)
    (True, False, False)
    """
    return len(normalise(str(answer)).split()) <= most and states_gold(answer, task)


@block
@stateful(int)
def then_remembered(
    *, n: int, rollouts: int, finished_rounds: list[list[RolloutGroup]], source: TaskSource, seed: int, state: int
) -> tuple[list[RolloutRequest], int]:
    """The next `n` training tasks; then, of each answer that was right and well formed after a search, its rewriting.

    The `help` of such a request holds `output`, the place where the answer ends.
    """
    if len(finished_rounds) > 1:
        return [], state
    if not finished_rounds:
        return [RolloutRequest(task, rollouts) for task in next_tasks(source, seed, state, n)], state + n
    out = list[RolloutRequest]()
    for group in finished_rounds[0]:
        for leaf, score in group.scores.get("reward", {}).items():
            worth = score.parts.get("answer") and score.parts.get("format") and score.parts.get("searches")
            if worth:
                out.append(RolloutRequest(group.request.task, 1, MEMORY, help={"output": leaf}, cause=group.key))
    return out, state


@block
async def remember(*, request: RolloutRequest, rollout: RolloutContext, opening: str = "briefly: ") -> str:
    """A right rollout, rewritten so that it recalls what it had found, to be imitated.

    opening  how the policy begins a thought in which it recalls, so that it imitates what it recalls and not its form
    """
    text = recalled(rollout.text(request.help["output"]), opening)
    context = rollout.policy.begin(request.task.prompt)
    context.adopt(text)
    context.finish()
    context.close(learn=MEMORY, role=MEMORY)
    return text


def recalled(text: str, opening: str = "") -> str:
    """A text with what its searches found in one thought, and its answer; a decision becomes one for memory.

    >>> recalled("<think>first</think><search>home of Ann</search><information>It is Ulm.</information><answer> Ulm"
    ... "</answer>", "I know: ")
    '<think>I know: It is Ulm.</think><answer> Ulm</answer>'
    """
    decision = "<decision> memory</decision>" if text.startswith("<decision>") else ""
    found = re.findall(r"<search>(?:(?!</search>).)*</search>\s*<information>(.*?)</information>", text, re.DOTALL)
    return f"{decision}<think>{opening}{' '.join(found)}</think>{text[text.rfind('<answer>') :]}"


@block
def norm_of_answers(*, reward: Seq, role: Seq, batch: Seq, eps: float = 1e-6) -> dict[str, Column]:
    """Advantages of REINFORCE++: rewards in standard deviations from the mean of the whole batch; rewritten rollouts,
    which are imitated, have 0 and do not count.

    Args: reward f64[S]; role str[S]; batch i64[S], named so that the batch is not split. Returns: adv f64[S].

    >>> roles = ["policy", "policy", "policy", "memory"]
    >>> norm_of_answers(reward=[1, 0, 0, 5], role=roles, batch=[0] * 4, eps=0.0)["adv"].values.round(4)
    array([ 1.1547, -0.5774, -0.5774,  0.    ])
    """
    values, own = np.asarray(reward, np.float64), np.asarray(role) != MEMORY
    adv = np.zeros(len(values))
    if own.sum() > 1 and np.ptp(values[own]) > 0:
        adv[own] = (values[own] - values[own].mean()) / (values[own].std(ddof=1) + eps)
    adv[np.isnan(values)] = np.nan
    return {"adv": Column("seq", adv)}


r1_searcher_pp.claim = Claim(
    (
        premise("accuracy", "plain", "start", by=0.2, fails_at=0.85),
        premise("late:reward/searches_known", "plain", 0.5, fails_at=0.3),  # answers alone teach to search for all
        mechanism("late:reward/searches_known", "self", "plain", relation="<", scale="ratio", by=0.3, fails_at=0.0),
        mechanism("late:reward/recalled_unknown", "self", "no_memory", by=0.02, fails_at=1.0),  # it did not hold these
        outcome("accuracy", "self", "plain", by=0.03, relation=">=", fails_at=1.0),
        outcome("calls", "self", "plain", relation="<", scale="ratio", by=0.2, fails_at=0.0),
    ),
    arms={
        "plain": ("r1_searcher_pp", {"eta": 0.0, "mu": 0.0}),
        "no_memory": ("r1_searcher_pp", {"mu": 0.0}),
    },
    regime="half_known",
    first_seed=300,
    corrected=(
        "on seeds 200 to 207 four searches were the most, a gold answer's words were right in any order, and a "
        "document of the agent's own was no fault: does not hold here"
    ),
    idea=("main.reward", "main.select", "main.program.*", "main.update.*"),
    because="fewer searches are paid only where the group shows that fewer suffice, and what was found is remembered",
)
