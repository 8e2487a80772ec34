"""Conversations over an episode's tree: the messages up to a place, and where a re-rendered one leaves the path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import BadValue
from ..core.functions import FunctionSpec, tools_text
from ..core.task import Ref
from ..core.tree import Tree
from ..model.tokenizer import Tokenizer, is_conversation

# The span of tokens that a chat template re-rendered; an episode's cost counts re_rendered/<cause>.
RE_RENDERED = "re_rendered"


class Conversation(NamedTuple):
    """The messages up to a node, the places at which the conversation was re-rendered (Trajectory.before), and the
    schemas of tools that its template is given.
    """

    messages: tuple[Mapping[str, Any], ...]
    re_rendered_at: tuple[Ref, ...] = ()
    tools: Sequence[Mapping[str, Any]] | None = None


def with_tools(
    prompt: Any, specs: Sequence[FunctionSpec], tokenizer: Tokenizer
) -> tuple[Any, list[Mapping[str, Any]] | None]:
    """(prompt, schemas for the chat template): a prompt that says which functions may be called.

    Where the template says tools they are its own matter; else they are plain text, in the system's message, in the
    first message where the template refuses a system, or before a prompt of text. Raises BadValue for a prompt of ids.
    """
    if not specs:
        return prompt, None
    text = tools_text(specs)
    if isinstance(prompt, str):
        return text + prompt, None
    if tokenizer.chat is None or not is_conversation(prompt):
        raise BadValue("tools: the prompt is token ids, and tools are said in text or messages; give one of these")
    if tokenizer.chat.says_tools:
        return prompt, [spec.schema for spec in specs]
    system = [{"role": "system", "content": text.strip()}, *prompt]
    if prompt[0]["role"] == "system":
        return [{**prompt[0], "content": f"{prompt[0]['content']}\n\n{text.strip()}"}, *prompt[1:]], None
    try:
        tokenizer.render(system)
    except BadValue:
        return [{**prompt[0], "content": f"{text}\n{prompt[0]['content']}"}, *prompt[1:]], None
    return system, None


def conversation_at(tree: Tree, at: Ref, conversations: Mapping[int, Conversation]) -> tuple[Conversation | None, int]:
    """The conversation up to the last message before a place, and the number of tokens up to there; None where there is
    none.
    """
    path = tree.path(at.node, at.offset)
    for n in reversed(range(len(path))):
        node, upto = path[n]
        if node in conversations:
            whole = upto == tree.size(node)
            return conversations[node] if whole else None, sum(size for _, size in path[: n + 1])
    return None, 0


def common_prefix(tree: Tree, at: Ref, new: np.ndarray) -> tuple[int, int, int]:
    """(n, node, offset): the first n ids of `new` are those of the path to `at`, the last of them at this node and
    offset; node -1: none is.
    """
    ids = tree.ids_to(at.node, at.offset)
    short = min(len(ids), len(new))
    same = int(np.argmin([*(ids[:short] == new[:short]), False]))
    node, offset, left = -1, 0, same
    for one, upto in tree.path(at.node, at.offset):
        if left > 0:
            node, offset = one, min(upto, left)
        left -= upto
    return same, node, offset


def re_render_counts(costs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """How often chat templates re-rendered conversations in episodes with these costs, by cause:
    re_rendered/<cause>.
    """
    out: Counter[str] = Counter()
    for cost in costs:
        out.update({k: v for k, v in cost.items() if k.startswith(f"{RE_RENDERED}/")})
    return dict(sorted(out.items()))
