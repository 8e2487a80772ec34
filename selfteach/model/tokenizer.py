"""Tokenizers: text to ids and back, through the `tokenizers` library. Any `tokenizer.json` of the Hub, and small ones made from a task's text."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import BadCheckpoint, BadValue
from .chat import Chat, Message, cause

END = "<|end|>"
SPACE = "▁"  # a space, in SentencePiece's vocabularies
CUT = "\ufdd0"  # no character: marks where a message is cut inside what spells a special token, until it is encoded


class Tokenizer:
    """Text to ids and back: any text goes in, and what comes out decodes to the same text.

    ends    ids that end a text or a turn; `end` is the one that a text is finished with: the chat template's, or the first
    config  what tokenizer_config.json says, kept to be saved again; None: a tokenizer of our own
    chat    the chat template, where there is one
    """

    def __init__(self, inner: Any, ends: str | Sequence[int] = END, config: Mapping[str, Any] | None = None):
        self.inner = inner
        self.config = None if config is None else dict(config)
        if isinstance(ends, str):
            if (one := inner.token_to_id(ends)) is None:
                raise BadValue(f"tokenizer: it has no end token {ends!r}")
            ends = [one]
        special = {t.content: i for i, t in inner.get_added_tokens_decoder().items() if t.special}
        self.chat = Chat.of(self.config or {}, special)
        closing = [special[self.chat.close]] if self.chat and self.chat.close else []
        self.ends = tuple(dict.fromkeys([*closing, *ends]))
        if not self.ends:
            raise BadValue("tokenizer: it has no end token")
        self.end = self.ends[0]

    def __len__(self) -> int:
        return self._size

    @cached_property
    def _size(self) -> int:
        return 1 + max(self.inner.get_vocab(with_added_tokens=True).values())

    @cached_property
    def _bare(self) -> Any:
        """The same tokenizer without a space put before the text, for text that stands in the middle."""
        data = json.loads(self.inner.to_str())
        if not _without_prefix(data):
            return self.inner
        return type(self.inner).from_str(json.dumps(data))

    @cached_property
    def _special(self) -> set[int]:
        """Ids that text never spells: special tokens and ends. Of a tokenizer of our own the ends alone: its tags are words of its tasks."""
        model = json.loads(self.inner.to_str())["model"]
        unknown = {self.inner.token_to_id(model["unk_token"]) if model.get("unk_token") else model.get("unk_id")}
        added = self.inner.get_added_tokens_decoder()
        return {i for i, t in added.items() if i in self.ends or (t.special and self.config is not None)} - unknown

    def encode(self, text: str) -> np.ndarray:
        """i32[n]: the ids of the text and nothing else, wherever it stands. What spells a special token is text like any other."""
        return np.array([i for _, ids in self._apart(text) for i in ids], np.int32)

    def _apart(self, text: str) -> list[tuple[str, list[int]]]:
        """The text cut inside everything that would be read as a special token, behind its first character; pieces with their ids."""
        out: list[tuple[str, list[int]]] = []
        todo = [text]
        while todo:
            piece = todo.pop()
            made = self._bare.encode(piece, add_special_tokens=False)
            found = [] if self._special.isdisjoint(made.ids) else zip(made.ids, made.offsets, strict=True)
            cuts = [a + 1 for i, (a, z) in found if i in self._special and z - a > 1]
            if cuts:
                todo += [piece[a:z] for a, z in itertools.pairwise([0, *cuts, len(piece)])][::-1]
            else:
                out.append((piece, made.ids))
        return out

    @cached_property
    def _pieces(self) -> Callable[[str], tuple[str, ...]]:
        """The pieces of `_apart`, remembered: a conversation's messages are asked for again at each turn."""
        return lru_cache(maxsize=4096)(lambda text: tuple(piece for piece, _ in self._apart(text)))

    def _cut(self, value: Any, mark: str) -> Any:
        """A message, or whatever stands in one, with `mark` put where its texts are cut apart."""
        if isinstance(value, str):
            return mark.join(self._pieces(value))
        if isinstance(value, Mapping):
            return {k: self._cut(v, mark) for k, v in value.items()}
        return [self._cut(v, mark) for v in value] if isinstance(value, list | tuple) else value

    def _read(self, text: str, mark: str) -> list[int]:
        """The ids of what a template wrote: special tokens are read as such, except where a mark cuts them."""
        first, *more = text.split(mark)
        return [i for n, t in enumerate((first, *more)) for i in (self._bare if n else self.inner).encode(t, add_special_tokens=False).ids]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of ids; end tokens, and ids that only fill up a model's vocabulary, left out."""
        return b"".join(self.spelled(ids)).decode("utf-8", "replace")

    def spelled(self, ids: Sequence[int] | np.ndarray) -> list[bytes]:
        """What each id adds to the text; nothing for ids that only fill up a model's vocabulary."""
        return [self.pieces[i] if i < len(self.pieces) else b"" for i in np.asarray(ids).tolist()]

    def render(self, prompt: Any) -> np.ndarray:
        """The ids a context begins with: text (after the token that begins one, where the model has it), messages, or ids as they are.

        Messages are a list of {"role": ..., "content": ...}; the chat template writes them, and the beginning of the reply. Special
        tokens are those of the template: one that a text or message spells is text. Raises BadValue where the template refuses the
        messages, or there is none.
        """
        if isinstance(prompt, str):
            return self._begun(prompt)
        if isinstance(prompt, list | tuple | np.ndarray) and all(isinstance(i, int | np.integer) for i in prompt):
            return np.asarray(prompt, np.int32)
        if self.chat is None:
            raise BadValue(f"prompt: this tokenizer takes text or token ids, not {type(prompt).__name__}; it has no chat template for messages")
        if not is_talk(prompt):
            raise BadValue(f"prompt: text, token ids, or messages with a role and content, not {type(prompt).__name__}")
        mark = _mark(prompt)
        return np.array(self._read(self.chat.text(self._cut(prompt, mark)), mark), np.int32)

    def blank(self, prompt: Any) -> np.ndarray:
        """The ids of a prompt with nothing asked in it: messages as the template writes them where the user says nothing, or what any text
        begins with. An end where that would be nothing at all."""
        asked = [m if m["role"] == "system" else {**m, "content": ""} for m in prompt] if is_talk(prompt) else ""
        try:
            ids = self.render(asked)
        except BadValue:  # a template that refuses to write nothing
            ids = self.render("")
        return ids if len(ids) else np.array([self.end], np.int32)

    @cached_property
    def spare(self) -> int:
        """An id that no text and no template spells, for what is read or written beside all text: an unused special token, else a token of
        a byte that UTF-8 never has. Raises BadValue where there is neither."""
        told = " ".join(str(v) for k, v in (self.config or {}).items() if k.endswith("_token"))
        known = told + (self.chat.template if self.chat else "")
        free = {t.content: i for i, t in self.inner.get_added_tokens_decoder().items() if t.special and i in self._special and t.content not in known}
        free = {content: i for content, i in free.items() if i not in self.ends}
        named = sorted((not any(w in c.lower() for w in ("reserved", "unused", "extra")), i) for c, i in free.items())
        if named:
            return named[0][1]
        never = {bytes([b]) for b in (*range(0xF5, 0x100), 0xC0, 0xC1)}
        found = [i for i, piece in enumerate(self.pieces) if piece in never]
        if not found:
            raise BadValue("tokenizer: it has no token that is never used; name one (token=ID)")
        return found[-1]

    def said(self, message: Message, after: int | None) -> np.ndarray:
        """The ids that a message adds to a conversation of which nothing is known but its last id, `after`, with the beginning of the next reply.

        After the template's own end of turn only what follows it is added; after anything else, that end too.
        Raises BadValue where there is no template, or it cannot append.
        """
        mark = _mark(message)
        ids = self._read(self._chat.after_reply(self._cut(message, mark)), mark)  # from the end token on: what follows stands in the middle
        return np.array(ids[1:] if after == ids[0] else ids, np.int32)

    def goes_on(self, talk: Sequence[Message], raw: str, reply: Message, message: Message, after: int | None) -> tuple[np.ndarray, int, str | None]:
        """How a conversation goes on that began with the messages `talk` and to which the model replied `raw`: (ids, n, why).

        reply    the reply as a message of the conversation, which the template may write otherwise than the model did
        message  what comes after it
        after    the id that the reply ends with
        why      None: the template writes what stands there and then the message; `ids` are what is added. Otherwise it writes what
                 stands there anew, for the cause `why`; `ids` are the whole conversation, of which the last n are the message
        Raises BadValue where there is no template, or it refuses a message.
        """
        mark = _mark([*talk, raw, reply, message])
        before, told, answer, asked = (self._cut(x, mark) for x in ([*talk], raw, reply, message))
        grown, whole = self._chat.text(before) + told, self._chat.text([*before, answer, asked])
        if whole.startswith(grown):
            ids = self._read(whole[len(grown) :], mark)
            return np.array(ids[1:] if ids and after == ids[0] else ids, np.int32), 0, None
        try:
            last = self._chat.after_reply(asked)
        except BadValue:
            last = ""
        ids = self._read(whole, mark)
        own = self._read(last, mark) if last and whole.endswith(last) else []
        n = len(own) if own and ids[-len(own) :] == own else 0
        return np.array(ids, np.int32), n, cause(grown + last, whole, "tool_calls" in reply)

    @property
    def _chat(self) -> Chat:
        if self.chat is None:
            raise BadValue("say: this tokenizer has no chat template; use append")
        return self.chat

    def _begun(self, text: str) -> np.ndarray:
        whole = self.inner.encode(text, add_special_tokens=True).ids
        plain = self.inner.encode(text, add_special_tokens=False).ids
        # Some tokenizers would also end the text.
        first = next((n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain), 0)
        spelled = not self._special.isdisjoint(plain)
        return np.array([*whole[:first], *(self._read(self._cut(text, mark := _mark(text)), mark) if spelled else plain)], np.int32)

    @cached_property
    def drifts(self) -> dict[str, str]:
        """What the chat template would render otherwise than turns as they are appended (Chat.drifts); empty where there is none."""
        return (
            self.chat.drifts(lambda text: self.inner.encode(text, add_special_tokens=False).ids, lambda text: self.encode(text).tolist())
            if self.chat
            else {}
        )

    @cached_property
    def pieces(self) -> list[bytes]:
        """The bytes of every id; those of the end tokens are empty."""
        spell = _bytes_of if "ByteLevel" in json.dumps(json.loads(self.inner.to_str())["decoder"]) else _sentencepiece
        added = {i: t.special for i, t in self.inner.get_added_tokens_decoder().items()}
        out: list[bytes] = []
        for i in range(len(self)):
            token = self.inner.id_to_token(i)
            if i in self.ends or token is None:
                out.append(b"")
            elif i in added:
                out.append((token if added[i] or spell is _bytes_of else token.replace(SPACE, " ")).encode())
            else:
                out.append(spell(token))
        return out

    @cached_property
    def fingerprint(self) -> str:
        told = self.inner.to_str() + (json.dumps([self.ends, self.chat.template]) if self.chat else "")
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, and for a tokenizer that came with a model its tokenizer_config.json and the ids that end a text."""
        self.inner.save(str(folder / "tokenizer.json"))
        if self.config is not None:
            (folder / "tokenizer_config.json").write_text(json.dumps(self.config, indent=2, ensure_ascii=False) + "\n")
            (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(self.ends)}, indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> Tokenizer:
        """Raises BadCheckpoint naming the file that is missing or broken."""
        from tokenizers import Tokenizer as Inner

        file = folder / "tokenizer.json"
        if not file.is_file():
            hint = "transformers may make one: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
            raise BadCheckpoint(f"{file}: there is no tokenizer beside the weights; {hint}")
        try:
            inner = Inner.from_file(str(file))
        except Exception as error:
            raise BadCheckpoint(f"{file}: not a tokenizer of this format ({error})") from error
        if inner.truncation or inner.padding:
            inner.no_truncation()
            inner.no_padding()
        config = _json(folder / "tokenizer_config.json")
        if config is not None and (own := folder / "chat_template.jinja").is_file():
            config["chat_template"] = own.read_text()
        ends = _ends(folder, inner, config or {})
        if not ends:
            raise BadCheckpoint(f"{folder}: no end token is known; generation_config.json should name it as eos_token_id")
        try:
            return Tokenizer(inner, ends, config)
        except BadValue as error:
            raise BadCheckpoint(f"{folder}: {error}") from error


def _ends(folder: Path, inner: Any, config: Mapping[str, Any]) -> list[int]:
    """The ids that end a text: what generation_config.json, config.json and tokenizer_config.json say, the first that says anything first."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        said = (_json(folder / name) or {}).get("eos_token_id")
        found += [i for i in (said if isinstance(said, list) else [said]) if isinstance(i, int) and inner.id_to_token(i) is not None]
    token = config.get("eos_token")
    named = [token.get("content") if isinstance(token, Mapping) else token, *([] if found or token else [END])]
    return list(dict.fromkeys([*found, *(i for t in named if t and (i := inner.token_to_id(t)) is not None)]))


def is_talk(prompt: Any) -> bool:
    """True for messages: a list of mappings with a role."""
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(m, Mapping) and "role" in m for m in prompt)


def _json(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text())
    except ValueError as error:
        raise BadCheckpoint(f"{file}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{file}: should hold an object")
    return data


def _mark(value: Any) -> str:
    """A mark that stands nowhere in these messages."""
    text, mark = repr(value), CUT  # repr escapes what is no character
    while repr(mark)[1:-1] in text:
        mark += CUT
    return mark


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


def _without_prefix(data: Any) -> bool:
    """Take out of a tokenizer's JSON whatever puts a space before a text. True where there was something."""
    steps = []
    for one, many in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        if data.get(one):
            row = data[one][many] if data[one]["type"] == "Sequence" else [data[one]]
            kept = [s for s in row if s["type"] != "Prepend"]
            steps += kept
            if len(kept) < len(row):
                data[one] = {"type": "Sequence", many: kept}
                steps.append({"type": "Prepend"})
    changed = False
    for step in steps:
        changed |= step["type"] == "Prepend"
        if step["type"] == "Metaspace" and step.get("prepend_scheme") != "never":
            step["prepend_scheme"], changed = "never", True
        if step["type"] == "ByteLevel" and step.get("add_prefix_space"):
            step["add_prefix_space"], changed = False, True
    return changed


def _sentencepiece(token: str) -> bytes:
    """The bytes of a token of SentencePiece's: <0xE2> is a byte, ▁ a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE, " ").encode()


def _byte_of_character() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies (Radford et al. 2019), turned round."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(b): b for b in own}
    rest = [b for b in range(256) if b not in own]
    return table | {chr(256 + n): b for n, b in enumerate(rest)}


TABLE = _byte_of_character()


def _bytes_of(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary."""
    return bytes(TABLE[c] for c in token) if all(c in TABLE for c in token) else token.encode()
