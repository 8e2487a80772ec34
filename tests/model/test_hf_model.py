"""Models of other families run through transformers: the same numbers as its own, there and back, learned from, killed
and resumed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import BANDIT
from torch import Tensor

from selfteach import api
from selfteach.configuration import RunConfig, plan
from selfteach.core import Example, ModelRole, Segment, Term, Update, WeightSpec, block, collate, registry
from selfteach.core.errors import BadCheckpoint, BadValue
from selfteach.core.task import Sampling
from selfteach.engine import EqualLengthEngine, ReferenceEngine
from selfteach.learner import LearnerSettings, LocalLearner
from selfteach.model import files
from selfteach.model.attention import causal_attention
from selfteach.model.hf_model import HFModel
from selfteach.model.tokenizer import train_tokenizer
from selfteach.progress import Progress

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENIZER = train_tokenizer(["the quick brown fox"], (), 257)
VOCAB, CONTEXT = 264, 64
IDS: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": CONTEXT,
    **IDS,
}
# In turn: learned positions; a state space; experts; rotary positions on a part of a head; an output embedding with a
# bias, one that is narrower than the model; biases by distance; logits that are multiplied, and divided.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": CONTEXT, **IDS}),
    "mamba": ("MambaConfig", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **IDS}),
    "mixtral": ("MixtralConfig", {**SMALL, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_neox": ("GPTNeoXConfig", SMALL),
    "phi": ("PhiConfig", SMALL),
    "opt": ("OPTConfig", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 16}),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 2, **IDS}),
    "cohere": ("CohereConfig", {**SMALL, "num_key_value_heads": 1}),
    "granite": ("GraniteConfig", {**SMALL, "num_key_value_heads": 1, "logits_scaling": 3.0}),
}
THREE = ("gpt2", "mamba", "mixtral")


def loaded(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case, as transformers saves it: random weights, large enough for texts to differ."""
    base = tmp_path_factory.mktemp("foreign")

    def folder(case: str) -> Path:
        if not (base / case).is_dir():
            name, shape = CASES[case]
            torch.manual_seed(0)
            model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**shape)).eval()
            with torch.no_grad():
                for p in model.parameters():
                    if p.ndim > 1:
                        p.mul_(4)
            model.save_pretrained(base / case)
            TOKENIZER.save(base / case)
        return base / case

    return folder


@pytest.fixture(scope="module")
def opened(stored: Callable[[str], Path]) -> Callable[[str], HFModel]:
    def model(case: str) -> HFModel:
        made = files.load_model(stored(case))
        assert isinstance(made, HFModel)
        return made

    return model


def texts(rows: int = 3, length: int = 24) -> Tensor:
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers_whole_and_by_pieces(
    case: str, stored: Callable[[str], Path], opened: Callable[[str], HFModel]
):
    model, ids = opened(case), texts()
    with torch.no_grad():
        right = loaded(stored(case)).requires_grad_(False)(ids, use_cache=False).logits
        torch.testing.assert_close(model.logits(model(ids, causal_attention)), right, atol=1e-5, rtol=1e-5)
        assert model.cache_argument is not None, "all of these have a cache that works"
        first, past = model.extend(ids[:2, :9])
        rows = torch.tensor([1, 1, 0])  # taken twice, and in another order
        past = model.select_rows(past, rows)
        parts = [first[rows]]
        for at in range(9, ids.shape[1]):
            hidden, past = model.extend(ids[rows, at : at + 1], past)
            parts.append(hidden)
        torch.testing.assert_close(model.logits(torch.cat(parts, 1)), right[rows], atol=1e-4, rtol=1e-4)


@block
def foreign_weighted(*, logp, ref_logp, entropy):
    """Something that reads several columns, the reference among them."""
    return -(logp - 0.3 * ref_logp) - 0.01 * entropy


def shared_prompts() -> Any:
    """Four texts, two of one prompt: the learned tokens begin at 5, 5, 3 and 7."""
    ids = texts(4, 20).tolist()
    prompts = [ids[0][:5], ids[0][:5], ids[2][:3], ids[3][:7]]
    own = [ids[0][5:12], ids[1][5:20], ids[2][3:9], ids[3][7:8]]
    parts = [
        Example((Segment(tuple(p), None), Segment(tuple(o), "main")), "policy", f"g{n}", f"s{n}")
        for n, (p, o) in enumerate(zip(prompts, own, strict=False))
    ]  # type: ignore[arg-type]
    batch = collate(parts, lambda _: None)  # type: ignore[arg-type,return-value]
    return batch, prompts, own


def learner_of(model: HFModel, **settings: Any) -> LocalLearner:
    weights = {"policy": WeightSpec(), "ref": WeightSpec()}
    models = {"policy": ModelRole(("policy",), heads=("vocab", "value")), "ref": ModelRole(("ref",))}
    return LocalLearner(weights, models, model, 0, LearnerSettings(**settings), frozen={"ref"})


@pytest.mark.parametrize(
    ("case", "tokens"),
    [("gpt2", 4096), ("gpt2", 24), ("mamba", 24), ("mixtral", 24), ("phi", 4096), ("cohere", 4096), ("granite", 24)],
)
def test_columns_and_gradient_are_those_of_a_plain_loop_over_transformers(
    case: str, tokens: int, stored: Callable[[str], Path], opened: Callable[[str], HFModel]
):
    learner, right = learner_of(opened(case), micro_tokens=tokens), loaded(stored(case))
    batch, prompts, own = shared_prompts()
    learner.forward(batch, ["logp", "ref_logp", "entropy", "value", "lse"])
    loss, at, rows = torch.zeros(()), 0, batch.size("token")
    for prompt, response in zip(prompts, own, strict=True):  # one text at a time, as transformers' own model takes it
        wide = right(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        logp = wide.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        entropy = torch.distributions.Categorical(logits=wide).entropy()
        here = slice(at, at + len(response))
        for column, values in {"logp": logp, "ref_logp": logp, "entropy": entropy, "lse": wide.logsumexp(-1)}.items():
            np.testing.assert_allclose(batch.get(column)[here], values.detach().numpy(), atol=2e-5)
        assert not batch.get("value")[here].any(), "a fresh head says 0"
        loss = loss + (-(logp - 0.3 * logp.detach()) - 0.01 * entropy).sum() / rows
        at += len(response)
    loss.backward()
    batch.put("w0", "token", np.full(rows, 1 / rows))
    metrics = learner.backward(batch, Update(("policy",), (Term(foreign_weighted()),)))
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    grads = {n: p.grad for n, p in right.named_parameters() if p.grad is not None}
    ours = learner.groups.trunk("policy").named_tensors()
    assert grads.keys() == {n for n, p in ours.items() if p.grad is not None}
    for name, grad in grads.items():
        torch.testing.assert_close(ours[name].grad, grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("case", THREE)
def test_the_engine_draws_what_the_reference_engine_draws(case: str, opened: Callable[[str], HFModel]):
    model_roles = {"policy": "w"}
    engine, plain = (kind({"w": opened(case)}, model_roles, TOKENIZER) for kind in (EqualLengthEngine, ReferenceEngine))
    ids = texts(3, 12).numpy()
    contexts = [ids[0], ids[0], ids[1], ids[2][:7], ids[0], ids[2][:1]]  # shared, of equal length, and of other lengths
    how = [
        Sampling(max_tokens=n, temperature=t, record=("entropy",))
        for n, t in ((9, 1.0), (3, 0.7), (9, 0.0), (5, 1.0), (9, 1.0), (70, 1.0))
    ]
    how[3] = replace(how[3], top_k=5, top_p=0.9, stop=("e",))

    async def all_of(which: Any) -> list[Any]:
        return await asyncio.gather(
            *(which.generate("policy", c, s, n) for n, (c, s) in enumerate(zip(contexts, how, strict=True)))
        )

    ours, theirs = asyncio.run(all_of(engine)), asyncio.run(all_of(plain))
    for mine, right in zip(ours, theirs, strict=True):
        assert mine.ids.tolist() == right.ids.tolist() and mine.status == right.status
        np.testing.assert_allclose(mine.logp, right.logp, atol=1e-4)
        np.testing.assert_allclose(mine.recorded["entropy"], right.recorded["entropy"], atol=1e-3)
    alone = asyncio.run(engine.generate("policy", contexts[4], how[4], 4))
    assert alone.ids.tolist() == ours[4].ids.tolist()
    scores = asyncio.run(engine.score("policy", contexts[0], ours[0].ids, ("logp", "entropy")))
    np.testing.assert_allclose(scores["logp"], ours[0].logp, atol=1e-4)
    assert engine.counts["reused"] >= 2 * len(ids[0]) and engine.counts["generated"] == sum(
        len(c.ids) for c in (*ours, alone)
    )


def test_the_engine_lets_go_of_who_left_and_says_what_it_cannot_do(opened: Callable[[str], HFModel]):
    engine = EqualLengthEngine({"w": opened("gpt2")}, {"policy": "w"}, TOKENIZER, slots=2, length=32)
    context = texts(1, 8).numpy()[0]

    async def leave() -> list[Any]:
        tasks = [asyncio.create_task(engine.generate("policy", context, Sampling(max_tokens=20), n)) for n in range(5)]
        await asyncio.sleep(0.005)
        tasks[1].cancel(), tasks[4].cancel()  # one that runs, perhaps, and one that waits
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = asyncio.run(leave())
    assert [isinstance(e, asyncio.CancelledError) for e in ended] == [False, True, False, False, True]
    full = asyncio.run(engine.generate("policy", texts(1, 32).numpy()[0], Sampling(), 0))
    assert full.status == "limit" and not len(full.ids)
    assert asyncio.run(engine.generate("policy", context, Sampling(), 0)).status in ("limit", "stop")
    with pytest.raises(BadValue, match="do not fit the context of 32"):
        asyncio.run(engine.score("policy", context, np.arange(30)))
    with pytest.raises(BadValue, match="takes whole rows"):
        opened("gpt2")(texts(), causal_attention, torch.zeros(3, 24, dtype=torch.long))


def run_config_of(model: Path, **change: Any) -> RunConfig:
    method = registry.methods.get("grpo")(groups=4, rollouts=4, beta=0.05)
    method = method.replace(reward=registry.methods.get("bandit_reinforce")(paid="spread").stages[0].reward)
    given = {
        "model": str(model),
        "steps": 3,
        "max_tokens": 5,
        "lr": 0.01,
        "eval_every": 2,
        "eval_tasks": 2,
        "checkpoint_every": 1,
        **change,
    }
    return replace(
        plan(method, "bandit", **given),
        final_eval=api.EvalConfig(tasks=2, pass_at_k_tasks=1, k=2, decoder_samples=1),
        use=(str(BANDIT),),
    )


@pytest.mark.parametrize("case", THREE)
def test_grpo_runs_twice_alike_resumes_to_the_same_bits_and_transformers_loads_it_back(
    case: str, stored: Callable[[str], Path], tmp_path: Path
):
    events: list[Any] = []
    run_config = run_config_of(stored(case))
    assert api.train(run_config, tmp_path / "one", events.append).done
    (start,) = (e for e in events if e["event"] == "start")
    assert start["model"]["kind"] == case
    shown: list[str] = []
    Progress(SimpleNamespace(line=shown.append, update=lambda _: False))(start)  # type: ignore[arg-type]
    assert (
        sum(
            f"model {case}: not one of selfteach's own families, so it runs through transformers" in line
            for line in shown
        )
        == 1
    )

    def kill(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.train(run_config, tmp_path / "two", kill)
    assert api.resume(tmp_path / "two").done
    one, two = (files.read_tensors(tmp_path / run / "last" / "model.safetensors") for run in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
    first = files.read_tensors(tmp_path / "one" / "checkpoints" / "000002" / "model.safetensors")
    assert any(not torch.equal(first[n], one[n]) for n in one), "the last step moved something"
    folder = tmp_path / "one" / "last"
    back, ids = (
        files.load_model(folder),
        texts(),
    )  # on both sides without gradients, for which torch convolves by another kernel
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(folder).requires_grad_(False)(ids, use_cache=False).logits,
            back.logits(back(ids, causal_attention)),
            atol=1e-5,
            rtol=1e-5,
        )
    assert transformers.AutoTokenizer.from_pretrained(folder).encode("the fox") == TOKENIZER.encode("the fox").tolist()
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == TOKENIZER.eos_token_id


def test_what_cannot_be_run_is_refused_in_one_line(
    stored: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refused(folder: Path, message: str) -> None:
        with pytest.raises(BadCheckpoint, match=message) as error:
            files.load_model(folder)
        assert "\n" not in str(error.value)

    def changed(case: str, drop: str = "", **change: Any) -> Path:
        folder = tmp_path / f"{case}{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        data = json.loads((stored(case) / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(data | change))
        tensors = files.read_tensors(stored(case) / "model.safetensors")
        files.write_tensors(folder / "model.safetensors", {n: t for n, t in tensors.items() if n != drop})
        return folder

    name = "transformer.h.0.mlp.c_fc.weight"
    refused(changed("gpt2", drop=name), f"lack.* {name}")
    refused(changed("gpt2", n_layer=1), "hold.* transformer.h.1.*which a gpt2 as in config.json has not")
    refused(changed("gpt2", n_embd=64), "transformers cannot load it")
    refused(changed("gpt2", model_type="gtp2"), "model_type 'gtp2' cannot be loaded: .*did you mean .*gpt2")
    refused(
        changed("gpt2", model_type="mine", auto_map={"AutoModelForCausalLM": "mine.Mine"}),
        "model_type 'mine' cannot be loaded",
    )
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "config.json").write_text((stored("gpt2") / "config.json").read_text())
    refused(tmp_path / "none", "transformers cannot load it .*model.safetensors")
    bert = transformers.BertConfig(**{**SMALL, "pad_token_id": 0})
    transformers.BertLMHeadModel(bert).save_pretrained(tmp_path / "bert")
    refused(tmp_path / "bert", "not causal")
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(stored("gpt2"), r"model_type 'gpt2' is none of selfteach's own families, .*pip install 'selfteach\[hf\]'")


def test_a_loaded_model_does_not_depend_on_its_file(stored: Callable[[str], Path], tmp_path: Path):
    loaded(stored("gpt2")).save_pretrained(tmp_path)
    model, file = files.load_model(tmp_path), tmp_path / "model.safetensors"
    was = files.fingerprint(model.named_tensors(), whole=True)
    with file.open("r+b") as f:
        f.write(bytes(file.stat().st_size))
    assert files.fingerprint(model.named_tensors(), whole=True) == was


def test_a_model_whose_cache_lies_is_sampled_without_it(stored: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch):
    extend = HFModel.extend
    monkeypatch.setattr(
        HFModel, "extend", lambda self, ids, past=None: extend(self, ids, None if self.cache_argument else past)
    )
    model = files.load_model(stored("gpt2"))
    assert isinstance(model, HFModel) and model.cache_argument is None
    ids = texts(2, 6)
    with torch.no_grad():
        _, past = model.extend(ids[:, :4])
        hidden, _ = model.extend(ids[[1, 0], 4:5], model.select_rows(past, torch.tensor([1, 0])))
        torch.testing.assert_close(hidden[:, 0], model(ids[[1, 0]])[:, 4])


def phi3(folder: Path) -> Path:
    """A small Phi-3 whose frequencies are others beyond 16 of its 64 positions."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 16,
    }
    torch.manual_seed(0)
    shape = {**SMALL, "eos_token_id": 0, "original_max_position_embeddings": 16, "rope_parameters": rope}
    model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**shape)).eval()
    model.save_pretrained(folder)
    TOKENIZER.save(folder)
    return folder


def test_longrope_ends_at_the_original_context(tmp_path: Path):
    """Beyond it, what a text gets from transformers depends on the longest text of the batch."""
    with pytest.warns(UserWarning, match="context is limited to 16 tokens: beyond that LongRoPE"):
        model = files.load_model(phi3(tmp_path))
    assert model.config.max_length == 16
    ids = texts(2, 40)
    inner: Any = model.inner  # type: ignore[attr-defined]
    short, long = (inner(input_ids=ids[:, :n], use_cache=False).logits[:, :16] for n in (16, 40))
    assert (short - long).abs().max() > 1e-3, "the case is none where nothing depends on the batch"
    torch.testing.assert_close(model.logits(model(ids[:, :16])), short)
    with pytest.raises(BadValue, match="17 tokens do not fit its context of 16"):
        model(ids[:, :17])
    with pytest.raises(BadValue, match="length 64 is more than the context of 'w', 16"):
        EqualLengthEngine({"w": model}, {"policy": "w"}, TOKENIZER, length=64)
