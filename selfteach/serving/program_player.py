"""A prompt answered by a run's program, as in training: what the model says, the tools that it calls, their answers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from ..configuration import run_config_of, task_source
from ..core.blocks import Block
from ..core.errors import SelfteachError, describe
from ..core.protocols import Completion
from ..core.task import Ref, RolloutRequest, Sampling, Task
from ..core.tree import CallRecord, Episode, Tree
from ..core.user_code import guarded
from ..loop import assemble
from ..loop.rollout_context import EpisodeContext
from ..loop.rollout_records import token_writers
from ..loop.step_context import EpisodeLimits, StepContext, Tool
from ..loop.text_limit import CHARACTERS_PER_TOKEN
from ..model import outside_files
from ..model.tokenizer import Tokenizer
from ..rollout.functions import call_functions
from ..tools.functions import function_tools
from .text_model import Reason, TextModel, TextStream

RESPONSE = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
Listener = Callable[[str, str], None]  # of a kind, "model" or "tool", and a part of its text


@dataclass(frozen=True)
class Played:
    """An answer that may have called tools.

    turns     (kind, text) in order; kind "model": what it wrote, "tool": what it was answered
    messages  what was said since the prompt, in the form of chat templates
    tokens    that the model drew; reason: why its last turn ended
    """

    turns: tuple[tuple[str, str], ...]
    messages: tuple[Mapping[str, Any], ...]
    calls: tuple[CallRecord, ...]
    tokens: int
    reason: Reason

    @property
    def text(self) -> str:
        """What the model wrote after the last answer of a tool."""
        return next((text for kind, text in reversed(self.turns) if kind == "model"), "")


class ProgramPlayer:
    """Plays a program with tools on a model, an episode for each prompt; errors and deadlines as in training."""

    def __init__(
        self, model: TextModel, program: Block, tools: Mapping[str, Tool], limits: EpisodeLimits | None = None
    ) -> None:
        self.model, self.program, self.tools = model, program, tools
        self.limits = limits or EpisodeLimits(characters=CHARACTERS_PER_TOKEN * model.context)

    async def play(
        self, prompt: Any, sampling: Sampling, seed: int, place: tuple[int, ...] = (), listen: Listener | None = None
    ) -> Played:
        """Answer a prompt, text or messages; `listen` hears the text as it comes.

        The same seed, place, prompt and model give the same samples. Raises SelfteachError where the program fails.
        """
        tokenizer = self.model.tokenizer
        self.model.prompt_ids(prompt)  # which refuses what leaves no room
        engine: Any = _StreamingEngine(self.model, listen)
        context = StepContext(
            engine, tokenizer, ("policy",), self.tools, sampling, {"main": self.program}, seed=seed, limits=self.limits
        )
        episode = Episode("answer", Tree())
        context.trees[episode.id] = episode.tree
        request = RolloutRequest(Task("answer", prompt), 1)
        rollout: Any = EpisodeContext(context, request, episode, (seed, "answer", *place, 0))
        try:
            async with asyncio.timeout(self.limits.seconds):
                await guarded(self.program(request=request, rollout=rollout))
        except TimeoutError:
            raise SelfteachError(f"the answer took more than {self.limits.seconds:g} s; its time is limited") from None
        except SelfteachError:
            raise
        except Exception as error:
            raise SelfteachError(f"program {self.program.name}: {describe(error)}; --no-tools leaves it out") from error
        if not episode.trajectories:
            raise SelfteachError(f"program {self.program.name}: closed no trajectory")
        end = episode.trajectories[-1]
        raw = list(_raw_turns(episode, end.leaf, tokenizer))
        turns = tuple((kind, text if kind == "model" else _answer_text(text)) for kind, text in raw)
        messages = rollout.messages_after_prompt(end.leaf)
        if messages is None:
            messages = [{"role": "assistant", "content": "".join(text for _, text in raw)}]
        reason: Reason = "stop" if end.status == "stop" else "length"
        return Played(turns, tuple(messages), tuple(episode.calls), int(episode.cost.get("tokens", 0)), reason)


def player_of(word: str, model: TextModel, trust: bool = False, tools: Sequence[str] = ()) -> ProgramPlayer | None:
    """What plays the program of a run that was trained with tools or a search engine; with `tools` (FILE.py:NAME) any
    model, with these; None where there are none.

    trust  as in `api.resume`: a run's own code is run where its tools are. Raises BadValue.
    """
    if tools:
        blocks, _ = function_tools(list(tools))
        return ProgramPlayer(model, call_functions(tools=tuple(blocks)), {name: b() for name, b in blocks.items()})
    folder = Path(word)
    if not (folder / "config.json").is_file() or not has_tools(folder):
        return None
    run_config = run_config_of(folder, trust)
    method, settings = run_config.method, run_config.settings
    source = task_source(run_config.task, run_config.task_options, folder)
    program = method.eval_program(method.stages[-1])
    limits = EpisodeLimits(tool_seconds=settings.tool_seconds, characters=CHARACTERS_PER_TOKEN * model.context)
    return ProgramPlayer(model, program, assemble.tools_for(method, source), limits)


def has_tools(run: Path) -> bool:
    """Whether the method of a run calls tools, read of its config.json as data; a model's has no method.

    Raises BadCheckpoint for a file that is no JSON.
    """
    method = outside_files.read_json(run / "config.json").get("method")
    if not isinstance(method, Mapping):
        return False
    return bool(method.get("tools")) or '"search_agent"' in json.dumps(method.get("stages"))


class _StreamingEngine:
    """The model's engine, of the event loop that the program runs on; says what is drawn, and what was put between."""

    def __init__(self, model: TextModel, listen: Listener | None) -> None:
        self.model, self.listen = model, listen
        self._told = np.zeros(0, np.int32)  # the text so far, of which all is heard

    async def generate(self, role: str, ids: np.ndarray, sampling: Sampling, rng_key: int) -> Completion:
        """As `BuiltinEngine.generate`."""
        if self.listen is None:
            return await self.model.on_engine(self.model.engine.generate(role, ids, sampling, rng_key))
        listen, tokenizer = self.listen, self.model.tokenizer
        if len(self._told):
            same = int(np.argmin([*(ids[: len(self._told)] == self._told[: len(ids)]), False]))
            listen("tool", _answer_text(tokenizer.decode(ids[same:])))
        text, eos = TextStream(tokenizer), set(tokenizer.eos_token_ids)

        def heard(drawn: np.ndarray) -> None:
            listen("model", text.add([i for i in drawn.tolist() if i not in eos])[0])

        found = await self.model.on_engine(self.model.engine.generate(role, ids, sampling, rng_key, heard))
        listen("model", text.close())
        self._told = np.concatenate([ids, found.ids])
        return found

    async def score(
        self, role: str, ids: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """As `BuiltinEngine.score`."""
        return await self.model.on_engine(self.model.engine.score(role, ids, tokens, want))


def _raw_turns(episode: Episode, at: Ref, tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """(kind, text) of the tokens after the prompt, as they are; without the model's EOS."""
    tree, eos = episode.tree, set(tokenizer.eos_token_ids)
    writers = (w for w in token_writers(tree, at.node, at.offset) if w.kind != "prompt")
    for is_model, own in groupby(writers, lambda w: w.kind in ("sampled", "adopted")):
        ids = tree.id[[w.place for w in own]]
        if is_model:
            yield "model", tokenizer.decode(ids[~np.isin(ids, list(eos))])
        else:
            yield "tool", tokenizer.decode(ids)


def _answer_text(text: str) -> str:
    """What tools answered, out of the tags or the template's words around it."""
    return "\n".join(RESPONSE.findall(text)) or text.strip()
