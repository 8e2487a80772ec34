"""The transformer, its files, and tokenizers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from torch import Tensor

from selfteach.configuration import plan
from selfteach.core.disk import atomic_folder
from selfteach.core.errors import BadCheckpoint, BadValue, SelfteachError
from selfteach.core.quantity import parse
from selfteach.model import files, quantities
from selfteach.model.attention import AttentionSpec, causal_attention, masked_attention
from selfteach.model.rotary import rotary_table, rotate
from selfteach.model.tokenizer import END, Tokenizer, train_tokenizer
from selfteach.model.transformer import Config, Transformer

TAGS = ("<think>", "</think>", "<réponse>")
TOKENIZER = train_tokenizer(
    ["Wer weiß, wie viele Wörter? 12 + 34 = 46.", "日本語 and the quick brown fox"] * 3, TAGS, 400
)
PLAIN = Config(len(TOKENIZER), width=24, layers=2, heads=4, kv_heads=2, head_dim=6, hidden=40, max_length=64)
KINDS = {
    "llama": PLAIN,
    "qwen": Config(
        len(TOKENIZER), width=20, layers=1, heads=2, kv_heads=1, head_dim=10, hidden=32, qk_norm=True, tied=False
    ),
    "biased": Config(
        len(TOKENIZER),
        width=16,
        layers=1,
        heads=2,
        kv_heads=2,
        head_dim=8,
        hidden=24,
        attention_bias=True,
        mlp_bias=True,
    ),
}


def model(config: Config = PLAIN, seed: int = 0) -> Transformer:
    """Weights large enough for attention to be uneven, biases and norms away from 0 and 1."""
    m = Transformer(config).initialise(seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in m.parameters():
            p.copy_(p * 6 if p.ndim > 1 else p + 0.2 * torch.randn(p.shape, generator=draw))
    return m


def written_out(m: Transformer, ids: list[int]) -> Tensor:
    """The whole forward pass, token by token and head by head, from the formulas: logits [L, vocab] in double
    precision.
    """
    c = m.config
    w = {name: p.double() for name, p in m.named_parameters()}
    norm = lambda x, g: x / ((x**2).mean() + c.norm_eps).sqrt() * g  # noqa: E731
    linear = lambda x, name: w[name + ".weight"] @ x + w.get(name + ".bias", torch.tensor(0.0))  # noqa: E731

    def turned(x: Tensor, at: int) -> Tensor:
        out = x.clone()
        half = c.head_dim // 2
        for i in range(half):
            angle = at * c.rope_theta ** (-2 * i / c.head_dim)
            out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
            out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
        return out

    xs = [w["model.embed_tokens.weight"][i] for i in ids]
    for n in range(c.layers):
        at = f"model.layers.{n}."
        own = at + "self_attn."
        keys, values, news = [], [], []
        for t, x in enumerate(xs):
            h = norm(x, w[at + "input_layernorm.weight"])
            split = lambda name, h=h: linear(h, own + name).view(-1, c.head_dim)  # noqa: B023, E731
            q, k, v = split("q_proj"), split("k_proj"), split("v_proj")
            if c.qk_norm:
                q = torch.stack([norm(r, w[own + "q_norm.weight"]) for r in q])
                k = torch.stack([norm(r, w[own + "k_norm.weight"]) for r in k])
            keys.append([turned(r, t) for r in k])
            values.append(v)
            heads = []
            for j, r in enumerate(q):
                kv = j // (c.heads // c.kv_heads)
                score = torch.stack([turned(r, t) @ keys[s][kv] for s in range(t + 1)]) / math.sqrt(c.head_dim)
                heads.append(sum(p * values[s][kv] for s, p in enumerate(score.softmax(0))))
            x = x + linear(torch.cat(heads), own + "o_proj")
            h = norm(x, w[at + "post_attention_layernorm.weight"])
            gate = linear(h, at + "mlp.gate_proj")
            news.append(x + linear(gate * gate.sigmoid() * linear(h, at + "mlp.up_proj"), at + "mlp.down_proj"))
        xs = news
    head = w["model.embed_tokens.weight"] if c.tied else w["lm_head.weight"]
    return torch.stack([head @ norm(x, w["model.norm.weight"]) for x in xs])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_forward_pass_is_the_formulas_written_out(kind: str) -> None:
    m = model(KINDS[kind])
    ids = np.random.default_rng(0).integers(0, m.config.vocab, 9).tolist()
    got = m.logits(m(torch.tensor([ids]), causal_attention))[0]
    torch.testing.assert_close(got.double(), written_out(m, ids), atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_nothing_looks_ahead_and_rows_are_apart() -> None:
    m = model()
    ids = torch.randint(0, m.config.vocab, (3, 20), generator=torch.Generator().manual_seed(0))
    whole = m(ids, causal_attention)
    other = ids.clone()
    other[:, 12:] = 1
    torch.testing.assert_close(m(other, causal_attention)[:, :12], whole[:, :12])
    torch.testing.assert_close(m(ids[1:2], causal_attention)[0], whole[1])
    torch.testing.assert_close(m(ids, causal_attention, torch.arange(20)[None].expand(3, 20)), whole)
    assert not torch.allclose(m(ids, causal_attention, torch.arange(20).flip(0)[None].expand(3, 20)), whole)


def test_rotary_angles_depend_on_distance_alone() -> None:
    cos, sin = rotary_table(8, 50, 100.0)
    x, y = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    at = lambda v, n: rotate(v, (cos[None, n : n + 1], sin[None, n : n + 1])).flatten()  # noqa: E731
    torch.testing.assert_close(at(x, 7) @ at(y, 3), at(x, 44) @ at(y, 40))
    torch.testing.assert_close(at(x, 0), x.flatten())


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadValue, match="multiple of kv_heads"):
        Config(10, heads=3, kv_heads=2)
    with pytest.raises(BadValue, match="even"):
        Config(10, head_dim=5)
    with pytest.raises(BadValue, match="65 tokens do not fit"):
        model()(torch.zeros(1, 65, dtype=torch.long), causal_attention)


def test_weights_are_a_function_of_the_seed() -> None:
    first, again, other = (Transformer(PLAIN).initialise(s).named_tensors() for s in (3, 3, 4))
    assert (
        files.fingerprint(first, whole=True)
        == files.fingerprint(again, whole=True)
        != files.fingerprint(other, whole=True)
    )
    assert "lm_head.weight" not in first and "lm_head.weight" in Transformer(KINDS["qwen"]).named_tensors()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_the_same(kind: str, tmp_path: Path) -> None:
    m = model(KINDS[kind])
    with atomic_folder(tmp_path / "m") as folder:
        files.save(folder, m, TOKENIZER)
    back, tokenizer = files.load(tmp_path / "m")
    assert (back.config.qk_norm, back.config.tied, back.config.width) == (
        m.config.qk_norm,
        m.config.tied,
        m.config.width,
    )
    assert tokenizer.fingerprint == TOKENIZER.fingerprint and tokenizer.eos_token_id == TOKENIZER.eos_token_id
    assert files.fingerprint(back.named_tensors(), whole=True) == files.fingerprint(m.named_tensors(), whole=True)
    ids = torch.arange(10)[None]
    assert torch.equal(back(ids, causal_attention), m(ids, causal_attention))
    with atomic_folder(tmp_path / "m") as folder:  # over what is there
        files.save(folder, model(KINDS[kind], 5), TOKENIZER)
    assert files.fingerprint(files.load(tmp_path / "m")[0].named_tensors()) != files.fingerprint(m.named_tensors())
    assert [f.name for f in tmp_path.iterdir()] == ["m"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "m") as folder:
        files.save(folder, model(), TOKENIZER)

    def half_written() -> None:
        with atomic_folder(tmp_path / "m") as folder:
            (folder / "config.json").write_text("{")
            raise OSError("disk full")

    with pytest.raises(SelfteachError, match="disk full"):
        half_written()
    files.load(tmp_path / "m")
    assert [f.name for f in tmp_path.iterdir()] == ["m"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    files.save(tmp_path, model(), TOKENIZER)
    return tmp_path


def _config(folder: Path, change: dict[str, Any], drop: str = "") -> None:
    data = json.loads((folder / "config.json").read_text()) | change
    data.pop(drop, None)
    (folder / "config.json").write_text(json.dumps(data))


def test_broken_and_foreign_files_are_named(saved: Path) -> None:
    weights = saved / "model.safetensors"
    whole, config = weights.read_bytes(), (saved / "config.json").read_text()

    def refused(message: str) -> None:
        with pytest.raises(BadCheckpoint, match=message):
            files.load(saved)

    weights.write_bytes(whole[: len(whole) // 2])
    refused(r"model\.safetensors: cut short")
    weights.write_bytes(b"")
    refused(r"model\.safetensors: cut short")
    weights.write_bytes(b"not tensors at all, but long enough to have a header")
    refused(r"model\.safetensors: cut short or not")
    tensors = dict(model().named_tensors())
    files.write_tensors(weights, {n: t for n, t in tensors.items() if n != "model.norm.weight"})
    refused(r"model\.safetensors: it lacks model\.norm\.weight")
    files.write_tensors(weights, {**tensors, "model.extra": torch.zeros(2)})
    refused(r"model\.safetensors: it has model\.extra, which this model does not")
    files.write_tensors(weights, {**tensors, "model.norm.weight": torch.zeros(5)})
    refused(r"model\.safetensors: tensor model\.norm\.weight has shape \(5,\), this model needs \(24,\)")
    weights.unlink()
    refused(r"model\.safetensors: missing")
    weights.write_bytes(whole)
    _config(saved, {"model_type": "gpt9"})
    refused(r"config\.json: model_type 'gpt9'")
    (saved / "config.json").write_text(config)
    _config(saved, {}, drop="hidden_size")
    refused(r"config\.json: it lacks hidden_size")
    (saved / "config.json").write_text("{")
    refused(r"config\.json: not JSON")
    (saved / "config.json").unlink()
    refused(r"config\.json: missing")
    (saved / "config.json").write_text(config)
    _config(saved, {"vocab_size": 100})
    refused("its tokenizer has")
    (saved / "config.json").write_text(config)
    (saved / "tokenizer.json").write_text("{}")
    refused(r"tokenizer\.json: not a tokenizer")
    (saved / "tokenizer.json").unlink()
    refused(r"tokenizer\.json: there is no tokenizer")
    with pytest.raises(BadCheckpoint, match="no such folder"):
        files.load(saved / "nowhere")


def test_weights_that_are_refused_leave_the_model_as_it_was() -> None:
    m, other = model(), dict(model(seed=1).named_tensors())
    before = files.fingerprint(m.named_tensors(), whole=True)
    other["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(BadCheckpoint, match=r"model\.norm\.weight"):
        files.copy_tensors(m.named_tensors(), other, "these weights")
    assert files.fingerprint(m.named_tensors(), whole=True) == before


def test_a_fingerprint_sees_values_names_and_any_container() -> None:
    one = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4)}
    same = {"b": np.ones(4, np.float32), "a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    assert files.fingerprint(one) == files.fingerprint(same) == files.fingerprint(one, whole=True)
    assert files.fingerprint({**one, "b": torch.ones(4) * (1 + 1e-6)}) != files.fingerprint(one)
    assert files.fingerprint({"a": one["a"], "c": one["b"]}) != files.fingerprint(one)
    big = {"w": torch.zeros(1000, 3)}
    assert files.fingerprint(big) != files.fingerprint({"w": torch.zeros(1000, 3) + torch.eye(1000, 3)})


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_text_comes_back_from_its_ids(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert ids.dtype == np.int32
    assert TOKENIZER.decode(ids) == text.replace(END, "")
    assert b"".join(TOKENIZER.pieces[i] for i in ids).decode() == text.replace(END, "")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([*TAGS, " ", "a", "\n", "é", "日", "🙂", "<", "think"]), max_size=12))
def test_tags_stay_whole_and_come_back(parts: list[str]) -> None:
    text = "".join(parts)
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_tags_are_one_id_each_and_no_text_spells_the_end() -> None:
    for tag in TAGS:
        assert len(TOKENIZER.encode(tag)) == 1
    assert (
        TOKENIZER.inner.token_to_id(END) == TOKENIZER.eos_token_id and TOKENIZER.pieces[TOKENIZER.eos_token_id] == b""
    )
    assert TOKENIZER.eos_token_id not in TOKENIZER.encode(END) and TOKENIZER.decode(TOKENIZER.encode(END)) == END
    assert len(TOKENIZER.pieces) == len(TOKENIZER)
    assert {bytes([b]) for b in range(256)} <= set(TOKENIZER.pieces)
    assert (
        TOKENIZER.decode([*TOKENIZER.encode("ab"), len(TOKENIZER) + 3]) == "ab"
    )  # a vocabulary padded beyond the tokenizer
    half = "日".encode()[:2]
    assert TOKENIZER.decode([TOKENIZER.pieces.index(bytes([b])) for b in half]) == "\ufffd"


def test_a_tokenizer_is_saved_with_all_it_knows(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    back = Tokenizer.load(tmp_path)
    assert back.pieces == TOKENIZER.pieces and back.fingerprint == TOKENIZER.fingerprint
    assert (
        TOKENIZER.render("ab").tolist()
        == TOKENIZER.encode("ab").tolist()
        == TOKENIZER.render(TOKENIZER.encode("ab")).tolist()
    )
    with pytest.raises(BadValue, match="text or token ids"):
        TOKENIZER.render([{"role": "user"}])


@torch.no_grad()
def test_quantities_are_what_they_say() -> None:
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0)) * 3
    ids, t = torch.arange(6), torch.tensor([0.5, 1.0, 2.0, 1.0, 0.7, 1.3])
    lp = quantities.logprobs(logits, t)
    given_ = {"logits": logits, "logprobs": lp, "ids": ids}
    p = (logits.double() / t[:, None]).softmax(-1)
    torch.testing.assert_close(
        quantities.compute("logp", given_).double(), p.log()[torch.arange(6), ids], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        quantities.compute("entropy", given_).double(), -(p * p.log()).sum(-1), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(quantities.compute("mean_logp", given_).double(), p.log().mean(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(quantities.compute("raw_logp", given_), logits.log_softmax(-1)[torch.arange(6), ids])
    assert parse("ref_logp", {"ref"}) == ("ref", "logp", None)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("window,length", [(3, 7), (3, 12), (5, 31), (1, 4), (8, 17)])
def test_a_short_window_is_attended_in_blocks_as_under_a_mask(window: int, length: int, cap: float | None) -> None:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, length, n, 4, generator=draw, dtype=torch.float64).requires_grad_(True) for n in (4, 2, 2)
    )
    look = AttentionSpec(0, 0.5, window, cap)
    at = torch.arange(length)
    sees = (at[:, None] >= at) & (at[:, None] - at < window)
    mask = torch.zeros(length, length, dtype=torch.float64).masked_fill(~sees, -torch.inf)
    want = masked_attention(look, *(x.transpose(1, 2) for x in (q, k, v)), mask).transpose(1, 2)
    got = causal_attention(look, q, k, v)
    torch.testing.assert_close(got, want)
    for a, b in zip(
        torch.autograd.grad(got.sin().sum(), (q, k, v)), torch.autograd.grad(want.sin().sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_real_weights_suggest_small_steps():
    assert plan("grpo", "chain_sum").settings.lr >= 1e-4  # the task's, for a tiny model
    real = {"model": "smollm2-135m"}
    assert plan("grpo", "chain_sum", **real).settings.dtype == "auto"  # bf16 beside a float32 engine loses such steps
    assert plan("grpo", "chain_sum", **real).settings.lr == 1e-5
    assert plan("grpo", "chain_sum", lora_rank=8, **real).settings.lr == pytest.approx(1e-4)
    assert plan("grpo", "chain_sum", lr=3e-6, **real).settings.lr == 3e-6


def test_an_id_that_nothing_spells(tags, letters):
    for tokenizer in (tags, letters):
        assert tokenizer.pieces[
            tokenizer.reserved_token
        ] == b"\xff" and tokenizer.reserved_token not in tokenizer.encode("é ÿ <|end|> \x7f <answer>")
    inner = train_tokenizer(["ab"], (), 257).inner
    inner.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<|x|>", "<|reserved_7|>")])
    assert Tokenizer(inner, config={"pad_token": "<pad>"}).reserved_token == inner.token_to_id("<|reserved_7|>")
    inner = train_tokenizer(["ab"], (), 257).inner
    inner.add_special_tokens([AddedToken(t, special=True) for t in ("<pad>", "<|x|>")])
    assert Tokenizer(inner, config={"pad_token": "<pad>"}).reserved_token == inner.token_to_id("<|x|>")
