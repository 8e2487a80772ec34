"""Episodes that begin with what was said before: a draft is read by the policy in one pass, kept as far as it holds, and gone on from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..core import BadValue, Request, address, block
from ..core.part import Array
from ..core.text import last_between


@block
async def from_draft(*, request: Request, cast: Any, lenience: float = 1.0, stop: tuple[str, ...] = ("</answer>",)) -> str:
    """One turn as `single`, begun with the draft of the request's help (curriculum.select.revisit) as far as the policy keeps it.

        lenience 1   token t stays while its own uniform u_t still gives it: F(x_t -) <= u_t < F(x_t) under the policy of now. The uniforms
                     belong to the task and the number of the episode, at every visit, and what follows the first that does not stay is
                     drawn with those that are left. So the turn is, token by token, what sampling afresh at these uniforms gives.
        above 1      it stays with chance min(1, lenience p_now / p_then); the rest is drawn anew (Liu et al. 2025, SPEC-RL, algorithm 1).
                     Without a draw from the residual this is near the policy's distribution, not the same, even as lenience goes to 1.

    What stays is learned with its log-probability under the policy of now. Drafts need temperature 1 and the whole vocabulary.
    """
    if lenience < 1:
        raise BadValue(f"from_draft: lenience must be 1 (exact) or more, not {lenience}")
    context = cast.policy.begin(request.task.prompt)
    name, drafts = request.help.get("lots"), request.help.get("drafts", ())
    lots = cast.lots(name, cast.number) if name is not None and lenience == 1 else None
    draft = drafts[cast.number] if drafts else None
    if draft is None:
        turn = await context.sample(stop=stop, lots=lots)
        context.close()
        return last_between(turn.text, "answer", turn.text.strip())
    if cast.sampling.temperature != 1 or not cast.sampling.whole:
        raise BadValue("from_draft: a draft can be kept only where tokens are drawn at temperature 1 from the whole vocabulary")
    path = cast.path(draft)
    ids, then = path.ids[path.prompt :], path.logp[path.prompt :]
    most = cast.sampling.max_tokens or len(ids)
    now = await context.score(ids, want=("logp", "cdf_below"))
    if lots is not None:
        stays = same_draw(now["cdf_below"], now["logp"], address.uniform(lots, np.arange(len(ids))))
    else:
        stays = lenient(now["logp"], then, cast.random("drafts").random(len(ids)), lenience)
    cut = len(ids) if stays.all() else int(np.argmin(stays))
    while 0 < cut < len(ids) and half_stopped(cast.decode(ids[:cut]), stop):
        cut -= 1
    context.note(kept=float(cut), draft=float(len(ids)))
    context.adopt(ids[:cut], logp=now["logp"][:cut], status="length" if len(ids) >= most else "stop")
    text = cast.decode(ids[:cut])
    if cut < len(ids):
        text += (await context.sample(stop=stop, max_tokens=max(1, most - cut), lots=None if lots is None else address.skipped(lots, cut))).text
    context.close()
    return last_between(text, "answer", text.strip())


def same_draw(below: Array, logp: Array, uniform: Array) -> Array:
    """bool[T]: whether the uniform that a token was drawn with gives it again, by inverse CDF over the ids in their order.

    >>> same_draw(np.array([0.5, 0.5]), np.log([0.25, 0.25]), np.array([0.7, 0.8]))
    array([ True, False])
    """
    low = np.asarray(below, np.float64)
    return (low <= uniform) & (uniform < low + np.exp(np.asarray(logp, np.float64)))


def lenient(now: Array, then: Array, uniform: Array, lenience: float) -> Array:
    """bool[T]: u < min(1, lenience p_now / p_then).

    >>> lenient(np.log([0.5, 0.25]), np.log([0.5, 0.5]), np.array([0.99, 0.7]), 1.2)  # min(1, 1.2), 0.6
    array([ True, False])
    """
    return np.log(uniform) < math.log(lenience) + np.asarray(now, np.float64) - np.asarray(then, np.float64)


def half_stopped(text: str, stop: tuple[str, ...]) -> bool:
    """Whether a text ends in the beginning of a stop string, which the engine would not find when it is asked to go on from there."""
    return any(text.endswith(s[:n]) for s in stop for n in range(1, len(s)))
