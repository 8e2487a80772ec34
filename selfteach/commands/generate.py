"""The command `selfteach generate`: completions of a prompt."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.errors import BadValue
from ..core.task import Sampling
from ..core.terminal_text import shown_on
from ..core.threads import run_to_end
from .arguments import Parser, add_typed
from .common import print_json
from .model_text import add_loading, add_sampling_options, load_model, sampling_of
from .streams import results

if TYPE_CHECKING:
    from ..serving.text_model import Answer, TextModel

ABOUT = """Let a model answer a prompt: the newest checkpoint of a run, or any model that `train --model` takes.

RUN_OR_MODEL is a folder that `selfteach train` made, a folder in the Hub's layout, a .gguf file, or a model's name
(selfteach models). A model with a chat template gets the prompt as a user's message; --raw gives it the text alone.
Without a prompt, or with -, the prompt is read from stdin.
"""
EXAMPLES = """examples:
  selfteach generate runs/ssrl-1 "question: In which country is Lyon?" --stop "</answer>"
  selfteach generate smollm2-135m "Name three rivers." -n 4 --temperature 0.7 --max-tokens 60
  git diff | selfteach generate path/to/model --system "Say in one line what this changes." --temperature 0
  selfteach generate runs/grpo-1 "2 + 2 =" --raw --seed 7 --json

what comes out: the answer on stdout; several with a line `--- 1 of 4` before each. A terminal gets control characters
written out, a pipe the text as it is. With --json one line {"model": ..., "prompt": ..., "seed": ..., "answers":
[{"text": ..., "tokens": 12, "finish_reason": "stop"}]}; "length" means that --max-tokens or the context ended it."""
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
