"""What is exported as GGUF is read back by our reader as it was: weights, shape, tokens; what cannot be is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import run_config_of
from support.templates import TOKENIZERS

from selfteach import api
from selfteach.cli import main
from selfteach.core import BadValue
from selfteach.model import files, gguf_export
from selfteach.model import gguf as reader
from selfteach.model.attention import causal_attention
from selfteach.model.gguf_export import permute, write_gguf
from selfteach.model.tokenizer import Tokenizer, train_tokenizer
from selfteach.model.transformer import Config, Transformer

pytest.importorskip("gguf", reason="the package gguf is not installed")
TAGGED = train_tokenizer(["12 34 1234 the quick brown fox <think> x </think>"] * 4, ("<think>", "</think>"), 300)


def model(tokenizer: Tokenizer = TAGGED, **shape: Any) -> Transformer:
    vocab = -(-len(tokenizer) // 8) * 8 + 8  # ids that no token has
    given = {"width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 96, "max_length": 64}
    made = Transformer(Config(vocab=vocab, **{**given, **shape})).initialise(1)
    with torch.no_grad():
        for n, p in sorted(made.named_parameters()):
            p.mul_(5) if p.ndim > 1 else p.add_(torch.linspace(-0.2, 0.3, len(p)) + len(n) / 1000)
    return made


@torch.no_grad()
def logits(m: Transformer) -> torch.Tensor:
    return m.logits(m(torch.arange(3, 40)[None], causal_attention))[0]


def same_tokens(a: Tokenizer, b: Tokenizer, texts: Any) -> None:
    for text in texts:
        assert a.render(text).tolist() == b.render(text).tolist() and a.encode(text).tolist() == b.encode(text).tolist()
        assert a.decode(a.encode(text)) == b.decode(b.encode(text))


TEXTS = ["", " ", "the quick 1234 12", "<think>a</think> <|end|> [PAD300]", "é日🙂\n\n\t x", "a" * 50, "<|im_end|>"]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"tied": False, "max_length": 100, "rope_theta": 5e5, "norm_eps": 1e-5},
        {"attention_bias": True, "mlp_bias": True, "kv_heads": 4, "head_dim": 12},
        {"kind": "mistral", "width": 48},
    ],
)
def test_a_model_comes_back_with_its_weights_and_tokens(shape: dict[str, Any], tmp_path: Path) -> None:
    m, file = model(**shape), tmp_path / "m.gguf"
    write_gguf(file, m, TAGGED)
    back, tokenizer = files.load(reader.converted_folder(file))
    assert torch.equal(logits(back), logits(m))
    assert {n: t.shape for n, t in back.named_tensors().items()} == {n: t.shape for n, t in m.named_tensors().items()}
    assert all(torch.equal(t, m.named_tensors()[n]) for n, t in back.named_tensors().items())
    assert tokenizer.eos_token_ids == TAGGED.eos_token_ids and len(tokenizer) == len(TAGGED)
    same_tokens(tokenizer, TAGGED, TEXTS)
    assert tokenizer.pieces == TAGGED.pieces and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("precision", ["f16", "bf16", "q8_0"])
def test_lower_precisions_are_those_values(precision: Any, tmp_path: Path) -> None:
    m = model()
    write_gguf(tmp_path / "m.gguf", m, TAGGED, precision)
    back, _ = files.load(reader.converted_folder(tmp_path / "m.gguf"))
    share = {"f16": 2**-11, "bf16": 2**-8, "q8_0": 0.6 / 127}[precision]
    for name, p in m.named_tensors().items():
        off = (back.named_tensors()[name] - p).abs().max() / p.abs().max()
        assert off <= share if p.ndim > 1 else off == 0, name
    with pytest.raises(BadValue, match="take --precision f32"):
        write_gguf(tmp_path / "n.gguf", model(width=48, hidden=40), TAGGED, "q8_0")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("family", ["chatml", "llama3"])
def test_a_chat_model_keeps_its_template_and_special_tokens(family: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[family]
    if family == "llama3":  # the published one takes whole words that are tokens; the small one does not say so
        with pytest.raises(BadValue, match="not a byte-level BPE"):
            write_gguf(tmp_path / "m.gguf", model(tokenizer), tokenizer)
        data = json.loads(tokenizer.inner.to_str())
        data["model"]["ignore_merges"] = True
        inner = type(tokenizer.inner).from_str(json.dumps(data))
        tokenizer = Tokenizer(inner, tokenizer.eos_token_ids, tokenizer.config)
    write_gguf(tmp_path / "m.gguf", model(tokenizer), tokenizer)
    _, back = files.load(reader.converted_folder(tmp_path / "m.gguf"))
    messages = [{"role": "user", "content": "What is <|im_end|> asked?"}]
    assert back.render(messages).tolist() == tokenizer.render(messages).tolist()
    assert set(back.eos_token_ids) == set(tokenizer.eos_token_ids)
    same_tokens(back, tokenizer, TEXTS)


def test_rows_of_queries_are_turned_as_the_reader_turns_them_back() -> None:
    w = np.arange(8 * 6.0).reshape(8, 6)
    assert (reader.unpermute(permute(w, 2), 2) == w).all() and (permute(w, 2) != w).any()


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"qk_norm": True, "kind": "qwen3"}, "this model is a qwen3"),
        ({"qkv_bias": True, "kind": "qwen2"}, "this model is a qwen2"),
        ({"windows": (8, 8), "kind": "mistral"}, "this model is a mistral"),
        ({"activation": "gelu"}, "it has gelu"),
    ],
)
def test_what_such_a_file_cannot_say_is_refused(shape: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=why) as error:
        write_gguf(tmp_path / "m.gguf", model(**shape), TAGGED)
    assert "\n" not in str(error.value) and "--hub" in str(error.value) and not list(tmp_path.iterdir())


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import models, normalizers

    words = Inner(models.WordLevel({"a": 0, "<|end|>": 1}, unk_token="a"))
    words.add_special_tokens(["<|end|>"])
    lower = Inner.from_str(TAGGED.inner.to_str())
    lower.normalizer = normalizers.Lowercase()
    for inner in (words, lower):
        with pytest.raises(BadValue, match="not a byte-level BPE"):
            write_gguf(tmp_path / "m.gguf", model(), Tokenizer(inner))


def test_a_file_that_is_read_back_otherwise_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_export, "permute", lambda w, heads: w)
    with pytest.raises(BadValue, match=r"q_proj\.weight was read back otherwise"):
        write_gguf(tmp_path / "m.gguf", model(), TAGGED)
    assert not list(tmp_path.iterdir())


def test_unused_ids_of_a_file_are_no_tokens(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", model(), TAGGED)
    _, metadata = reader.read_gguf(tmp_path / "m.gguf")
    assert metadata["tokenizer.ggml.token_type"][-1] == reader.UNUSED
    assert len(metadata["tokenizer.ggml.tokens"]) == model().config.vocab > len(TAGGED)


def test_the_command_exports_a_run_and_its_merged_adapters(tmp_path: Path, capsys: Any) -> None:
    run, start = tmp_path / "run", tmp_path / "start"
    start.mkdir()
    files.save(start, model(), TAGGED)
    api.train(run_config_of(start, steps=1, lora_rank=2), run)
    made = ["--gguf", str(tmp_path / "m.gguf"), "--hub", str(tmp_path / "hub")]
    assert main(["export", str(run), *made, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["bytes"] > 0 and set(said) == {"gguf", "hub", "bytes"}
    merged, _ = files.load(run / "last")
    for folder in (reader.converted_folder(tmp_path / "m.gguf"), tmp_path / "hub"):
        back, _ = files.load(folder)
        assert all(torch.equal(t, merged.named_tensors()[n]) for n, t in back.named_tensors().items())
    assert main(["generate", str(tmp_path / "m.gguf"), "say", "--max-tokens", "3", "--seed", "1"]) == 0
    one = capsys.readouterr().out
    assert main(["generate", str(run), "say", "--max-tokens", "3", "--seed", "1"]) == 0
    assert capsys.readouterr().out == one


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["{model}"], "give --gguf FILE or --hub FOLDER"),
        (["{model}", "--hub", "x", "--precision", "f16"], "goes with --gguf"),
        (["{model}", "--gguf", "."], "is a folder"),
        (["{model}", "--hub", "{model}"], "not an empty folder"),
        (["{model}", "--gguf", "x", "--precision", "q2"], "must be one of"),
        (["{model}", "--gguf", "nowhere/x"], "nowhere"),
        (["nothing", "--gguf", "x"], "no model is called"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], why: str, mini_folder: Path, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", *(w.replace("{model}", str(mini_folder)) for w in words)]) == 2
    out, err = capsys.readouterr()
    assert why in err and err.count("\n") == 1 and not out and not list(tmp_path.iterdir())


def test_without_the_package_it_says_so(mini_folder: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert main(["export", str(mini_folder), "--gguf", str(tmp_path / "x")]) == 2
    assert "selfteach[gguf]" in capsys.readouterr().err
