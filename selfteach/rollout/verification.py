"""Programs of a verifier that writes: a mark for each step of an answer, then whether the answer is right."""

from __future__ import annotations

import itertools
import re
from typing import Any

from ..core import Request, block
from ..core.text import last_between, step_ends

RIGHT, WRONG = "+", "-"


def verdict_of(text: str, steps: int) -> tuple[list[float] | None, bool | None]:
    """(marks of the steps, 1 or -1 each; whether the answer is called right) of a verdict; None for what is not in form.

    >>> verdict_of("<think> + -</think><answer> 0</answer>", 2)
    ([1.0, -1.0], False)
    """
    marks = last_between(text, "think", "").split()
    final = last_between(text, "answer", "")
    known = len(marks) == steps and set(marks) <= {RIGHT, WRONG}
    return [1.0 if m == RIGHT else -1.0 for m in marks] if known else None, {"1": True, "0": False}.get(final)


def sums_up(step: str) -> bool | None:
    """Whether the last sum in a step is right; None where there is none.

    >>> sums_up(" then we add 4: 3 + 4 = 8."), sums_up(" so the answer is 8.")
    (False, None)
    """
    found = re.findall(r"(\d+) ([+-]) (\d+) = (\d+)(?!\d)", step)
    if not found:
        return None
    a, op, b, c = found[-1]
    return int(a) + (int(b) if op == "+" else -int(b)) == int(c)


@block
async def verify(*, request: Request, cast: Any, member: str = "verifier", form: float = 0.1) -> bool | None:
    """A verdict on the answer that the request's help points to (`output`), whose reward it holds (1: right).

    The verifier reads the task and the answer's own tokens and writes `<think> + -</think><answer> 0</answer>`: a mark for each step, and
    whether the answer is right. Noted: payoff, 1 where that is so, and `form` more where all is in form; agreed, formed; the marks as mark0,
    mark1 ...; right, the truth; caught and passed, the shares of wrong and right sums among the steps that are marked so (for people only).
    """
    context = cast.member(member).begin(request.task.prompt)
    context.append(cast.said(request.help["output"]))
    context.append("\n")
    turn = await context.sample(stop=("</answer>",))
    text = cast.text(request.help["output"])
    ends = step_ends(text)
    marks, final = verdict_of(turn.text, len(ends))
    right = (request.help["reward"] or 0.0) >= 1.0
    formed, agreed = marks is not None and final is not None, final is right
    context.note(payoff=agreed + form * formed, agreed=float(agreed), formed=float(formed), right=float(right))
    if marks is not None:
        context.note(**{f"mark{i}": m for i, m in enumerate(marks)})
        truth = [sums_up(text[a:z]) for a, z in itertools.pairwise([0, *ends])]
        for name, kind in (("caught", False), ("passed", True)):
            found = [(m > 0) is kind for m, t in zip(marks, truth, strict=True) if t is kind]
            if found:
                context.note(**{name: sum(found) / len(found)})
    context.close(learn="verdict")
    return final


@block
async def read_verdict(*, request: Request, cast: Any, member: str = "verifier") -> str:
    """A demonstration of a verdict's form, without its substance: task and completion as context, then marks and an answer drawn by lot."""
    said, draw = request.task.data[0], cast.random("verdict")
    marks = [RIGHT if draw.random() < 0.5 else WRONG for _ in step_ends(said)]
    verdict = f"<think>{''.join(f' {m}' for m in marks)}</think><answer> {int(draw.random() < 0.5)}</answer>"
    context = cast.member(member).begin(request.task.prompt)
    context.append(f"{said}\n")
    context.adopt(verdict)
    context.close(learn="verdict")
    return verdict
