"""Checkpoints of every family against transformers: logits, greedy text, sampling, gradients, files there and back, and
files that are bad.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.families import (
    CASES,
    TOKENIZER,
    VOCAB,
    loaded,
    ours_logits,
    texts,
    their,
)

from selfteach import api
from selfteach.configuration import plan
from selfteach.core import Example, ModelRole, Segment, Term, Update, WeightSpec, block, collate, registry
from selfteach.core.disk import atomic_folder
from selfteach.core.errors import BadCheckpoint, BadValue
from selfteach.core.task import Sampling
from selfteach.engine import BuiltinEngine, ReferenceEngine
from selfteach.learner import LearnerSettings, LocalLearner
from selfteach.loop import assemble
from selfteach.model import files, hf_config
from selfteach.model.attention import causal_attention
from selfteach.model.catalog import StartModel
from selfteach.model.rotary import RopeScaling
from selfteach.model.transformer import Config

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_logits_and_greedy_text_are_those_of_transformers(case: str, stored: Callable[[str], Path]) -> None:
    right, model = their(case), files.load_model(stored(case))
    want, got = right(texts()).logits, ours_logits(model, texts())
    away = (want - got).abs().max().item()
    assert away < 1e-4 and want.std() > 0.3, away
    ids = texts(1)[:, :20]
    generated = right.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24, use_cache=True
    )
    while ids.shape[1] < generated.shape[1]:
        ids = torch.cat([ids, ours_logits(model, ids)[:, -1:].argmax(-1)], 1)
    assert ids.tolist() == generated.tolist()


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_what_is_saved_is_what_transformers_loads(case: str, stored: Callable[[str], Path], tmp_path: Path) -> None:
    model = files.load_model(stored(case))
    files.save(tmp_path, model, TOKENIZER)
    back = loaded(tmp_path)
    assert type(back) is type(their(case))
    assert torch.equal(back(texts()).logits, loaded(stored(case))(texts()).logits)
    again = files.load_model(tmp_path)
    assert again.config == model.config and files.fingerprint(again.named_tensors(), whole=True) == files.fingerprint(
        model.named_tensors(), whole=True
    )
    assert torch.equal(ours_logits(again, texts()), ours_logits(model, texts()))


@pytest.mark.parametrize("variant", ["mistral", "gemma2", "gemma3", "smollm3 windows"])
def test_the_engine_gives_what_its_reference_gives(variant: str, stored: Callable[[str], Path]) -> None:
    make_model = lambda: files.load_model(stored(variant))  # noqa: E731
    engine = BuiltinEngine({"w": make_model()}, {"policy": "w"}, TOKENIZER, slots=4, chunk=16)
    assert engine.batch_invariant
    right = ReferenceEngine({"w": make_model()}, {"policy": "w"}, TOKENIZER)
    rng = np.random.default_rng(0)
    prompt = rng.integers(1, VOCAB - 8, 19).astype(np.int32)
    asked = [(np.concatenate([prompt, rng.integers(1, 250, n).astype(np.int32)]), n) for n in (0, 3, 11, 25, 1, 7)]
    how = Sampling(max_tokens=20)

    async def all_of(who: Any, alone: bool = False) -> list[Any]:
        if alone:
            return [await who.generate("policy", ids, how, n) for ids, n in asked]
        return await asyncio.gather(*(who.generate("policy", ids, how, n) for ids, n in asked))

    got, want = asyncio.run(all_of(engine)), asyncio.run(all_of(right))
    for a, b in zip(got, want, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        np.testing.assert_allclose(a.logp, b.logp, atol=2e-5, rtol=0)
    alone = asyncio.run(all_of(BuiltinEngine({"w": make_model()}, {"policy": "w"}, TOKENIZER, slots=1), alone=True))
    assert [a.logp.tobytes() for a in alone] == [a.logp.tobytes() for a in got]


@block
def families_nll(*, logp):
    return -logp


@pytest.mark.parametrize("case", ["gemma2", "qwen3 windows", "smollm3"])
def test_a_gradient_is_that_of_autograd_through_transformers(case: str, stored: Callable[[str], Path]) -> None:
    rng = np.random.default_rng(0)
    draw = lambda n: tuple(int(i) for i in rng.integers(0, VOCAB, n))  # noqa: E731
    one, other = draw(13), draw(5)
    parts = [(one, draw(3)), (one, draw(21)), (one, draw(14)), (other, draw(9)), (draw(3), draw(17))]
    examples = [
        Example((Segment(a, None), Segment(b, "main")), "policy", f"g{n}", f"s{n}") for n, (a, b) in enumerate(parts)
    ]
    batch = collate(examples, lambda _: None)  # type: ignore[arg-type,return-value]
    w = 0.1 + 0.05 * np.cos(np.arange(len(batch.place)) * 1.3)
    batch.put("w0", "token", w)
    learner = LocalLearner(
        {"policy": WeightSpec()},
        {"policy": ModelRole(("policy",))},
        files.load_model(stored(case)),
        0,
        LearnerSettings(),
    )
    update = Update(("policy",), (Term(families_nll()),))
    with learner.groups.trainable(update.params):
        learner.backward(batch, update)
    right = loaded(stored(case))
    at, loss = 0, torch.zeros(())
    for a, b in parts:
        lp = right(torch.tensor([[*a, *b]])).logits[0].log_softmax(-1)
        for n, token in enumerate(b):
            loss = loss - w[at] * lp[len(a) + n - 1, token]
            at += 1
    loss.backward()
    own = learner.groups["policy"].named_parameters()
    for name, p in right.named_parameters():
        mine, want = own[name].grad, p.grad
        assert mine is not None and want is not None and want.abs().max() > 0
        assert (mine - want).abs().max() < 1e-4 * want.abs().max() + 1e-6, name


@torch.no_grad()
def test_shards_and_half_precision_load(stored: Callable[[str], Path], tmp_path: Path) -> None:
    their("qwen2").to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2 and not (tmp_path / "model.safetensors").exists()
    model = files.load_model(tmp_path)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    torch.testing.assert_close(ours_logits(model, texts()), loaded(tmp_path)(texts()).logits, atol=1e-4, rtol=0)
    half = files.load_model(tmp_path, torch.bfloat16)
    assert half.lm_head.weight is half.model.embed_tokens.weight and half.lm_head.weight.dtype == torch.bfloat16
    files.save_model(tmp_path, half)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert files.fingerprint(files.load_model(tmp_path).named_tensors(), whole=True) == files.fingerprint(
        model.named_tensors(), whole=True
    )
    their("llama").half().save_pretrained(tmp_path / "half")
    torch.testing.assert_close(
        ours_logits(files.load_model(tmp_path / "half"), texts()),
        loaded(tmp_path / "half")(texts()).logits,
        atol=1e-4,
        rtol=0,
    )


@pytest.mark.parametrize("case", ["llama", "gemma2"])
@torch.no_grad()
def test_what_is_saved_in_shards_is_loaded(
    case: str, stored: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = files.load_model(stored(case))
    files.save(tmp_path, model, TOKENIZER)
    monkeypatch.setattr(files, "SHARD_BYTES", 60_000)
    files.save(tmp_path, model, TOKENIZER)
    parts = sorted(tmp_path.glob("model*.safetensors"))
    assert (
        len(parts) > 2
        and parts[0].name == f"model-00001-of-{len(parts):05d}.safetensors"
        and not (tmp_path / "model.safetensors").exists()
    )
    index = json.loads((tmp_path / files.INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    sizes = {f.name: {n: t.nbytes for n, t in files.read_tensors(f).items()} for f in parts}
    assert {n: f for f, held in sizes.items() for n in held} == index["weight_map"]
    assert all(sum(held.values()) <= 60_000 or len(held) == 1 for held in sizes.values())
    assert torch.equal(loaded(tmp_path)(texts()).logits, loaded(stored(case))(texts()).logits)
    again = files.load_model(tmp_path)
    assert files.fingerprint(again.named_tensors(), whole=True) == files.fingerprint(model.named_tensors(), whole=True)
    assert files.read_shards(tmp_path).keys() == model.named_tensors().keys()
    monkeypatch.undo()
    files.save(tmp_path, model, TOKENIZER)
    assert [f.name for f in tmp_path.glob("model*")] == ["model.safetensors"]


def test_old_files_and_heads_given_twice_load(stored: Callable[[str], Path], tmp_path: Path) -> None:
    model = files.load_model(stored("llama biases"))
    files.save_model(tmp_path, model)
    more = {"lm_head.weight": model.lm_head.weight, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    files.write_tensors(tmp_path / "model.safetensors", {**model.named_tensors(), **more})
    assert files.fingerprint(files.load_model(tmp_path).named_tensors()) == files.fingerprint(model.named_tensors())
    files.write_tensors(
        tmp_path / "model.safetensors", {**model.named_tensors(), "lm_head.weight": model.lm_head.weight + 1}
    )
    with pytest.raises(
        BadCheckpoint,
        match=r"lm_head\.weight is not model\.embed_tokens\.weight, but config\.json says tie_word_embeddings",
    ):
        files.load_model(tmp_path)


SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
}
SMOLLM2 |= {
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000,
}
SMOLLM2 |= {
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_interleaved": False,
    "is_llama_config": True,
    "rope_scaling": None,
}
GEMMA3_1B = {
    "model_type": "gemma3_text",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
}
GEMMA3_1B |= {
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "max_position_embeddings": 32768,
    "query_pre_attn_scalar": 256,
}
GEMMA3_1B |= {
    "rope_theta": 1000000,
    "rope_local_base_freq": 10000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "rope_scaling": None,
}
GEMMA3_1B |= {
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "cache_implementation": "hybrid",
}


def test_files_of_the_fourth_transformers_are_read() -> None:
    small = hf_config.config_from_json(SMOLLM2, "config.json")
    assert (small.head_dim, small.rope_theta, small.tied, small.norm_eps, small.scaling) == (
        64,
        100_000.0,
        True,
        1e-5,
        None,
    )
    gemma = hf_config.config_from_json(GEMMA3_1B, "config.json")
    assert gemma.windows[:7] == (512,) * 5 + (0, 512) and (gemma.rope_theta, gemma.local_theta, gemma.tied) == (
        1e6,
        1e4,
        True,
    )
    legacy = {**SMOLLM2, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}}
    assert hf_config.config_from_json(legacy, "").scaling == RopeScaling(
        "yarn", 4.0, 2048, attention=0.1 * np.log(4.0) + 1
    )
    first = {**GEMMA3_1B, "model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None}
    for key in ("query_pre_attn_scalar", "sliding_window", "sliding_window_pattern", "rope_local_base_freq"):
        del first[key]
    assert hf_config.config_from_json(first, "").activation == "gelu_pytorch_tanh"


def test_a_shape_goes_to_the_first_family_that_has_all_of_it() -> None:
    assert hf_config.config_to_json(Config(10))["model_type"] == "llama"
    assert hf_config.config_to_json(Config(10, qk_norm=True))["model_type"] == "qwen3"
    assert hf_config.config_to_json(Config(10, qkv_bias=True))["model_type"] == "qwen2"
    with pytest.raises(BadValue, match="no family of the Hub"):
        hf_config.config_to_json(Config(10, qkv_bias=True, qk_norm=True))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"model_type": "llarna"}, "model_type 'llarna' cannot be loaded"),
    "vision": ({"model_type": "gemma3"}, "its text part alone"),
    "scaling": (
        {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}},
        "type 'longrope' is not known; there are: default, linear",
    ),
    "scaling key": (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mrope_section": [1]}},
        "has mrope_section, which is not understood",
    ),
    "scaling number": ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "lacks the number high_freq_factor"),
    "partial": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "partial within": (
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
        "partial_rotary_factor is 0.5",
    ),
    "activation": ({"hidden_act": "relu"}, "activation 'relu' is not known"),
    "unknown": ({"residual_multiplier": 0.2}, "residual_multiplier .0.2. is not understood"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "kind": ({"hidden_size": "48"}, "hidden_size is '48', and must be a whole number above 0"),
    "none": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "heads": ({"num_key_value_heads": 3}, r"heads \(4\) must be a multiple of kv_heads \(3\)"),
    "bool": ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, and must be true or false"),
    "bidirectional": ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_config_that_is_not_understood_is_refused_by_name(
    case: str, stored: Callable[[str], Path], tmp_path: Path
) -> None:
    change, message = BAD[case]
    files.save_model(tmp_path, files.load_model(stored("llama")), **change)
    with pytest.raises(BadCheckpoint, match=rf"config\.json: .*{message}") as error:
        files.load_model(tmp_path)
    assert "\n" not in str(error.value)


def test_bad_shards_are_refused_by_name(stored: Callable[[str], Path], tmp_path: Path) -> None:
    their("llama").save_pretrained(tmp_path, max_shard_size="60KB")
    index = tmp_path / files.INDEX
    table = json.loads(index.read_text())
    held = table["weight_map"]["model.norm.weight"]

    def refused(message: str) -> None:
        with pytest.raises(BadCheckpoint, match=message) as error:
            files.load_model(tmp_path)
        assert "\n" not in str(error.value)

    def refused_index(**change: Any) -> None:
        index.write_text(json.dumps({**table, "weight_map": {**table["weight_map"], **change}}))

    shard = tmp_path / held
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    refused(rf"{held}: cut short")
    shard.unlink()
    refused(rf"{held}: missing")
    shard.write_bytes(whole)
    refused_index(**{"model.norm.weight": next(f for f in table["weight_map"].values() if f != held)})
    refused(r"it lacks model\.norm\.weight, which model\.safetensors\.index\.json says")
    refused_index(**{"model.norm.weight": "../elsewhere.safetensors"})
    refused("not in its folder")
    index.write_text("{}")
    refused(r"index\.json: not an index")
    gone = {n: f for n, f in table["weight_map"].items() if n != "model.layers.1.mlp.up_proj.weight"}
    index.write_text(json.dumps({"weight_map": gone}))
    refused(r"index\.json: it lacks model\.layers\.1\.mlp\.up_proj\.weight")
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    refused(r"model\.safetensors: missing; pytorch_model\.bin beside it is of another format")


def test_weights_that_are_whole_numbers_are_refused(stored: Callable[[str], Path], tmp_path: Path) -> None:
    model = files.load_model(stored("llama"))
    files.save_model(tmp_path, model)
    files.write_tensors(
        tmp_path / "model.safetensors",
        {**model.named_tensors(), "model.norm.weight": torch.zeros(48, dtype=torch.int8)},
    )
    with pytest.raises(BadCheckpoint, match=r"tensor model\.norm\.weight is stored as I8"):
        files.load_model(tmp_path)


def test_a_checkpoint_trains_and_transformers_loads_what_came_of_it(
    stored: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "SHARD_BYTES", 60_000)  # all in shards
    method = registry.methods.get("bandit_reinforce")(groups=4, rollouts=4)
    with atomic_folder(tmp_path / "start") as folder:
        files.save(folder, files.load_model(stored("gemma2")), TOKENIZER)
    given = {
        "model": str(tmp_path / "start"),
        "steps": 2,
        "max_tokens": 5,
        "lr": 0.01,
        "eval_every": 0,
        "eval_tasks": 2,
    }
    run_config = replace(
        plan(method, "bandit", **given),
        final_eval=api.EvalConfig(tasks=2, pass_at_k_tasks=1, k=2, decoder_samples=1),
    )
    events: list[Any] = []
    assert api.train(run_config, tmp_path / "run", events.append).done
    assert next(e["model"]["parameters"] for e in events if e["event"] == "start") == sum(
        p.numel() for p in their("gemma2").parameters()
    )
    assert (tmp_path / "run" / "last" / files.INDEX).is_file() and api.resume(tmp_path / "run").done
    came = files.load_model(tmp_path / "run" / "last")
    assert files.fingerprint(came.named_tensors()) != files.fingerprint(
        files.load_model(stored("gemma2")).named_tensors()
    )
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(tmp_path / "run" / "last")(texts()).logits, ours_logits(came, texts()), atol=1e-4, rtol=0
        )


def test_a_context_longer_than_the_models_is_refused_before_training(stored: Callable[[str], Path]) -> None:
    start = StartModel(files.load_model(stored("llama")), TOKENIZER, False, {})
    assert assemble.context_of(assemble.RunSettings(), start) == 64
    with pytest.raises(BadCheckpoint, match=r"context \(max_position_embeddings\) is 64 tokens, not 65"):
        assemble.context_of(assemble.RunSettings(context=65), start)
    with pytest.raises(BadValue, match="a turn of 40 tokens does not fit a context of 40"):
        assemble.context_of(assemble.RunSettings(context=40, max_tokens=40), start)


def test_a_text_beyond_the_context_is_refused(stored: Callable[[str], Path]) -> None:
    model = files.load_model(stored("llama dynamic"))
    with pytest.raises(BadValue, match="65 tokens do not fit its context of 64"):
        model(torch.zeros(1, 65, dtype=torch.long), causal_attention)
