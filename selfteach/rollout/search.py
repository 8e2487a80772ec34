"""Multi-turn search: in the policy's own parameters, with a search engine, or by prompting another model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from ..core import Block, ModelContext, RolloutContext, RolloutRequest, Turn, block
from ..core.tagged_text import last_between, without_tags
from .attempts import prompt_with

OWN_MEMORY = "own memory"
RETRY = (
    "\nThat was neither a query nor an answer. A query stands between <search> and </search>, the final answer between"
    " <answer> and </answer>. I try again.\n"
)
SUMMARISE = (
    "\nThis has become long. I go on from the question and a report alone: what I found so far that the question needs,"
    " between <report> and </report>.\n"
)


@block
async def self_search(*, request: RolloutRequest, rollout: RolloutContext) -> str | None:
    """One turn in which the policy writes both its queries and their results (SSRL, 2508.10874, section 3).

    What it writes between <information> tags is marked as the span `information`, so that credit can mask it; a tag
    that is left open begins none.
    """
    context = rollout.policy.begin(request.task.prompt)
    turn = await context.sample(stop=("</answer>",))
    context.mark(turn, "information")
    context.close()
    return last_between(turn.text, "answer", None)


@block
async def search_agent(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    answerer: str | Block = "search",
    turns: int = 4,
    invalid: str = "",
    teach: bool = False,
    prefix: str = "",
    summarise: int = 0,
) -> str | None:
    """Alternate sampled turns and search results, up to `turns` turns, then one last turn for the answer.

    Jin et al. 2025, Search-R1, algorithm 1; a query in the last turn ends it, unanswered, as in the released code.
    What else an agent says (a goal, a verdict on what was found, where it will look) is part of its turns, and read
    from them by rewards (core/search_record.py).

    answerer  what answers a query: a tool's name (a real engine), "own memory" (the policy continues and writes the
              results itself), another model role, or a block of query, request and rollout (a simulated engine)
    invalid   the reply to a turn with neither a query nor an answer, such as RETRY; empty: the episode ends there
    teach     add the results as tokens to be learned too (with unknown log-probability), as ablations do
    prefix    what the first turn begins with, not sampled: a mode, a way
    summarise tokens of a context beyond which the policy sums it up and goes on from that (`summarised`); 0: never
    """

    async def answer_query(context: ModelContext, turn: Turn) -> None:
        await append_information(rollout, context, turn, answerer, teach, request)

    return await search_turns(request, rollout, turns, invalid, answer_query, prefix, summarise)


@block
async def closed_book(
    *, request: RolloutRequest, rollout: RolloutContext, prefix: str = "<answer>", max_tokens: int = 16
) -> str | None:
    """One short turn, begun with `prefix`, in which the policy answers from memory; not learned."""
    context = rollout.policy.begin(request.task.prompt)
    context.append(prefix)
    turn = await context.sample(stop=("</answer>",), max_tokens=max_tokens)
    context.close(learn=None, role="closed book")
    return last_between(prefix + turn.text, "answer", None)


async def search_turns(
    request: RolloutRequest,
    rollout: RolloutContext,
    turns: int,
    invalid: str,
    answer_query: Callable[[ModelContext, Turn], Awaitable[None]],
    prefix: str = "",
    summarise: int = 0,
) -> str | None:
    """Sampled turns, each a query, an answer, or neither; after `turns` of them a last one, for the answer alone.

    answer_query  appends the information for the query of a turn
    invalid       the reply to a turn that is neither; empty: the episode ends there
    prefix        what the first turn begins with
    summarise     tokens, the question's too: a context that has more after a reply is summed up (`summarised`), which
                  is none of the `turns`; each context is a trajectory, with the notes of `close_rounds`. 0: never
    """
    context = rollout.policy.begin(request.task.prompt)
    context.append(prefix)
    if not summarise:
        answer = await search_on(context, turns, invalid, answer_query, prefix)
        context.close()
        return answer
    contexts = [context]

    async def renew(context: ModelContext) -> ModelContext | None:
        if len(context.ids) <= summarise:
            return context
        renewed = await summarised(request, rollout, context)
        contexts.extend([renewed] if renewed is not None else [])
        return renewed

    answer = await search_on(context, turns, invalid, answer_query, prefix, renew)
    if len(contexts) > 1 and contexts[-1].tree.parent[contexts[-1].at.node] < 0:  # the limits left it nothing
        contexts.pop()
    close_rounds(contexts)
    return answer


async def summarised(request: RolloutRequest, rollout: RolloutContext, context: ModelContext) -> ModelContext | None:
    """A context that begins anew, from the question and what the policy, asked for it, reports of this one.

    The report is sampled, and so learned, at the end of the context that it sums up; in the new one it is part of the
    prompt, without tags. Where no <report> is closed it is all that was said. None where a limit of the episode leaves
    nothing for it.
    """
    context.append(SUMMARISE)
    turn = await context.sample(stop=("</report>",))
    if turn.status == "limit":
        return None
    report = without_tags(last_between(turn.text, "report", turn.text)).strip()
    return rollout.policy.begin(prompt_with(request.task.prompt, told_report(report)))


def close_rounds(contexts: Sequence[ModelContext]) -> None:
    """Close the contexts of one episode, each a trajectory, with the notes `round` (from 1) and `rounds` (how many)."""
    for n, context in enumerate(contexts, 1):
        context.note(round=n, rounds=len(contexts))
        context.close()


async def search_on(
    context: ModelContext,
    turns: int,
    invalid: str,
    answer_query: Callable[[ModelContext, Turn], Awaitable[None]],
    begun: str = "",
    renew: Callable[[ModelContext], Awaitable[ModelContext | None]] | None = None,
) -> str | None:
    """The turns of `search_turns` in a context that stays open.

    begun  what the first turn begins with
    renew  after each reply the context in which to go on; None ends the episode. Without it: the same one
    """
    for n in range(turns):
        turn = await context.sample(stop=("</search>", "</answer>"))
        turn = turn if n else turn._replace(text=begun + turn.text)
        query, answer = turn.between("search"), turn.between("answer")
        if answer is not None or turn.status == "limit":
            break
        if query is not None:
            await answer_query(context, turn)
        elif invalid and turn.status == "stop":
            context.append(invalid)
        else:
            break
        if renew is not None:
            renewed = await renew(context)
            if renewed is None:
                break
            context = renewed
    else:
        turn = await context.sample(stop=("</search>", "</answer>"))
        answer = turn.between("answer")
    return answer


def workspace(report: str, query: str, found: str) -> str:
    """What a round of research begins from beside the question: the report so far, the last query, and what it found.

    >>> workspace("", "home of Ann", "the home of Ann is Ulm.")
    '<report> </report><search>home of Ann</search><information>the home of Ann is Ulm.</information>'
    """
    return f"{told_report(report)}<search>{query}</search><information>{found}</information>"


def told_report(report: str) -> str:
    """The report that a context begins from, after the question."""
    return f"<report> {report}</report>"


def with_a_word_less(query: str, draw: np.random.Generator) -> str:
    """A query without one of its words; of one word as it is."""
    words = query.split()
    if len(words) < 2:
        return query
    left_out = int(draw.integers(len(words)))
    return " ".join(w for n, w in enumerate(words) if n != left_out)


async def append_information(
    rollout: RolloutContext,
    context: ModelContext,
    query_turn: Turn,
    answerer: str | Block,
    teach: bool = False,
    request: RolloutRequest | None = None,
) -> None:
    """Append <information> for the query of a turn: from a tool, the policy itself, another model, or a block of
    `query`, `request` and `rollout`.
    """
    if answerer == OWN_MEMORY:
        turn = await context.sample(stop=("</information>", "</answer>"))
        context.mark(turn, "information")
        return
    query = query_turn.between("search") or ""
    if isinstance(answerer, Block):
        results = await answerer(query=query, request=request, rollout=rollout)
    elif answerer in rollout.model_roles:
        other = rollout.model_role(answerer).begin(f"<search>{query}</search><information>")
        results = (await other.sample(stop=("</information>",))).text.removesuffix("</information>")
    else:
        results = await rollout.tool(answerer)(query)
    append_found(context, query_turn, str(results), teach)


def append_found(context: ModelContext, query_turn: Turn, found: str, teach: bool = False) -> None:
    """Append <information> that came from outside; teach: as tokens to be learned.

    It says no tag of the agent's own (`without_tags`). A chat model was shown a space between tags
    (tasks/chat_prompts.py), so there a space precedes the information. Where the last sampled token extends past
    </search>, the text that it already contains is not appended twice.
    """
    space = " " if context.is_conversation else ""
    information = f"{space}<information>{without_tags(found)}</information>"
    beyond = query_turn.text.rpartition("</search>")[2]
    information = information[len(beyond) :] if information.startswith(beyond) else information
    if teach:
        context.adopt(information, span="information")
    else:
        context.append(information, span="information")
