"""A policy to sample from: the model of a checkpoint with an engine that is kept between calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast, overload

import numpy as np

from ..core import random_keys
from ..core.disk import atomic_folder
from ..core.errors import BadValue, quoted
from ..core.loops import run_to_end
from ..core.protocols import Completion
from ..core.task import Sampling, Steering
from ..evaluation import trained_model
from ..loop import assemble, checkpoint
from ..loop.settings import RunSettings
from ..model import files
from ..model.catalog import StartModel
from ..model.tokenizer import Tokenizer, is_conversation
from ..preparation import set_threads

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Prompt: TypeAlias = str | Messages


class GeneratedText(str):
    """A text that a policy wrote, with what is known of its tokens.

    tokens    i32[n], the ids, with the one that ended it
    logprobs  f32[n], under the distribution that each was drawn from (temperature and truncation included)
    status    why it ended: stop | length | limit (the end of the context)
    """

    tokens: np.ndarray
    logprobs: np.ndarray
    status: str

    def __new__(cls, text: str, tokens: np.ndarray, logprobs: np.ndarray, status: str) -> GeneratedText:
        """A text with its tokens."""
        made = super().__new__(cls, text)
        made.tokens, made.logprobs, made.status = tokens, logprobs, status
        return made

    def __reduce__(self) -> Any:
        return GeneratedText, (str(self), self.tokens, self.logprobs, self.status)


class Policy:
    """The policy of a run's newest checkpoint. Its model and engine are made at the first call and kept until `close`.

    folder  of the checkpoint, in the Hub's layout
    """

    def __init__(self, run: Path, folder: Path, trust: bool = False) -> None:
        self.folder, self._run, self._trust = folder, run, trust
        self._start: StartModel | None = None
        self._engine: Any = None
        self._calls = 0

    @overload  # a text is a sequence of texts, too, and here it is one prompt
    def generate(  # type: ignore[overload-overlap]
        self,
        prompts: str | Messages,
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        steering: Steering | None = None,
    ) -> list[GeneratedText]: ...
    @overload
    def generate(
        self,
        prompts: Sequence[str | Messages],
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        steering: Steering | None = None,
    ) -> list[list[GeneratedText]]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        steering: Steering | None = None,
    ) -> list[GeneratedText] | list[list[GeneratedText]]:
        """`n` texts for a prompt, or for each of a list of prompts a list of `n`.

        prompts      a text or messages, rendered as in training (by the model's chat template where it has one), or a
                     list of these
        temperature  0: greedy
        max_tokens   of each text; None: the run's setting max_tokens, else 256
        stop         strings that end a text and stay in it
        seed         the same seed gives the same texts; None: others at each call
        steering     a vector that is added to the hidden states that tokens are drawn from (`residuals` gives such)

        Raises BadValue for a prompt that fills the context, and for sampling parameters out of range.
        """
        if not isinstance(prompts, str | Sequence):
            raise BadValue(f"generate: prompts are text, messages or a list of these, not {type(prompts).__name__}")
        one = isinstance(prompts, str) or is_conversation(prompts)
        asked = cast("list[Prompt]", [prompts] if one else list(prompts))
        if n < 1:
            raise BadValue(f"generate: n must be at least 1, not {n}")
        words = (stop,) if isinstance(stop, str) else tuple(stop)
        most = max_tokens or self._settings.max_tokens or 256
        sampling = Sampling(temperature, top_p, top_k, most, words, steering=steering)
        self._calls += 1
        key = ("generate", "seed", seed) if seed is not None else ("generate", "call", self._calls)
        tokenizer, engine = self.tokenizer, self._loaded()
        contexts = [tokenizer.render(assemble.chat_prompt(prompt, tokenizer)) for prompt in asked]
        for number, ids in enumerate(contexts):
            if not len(ids):
                raise BadValue(f"generate: prompt {number} is empty; give at least one token to write after")
            if len(ids) >= self._context:
                raise BadValue(
                    f"generate: prompt {number} has {len(ids)} tokens, and the context has {self._context}: no room is"
                    " left for a text; give a shorter one"
                )

        async def sample() -> list[Completion]:
            set_threads(self._settings.threads)  # of the thread that this runs in
            calls = [
                engine.generate("policy", ids, sampling, random_keys.key(self._settings.seed, *key, number, i))
                for number, ids in enumerate(contexts)
                for i in range(n)
            ]
            return list(await asyncio.gather(*calls))

        texts = [GeneratedText(tokenizer.decode(c.ids), c.ids, c.logp, c.status) for c in run_to_end(sample())]
        return texts if one else [texts[at : at + n] for at in range(0, len(texts), n)]

    def residuals(self, prompt: Prompt, text: str) -> np.ndarray:
        """The mean residual stream after each layer over the states that the tokens of a text after a prompt were drawn
        from: f32[layers, width].

        The difference of two texts' is a direction: of layer n, `generate(..., steering=Steering(n, 1.5 * d[n]))`.

        Raises BadValue for an empty text, and where both do not fit the context.
        """
        tokenizer, engine = self.tokenizer, self._loaded()
        context, ids = tokenizer.render(assemble.chat_prompt(prompt, tokenizer)), tokenizer.encode(text)
        if not len(ids):
            raise BadValue("residuals: the text is empty; give at least one token to read")

        async def read() -> Mapping[str, np.ndarray]:
            set_threads(self._settings.threads)
            return await engine.score("policy", context, ids, ("residuals",))

        return run_to_end(read())["residuals"].mean(0)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.model.tokenizer

    @property
    def model(self) -> StartModel:
        """The model and its tokenizer; after `generate` the engine's, on its device and in its precision."""
        if self._start is None:
            self._start = self._read()
        return self._start

    def _read(self) -> StartModel:
        if not (self.folder / "config.json").is_file():  # adapters alone
            return trained_model(self._run, trust=self._trust)
        model, tokenizer = files.load(self.folder)
        return StartModel(model, tokenizer, False, files.describe(model), self.folder)

    def save(self, folder: str | Path) -> Path:
        """Write it to a new folder in the Hub's layout, which transformers, vLLM and `--model` read.

        Raises BadValue where something is there already.
        """
        to = Path(folder)
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise BadValue(f"{to}: is there already and not empty; give the name of a new folder")
        start = self._read()
        with atomic_folder(to) as temporary:
            files.save(temporary, start.model, start.tokenizer)
        return to

    def close(self) -> None:
        """Give up the model and the engine with their memory; the next call makes them again."""
        self._start = self._engine = None

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Policy {self.folder}{'' if self._start is None else ', loaded'}>"

    @property
    def _settings(self) -> RunSettings:
        """The run's settings; read as data, so that none of the run's code is run."""
        data = json.loads((self._run / "config.json").read_text(encoding="utf-8"))
        return RunSettings(**data["settings"]).full()

    @property
    def _context(self) -> int:
        return assemble.context_of(self._settings, self.model)

    def _loaded(self) -> Any:
        if self._engine is None:
            self._engine = assemble.engine_of(self.model, self._settings)
        return self._engine


def policy_of(run: Path, trust: bool = False) -> Policy:
    """The policy of a run's newest checkpoint. Raises BadValue where it has none."""
    folder = checkpoint.find(run)
    if folder is None:
        raise BadValue(
            f"{run}: has no checkpoint yet, so there is no policy to sample; go on with run.resume(), or"
            f" selfteach train --resume {quoted(run)}"
        )
    return Policy(run, folder, trust)
