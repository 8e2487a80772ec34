"""Single-turn programs, and programs that read a given completion."""

from __future__ import annotations

import re

from ..core import RolloutContext, RolloutRequest, block
from ..core.tagged_text import last_between
from .functions import append_replies, split_responses
from .play import append_message


@block
async def single(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    model_role: str = "policy",
    prefix: str = "",
    stop: tuple[str, ...] = ("</answer>",),
) -> str:
    """One sampled turn after the prompt and `prefix`; the answer is in its last <answer>...</answer>.

    Without such tags the answer is the whole turn. The `help` of a request may hold a `hint`: it follows the prompt as
    the span `hint`, and may contain the beginning of the answer.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    hint = request.help.get("hint", "")
    context.append(hint, span="hint")
    context.append(prefix)
    turn = await context.sample(stop=stop)
    context.close()
    return last_between(hint + prefix + turn.text, "answer", turn.text.strip())


@block
async def plain(*, request: RolloutRequest, rollout: RolloutContext, model_role: str = "policy") -> str:
    """One sampled turn without tags.

    The answer is the conclusion of its first line: `The capital of Peru is Lima.` answers `Lima`.
    """
    context = rollout.model_role(model_role).begin(request.task.prompt)
    turn = await context.sample()
    context.close()
    return conclusion(turn.text)


def conclusion(text: str) -> str:
    """What follows the last `is`, `are` or colon in a text's first line; the whole line where there is none.

    >>> conclusion("The capital of Peru is Lima.")
    'Lima'
    """
    line = text.strip().split("\n", 1)[0]
    return re.split(r"\b(?:is|are)\b:?|:", line)[-1].split(", ", 1)[0].strip().rstrip(".!")


@block
async def read(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    model_role: str = "policy",
    learn: str = "main",
    tools: tuple[str, ...] = (),
) -> str:
    """A demonstration: the prompt, the task's own completion and the EOS token, learned as the loss stream `learn`.

    The completion's tokens were not sampled, so their log-probability at sampling is unknown. A task whose data are
    three texts or more is an episode: every second one was observed, and is not learned (of two, a chosen answer and a
    rejected one, the first is read). tools: typed functions that the prompt says, as in `call_functions`; what they
    answered stands in the completion between <tool_response> and </tool_response>, and is not learned.
    """
    specs = [rollout.function(name) for name in tools]
    context = rollout.model_role(model_role).begin(request.task.prompt, tools=specs)
    data = list(request.task.data)
    data = data if len(data) > 2 else data[:1]
    text, *after = split_responses(data[0]) if tools else data
    context.adopt(text)
    for response, reply in zip(after[::2], after[1::2], strict=True):
        if context.is_conversation:
            context.finish()  # a turn of its own
        if tools:
            append_replies(context, [response])
        else:
            append_message(request, context, response)
        context.adopt(reply)
    context.finish()
    context.close(learn=learn)
    return "".join(data)
