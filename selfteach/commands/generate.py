"""The command `selfteach generate`: completions of a prompt."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import BadValue
from ..core.loops import run_to_end
from ..core.task import Sampling
from ..core.terminal_text import shown_on
from .arguments import Parser, add_typed
from .common import print_json, print_note
from .model_text import (
    add_loading,
    add_sampling_options,
    add_tools,
    load_model,
    player_for,
    sampling_of,
    shown_call,
)
from .streams import results

if TYPE_CHECKING:
    from ..serving.program_player import Played, ProgramPlayer
    from ..serving.text_model import Answer, TextModel

ABOUT = """Let a model answer a prompt: the newest checkpoint of a run, or any model that `train --model` takes.

RUN_OR_MODEL is a folder that `selfteach train` made, a folder in the Hub's layout, a .gguf file, or a model's name
(selfteach models). A model with a chat template gets the prompt as a user's message; --raw gives it the text alone.
Without a prompt, or with -, the prompt is read from stdin. A run that was trained with tools or a search engine plays
its program: what the model calls is carried out and answered, and shown (docs/tools.md).
"""
EXAMPLES = """examples:
  selfteach generate runs/ssrl-1 "question: In which country is Lyon?" --stop "</answer>"
  selfteach generate smollm2-135m "Name three rivers." -n 4 --temperature 0.7 --max-tokens 60
  git diff | selfteach generate path/to/model --system "Say in one line what this changes." --temperature 0
  selfteach generate runs/grpo-1 "2 + 2 =" --raw --seed 7 --json
  selfteach generate path/to/model "What is 17 * 23?" --tools tools.py:multiply

what comes out: the answer on stdout; several with a line `--- 1 of 4` before each. A terminal gets control characters
written out, a pipe the text as it is. With --json one line {"model": ..., "prompt": ..., "seed": ..., "answers":
[{"text": ..., "tokens": 12, "finish_reason": "stop"}]}; "length" means that --max-tokens or the context ended it.
Where tools are called, what they answered stands between, each line after `> `; in JSON "turns" has it all and "calls"
their names, seconds and errors."""
MOST_ANSWERS = 4096
MOST_AT_ONCE = 64


def parser() -> Parser:
    """The options of `generate`."""
    made = Parser(
        "generate", usage="selfteach generate RUN_OR_MODEL [PROMPT] [options]", description=ABOUT, epilog=EXAMPLES
    )
    made.add_argument("model", metavar="RUN_OR_MODEL", help="a run's folder, a model's folder or name, a .gguf file")
    made.add_argument("prompt", metavar="PROMPT", nargs="?", help="the prompt; - or none: all of stdin")
    made.add_argument("-n", dest="n", type=int, metavar="N", help="number of answers (default: 1)")
    add_sampling_options(made)
    made.add_argument("--system", metavar="TEXT", help="a system message, for a model with a chat template")
    add_typed(made, "raw", bool, "give the model the text as it is, without its chat template")
    add_tools(made)
    add_loading(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach generate`; returns the exit code."""
    given = vars(parser().read(words))
    n, sampling = given.get("n", 1), sampling_of(given)
    if not 1 <= n <= MOST_ANSWERS:
        raise BadValue(f"selfteach generate: -n must be between 1 and {MOST_ANSWERS}, not {n}")
    if given.get("raw") and "system" in given:
        raise BadValue("selfteach generate: --system goes through the chat template, --raw without it; give one")
    text = given.get("prompt", "-")
    if text == "-":
        text = _stdin()
    with load_model(given, slots=min(n, MOST_AT_ONCE)) as model:
        if "system" in given and not model.has_chat_template:
            raise BadValue(f"selfteach generate: --system: {model.name} has no chat template; leave it out")
        prompt: Any = text
        if "system" in given:
            prompt = [{"role": "system", "content": given["system"]}, {"role": "user", "content": text}]
        seed = given.get("seed", secrets.randbits(32))
        if (player := player_for(given, model, command)) is not None:
            played = run_to_end(_played(player, model, prompt, given, sampling, seed, n))
            return _show_played(played, {"model": given["model"], "prompt": text, "seed": seed}, given)
        answers = run_to_end(_answers(model, prompt, given, sampling, seed, n))
    if given.get("json"):
        listed = [{"text": a.text, "tokens": len(a.ids), "finish_reason": a.reason} for a in answers]
        print_json({"model": given["model"], "prompt": text, "seed": seed, "answers": listed})
        return 0
    for i, answer in enumerate(answers):
        head = f"--- {i + 1} of {n}\n" if n > 1 else ""
        print(head + shown_on(sys.stdout, answer.text), file=results(), flush=True)
    return 0


async def _answers(
    model: TextModel, prompt: Any, given: Mapping[str, Any], sampling: Sampling, seed: int, n: int
) -> list[Answer]:
    from ..serving.text_model import rng_key_of

    ids, stop = model.prompt_ids(prompt, raw=bool(given.get("raw"))), given.get("stop", ())
    return await asyncio.gather(*(model.answer(ids, sampling, rng_key_of(seed, 0, i), stop) for i in range(n)))


async def _played(
    player: ProgramPlayer,
    model: TextModel,
    prompt: Any,
    given: Mapping[str, Any],
    sampling: Sampling,
    seed: int,
    n: int,
) -> list[Played]:
    if isinstance(prompt, str) and model.has_chat_template and not given.get("raw"):
        prompt = [{"role": "user", "content": prompt}]
    return await asyncio.gather(*(player.play(prompt, sampling, seed, (i,)) for i in range(n)))


def _show_played(played: Sequence[Played], about: Mapping[str, Any], given: Mapping[str, Any]) -> int:
    """Print answers with what tools were called and what they answered."""
    if given.get("json"):
        listed = [
            {
                "text": p.text,
                "tokens": p.tokens,
                "finish_reason": p.reason,
                "turns": [{"kind": kind, "text": text} for kind, text in p.turns],
                "calls": [{"tool": c.tool, "seconds": c.seconds, "error": c.error} for c in p.calls],
            }
            for p in played
        ]
        print_json({**about, "answers": listed})
        return 0
    for i, answer in enumerate(played):
        lines = [f"--- {i + 1} of {len(played)}"] if len(played) > 1 else []
        for kind, text in answer.turns:
            shown = shown_on(sys.stdout, text)
            lines += [shown] if kind == "model" else [f"> {line}" for line in shown.splitlines()]
        print("\n".join(lines), file=results(), flush=True)
        for call in answer.calls:
            print_note(f"(called {shown_on(sys.stderr, shown_call(call))})")
    return 0


def _stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise BadValue('selfteach generate: there is no prompt; give one ("..."), or pipe one in')
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise BadValue(f"stdin: is not {error.encoding} text; pipe in text alone") from None
    if not text.strip():
        raise BadValue("stdin: the prompt is empty; pipe in some text")
    return text.removesuffix("\n")
