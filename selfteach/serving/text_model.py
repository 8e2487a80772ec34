"""A model with an engine in a thread of its own: prompts in, text out as it is drawn.

The engine computes in its thread, so a server or a terminal goes on meanwhile; whoever stops listening ends the
generation.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..core import random_keys
from ..core.errors import BadValue
from ..core.loops import LoopThread
from ..core.quantity import quantity
from ..core.tagged_text import messages_as_text
from ..core.task import Sampling
from ..engine.builtin import BuiltinEngine
from ..engine.equal_length_batching import EqualLengthEngine
from ..loop.text_limit import CHARACTERS_PER_TOKEN, refuse_beyond
from ..model.tokenizer import Tokenizer

T = TypeVar("T")
TOP = 20  # likeliest tokens that are given besides the one drawn
Reason = Literal["stop", "length"]


@quantity
def top_logprobs(*, logprobs: Tensor) -> Tensor:
    """The likeliest tokens, [N, 2 k]: their k log-probabilities, falling, and then their ids."""
    best = logprobs.topk(min(TOP, logprobs.shape[-1]))
    return torch.cat([best.values, best.indices.to(best.values.dtype)], -1)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer: the text that became certain, and the tokens drawn. reason: why it ended, in the last."""

    text: str
    ids: tuple[int, ...] = ()
    reason: Reason | None = None


class Answer(NamedTuple):
    """A whole answer: its text without stop string and EOS token, its tokens without EOS, and why it ended."""

    text: str
    ids: tuple[int, ...]
    reason: Reason


class TokenScore(NamedTuple):
    """A token's log-probability at temperature 1, and the likeliest tokens in its place, (id, log-probability)."""

    logp: float
    top: tuple[tuple[int, float], ...]


class TextStream:
    """Tokens to text as they come, up to a stop string; what may be the beginning of one is held back.

    So are bytes that are not yet a whole character. ended: a stop string came; it is not part of the text.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop, self.ended = tokenizer, tuple(stop), False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def add(self, ids: Sequence[int]) -> tuple[str, int]:
        """(text that is certain now, tokens read): all of them, or those up to the one that completes a stop string."""
        out = ""
        for n, piece in enumerate(self.tokenizer.token_bytes(ids)):
            out += self._certain(self._decoder.decode(piece))
            if self.ended:
                return out, n + 1
        return out, len(ids)

    def close(self) -> str:
        """The text that was held back, at the end."""
        return "" if self.ended else self._certain(self._decoder.decode(b"", True)) + self._held

    def _certain(self, text: str) -> str:
        self._held += text
        found = [at for s in self.stop if (at := self._held.find(s)) >= 0]
        if found:
            self.ended = True
            return self._held[: min(found)]
        keep = max(
            (n for s in self.stop for n in range(1, len(s)) if self._held.endswith(s[:n])),
            default=0,
        )
        cut = len(self._held) - keep
        out, self._held = self._held[:cut], self._held[cut:]
        return out


class TextModel:
    """A tokenizer and an engine, which belongs to this object and runs in its thread until `close`.

    name     what clients call it
    context  tokens of prompt and answer together
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, engine: BuiltinEngine | EqualLengthEngine, context: int
    ) -> None:
        self.name, self.tokenizer, self.engine, self.context = name, tokenizer, engine, context
        self._thread = LoopThread("engine")
        self._loop = self._thread.loop
        self._loop.call_soon_threadsafe(torch.set_num_threads, torch.get_num_threads())  # the first that it does
        self._thread.start()

    def close(self) -> None:
        """End the thread, and what is being generated."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it is closed already
                self._thread.stop()
            self._thread.join(10)

    def __enter__(self) -> TextModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered as the model was taught them."""
        return self.tokenizer.chat is not None

    def prompt_ids(
        self, prompt: Any, raw: bool = False, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> np.ndarray:
        """i32[L]: a prompt as the model takes it: a text or messages through its chat template, where it has one, else
        as text; token ids as they are.

        raw  a text as it is, whatever the model has

        Raises BadValue for a prompt that leaves no room for an answer, or that the template refuses.
        """
        refuse_beyond(prompt, CHARACTERS_PER_TOKEN * self.context, "prompt")
        try:
            json.dumps([prompt, tools], ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:  # half a character, or bytes of a command line
            raise BadValue(f"prompt: is not text ({error.reason}); give it in UTF-8") from None
        if isinstance(prompt, str) and not raw and self.has_chat_template:
            prompt = [{"role": "user", "content": prompt}]
        if not self.has_chat_template and not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            prompt = messages_as_text(prompt)
        vocab = self.engine.models["policy"].config.vocab
        if isinstance(prompt, list) and any(isinstance(i, int) and not 0 <= i < vocab for i in prompt):
            raise BadValue(f"prompt: a token id is not one of the model's, 0 to {vocab - 1}")
        ids = self.tokenizer.render(prompt, tools)
        if not len(ids):
            ids = np.array([self.tokenizer.eos_token_id], np.int32)  # an empty prompt of a model without BOS
        if len(ids) >= self.context:
            raise BadValue(
                f"prompt: {len(ids)} tokens leave no room for an answer in a context of {self.context}; give a shorter"
                " one, or a longer context"
            )
        return ids

    async def stream(
        self, ids: np.ndarray, sampling: Sampling, rng_key: int, stop: Sequence[str] = ()
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of an answer after `ids` (i32[L]), from any event loop; the last has a reason.

        Its tokens are those of the text: without EOS, and up to the one that completes a stop string, at which the
        generation is ended here. The engine knows no stop strings, since it keeps a table for each that it has seen.
        """
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[np.ndarray | None]()

        def put(item: np.ndarray | None) -> None:
            with contextlib.suppress(RuntimeError):  # the listener's loop was closed
                loop.call_soon_threadsafe(queue.put_nowait, item)

        text, eos = TextStream(self.tokenizer, stop), set(self.tokenizer.eos_token_ids)
        future = asyncio.run_coroutine_threadsafe(
            self.engine.generate("policy", ids, sampling, rng_key, put), self._loop
        )
        future.add_done_callback(lambda _: put(None))
        try:
            while (drawn := await queue.get()) is not None:
                new = [i for i in drawn.tolist() if i not in eos]
                certain, n = text.add(new)
                if certain or n:
                    yield Piece(certain, tuple(new[:n]))
                if text.ended:
                    yield Piece("", reason="stop")
                    return
            yield Piece(text.close(), reason="stop" if future.result().status == "stop" else "length")
        finally:
            future.cancel()

    async def answer(self, ids: np.ndarray, sampling: Sampling, rng_key: int, stop: Sequence[str] = ()) -> Answer:
        """A whole answer; arguments as `stream` has them."""
        text, drawn, reason = "", [], "length"
        async with aclosing(self.stream(ids, sampling, rng_key, stop)) as pieces:
            async for piece in pieces:
                text += piece.text
                drawn += piece.ids
                reason = piece.reason or reason
        return Answer(text, tuple(drawn), reason)

    async def score(self, ids: np.ndarray, tokens: Sequence[int], top: int = 0) -> list[TokenScore]:
        """The log-probability of each token after `ids` (i32[L]), and the `top` likeliest there (at most 20)."""
        if not len(tokens):
            return []
        want = ("logp", "top_logprobs") if top else ("logp",)
        found = await self.on_engine(self.engine.score("policy", ids, np.asarray(tokens, np.int32), want))
        best = found["top_logprobs"] if top else np.zeros((len(tokens), 0), np.float32)
        k = best.shape[1] // 2
        return [
            TokenScore(float(logp), tuple((int(i), float(p)) for p, i in zip(row[:top], row[k : k + top], strict=True)))
            for logp, row in zip(found["logp"], best, strict=True)
        ]

    async def on_engine(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a call of the engine, from any event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def rng_key_of(seed: int, *place: int) -> int:
    """The RNG key of an answer: the same seed and place (prompt, choice) give the same answer, whoever else asks."""
    return random_keys.key(seed, "answer", *place)
