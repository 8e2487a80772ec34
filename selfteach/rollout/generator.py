"""A searcher beside another model that answers: the documents that the one finds are what the other reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..core import Block, RolloutContext, RolloutRequest, block
from ..core.tagged_text import last_between, last_message, without_tags
from .search import append_information

READS = "<think>so it is"  # what a tiny generator's answer begins with: it was shown answers after thoughts alone
ENDS = ("</answer>", "<search>")  # where a generator's text ends: it answers from what it is given, or not at all


class Result(NamedTuple):
    """A query, what was found, and what a searcher said before it asked ("": not told to the generator)."""

    query: str
    found: str
    thought: str = ""


@block
def last_object(*, question: str, documents: Sequence[str]) -> str | None:
    """A generator that is a rule: what the last document says that something is.

    >>> last_object(question="", documents=["the home of Ann is Ulm.", "the mayor of Ulm is Bob."])
    'Bob'
    """
    words = documents[-1].rstrip(". ").rpartition(" is ")[2] if documents else ""
    return words or None


@block
async def search_for_generator(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    answerer: str = "search",
    generator: str | Block = "generator",
    turns: int = 3,
    naive: bool = True,
    select: bool = True,
    rag: bool = False,
    closed: bool = False,
    thoughts: bool = False,
    last: bool = False,
    accepts: str = "",
    reads: str = READS,
) -> str | None:
    """Turns of a searcher, from whose documents another model answers: the policy searches, and never answers.

    Jiang et al. 2025, s3 (2505.14146), section 3. A turn ends with a query, or where it begins to answer; after `turns`
    of them, or one without a query, the generator reads the question and the documents, each once, and answers.

    generator  a model role, or a block of `question` and `documents`
    naive      the searcher begins from what the question itself finds
    select     of results that the searcher judged (<judge>Yes</judge>, <judge>No</judge>) those that it accepted alone;
               of what it did not judge all
    rag        besides, the generator answers from what the question finds alone: a trajectory of the role `rag`
    closed     besides, it answers without any document: a trajectory of the role `closed`
    thoughts   it reads what the searcher said before each query too
    last       after `turns` turns the searcher has one more, to judge what it found last; a query in it is not answered
    accepts    what the generator reads after each result, as where it was shown results that were judged
    reads      what the generator's answer begins with
    """
    prompt = request.task.prompt
    question = asked(prompt)
    context, results = rollout.policy.begin(prompt), list[Result]()
    if closed:
        await generate(rollout, prompt, [], generator, accepts, reads, role="closed")
    if naive or rag:
        first = Result(question, without_tags(str(await rollout.tool(answerer)(question))))
        if rag:
            await generate(rollout, prompt, [first], generator, accepts, reads, role="rag")
        if naive:
            context.append(f"<search>{question}</search>")
            context.append(f"<information>{first.found}</information>", span="information")
            results.append(first)
    kept = list[Result]()
    for n in range(turns + last):
        turn = await context.sample(stop=("</search>", "<answer>"))
        kept += _accepted(results[-1:], turn.text, select)
        query, results = turn.between("search"), list[Result]()
        if query is None or turn.status == "limit" or n == turns:
            break
        before = len(rollout.text(context.at))
        await append_information(rollout, context, turn, answerer)
        found = rollout.text(context.at)[before:].removeprefix("<information>").removesuffix("</information>")
        results.append(Result(query, found, turn.text.rpartition("<search>")[0] if thoughts else ""))
    kept += results[-1:]  # what it did not judge any more
    context.close()
    unique = dict[str, Result]()
    for result in kept:
        unique.setdefault(result.found, result)
    return await generate(rollout, prompt, list(unique.values()), generator, accepts, reads)


def _accepted(results: Sequence[Result], said: str, select: bool) -> Sequence[Result]:
    """The results that a turn keeps: none where it begins by rejecting them."""
    verdict = last_between(said.partition("<search>")[0], "judge", "yes")
    return () if select and verdict.strip().lower() == "no" else results


@block
async def naive_rag(
    *,
    request: RolloutRequest,
    rollout: RolloutContext,
    answerer: str = "search",
    generator: str | Block = "generator",
    accepts: str = "",
    reads: str = READS,
) -> str | None:
    """The generator's answer from what the question itself finds: retrieval-augmented generation without a searcher."""
    prompt = request.task.prompt
    question = asked(prompt)
    found = without_tags(str(await rollout.tool(answerer)(question)))
    return await generate(rollout, prompt, [Result(question, found)], generator, accepts, reads, learn="main")


async def generate(
    rollout: RolloutContext,
    prompt: Any,
    results: Sequence[Result],
    generator: str | Block,
    accepts: str,
    reads: str,
    role: str = "generator",
    learn: str | None = None,
) -> str | None:
    """The greedy answer of a generator to a question, from some results; None where it would search for more."""
    if isinstance(generator, Block):
        return generator(question=asked(prompt), documents=[r.found for r in results])
    context = rollout.model_role(generator).begin(prompt)
    told = [f"{r.thought}<search>{r.query}</search><information>{r.found}</information>{accepts}" for r in results]
    context.append("".join(told) + reads)
    turn = await context.sample(stop=ENDS, temperature=0.0)
    context.close(learn=learn, role=role)
    return last_between(turn.text, "answer", None)


def asked(prompt: Any) -> str:
    """The question of a prompt as an engine is asked it: on one line, without what marks it as a question.

    >>> asked("question: what is the home of Ann?")
    'what is the home of Ann?'
    """
    return " ".join(last_message(prompt).split()).removeprefix("question: ")
