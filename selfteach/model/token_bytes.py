"""The bytes that each token of a vocabulary adds to a text, by the kind of its decoder."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from ..core.errors import BadValue

SPACE = "▁"  # a space, in SentencePiece's vocabularies
BYTE = re.compile("<0x[0-9A-F]{2}>")  # a token that is a byte, in vocabularies with byte fallback


def token_bytes(inner: Any, size: int, empty: Collection[int]) -> list[bytes]:
    """The bytes that each id below `size` adds to a text; none for the ids in `empty`.

    inner: a tokenizer of the library `tokenizers`. Raises BadValue for a decoder under which they depend on the
    neighbours (CTC).
    """
    added = {i: t.special for i, t in inner.get_added_tokens_decoder().items()}
    tokens = [inner.id_to_token(i) for i in range(size)]
    special = {i for i, t in enumerate(tokens) if i in empty or t is None or added.get(i)}
    kind = decoder_kind(json.loads(inner.to_str())["decoder"])
    if kind == "bytes":
        text = {i: t.encode() if i in added else _bytes_of(t) for i, t in enumerate(tokens) if i not in special}
    elif kind == "sentencepiece":
        text = {
            i: t.replace(SPACE, " ").encode() if i in added else _sentencepiece(t)
            for i, t in enumerate(tokens)
            if i not in special
        }
    else:
        text = decoded_pieces(inner, {i: t for i, t in enumerate(tokens) if i not in special})
    return [text[i] if i in text else b"" if i in empty or t is None else t.encode() for i, t in enumerate(tokens)]


def decoder_kind(decoder: Mapping[str, Any] | None) -> str:
    """The kind of a tokenizer.json's decoder: "bytes" (byte-level BPE), "sentencepiece", or "other"."""
    steps = [] if decoder is None else decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return "bytes"
    replaced = [(s["pattern"].get("String"), s["content"]) for s in steps if s["type"] == "Replace"]
    metaspace = [(s["replacement"], " ") for s in steps if s["type"] == "Metaspace"]
    if kinds <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"} and {*replaced, *metaspace} == {(SPACE, " ")}:
        return "sentencepiece"
    return "other"


def decoded_pieces(inner: Any, tokens: Mapping[int, str]) -> dict[int, bytes]:
    """The bytes that each id adds to a text between two others, by the tokenizer's own decoder.

    A decoder may treat the first token of a text (WordPiece) or its last one (BPEDecoder) otherwise. Raises BadValue
    where texts are not the concatenation of these pieces.
    """
    raw = {i: bytes([int(t[3:5], 16)]) for i, t in tokens.items() if BYTE.fullmatch(t)}
    ids = [i for i in tokens if i not in raw]
    decode = lambda rows: inner.decode_batch(rows, skip_special_tokens=False)  # noqa: E731
    a, b = (ids * 2)[:2]
    around, (both,) = decode([[a, i, b] for i in ids]), decode([[a, b]])
    splits = [n for n in range(len(both) + 1) if all(t.startswith(both[:n]) and t.endswith(both[n:]) for t in around)]
    if splits:
        head, tail = both[: splits[0]], both[splits[0] :]
        pieces = {i: t[len(head) : len(t) - len(tail)] for i, t in zip(ids, around, strict=True)}
        texts = [[*ids[n : n + 64], *ids[n : n + 64 : 2]] for n in range(0, len(ids), 64)] + [[i, i] for i in ids]
        if decode([[a, *t, b] for t in texts]) == [head + "".join(pieces[i] for i in t) + tail for t in texts]:
            return {**{i: t.encode() for i, t in pieces.items()}, **raw}
    kind = (json.loads(inner.to_str())["decoder"] or {"type": "none"})["type"]
    raise BadValue(
        f"tokenizer: under its decoder ({kind}) what a token adds to a text depends on its neighbours, which is not "
        "supported; byte-level, SentencePiece, WordPiece and BPE decoders are"
    )


def _sentencepiece(token: str) -> bytes:
    """The bytes of a SentencePiece token: <0xE2> is a byte, ▁ a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE, " ").encode()


def _byte_of_character() -> dict[str, int]:
    """Character -> byte of byte-level vocabularies (Radford et al. 2019)."""
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    characters = {chr(b): b for b in own}
    rest = [b for b in range(256) if b not in own]
    return characters | {chr(256 + n): b for n, b in enumerate(rest)}


BYTE_OF_CHARACTER = _byte_of_character()


def _bytes_of(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary."""
    return bytes(BYTE_OF_CHARACTER[c] for c in token) if all(c in BYTE_OF_CHARACTER for c in token) else token.encode()
