"""What is wrong with a run, by its newest steps: rules over metrics, each with what to try where it holds.

    found = check(Window(early, recent, evaluations))   # rule -> what is the matter; a pure function

A rule compares the newest steps with the first ones of the same stage, and waits for several steps, since one step of
few groups says little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

Row = Mapping[str, Any]

EARLY = 5  # first steps of a stage that are kept to compare with
RECENT = 60  # newest steps that are kept
FEW, SOME, MANY = 3, 5, 10  # newest steps that a rule looks at: where one is telling, usually, where it is noisy

# Below it, of 48 groups two teach: DAPO (2503.14476, section 3.2) shows that gradients of so few are noise.
MIXED_GROUPS = 0.05
# Entropy is spent for reward, R = -a exp(H) + b (Cui et al. 2025, 2505.22617): at a tenth of it nearly all is spent.
ENTROPY_LEFT = 0.1
ENTROPY_RISE = 3.0  # times the first ...
ENTROPY_RISE_NATS = 1.0  # ... and so much more: each token is drawn from e times as many as before
# A truncated answer mostly earns nothing whatever it says: above this share the reward is about length.
TRUNCATED = 0.3
LENGTH_RISE = 2.5  # times the first, without more reward; where reward rises too, answers may well need the length
# bf16 differs by some 0.01; at 0.03 nats a token the probability of an answer of 100 tokens is wrong by e^3.
MISMATCH = 0.03
MISMATCH_RISE = 10.0  # times the first ...
MISMATCH_LEAST = 1e-3  # ... where that is more than rounding of float32
# Two evaluations in a row lower than the best by so many standard errors of a difference. The best of many is too high
# by one or two of them, so that 2 would speak by chance.
ACCURACY_ERRORS = 3.0
QUESTIONS = 20  # fewer say nothing of a fall
# Greedy answers are not those that are trained: a policy that gets flatter loses some there and is healthy. Two thirds:
# in runs that went well it lost up to a fifth.
GREEDY_LEFT = 2 / 3
GRAD_RISE = 10.0  # times the median before: clipping at 1 lets one such step pass, a row of them goes before a collapse
GRAD_LEAST = 1.0  # norms below the usual clip are small, whatever they were before
# PPO stops an epoch at 0.01 to 0.05. At 0.2 nats a token the ratio of an answer of 30 tokens is e^6.
KL = 0.2
# Normalised advantages are of size 1: where the penalty is larger, it and no reward decides.
KL_PENALTY = 1.0
CLIPPED = 0.5  # most tokens lose their gradient; PPO at work clips some 0.02 to 0.2
# ... and the policy has moved: narrow clips of whole sequences (GSPO, 2507.18071) act on as many where it hardly has.
CLIPPED_KL = 0.05
# The KL of one minibatch to the next is below what float32 can tell from none.
STILL = 1e-8
FAILED = 0.02  # share of episodes; the run stops at max_unscored, 0.1
CALLS = 0.5  # calls of tools per episode in the beginning, of which
CALLS_LEFT = 0.05  # less than this share is left
REWARD_LEFT = 0.5  # of its best, and
REWARD_ERRORS = 4.0  # so many standard errors below it
SOLVED = 0.9  # held-out accuracy from which entropy may be low, since answers are right


@dataclass
class Window:
    """What rules look at: the first and the newest steps of the running stage, and the evaluations so far.

    evaluations  "step", "accuracy" (greedy), "sampled" where it was measured, "questions"
    """

    early: list[Row] = field(default_factory=list[Row])
    recent: list[Row] = field(default_factory=list[Row])
    evaluations: list[Row] = field(default_factory=list[Row])

    def add(self, row: Row) -> None:
        """Add the metrics of a step."""
        if len(self.early) < EARLY:
            self.early.append(row)
        self.recent.append(row)
        del self.recent[:-RECENT]

    def last(self, name: str, count: int) -> list[float]:
        """A metric in the newest `count` steps; [] where one of them has none, or there are fewer."""
        found = [_number(row.get(name)) for row in self.recent[-count:]]
        return [v for v in found if v is not None] if len(found) == count and None not in found else []

    def first(self, name: str, count: int = FEW) -> float | None:
        """Its mean in the first steps; None where it is unknown, or fewer than `count` others have followed."""
        found = [v for row in self.early[:count] if (v := _number(row.get(name))) is not None]
        enough = len(self.recent) >= 2 * count and len(found) == count
        return _mean(found) if enough else None

    def names(self, end: str) -> list[str]:
        """The metrics of the newest step that end so."""
        return [name for name in self.recent[-1] if name.endswith(end)] if self.recent else []


class Rule(NamedTuple):
    """One rule: the condition in words, what to try, and the check: what is the matter, with figures, or None."""

    name: str
    condition: str
    advice: str
    check: Callable[[Window], str | None]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(_mean([(v - mean) ** 2 for v in values]))


def _accuracy(window: Window) -> float | None:
    """The newest held-out accuracy since training began, the better of greedy and sampled."""
    newest = window.evaluations[-1] if window.evaluations and window.evaluations[-1]["step"] > 0 else {}
    known = [v for name in ("greedy", "sampled") if (v := _number(newest.get(name))) is not None]
    return max(known, default=None)


def _reward_gain(window: Window) -> float | None:
    """Mean reward of the newest steps less that of the first; None: unknown."""
    before, now = window.first("reward/mean"), window.last("reward/mean", FEW)
    return None if before is None or not now else _mean(now) - before


def _solved(window: Window) -> bool:
    """Whether answers are alike because they are right: reward has risen, and what is held out does not deny it."""
    accuracy, gain = _accuracy(window), _reward_gain(window)
    return (gain or 0) > 0 and (accuracy is None or accuracy > 0.5)


def constant_reward(window: Window) -> str | None:
    """Whether every answer of the newest steps had the same reward."""
    rewards, mixed = window.last("reward/mean", SOME), window.last("rollout/mixed_group_fraction", SOME)
    if not rewards or not mixed or any(mixed) or max(rewards) - min(rewards) > 1e-9 * max(1.0, abs(rewards[0])):
        return None
    if _solved(window):
        return None
    return f"every answer of the last {SOME} steps had the reward {rewards[-1]:.3g}: nothing can be learned from it"


def groups_alike(window: Window) -> str | None:
    """Whether hardly any group has rewards that differ, where advantages are relative to the group."""
    mixed = window.last("rollout/mixed_group_fraction", SOME)
    episodes, groups = window.last("rollout/episodes", 1), window.last("rollout/groups", 1)
    if not mixed or not groups or episodes[0] < 2 * groups[0] or window.names("critic/grad_norm"):
        return None
    if _mean(mixed) >= MIXED_GROUPS or _solved(window):
        return None
    share = f"in {100 * _mean(mixed):.0f} % of the groups of the last {SOME} steps rewards differ"
    return f"{share}: in the others every advantage is 0 and nothing is learned"


def no_gradient(window: Window) -> str | None:
    """Whether groups differ and yet no update had a gradient."""
    mixed = window.last("rollout/mixed_group_fraction", SOME)
    if not mixed or _mean(mixed) < MIXED_GROUPS:
        return None
    rows = window.recent[-SOME:]
    taught = [[v for n, v in row.items() if n.endswith("/grad_norm")] for row in rows]
    due = any(n.endswith("/optimiser_steps") for row in rows for n in row)
    if not due or any(v for norms in taught for v in norms):
        return None
    return f"the gradient of the last {SOME} steps was zero, though rewards differ within groups"


def entropy_collapse(window: Window) -> str | None:
    """Whether the policy has stopped exploring before the task is solved."""
    before, now = window.first("policy/entropy_estimate"), window.last("policy/entropy_estimate", FEW)
    if before is None or not now or _mean(now) >= ENTROPY_LEFT * before:
        return None
    if _solved(window) or (_accuracy(window) or 0) >= SOLVED:
        return None
    return (
        f"entropy fell from {before:.2g} to {_mean(now):.2g} nats a token: the policy says the same each time, and so"
        " finds nothing better"
    )


def entropy_rise(window: Window) -> str | None:
    """Whether the policy dissolves into noise."""
    before, now = window.first("policy/entropy_estimate"), window.last("policy/entropy_estimate", FEW)
    if before is None or not now or _mean(now) < max(ENTROPY_RISE * before, before + ENTROPY_RISE_NATS):
        return None
    return f"entropy rose from {before:.2g} to {_mean(now):.2g} nats a token: answers turn into noise"


def truncated(window: Window) -> str | None:
    """Whether many answers are cut at the limit."""
    now = window.last("rollout/truncated_fraction", FEW)
    if not now or _mean(now) < TRUNCATED:
        return None
    length = window.last("rollout/length_mean", 1)
    about = f" (mean length {length[0]:.0f} tokens)" if length else ""
    return f"{100 * _mean(now):.0f} % of the answers of the last {FEW} steps were cut at the limit of tokens{about}"


def longer_not_better(window: Window) -> str | None:
    """Whether answers grow and reward does not."""
    before, now = window.first("rollout/length_mean"), window.last("rollout/length_mean", FEW)
    gain = _reward_gain(window)
    if not before or not now or gain is None or gain > 0 or _mean(now) < LENGTH_RISE * before:
        return None
    return f"answers grew from {before:.0f} to {_mean(now):.0f} tokens, and reward did not rise"


def logprob_mismatch(window: Window) -> str | None:
    """Whether sampler and learner drift apart."""
    now, before = window.last("policy/logprob_mismatch_mean", FEW), window.first("policy/logprob_mismatch_mean")
    if not now:
        return None
    grown = before is not None and _mean(now) > max(MISMATCH_LEAST, MISMATCH_RISE * before)
    if _mean(now) < MISMATCH and not grown:
        return None
    since = f", {before:.2g} in the beginning" if grown else ""
    return f"log-probabilities of sampler and learner differ by {_mean(now):.2g} nats a token{since}"


def reward_hacked(window: Window) -> str | None:
    """Whether reward rises while held-out accuracy falls."""
    gain, fall = _reward_gain(window), _accuracy_fall(window)
    if fall is None or gain is None or gain <= 0:
        return None
    return f"reward rose by {gain:.2g} while {fall}: it may pay for something else than right answers"


def accuracy_fall(window: Window) -> str | None:
    """Whether held-out accuracy falls while reward does not rise."""
    gain, fall = _reward_gain(window), _accuracy_fall(window)
    return None if fall is None or gain is None or gain > 0 else fall


def _accuracy_fall(window: Window) -> str | None:
    """The fall of held-out accuracy below its best, in two evaluations in a row; that of sampled answers where it is
    measured.
    """
    for name in ("sampled", "greedy"):
        known = [(v, e) for e in window.evaluations if (v := _number(e.get(name))) is not None]
        if len(known) < 3:
            continue
        best, at = max(known[:-2], key=lambda row: row[0])
        questions = min(int(e.get("questions") or 0) for e in (at, known[-1][1]))
        if questions < QUESTIONS:
            return None
        error = math.hypot(_error(best, questions), _error(known[-1][0], questions))
        bound = best - ACCURACY_ERRORS * error
        if name == "greedy":
            bound = min(bound, GREEDY_LEFT * best)
        if max(known[-1][0], known[-2][0]) < bound:
            return f"held-out {name} accuracy fell from {100 * best:.0f} to {100 * known[-1][0]:.0f} %"
        return None
    return None


def _error(share: float, questions: int) -> float:
    """The standard error of a share of right answers (Agresti and Coull 1998), which is not 0 for none or all."""
    nearer = (share * questions + 2) / (questions + 4)
    return math.sqrt(nearer * (1 - nearer) / (questions + 4))


def gradient_rise(window: Window) -> str | None:
    """Whether a gradient norm is far above what it was, two steps in a row."""
    for name in window.names("/grad_norm"):
        before = [v for row in window.recent[:-2] if (v := _number(row.get(name)))]
        now = window.last(name, 2)
        if now and len(before) >= SOME and min(now) > max(GRAD_LEAST, GRAD_RISE * median(before)):
            return f"{name} rose from {median(before):.2g} to {now[-1]:.2g}"
    return None


def kl_rise(window: Window) -> str | None:
    """Whether the policy leaves the one that sampled, or the reference, behind."""
    for name in window.names("/approx_kl"):
        now = window.last(name, FEW)
        if now and _mean(now) > KL:
            return f"{name} is {_mean(now):.2g} nats a token: updates leave the policy that sampled far behind"
    for name in window.names("/loss/kl"):
        now = window.last(name, FEW)
        if now and _mean(now) > KL_PENALTY:
            return f"the KL penalty ({name}) is {_mean(now):.2g}, more than any advantage: the reference is far away"
    return None


def clipped(window: Window) -> str | None:
    """Whether the clip takes most tokens' gradient."""
    for name in window.names("/clip_fraction"):
        now, moved = window.last(name, SOME), window.last(name.replace("clip_fraction", "approx_kl"), SOME)
        if now and _mean(now) > CLIPPED and (not moved or _mean(moved) > CLIPPED_KL):
            return f"{name} is {_mean(now):.2f}: most of what was sampled teaches nothing any more"
    return None


def policy_stands_still(window: Window) -> str | None:
    """Whether several optimiser steps a batch do not move the policy."""
    steps, moved = window.last("policy/optimiser_steps", MANY), window.last("policy/approx_kl", MANY)
    norms = window.last("policy/grad_norm", MANY)
    if not steps or not moved or not norms or min(steps) < 2 or min(norms) <= 0 or max(map(abs, moved)) > STILL:
        return None
    return f"{steps[-1]:.0f} optimiser steps a batch move the policy by nothing that can be measured (approx_kl 0)"


def failing(window: Window) -> str | None:
    """Whether episodes fail, or answers have no score."""
    rows = window.recent[-SOME:]
    counts = {n: sum(_number(row.get(f"rollout/{n}")) or 0 for row in rows) for n in ("failed_episodes", "unscored")}
    episodes = sum(_number(row.get("rollout/episodes")) or 0 for row in rows)
    bad = [n for n in counts.values() if n]
    if len(rows) < SOME or not episodes or sum(bad) < FAILED * episodes:
        return None
    failed, unscored = int(counts["failed_episodes"]), int(counts["unscored"])
    return f"of {episodes:.0f} episodes of the last {SOME} steps {failed} raised and {unscored} have no reward"


def tools_unused(window: Window) -> str | None:
    """Whether tools that were called in the beginning are not any more."""
    before, now = window.first("rollout/tool_calls_mean"), window.last("rollout/tool_calls_mean", FEW)
    if before is None or not now or before < CALLS or _mean(now) >= CALLS_LEFT * before:
        return None
    return f"calls of tools fell from {before:.1f} to {_mean(now):.2g} an episode"


def reward_fall(window: Window) -> str | None:
    """Whether reward has been much higher before, where no curriculum makes tasks harder."""
    rewards = [v for row in window.recent if (v := _number(row.get("reward/mean"))) is not None]
    if len(rewards) < 2 * SOME or any(n.startswith("select/") for n in window.recent[-1]):
        return None
    means = [_mean(rewards[i : i + FEW]) for i in range(len(rewards) - SOME - FEW + 1)]
    best, now = max(means), _mean(rewards[-SOME:])
    at = means.index(best)
    noise = _deviation(rewards[at : at + FEW]) + _deviation(rewards[-SOME:])
    if best - now < (1 - REWARD_LEFT) * abs(best) or best - now < REWARD_ERRORS * noise / math.sqrt(FEW) or best == now:
        return None
    return f"reward fell from {best:.2g} to {now:.2g}: the policy was better before"


LOWER_LR = "lower the learning rate (--lr)"
RULES: Sequence[Rule] = (
    Rule(
        "constant_reward",
        f"every answer of {SOME} steps has the same reward, which did not rise to there",
        "look at rollouts (selfteach show RUN --worst 5): a reward that ignores the answer, a form the policy never"
        " meets, or a policy that fell apart (then a lower --lr)",
        constant_reward,
    ),
    Rule(
        "groups_alike",
        f"rewards differ in less than {MIXED_GROUPS:.0%} of the groups over {SOME} steps, and not because all is right",
        "too hard: easier tasks, more --rollouts, a reward with parts, a longer warm start; too easy: harder tasks",
        groups_alike,
    ),
    Rule(
        "no_gradient",
        f"no update of {SOME} steps has a gradient, though rewards differ within groups",
        "see dropped/... in the metrics: what credit or a filter leaves out; and the learning rate's schedule",
        no_gradient,
    ),
    Rule(
        "entropy_collapse",
        f"entropy is below {ENTROPY_LEFT:.0%} of what it was, and the task is not solved",
        LOWER_LR + ", a KL penalty (--beta), a higher upper clip (dapo), or a higher temperature",
        entropy_collapse,
    ),
    Rule(
        "entropy_rise",
        f"entropy is above {ENTROPY_RISE:.0f} times what it was and {ENTROPY_RISE_NATS:.0f} nat more",
        LOWER_LR + ", a KL penalty (--beta), less entropy bonus; go back to an earlier checkpoint",
        entropy_rise,
    ),
    Rule(
        "truncated",
        f"more than {TRUNCATED:.0%} of the answers of {FEW} steps are cut at the limit",
        "raise --max-tokens (or --context), or pay for shorter answers (overlong); where it came suddenly the policy"
        " fell apart: lower --lr",
        truncated,
    ),
    Rule(
        "longer_not_better",
        f"answers are {LENGTH_RISE} times as long as at first, and reward is no higher",
        "a loss without length bias (dr_grpo), a length penalty (overlong), and a look at rollouts",
        longer_not_better,
    ),
    Rule(
        "logprob_mismatch",
        f"the mismatch is above {MISMATCH} nats a token, or {MISMATCH_RISE:.0f} times what it was",
        "--engine-dtype float32, or a method that corrects for it (clipped_importance); the run stops at"
        " --max-logprob-mismatch",
        logprob_mismatch,
    ),
    Rule(
        "reward_hacked",
        f"reward is higher than at first, and two evaluations in a row are {ACCURACY_ERRORS:.0f} standard errors below"
        f" the best (greedy ones: below {GREEDY_LEFT:.0%} of it)",
        "read the best rollouts (selfteach show RUN --best 5), correct the reward, add a KL penalty (--beta), stop"
        " earlier; --eval-samples 4 measures what is trained",
        reward_hacked,
    ),
    Rule(
        "accuracy_fall",
        "the same fall of held-out accuracy, and reward is no higher than at first",
        LOWER_LR + ", see whether reward and held-out answers are judged alike (selfteach show RUN --best 5), and go"
        " on from an earlier checkpoint",
        accuracy_fall,
    ),
    Rule(
        "gradient_rise",
        f"a gradient norm is above {GRAD_RISE:.0f} times its median and {GRAD_LEAST:.0f}, two steps in a row",
        LOWER_LR + ", more groups a step, warm-up (--warmup)",
        gradient_rise,
    ),
    Rule(
        "kl_rise",
        f"the KL from the sampling policy is above {KL} nats a token, or the KL penalty above {KL_PENALTY:.0f}",
        LOWER_LR + ", fewer epochs or minibatches a step, a larger --beta",
        kl_rise,
    ),
    Rule(
        "clipped",
        f"the clip acts on more than {CLIPPED:.0%} of the tokens, and approx_kl is above {CLIPPED_KL}",
        LOWER_LR + ", fewer epochs or minibatches a step",
        clipped,
    ),
    Rule(
        "policy_stands_still",
        f"several optimiser steps a batch, and approx_kl is 0 over {MANY} steps",
        "raise the learning rate (--lr); see its schedule",
        policy_stands_still,
    ),
    Rule(
        "failing",
        f"more than {FAILED:.0%} of the episodes of {SOME} steps failed or have no reward",
        "see what they say (selfteach show RUN --step N); --tool-seconds and --reward-seconds, if it is time",
        failing,
    ),
    Rule(
        "tools_unused",
        f"calls of tools fell below {CALLS_LEFT:.0%} of what they were",
        "see whether calls fail or are no use (selfteach show RUN --best 3); a reward for the form, masked tool output",
        tools_unused,
    ),
    Rule(
        "reward_fall",
        f"reward is below {REWARD_LEFT:.0%} of its best",
        LOWER_LR + ", a KL penalty (--beta), and go on from an earlier checkpoint",
        reward_fall,
    ),
)
ADVICE: Mapping[str, str] = {rule.name: rule.advice for rule in RULES}
# Where the first holds, the others would say the same once more.
COVERS: Mapping[str, tuple[str, ...]] = {
    "constant_reward": ("groups_alike", "reward_fall", "no_gradient"),
    "truncated": ("longer_not_better",),
}


def check(window: Window) -> dict[str, str]:
    """Rule -> what is the matter, of the rules that hold; of rules that say the same only the first."""
    found = {rule.name: text for rule in RULES if (text := rule.check(window))}
    for name, covered in COVERS.items():
        if name in found:
            found = {n: text for n, text in found.items() if n not in covered}
    return found
