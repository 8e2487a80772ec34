"""Tokenizers: text to ids and back, through the `tokenizers` library. Real models' chat templates will come in here."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import BadCheckpoint, BadValue

END = "<|end|>"


class Tokenizer:
    """A byte-level tokenizer: any text goes in, and what comes out decodes to the same text."""

    def __init__(self, inner: Any, end: str = END):
        self.inner = inner
        self.end = inner.token_to_id(end)
        if self.end is None:
            raise BadValue(f"tokenizer: it has no end token {end!r}")

    def __len__(self) -> int:
        return self.inner.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """i32[n]."""
        return np.array(self.inner.encode(text, add_special_tokens=False).ids, np.int32)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids; end tokens, and ids that only fill up a model's vocabulary, left out."""
        pieces = self.pieces
        return b"".join(pieces[i] for i in np.asarray(ids).tolist() if i < len(pieces)).decode("utf-8", "replace")

    def render(self, prompt: Any) -> np.ndarray:
        """The ids a context begins with. Text is taken as it is; a chat template would turn messages into ids here."""
        if isinstance(prompt, str):
            return self.encode(prompt)
        if isinstance(prompt, list | tuple | np.ndarray) and all(isinstance(i, int | np.integer) for i in prompt):
            return np.asarray(prompt, np.int32)
        raise BadValue(f"prompt: this tokenizer takes text or token ids, not {type(prompt).__name__}")

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of every id; those of the end token are empty."""
        table = _byte_of_character()
        special = {i for i, t in self.inner.get_added_tokens_decoder().items() if t.special}
        out: list[bytes] = []
        for i in range(len(self)):
            token = self.inner.id_to_token(i)
            if i == self.end or token is None:
                out.append(b"")
            elif i in special:
                out.append(token.encode())
            else:
                out.append(bytes(table[c] for c in token) if all(c in table for c in token) else token.encode())
        return out

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.blake2b(self.inner.to_str().encode(), digest_size=8).hexdigest()

    def save(self, folder: Path) -> None:
        self.inner.save(str(folder / "tokenizer.json"))

    @staticmethod
    def load(folder: Path) -> Tokenizer:
        """Raises BadCheckpoint naming the file that is missing or broken."""
        from tokenizers import Tokenizer as Inner

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise BadCheckpoint(f"{file}: there is no tokenizer beside the weights")
        try:
            return Tokenizer(Inner.from_file(str(file)))
        except Exception as error:
            raise BadCheckpoint(f"{file}: not a tokenizer of this format ({error})") from error


def make(words: Iterable[str], tags: Sequence[str], size: int = 4096) -> Tokenizer:
    """A tokenizer from a task's own text: byte-level BPE, with `tags` and the end of a text kept whole."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END, *tags], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    inner.train_from_iterator(words, trainer)
    return Tokenizer(inner)


def _byte_of_character() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (Radford et al. 2019), turned round."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in own}
    rest = [b for b in range(256) if b not in own]
    return table | {chr(256 + n): b for n, b in enumerate(rest)}
