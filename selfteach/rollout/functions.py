"""The program of a policy that may call typed functions, each call answered before it goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..core import ModelContext, RolloutContext, RolloutRequest, block
from ..core.errors import BadValue, describe, unknown
from ..core.functions import FunctionSpec, WrongCall, result_text
from ..core.tagged_text import last_between
from ..core.tool_calls import FoundCall, find_tool_calls

MOST_CALLS = 4  # of one turn that are carried out
RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)
MOST_TURNS = 15  # with calls: 4 calls each are below an episode's limit


@block
async def call_functions(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    tools: tuple[str, ...] = (),
    turns: int = 6,
    stop: tuple[str, ...] = ("</tool_call>", "</answer>"),
) -> str:
    """Sampled turns that may call tools, each call answered, until a turn calls none or `turns` have.

    tools: names of tools that are typed functions; the prompt says them. A wrong call (no JSON, no such tool, an
    argument that is missing or does not fit) and one that raises or is too late are answered by a line that begins with
    `error:`, and are counted. stop: strings that end a turn outside a conversation.

    The answer is in the last turn's last <answer>...</answer>, else the whole turn. Answers of tools are the span
    `tool_response`, and never learned. A `hint` in the request's help is as in `single`.
    """
    if not 0 <= turns <= MOST_TURNS:
        raise BadValue(f"call_functions: turns must be 0 to {MOST_TURNS}, not {turns}")
    specs = {name: rollout.function(name) for name in tools}
    context = rollout.policy.begin(request.task.prompt, tools=tuple(specs.values()))
    hint = request.help.get("hint", "")
    context.append(hint, span="hint")
    text = hint
    for left in reversed(range(turns + 1)):
        turn = await context.sample(stop=() if context.is_conversation else stop)
        text += turn.text
        calls = find_tool_calls(turn.text)[1]
        if not calls or not left or turn.status != "stop" or turn.between("answer") is not None:
            break
        replies = [await _reply(rollout, specs, call) for call in calls[:MOST_CALLS]]
        if len(calls) > MOST_CALLS:
            replies.append(_wrong(rollout, f"at most {MOST_CALLS} calls in a turn"))
        append_replies(context, replies)
        text = ""
    context.close()
    return last_between(text, "answer", text.strip())


async def _reply(rollout: RolloutContext, specs: Mapping[str, FunctionSpec], call: FoundCall) -> str:
    """What a call is answered."""
    try:
        if call.wrong:
            raise WrongCall(f'{call.wrong}; write <tool_call>{{"name": ..., "arguments": {{...}}}}</tool_call>')
        if call.name not in specs:
            raise unknown("tool", call.name[:60], specs)
        arguments = specs[call.name].bind(call.arguments)
    except (WrongCall, LookupError) as error:
        return _wrong(rollout, str(error))
    try:
        return result_text(await rollout.tool(call.name)(arguments))
    except Exception as error:  # of the tool's own: it costs the call
        rollout.count("failed_tool_calls")
        return f"error: {describe(error)}"


def _wrong(rollout: RolloutContext, line: str) -> str:
    rollout.count("wrong_tool_calls")
    return f"error: {line}"


def append_replies(context: ModelContext, replies: list[str]) -> None:
    """Append what calls were answered: a message of the role `tool`, or text between tags."""
    inside = "</tool_response><tool_response>".join(replies)
    if not context.is_conversation:
        context.append(f"<tool_response>{inside}</tool_response>", span="tool_response")
        return
    try:
        context.say("tool", "\n".join(replies), span="tool_response")
    except BadValue:  # the template has no such role
        context.say("user", f"<tool_response>{inside}</tool_response>", span="tool_response")


def split_responses(text: str) -> list[str]:
    """A demonstration in parts: what the model says, what a tool answered, what it says then ...

    >>> split_responses("<tool_call>...</tool_call><tool_response>3</tool_response>It is 3.")
    ['<tool_call>...</tool_call>', '3', 'It is 3.']
    """
    return RESPONSE.split(text)
