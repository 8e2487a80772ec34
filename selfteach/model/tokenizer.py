"""Tokenizers, by the library `tokenizers`: any `tokenizer.json` of the Hub, and small ones trained on a task's text."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import BadCheckpoint, BadValue, describe
from . import tokenizer_files
from .chat import ChatTemplate, Message, drift_cause
from .token_bytes import token_bytes
from .tokenizer_files import END

MOST_IDS = 1 << 22
REMEMBERED, REMEMBERED_LENGTH = 4096, 2000  # texts whose ids are kept, for environments repeat themselves; characters
SPLIT_MARK = "\ufdd0"  # a noncharacter, at which a text that spells a special token is split before encoding


class Tokenizer:
    """Text to ids and back; the ids of any text decode to that text.

    eos_token_ids  ids that end a text or a turn
    eos_token_id   the one of them that is appended to a text: the chat template's end of turn, or the first
    config         the content of tokenizer_config.json, to be saved again; None: trained here
    chat           the chat template, or None
    """

    def __init__(self, inner: Any, eos: str | Sequence[int] = END, config: Mapping[str, Any] | None = None) -> None:
        self.inner = inner
        self.config = None if config is None else dict(config)
        if isinstance(eos, str):
            if (eos_token_id := inner.token_to_id(eos)) is None:
                raise BadValue(f"tokenizer: it has no EOS token {eos!r}")
            eos = [eos_token_id]
        special = {t.content: i for i, t in inner.get_added_tokens_decoder().items() if t.special}
        self.chat = ChatTemplate.from_config(self.config or {}, special)
        end_of_turn = [special[self.chat.end_of_turn]] if self.chat and self.chat.end_of_turn else []
        self.eos_token_ids = tuple(dict.fromkeys([*end_of_turn, *eos]))
        if not self.eos_token_ids:
            raise BadValue("tokenizer: it has no EOS token")
        self.eos_token_id = self.eos_token_ids[0]
        self._encoded: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return 1 + max(self.inner.get_vocab(with_added_tokens=True).values())

    @cached_property
    def _without_space(self) -> Any:
        """The same tokenizer without a space added before the text, for text in the middle of another."""
        data = json.loads(self.inner.to_str())
        if not _remove_space_prefix(data):
            return self.inner
        return type(self.inner).from_str(json.dumps(data))

    @cached_property
    def _special_ids(self) -> set[int]:
        """Ids that no text encodes to: special and EOS tokens; EOS alone for a tokenizer trained here.

        The tags of the latter are words of its tasks.
        """
        model = json.loads(self.inner.to_str())["model"]
        unknown = {self.inner.token_to_id(model["unk_token"]) if model.get("unk_token") else model.get("unk_id")}
        added = self.inner.get_added_tokens_decoder()
        return {
            i for i, t in added.items() if i in self.eos_token_ids or (t.special and self.config is not None)
        } - unknown

    def encode(self, text: str) -> np.ndarray:
        """i32[n]: the ids of the text alone, as in the middle of a text.

        A special token that the text spells is encoded as ordinary text.
        """
        if (ids := self._encoded.get(text)) is None:
            ids = np.array([i for _, piece in self._split_special(text) for i in piece], np.int32)
            if len(text) <= REMEMBERED_LENGTH:
                if len(self._encoded) >= REMEMBERED:
                    self._encoded.clear()
                self._encoded[text] = ids
        return ids.copy()

    def _split_special(self, text: str) -> list[tuple[str, list[int]]]:
        """(piece, ids) of the text, split after the first character of everything that spells a special token."""
        out: list[tuple[str, list[int]]] = []
        todo = [text]
        while todo:
            piece = todo.pop()
            encoded = self._without_space.encode(piece, add_special_tokens=False)
            tokens = [] if self._special_ids.isdisjoint(encoded.ids) else zip(encoded.ids, encoded.offsets, strict=True)
            split_at = [a + 1 for i, (a, z) in tokens if i in self._special_ids and z - a > 1]
            if split_at:
                todo += [piece[a:z] for a, z in itertools.pairwise([0, *split_at, len(piece)])][::-1]
            else:
                out.append((piece, encoded.ids))
        return out

    @cached_property
    def _split_pieces(self) -> Callable[[str], tuple[str, ...]]:
        """The pieces of `_split_special`, cached: a conversation's messages are split again at each turn."""
        return lru_cache(maxsize=4096)(lambda text: tuple(piece for piece, _ in self._split_special(text)))

    def _insert_marks(self, value: Any, mark: str) -> Any:
        """A message, or a value in one, with `mark` where its texts are split."""
        if isinstance(value, str):
            return mark.join(self._split_pieces(value))
        if isinstance(value, Mapping):
            return {self._insert_marks(k, mark): self._insert_marks(v, mark) for k, v in value.items()}
        return [self._insert_marks(v, mark) for v in value] if isinstance(value, list | tuple) else value

    def _encode_template(self, text: str, mark: str) -> list[int]:
        """The ids of a template's output: special tokens are encoded as such, except where a mark splits them."""
        first, *more = text.split(mark)
        return [
            i
            for n, t in enumerate((first, *more))
            for i in (self._without_space if n else self.inner).encode(t, add_special_tokens=False).ids
        ]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids, without EOS tokens and ids that only pad a model's vocabulary."""
        return b"".join(self.token_bytes(ids)).decode("utf-8", "replace")

    def token_bytes(self, ids: Sequence[int] | np.ndarray) -> list[bytes]:
        """The bytes that each id adds to the text; none for ids that only pad a model's vocabulary."""
        return [self.pieces[i] if i < len(self.pieces) else b"" for i in np.asarray(ids).tolist()]

    def render(self, prompt: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> np.ndarray:
        """i32[n]: the ids of a prompt: text (after BOS, where the model has one), messages, or ids unchanged.

        Messages are a list of {"role": ..., "content": ...}, which the chat template renders with the generation
        prompt, and with `tools` where it has a place for them. Special tokens are those of the template: one that a
        text, message or tool spells is ordinary text. Raises BadValue where the template refuses the messages, or
        there is none.
        """
        if isinstance(prompt, str):
            return np.array(self._prompt_ids(prompt), np.int32)
        if isinstance(prompt, list | tuple | np.ndarray) and all(isinstance(i, int | np.integer) for i in prompt):
            return np.asarray(prompt, np.int32)
        if self.chat is None:
            raise BadValue(
                f"prompt: this tokenizer takes text or token ids, not {type(prompt).__name__}; it has no chat template "
                "for messages"
            )
        if not is_conversation(prompt):
            raise BadValue(f"prompt: text, token ids, or messages with a role and content, not {type(prompt).__name__}")
        mark = _mark([prompt, tools])
        text = self.chat.render(self._insert_marks(prompt, mark), tools=self._insert_marks(tools, mark))
        return np.array(self._encode_template(text, mark), np.int32)

    def blank_prompt(self, prompt: Any) -> np.ndarray:
        """The ids of a prompt without content: messages with empty content but for the system's, or BOS.

        An EOS token where that would have no ids.
        """
        empty = (
            [m if m["role"] == "system" else {**m, "content": ""} for m in prompt] if is_conversation(prompt) else ""
        )
        try:
            ids = self.render(empty)
        except BadValue:  # a template that refuses empty messages
            ids = self.render("")
        return ids if len(ids) else np.array([self.eos_token_id], np.int32)

    @property
    def reserved_token(self) -> int:
        """An id that no text and no template encodes to, for uses outside of text.

        An unused special token, else the token of a byte that UTF-8 never has. Raises BadValue where there is neither.
        """
        return self._unused_token

    @cached_property
    def _unused_token(self) -> int:
        names = " ".join(str(v) for k, v in (self.config or {}).items() if k.endswith("_token"))
        known = names + (self.chat.template if self.chat else "")
        free = {
            t.content: i
            for i, t in self.inner.get_added_tokens_decoder().items()
            if t.special and i in self._special_ids and t.content not in known
        }
        free = {content: i for content, i in free.items() if i not in self.eos_token_ids}
        named = sorted((not any(w in c.lower() for w in ("reserved", "unused", "extra")), i) for c, i in free.items())
        if named:
            return named[0][1]
        never = {bytes([b]) for b in (*range(0xF5, 0x100), 0xC0, 0xC1)}
        unused = [i for i, piece in enumerate(self.pieces) if piece in never]
        if not unused:
            raise BadValue("tokenizer: it has no token that is never used; name one (token=ID)")
        return unused[-1]

    def message_ids(self, message: Message, after: int | None) -> np.ndarray:
        """i32[n]: the ids to append for a message and the next generation prompt, given only the last id `after`.

        They begin with the template's end of turn, unless `after` is that. Raises BadValue where there is no template,
        or it cannot append.
        """
        mark = _mark(message)
        ids = self._encode_template(self._chat.text_after_reply(self._insert_marks(message, mark)), mark)
        return np.array(ids[1:] if after == ids[0] else ids, np.int32)

    def continuation(
        self,
        messages: Sequence[Message],
        raw: str,
        reply: Message,
        message: Message,
        after: int | None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> tuple[np.ndarray, int, str | None]:
        """(ids, n, cause): how a conversation continues with `message` after the model replied `raw` to `messages`.

        reply    the reply as a message, which the template may render otherwise than the model wrote it
        after    the id that the reply ends with
        tools    functions that the template was given with the prompt
        cause    None: the render begins with the text so far; `ids` are to be appended. Otherwise it is re-rendered for
                 this cause (`chat.drift_cause`); `ids` are the whole conversation, of which the last n are the message

        Raises BadValue where there is no template, or it refuses a message.
        """
        mark = _mark([*messages, raw, reply, message, tools])
        schemas = self._insert_marks(tools, mark)
        before, generated, answer, following = (self._insert_marks(x, mark) for x in ([*messages], raw, reply, message))
        appended = self._chat.render(before, tools=schemas) + generated
        whole = self._chat.render([*before, answer, following], tools=schemas)
        if whole.startswith(appended):
            ids = self._encode_template(whole[len(appended) :], mark)
            return np.array(ids[1:] if ids and after == ids[0] else ids, np.int32), 0, None
        try:
            last = self._chat.text_after_reply(following)
        except BadValue:
            last = ""
        ids = self._encode_template(whole, mark)
        own = self._encode_template(last, mark) if last and whole.endswith(last) else []
        n = len(own) if own and ids[-len(own) :] == own else 0
        return np.array(ids, np.int32), n, drift_cause(appended + last, whole, "tool_calls" in reply)

    @property
    def _chat(self) -> ChatTemplate:
        if self.chat is None:
            raise BadValue("say: this tokenizer has no chat template; use append")
        return self.chat

    @cached_property
    def _prompt_ids(self) -> Callable[[str], list[int]]:
        """`_encode_text_prompt`, cached: all episodes of a group begin with one prompt."""
        return lru_cache(maxsize=4096)(self._encode_text_prompt)

    def _encode_text_prompt(self, text: str) -> list[int]:
        plain = self._encode_whole(text)
        # Around a text without tokens, ids added before it look like ids added after it.
        begin = self._added_before(text, plain) if plain else self._added_before("a", self._encode_whole("a"))
        has_special = not self._special_ids.isdisjoint(plain)
        ids = self._encode_template(self._insert_marks(text, mark := _mark(text)), mark) if has_special else plain
        return [*begin, *ids]

    def _encode_whole(self, text: str) -> list[int]:
        return self.inner.encode(text, add_special_tokens=False).ids

    def _added_before(self, text: str, plain: list[int]) -> list[int]:
        """The ids that the tokenizer adds before a text (BOS) with ids `plain`; some tokenizers also add EOS."""
        if not self.inner.num_special_tokens_to_add(False):
            return []
        whole = self.inner.encode(text, add_special_tokens=True).ids
        first = next((n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain), 0)
        return whole[:first]

    @cached_property
    def drifts(self) -> dict[str, str]:
        """Where the template's renders differ from appended turns (`ChatTemplate.drifts`); empty without one."""
        return (
            self.chat.drifts(
                self._encode_whole,
                lambda text: self.encode(text).tolist(),
            )
            if self.chat
            else {}
        )

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes that each id adds to a text; those of EOS tokens are empty.

        Raises BadValue for a decoder under which that depends on the neighbours (CTC).
        """
        return token_bytes(self.inner, len(self), self.eos_token_ids)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the tokenizer and its chat template."""
        content = self.inner.to_str() + (json.dumps([self.eos_token_ids, self.chat.template]) if self.chat else "")
        return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()

    def save(self, folder: Path) -> None:
        """Write tokenizer.json; for a loaded tokenizer also tokenizer_config.json and generation_config.json."""
        # not by the library's own `save`, whose errors say neither which file nor that the disk is full
        (folder / "tokenizer.json").write_text(self.inner.to_str(pretty=True), encoding="utf-8")
        if self.config is not None:
            ends = {"eos_token_id": list(self.eos_token_ids)}
            for name, data in (("tokenizer_config", self.config), ("generation_config", ends)):
                text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
                (folder / f"{name}.json").write_text(text, encoding="utf-8")

    @staticmethod
    def load(folder: Path) -> Tokenizer:
        """The tokenizer in a folder. Raises BadCheckpoint naming the file that is missing or broken."""
        inner, eos, config = tokenizer_files.read(folder)
        try:
            tokenizer = Tokenizer(inner, eos, config)
            if len(tokenizer) > MOST_IDS:  # one entry with a large id would take as much memory as all below it
                raise BadValue(f"tokenizer.json: has ids up to {len(tokenizer)}, and may have {MOST_IDS}")
            _ = tokenizer.pieces  # so that a decoder which is not supported is refused here
            return tokenizer
        except BadValue as error:
            raise BadCheckpoint(f"{folder}: {error}") from error
        except Exception as error:  # the library reads what it cannot use
            raise BadCheckpoint(
                f"{folder}: not a tokenizer that can be used ({describe(error, 160)}); download it again"
            ) from error


def is_conversation(prompt: Any) -> bool:
    """True for messages: a list of mappings with a role."""
    return (
        isinstance(prompt, list | tuple)
        and bool(prompt)
        and all(isinstance(m, Mapping) and "role" in m for m in prompt)
    )


def _mark(value: Any) -> str:
    """A mark that occurs nowhere in these messages."""
    text, mark = repr(value), SPLIT_MARK  # repr escapes what is no character
    while repr(mark)[1:-1] in text:
        mark += SPLIT_MARK
    return mark


def train_tokenizer(words: Iterable[str], tags: Sequence[str], size: int = 4096) -> Tokenizer:
    """A byte-level BPE tokenizer trained on a task's text, with `tags` and END as single tokens."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, *tags],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(words, trainer)
    return Tokenizer(inner)


def _remove_space_prefix(data: Any) -> bool:
    """Remove from a tokenizer's JSON whatever adds a space before a text. True where there was something."""
    steps = []
    for one, many in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        if data.get(one):
            row = data[one][many] if data[one]["type"] == "Sequence" else [data[one]]
            rest = [s for s in row if s["type"] != "Prepend"]
            steps += rest
            if len(rest) < len(row):
                data[one] = {"type": "Sequence", many: rest}
                steps.append({"type": "Prepend"})
    changed = False
    for step in steps:
        changed |= step["type"] == "Prepend"
        if step["type"] == "Metaspace" and step.get("prepend_scheme") != "never":
            step["prepend_scheme"], changed = "never", True
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            step["add_prefix_space"], changed = False, True
    return changed
