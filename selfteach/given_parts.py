"""What a user gives a method besides its hyper-parameters: sampling, typed functions, a search engine, rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .core.blocks import Block
from .core.errors import BadValue, unknown
from .core.method import Method, Stage
from .core.quantity import parse
from .core.registry import quantities
from .core.scoring import with_nested
from .core.task import Sampling, TaskSource
from .loop import method_on_task
from .retrieval.corpus_files import corpus_hash
from .reward import outside_forms
from .reward.answer import exact_match
from .rollout.functions import call_functions
from .rollout.search import OWN_MEMORY
from .tasks import row_files, rows
from .tools.retrieve import SEARCH_OPTIONS, check_engine, check_options, search_tools


def judge_of(source: TaskSource) -> Block | None:
    """The block that judges answers to this task: its own judge, or an exact match with the reference answer; None
    where it has no answers.
    """
    return source.defaults.get("judge", exact_match())


def sampled_at(method: Method, sampling: Mapping[str, Any]) -> Method:
    """The method with another temperature or top_p in all stages that sample as is usual (`Sampling()`).

    Raises BadValue where a stage states its own sampling, and for a truncation that the learner cannot compute again.
    """
    if not sampling:
        return method
    name = " and ".join(sampling)
    if sampling.get("temperature") == 0:
        raise BadValue("temperature: 0 is greedy, so all answers to a prompt are one; give a temperature above 0")
    made = Sampling(**sampling)
    stages = [n for n, stage in enumerate(method.stages) if not stage.data]
    own = next((method.stages[n] for n in stages if method.stages[n].sampling != Sampling()), None)
    if own is not None or not stages:
        why = f"states its own sampling ({own.sampling})" if own else "samples nothing"
        raise BadValue(f"{name}: method {method.name} {why}; leave {name} out")
    for n in stages:
        if not made.untruncated and (column := recomputed(method, method.stages[n])):
            raise BadValue(
                f"top_p: method {method.name} computes {column} again for what was sampled, and of a truncated"
                f" distribution"
                " that cannot be computed; leave top_p out, or sample at a lower temperature"
            )
        method = method.replace(n, sampling=made)
    return method


def recomputed(method: Method, stage: Stage) -> str | None:
    """The first column of a stage that is a probability of sampled tokens, computed again by a forward pass."""
    blocks = [b for u in stage.updates for b in (*u.assign, *(t.fn for t in u.terms))]
    for block in (*stage.credit, *blocks):
        for column in block.columns:
            name = parse(column, method.models)
            if name is not None and not column.startswith("old_") and "logprobs" in quantities.get(name.quantity).needs:
                return column
    return None


def with_tools(method: Method, tools: Mapping[str, Block], source: TaskSource | None = None) -> Method:
    """The method with turns that may call typed functions in place of single turns, and demonstrations that say them.

    Raises BadValue for a method whose programs are its own, a task that has a program, and a name that is taken.
    """
    if not tools:
        return method
    names = tuple(tools)
    if source is not None:
        if source.program is not None:
            raise BadValue(f"tools: task {source.name} is played by {source.program.name}; leave out one of the two")
        for name in names:
            if name in source.tools or name in method.tools:
                raise BadValue(f"tool {name}: the task or the method has one of that name; rename yours")
    method = method_on_task.played_by(method, call_functions(tools=names), "with tools", "tools are called in turns")
    stages = [
        replace(s, programs={n: p.replace(tools=names) if _reads(p) else p for n, p in s.programs.items()})
        for s in method.stages
    ]
    return replace(method, stages=tuple(stages)).override(tools=tools)


OF_WHAT = ("corpus", "url")
IS_OF_WHAT = "search: is of what? give a corpus (--corpus FILE), or a server (--search-url URL)"


def search_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the search tools that were given: checked, the corpus as its full path and the hash of its
    content. Empty where none were; without corpus and url they are for the engine that is there (`with_search`).

    Raises BadValue or UnknownName for a corpus that is not there, a retriever that cannot be had, an unknown option.
    """
    named = {"corpus": given.get("corpus"), "url": given.get("search_url"), "retriever": given.get("retriever")}
    named = {n: v for n, v in named.items() if v is not None}
    more = dict(given.get("search") or {})
    for name in more:
        if name not in SEARCH_OPTIONS:
            raise unknown("option of search", name, SEARCH_OPTIONS)
        if name in named:
            raise BadValue(f"search: {name} is given twice; leave one out")
    options = {**more, **named}
    if not options:
        return {}
    if not options.keys() & {*OF_WHAT, "retriever"}:
        check_options(options)
        return options
    if ("corpus" in options) == ("url" in options):
        raise BadValue(f"{IS_OF_WHAT}{', not both' if 'url' in options else ''}")
    options.setdefault("retriever", "http" if "url" in options else "bm25")
    check_engine({n: v for n, v in options.items() if n != "corpus"})
    if "corpus" in options:
        corpus = options["corpus"]
        if not isinstance(corpus, str | Path):
            made = row_files.reference([r if isinstance(r, Mapping) else {"text": r} for r in corpus], "corpus")
            corpus = row_files.find(made, None, "corpus")
        path = Path(corpus).expanduser().resolve()
        options |= {"corpus": str(path), "content": corpus_hash(path)}
    return options


def with_search(method: Method, options: Mapping[str, Any], source: TaskSource | None = None) -> Method:
    """The method with the tools `search` and `open` of these options, which replace a task's own search.

    A method whose programs search by name is given them as they are, and so are its own tools that stand on an engine
    (a hyper-parameter `engine`); one that answers in single turns calls them as typed functions. Options without corpus
    and url change the engine that the method or its task (`source`) has: noise, failures, latency, perturbed queries.
    Raises BadValue for any other method, and where there is no engine.
    """
    if not options:
        return method
    if not options.keys() & OF_WHAT:
        return _with_changed_engine(method, options, source)
    if asked := _asked_besides(method):
        raise BadValue(
            f"method {method.name} with a search engine: it asks the tool {asked}, which finds no passages and has no"
            " engine in its place; take a method that searches, such as search_r1 or ssrl, or that answers in a single"
            " turn, such as grpo"
        )
    if _searches(method):
        tools = search_tools(options, as_function=False)
        on_it = {name: tool.replace(engine=tools["search"]) for name, tool in _on_engine(method).items()}
        return method.override(tools={**tools, **on_it})
    return with_tools(method, search_tools(options, as_function=True), source)


def _with_changed_engine(method: Method, options: Mapping[str, Any], source: TaskSource | None) -> Method:
    engine = {**(source.tools if source else {}), **method.tools}.get("search")
    if engine is None:
        raise BadValue(IS_OF_WHAT)
    if not _searches(method):
        raise BadValue(f"search: method {method.name} asks no engine; leave {', '.join(options)} out, or give a corpus")
    if standing := _on_engine(method):
        raise BadValue(
            f"search: method {method.name} asks its own {' and '.join(standing)}, which the task's engine stands"
            f" behind; leave {', '.join(options)} out for what these take, or give a corpus"
        )
    own = [n for n in SEARCH_OPTIONS if n in engine.hyper_parameters]
    for name in options:
        if name not in own:
            raise BadValue(
                f"search: {name} is no option of the task's own engine, which has {', '.join(own)}; leave it out, or"
                " give a corpus"
            )
    return method.override(tools={"search": engine.replace(**options)})


def asked_as(method: Method) -> str:
    """How the questions of a question-answering set are put to a chat model by a method (option ask of rows)."""
    programs = [p.name for stage in method.stages if not stage.data for p in stage.programs.values()]
    return "instruct" if "self_search" in programs else "engine" if _searches(method) else ""


def _searches(method: Method) -> bool:
    """Whether a program of a method names the tool `search`, also inside another, or one that stands on an engine."""
    programs = with_nested([*_programs(method), *method.decode.values()])
    values = [v for p in programs for v in p.hyper_parameters.values()]
    named = {"search", *_on_engine(method)}
    return any(n in v if isinstance(v, tuple | list) else n == v for n in named for v in values)


def _on_engine(method: Method) -> dict[str, Block]:
    """The tools of a method that stand on a search engine, the task's unless they are given one."""
    return {name: tool for name, tool in method.tools.items() if "engine" in tool.hyper_parameters}


def _asked_besides(method: Method) -> str:
    """A tool that a program of a method asks and that is neither `search` nor the method's own; "": there is none."""
    known = {"search", OWN_MEMORY, *method.tools, *method.models}
    return next((name for p in _programs(method) for name in method_on_task.asked_names(p) if name not in known), "")


def _programs(method: Method) -> list[Block]:
    return [p for stage in method.stages for p in stage.programs.values()]


def _reads(program: Block) -> bool:
    """Whether a program is one of demonstrations, whose prompts say the tools."""
    return program.name != "call_functions" and "tools" in program.hyper_parameters


def check_rewards(method: Method, source: TaskSource, reward: Block | None) -> None:
    """Raise BadValue for a method whose rewards read what this task's rows do not have."""
    pairs = source.about.get(rows.PAIRS) if source.name == rows.NAME else None
    if reward is not None:
        if line := next(
            outside_forms.unknown_columns(reward, source.columns or _tags(source), judge_of(source) is not None), ""
        ):
            raise BadValue(line)
    elif judge_of(source) is None and any(
        b.name == "exact_match" for s in method.stages for b in with_nested(s.reward)
    ):
        learns = "; of preference pairs `dpo` learns, and sft of the chosen ones" if pairs else ""
        raise BadValue(
            f"task {source.name}: its rows have no answers, and method {method.name} is rewarded for them; give"
            f" a reward"
            f" (--reward FILE.py:NAME), or a column answer{learns}"
        )


def _tags(source: TaskSource) -> Sequence[str]:
    """The columns of a task's first test question, which a reward may read."""
    return list(outside_forms.columns_of(source.test[0])) if source.test else ()
