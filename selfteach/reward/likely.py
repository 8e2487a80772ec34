"""Rewards that are read off the policy's own probabilities, through the engine: of the reference answer, of a reserved token after the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..core import BadValue, Episode, Group, Part, Score, Scores, block
from ..core.scoring import score
from ..core.text import pieces_before
from .answer import golds

Form = Literal["mean", "product"]


@block
async def reference_probability(
    *,
    group: Group,
    cast: Any,
    deadline: float,
    by: Form = "mean",
    debias: bool = True,
    member: str = "policy",
    opening: str = "<answer>",
    form: str = " {}",
    bare: str = "",
    judge: Part | None = None,
) -> Scores:
    """How likely the reference answer is after the policy's own thoughts, above what it is without them (RLPR, 2506.18254, eq. 2 to 4).

        r = clip(f(y* | x, z) - f(y* | x), 0, 1)     f = mean_t p_t  (one odd token costs its share)   or  prod_t p_t  (by="product")

    y* takes the place of what stands after the last `opening`, written as `form` says and tokenised by itself there; f(y* | x) has `bare`
    in place of the thoughts. Probabilities are the member's at temperature 1. The first accepted answer of a task is the reference.
    debias=False leaves f(y* | x) out. Text without an opening tag gets 0: there is no place for an answer.
    parts: probability, base, product; with a `judge`, who is asked for the figures alone, right, and by group auc and auc_product: the
    chance that a right answer's mean, or product, is above a wrong one's.
    """
    tokenizer = cast.tokenizer
    if not (accepted := golds(group.request.task)):
        raise BadValue(f"reference_probability: task {group.request.task.id} has no reference answer")
    wanted, tag = tokenizer.encode(form.format(accepted[0])), tokenizer.encode(opening)
    asked = [(e, t) for e in group.episodes for t in e.trajectories if t.learn is not None]
    if not asked:
        return {"reward": {}}
    path = cast.path(asked[0][1].leaf)
    plain = await _logp(cast, asked[0][0], member, np.concatenate([path.ids[: path.prompt], tokenizer.encode(bare), tag]), wanted)
    means, products, out = list[float](), list[float](), dict[Any, Score]()
    for episode, t in asked:
        path = cast.path(t.leaf)
        end = _before(path.ids, path.prompt, opening.encode(), tokenizer)
        if end is None:
            means.append(0.0)
            products.append(0.0)
            out[t.leaf] = Score(0.0, {"probability": 0.0, "product": 0.0}, f"no {opening}")
            continue
        found = await _logp(cast, episode, member, np.concatenate([path.ids[:end], tag]), wanted)
        means.append(float(np.exp(found).mean()))
        products.append(float(np.exp(found.sum())))
        base = float(np.exp(plain).mean() if by == "mean" else np.exp(plain.sum()))
        value = (means if by == "mean" else products)[-1] - (base if debias else 0.0)
        out[t.leaf] = Score(min(max(value, 0.0), 1.0), {"probability": means[-1], "base": base, "product": products[-1]})
    if judge is not None:
        truth = (await score(judge, [group], cast, deadline)).get("reward", {})
        right = [truth[t.leaf].value if t.leaf in truth else None for _, t in asked]
        ranks = {"auc": auc(means, right), "auc_product": auc(products, right)}
        for (_, t), verdict in zip(asked, right, strict=True):
            s, more = out[t.leaf], {n: v for n, v in {"right": verdict, **ranks}.items() if v is not None}
            out[t.leaf] = Score(s.value, {**s.parts, **more}, s.why)
    return {"reward": out}


@block
async def probed(
    *,
    group: Group,
    cast: Any,
    deadline: float,
    reward: Part | None = None,
    token: int | None = None,
    beta: float = 0.1,
    base: float = -20.0,
    member: str = "policy",
) -> Scores:
    """Another reward as it is, and beside it what the policy says of its own answer (LaSeR, 2510.14943, eq. 10): the score `self_reward`.

        s = beta (log pi(z | x, y) - base)      z a reserved token, read one position after the end, at temperature 1

    An answer that did not end by itself is not asked about. token None: one that no text spells. parts: self_reward, level (the
    log-probability); verified, where s >= 1/2 says what the reward says; accepts (of right answers) and rejects (of wrong ones), whose
    harmonic mean is the F1 of its verdicts.
    """
    if reward is None:
        raise BadValue("probed needs reward=, what the policy's own verdict is held against")
    truth = (await score(reward, [group], cast, deadline)).get("reward", {})
    reserved = np.array([cast.tokenizer.spare if token is None else token], np.int32)
    out, own = dict(truth), dict[Any, Score]()
    for episode, t in ((e, t) for e in group.episodes for t in e.trajectories if t.leaf in truth and t.status == "stop"):
        level = float((await _logp(cast, episode, member, cast.path(t.leaf).ids, reserved))[0])
        own[t.leaf] = Score(beta * (level - base))
        told = truth[t.leaf]
        parts = {**told.parts, "self_reward": beta * (level - base), "level": level}
        if told.value is not None:
            agree = float((parts["self_reward"] >= 0.5) == (told.value >= 0.5))
            parts |= {"verified": agree, "accepts" if told.value >= 0.5 else "rejects": agree}
        out[t.leaf] = Score(told.value, parts, told.why, told.error)
    return {"reward": out, "self_reward": own}


def auc(values: Sequence[float], right: Sequence[float | None]) -> float | None:
    """The chance that a right one's value is above a wrong one's, a tie counting half; None where one of the two is missing.

    >>> auc([0.9, 0.2, 0.4, 0.4], [1.0, 0.0, 1.0, 0.0])  # 0.9 > 0.2, 0.9 > 0.4, 0.4 > 0.2, and half of 0.4 = 0.4
    0.875
    """
    good = [v for v, r in zip(values, right, strict=True) if r is not None and r >= 1.0]
    bad = [v for v, r in zip(values, right, strict=True) if r is not None and r < 1.0]
    if not good or not bad:
        return None
    return sum((g > b) + 0.5 * (g == b) for g in good for b in bad) / (len(good) * len(bad))


async def _logp(cast: Any, episode: Episode, member: str, context: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities f64[n] of tokens after a context, counted in the episode's cost."""
    episode.cost["scored"] = episode.cost.get("scored", 0) + len(tokens)
    found = await cast.engine.score(member, np.asarray(context, np.int32), np.asarray(tokens, np.int32), ("raw_logp",))
    return np.asarray(found["raw_logp"], np.float64)


def _before(ids: np.ndarray, start: int, opening: bytes, tokenizer: Any) -> int | None:
    """How many ids stand before the last `opening` that begins after `start`; None where there is none."""
    said = tokenizer.spelled(ids[start:])
    at = b"".join(said).rfind(opening)
    return None if at < 0 else start + pieces_before(said, at)
