"""Tokenizers whose decoder is neither byte-level nor SentencePiece: their pieces are those of their own decoder."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from selfteach.core.errors import BadValue
from selfteach.core.task import Sampling
from selfteach.engine import ScriptedEngine
from selfteach.engine.stop_strings import StopStrings
from selfteach.model.token_bytes import decoder_kind
from selfteach.model.tokenizer import Tokenizer, train_tokenizer


def tokenizer(inner: Inner, decoder: object, split: bool = True) -> Tokenizer:
    inner.decoder = decoder
    if split:
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.add_special_tokens(["[END]"])
    return Tokenizer(inner, "[END]")


def wordpiece(cleanup: bool = True) -> Tokenizer:
    words = ["[UNK]", "play", "##ing", "##s", "a", "game", ".", "don", "'", "t", "##<0x41>"]
    inner = Inner(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    return tokenizer(inner, decoders.WordPiece(cleanup=cleanup))


def test_wordpiece_continuations_have_no_space_and_words_have_one():
    t = wordpiece()
    ids = t.encode("playing a games.")
    assert [t.inner.id_to_token(i) for i in ids] == ["play", "##ing", "a", "game", "##s", "."]
    assert t.token_bytes(ids) == [b" play", b"ing", b" a", b" game", b"s", b"."]
    assert t.decode(ids) == " playing a games." == " " + t.inner.decode(ids.tolist())
    assert t.token_bytes([t.eos_token_id]) == [b""]


def test_wordpiece_without_clean_up_keeps_the_space_before_a_full_stop():
    t = wordpiece(cleanup=False)
    assert t.decode(t.encode("play.")) == " play ." == " " + t.inner.decode(t.encode("play.").tolist())


def test_stop_strings_are_found_in_wordpieces():
    t = wordpiece()
    stops = StopStrings(t.pieces, len(t))
    table, ids = stops.index_of((" games",)), t.encode("playing games")
    assert [bool(stops.may_complete[table, i]) for i in ids] == [False, False, False, True]
    assert stops.ended(table, ids) and not stops.ended(table, ids[:-1])
    engine = ScriptedEngine(["playing games. play"], t)
    drawn = asyncio.run(engine.generate("policy", np.array([1]), Sampling(temperature=1.0, stop=(" games",)), 0))
    assert t.decode(drawn.ids) == " playing games"


def test_words_end_with_a_space_where_the_decoder_says_so():
    tokens = ["lo", "lo</w>", "w</w>", "l", "o", "w", "o</w>"]
    merges = [("l", "o"), ("l", "o</w>")]
    inner = Inner(models.BPE({w: i for i, w in enumerate(tokens)}, merges, end_of_word_suffix="</w>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    t = tokenizer(inner, decoders.BPEDecoder(suffix="</w>"), split=False)
    ids = t.encode("low lo")
    assert [t.inner.id_to_token(i) for i in ids] == ["lo", "w</w>", "lo</w>"]
    assert t.token_bytes(ids) == [b"lo", b"w ", b"lo "] and t.inner.decode(ids.tolist()) == "low lo"


def test_a_word_level_vocabulary_without_a_decoder_is_joined_by_spaces():
    t = tokenizer(Inner(models.WordLevel({"[UNK]": 0, "red": 1, "fox": 2}, unk_token="[UNK]")), None)
    assert t.decode(t.encode("red fox fox")) == " red fox fox" == " " + t.inner.decode([1, 2, 2])


def test_bytes_among_tokens_of_another_decoder_are_bytes():
    words = ["[UNK]", "_a", "b", "<0xC3>", "<0xA9>"]
    inner = Inner(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    steps = [decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]
    t = tokenizer(inner, decoders.Sequence(steps))
    assert t.pieces[:5] == [b"[UNK]", b" a", b"b", b"\xc3", b"\xa9"]
    assert t.decode([1, 3, 4, 2]) == " aéb" == t.inner.decode([1, 3, 4, 2])


def test_a_decoder_that_looks_at_neighbours_is_refused_by_name():
    words = ["<pad>", "|", "a", "b", "c"]
    t = tokenizer(Inner(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>")), decoders.CTC())
    assert t.inner.decode([2, 2, 3]) == "ab"  # of two a's one
    with pytest.raises(BadValue, match=r"decoder \(CTC\).*depends on its neighbours"):
        t.decode([2, 3])


def test_the_usual_decoders_are_distinguished():
    prepended = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    replace = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    llama = {"type": "Sequence", "decoders": [replace, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]}
    assert decoder_kind({"type": "ByteLevel"}) == "bytes"
    assert decoder_kind(prepended) == decoder_kind(llama) == "sentencepiece"
    other = {"type": "Replace", "pattern": {"String": "_"}, "content": " "}
    for decoder in (None, {"type": "WordPiece"}, {"type": "Fuse"}, {"type": "Sequence", "decoders": [replace, other]}):
        assert decoder_kind(decoder) == "other"


@pytest.mark.parametrize("ends", [False, True])
def test_a_prompt_without_tokens_keeps_its_bos(ends: bool):
    """Also one of which nothing is left: this tokenizer drops spaces."""
    inner = train_tokenizer(["a fox"], ("<s>",), 300).inner
    inner.normalizer = normalizers.Strip()
    bos, end = inner.token_to_id("<s>"), inner.token_to_id("<|end|>")
    template = "<s> $A <|end|>" if ends else "<s> $A"
    inner.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", bos), ("<|end|>", end)]
    )
    t = Tokenizer(inner)
    assert t.render("").tolist() == t.render("  ").tolist() == [bos]
    assert t.render("fox").tolist() == [bos, *t.encode("fox").tolist()]
    assert t.blank_prompt("fox").tolist() == [
        bos
    ]  # not the EOS token, which is for tokenizers that begin texts with nothing
    assert train_tokenizer(["a fox"], (), 300).render("").tolist() == []
