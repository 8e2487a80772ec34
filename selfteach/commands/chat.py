"""The command `selfteach chat`: a conversation with a model in the terminal."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
from collections.abc import Sequence
from contextlib import aclosing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.disk import disk_errors
from ..core.errors import BadValue, SelfteachError, Terminated
from ..core.loops import run_to_end
from ..core.tagged_text import messages_as_text
from ..core.task import Sampling
from ..core.terminal_text import shown_on
from .arguments import Parser
from .common import print_json, print_note
from .model_text import (
    add_loading,
    add_sampling_options,
    add_tools,
    load_model,
    note_without_template,
    player_for,
    sampling_of,
    shown_call,
)

if TYPE_CHECKING:
    from ..serving.program_player import ProgramPlayer
    from ..serving.text_model import TextModel

ABOUT = """Talk to a model: the newest checkpoint of a run, or any model that `train --model` takes.

A run that was trained with tools or a search engine calls them, as in training (docs/tools.md); what they answer is
shown on stderr.

The answer is shown as it is drawn. Ctrl-C ends the answer, Ctrl-D the conversation. A line that begins with / is an
order:

  /reset        forget the conversation, but for the system message
  /system TEXT  begin again with this system message (without TEXT: with none)
  /save FILE    write the conversation as JSON, {"messages": [...]}
  /help         these lines
"""
EXAMPLES = """examples:
  selfteach chat runs/grpo-1
  selfteach chat smollm2-135m --system "Be brief." --temperature 0.7
  printf 'Who are you?\\nSince when?\\n' | selfteach chat path/to/model --seed 1 --json

what comes out: the answers on stdout, all else on stderr. With --json one line {"role": "assistant", "content": ...,
"finish_reason": "stop"} for each answer. Lines may also be piped in, one message each."""
ORDERS = ("/reset", "/system", "/save", "/help")


def parser() -> Parser:
    """The options of `chat`."""
    made = Parser("chat", usage="selfteach chat RUN_OR_MODEL [options]", description=ABOUT, epilog=EXAMPLES)
    made.add_argument("model", metavar="RUN_OR_MODEL", help="a run's folder, a model's folder or name, a .gguf file")
    add_sampling_options(made, 1024)
    made.add_argument("--system", metavar="TEXT", help="the system message")
    add_tools(made)
    add_loading(made)
    return made


def run(command: str, words: Sequence[str]) -> int:
    """Carry out `selfteach chat`; returns the exit code."""
    given = vars(parser().read(words))
    given.setdefault("max_tokens", 1024)
    sampling = sampling_of(given)
    with load_model(given, slots=1) as model:
        as_json = bool(given.get("json"))
        if "system" in given and not model.has_chat_template:
            raise BadValue(f"selfteach chat: --system: {model.name} has no chat template; leave it out")
        note_without_template(model)
        seed = given.get("seed", secrets.randbits(32))
        player = player_for(given, model, command)
        Talk(model, sampling, given.get("stop", ()), seed, given.get("system"), as_json, player).go()
    return 0


class Talk:
    """A conversation with a model in this terminal. messages: so far, in the form of chat templates."""

    def __init__(
        self,
        model: TextModel,
        sampling: Sampling,
        stop: Sequence[str],
        seed: int,
        system: str | None,
        as_json: bool = False,
        player: ProgramPlayer | None = None,
    ) -> None:
        self.player = player
        self.model, self.sampling, self.stop, self.seed, self.as_json = model, sampling, stop, seed, as_json
        self.messages: list[dict[str, Any]] = []
        self.n_answers = 0
        self._begin(system)

    def go(self) -> None:
        """Read lines until there are no more, and answer each."""
        interactive = sys.stdin is not None and sys.stdin.isatty()
        if interactive:
            with contextlib.suppress(ImportError):
                import_module("readline")  # lets input() edit lines
            print_note(f"{self.model.name}: Ctrl-C ends an answer, Ctrl-D the conversation; /help")
        while (line := self._line(interactive)) is not None:
            if not line.strip():
                continue
            if line.startswith("/"):
                self._order(line)
                continue
            try:
                self._answer(line)
            except SelfteachError as error:  # a message that is too long, say: the conversation goes on without it
                print_note(f"selfteach chat: {error}")
                if not interactive:
                    raise

    def _line(self, interactive: bool) -> str | None:
        try:
            if interactive:
                return input("> " if sys.stdout.isatty() else "")
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        except EOFError:
            print_note("")
            return None
        except UnicodeDecodeError as error:
            raise BadValue(f"stdin: is not {error.encoding} text; pipe in text alone") from None

    def _begin(self, system: str | None) -> None:
        self.messages = [{"role": "system", "content": system}] if system else []

    def _answer(self, text: str) -> None:
        messages = [*self.messages, {"role": "user", "content": text}]
        if self.player is not None:
            self._answer_with_tools(self.player, messages)
            return
        ids, said = self.model.prompt_ids(messages), list[str]()
        reason = "stopped"
        try:
            reason = run_to_end(self._stream(ids, said))
        except Terminated:
            raise
        except KeyboardInterrupt:
            if not self.as_json:
                print_note("\n(stopped)")
        answer = "".join(said)
        if self.as_json:
            print_json({"role": "assistant", "content": answer, "finish_reason": reason})
        elif reason == "length":
            print_note("(cut: --max-tokens or the context is used up)")
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        self.n_answers += 1

    def _answer_with_tools(self, player: ProgramPlayer, messages: list[dict[str, Any]]) -> None:
        """Answer by the program, whose calls and their answers stay in the conversation; one stopped leaves nothing."""
        prompt = messages if self.model.has_chat_template else messages_as_text(messages)
        try:
            played = run_to_end(player.play(prompt, self.sampling, self.seed, (self.n_answers,), self._show))
        except Terminated:
            raise
        except KeyboardInterrupt:
            print_note("\n(stopped)")
            return
        calls = [{"tool": c.tool, "seconds": c.seconds, "error": c.error} for c in played.calls]
        if self.as_json:
            about = {"role": "assistant", "content": played.text, "finish_reason": played.reason, "calls": calls}
            print_json({**about, "turns": [{"kind": kind, "text": text} for kind, text in played.turns]})
        else:
            print(flush=True)
            for call in played.calls:
                print_note(f"(called {shown_on(sys.stderr, shown_call(call))})")
            if played.reason == "length":
                print_note("(cut: --max-tokens or the context is used up)")
        self.messages = [*messages, *map(dict, played.messages)]
        self.n_answers += 1

    def _show(self, kind: str, text: str) -> None:
        """Show a part of an answer as it comes."""
        if self.as_json:
            return
        if kind == "tool":
            print(flush=True)
            print_note("\n".join(f"> {line}" for line in shown_on(sys.stderr, text).splitlines()))
        else:
            print(shown_on(sys.stdout, text), end="", flush=True)

    async def _stream(self, ids: Any, said: list[str]) -> str:
        """Show an answer as it comes, and gather its pieces; returns why it ended."""
        from ..serving.text_model import rng_key_of

        reason, key = "length", rng_key_of(self.seed, self.n_answers)
        async with aclosing(self.model.stream(ids, self.sampling, key, self.stop)) as pieces:
            async for piece in pieces:
                said.append(piece.text)
                if not self.as_json:
                    print(shown_on(sys.stdout, piece.text), end="", flush=True)
                reason = piece.reason or reason
        if not self.as_json:
            print(flush=True)
        return reason

    def _order(self, line: str) -> None:
        order, _, rest = line.partition(" ")
        rest = rest.strip()
        if order == "/reset":
            self._begin(next((m["content"] for m in self.messages if m["role"] == "system"), None))
            print_note("(a new conversation)")
        elif order == "/system":
            if rest and not self.model.has_chat_template:
                print_note(f"/system: {self.model.name} has no chat template, so no system message")
                return
            self._begin(rest or None)
            print_note("(a new conversation)")
        elif order == "/save":
            self._save(rest)
        elif order == "/help":
            print_note(ABOUT.partition("\n\n")[2].rstrip())
        else:
            print_note(f"{shown_on(sys.stderr, order)}: no such order; there are {', '.join(ORDERS)}")

    def _save(self, word: str) -> None:
        if not word:
            print_note("/save: give a file")
            return
        file = Path(word).expanduser()
        if file.exists():
            print_note(f"/save: {shown_on(sys.stderr, word)} is there already; give another name")
            return
        try:
            text = json.dumps({"messages": self.messages}, indent=1, ensure_ascii=False) + "\n"
            with disk_errors(file), file.open("x", encoding="utf-8") as f:
                f.write(text)
            print_note(f"(saved: {shown_on(sys.stderr, str(file))})")
        except (SelfteachError, OSError, UnicodeEncodeError) as error:
            print_note(f"/save: {error}")
