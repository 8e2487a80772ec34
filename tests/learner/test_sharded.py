"""The sharded learner against the learner of one process: gradients of every method, weights after steps, checkpoints
across numbers of ranks, and what is said when a rank is lost. One pair of processes serves the whole module.
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import RecordingLearner, Study, groups_of
from support.battery import start as toy
from support.learners import BOTH, CAST, SHAPE, UPDATES, WEIGHTS, loss_weights, made, model
from support.sharded import learn_broken, learn_hungry, recording
from support.short_run import short_job

from selfteach import api
from selfteach.core import BadValue, NotFinite, Term, Update, registry
from selfteach.learner import LearnerSettings, LocalLearner
from selfteach.learner import ranks as ranks_module
from selfteach.learner.errors import RankFailed
from selfteach.learner.microbatch import split_by_tokens
from selfteach.learner.sharded import ShardedLearner
from selfteach.learner.tensor_parallel import check_tensor_parallel
from selfteach.loop.assemble import check_layers_divide
from selfteach.loop.settings import RunSettings
from selfteach.model import files, lora
from selfteach.model.hf_model import HFModel, HFModelConfig
from selfteach.model.lora import Adapter, LoraConfig
from selfteach.model.transformer import Transformer

TESTS = Path(__file__).parents[1]
FILES = [str(TESTS / "support" / name) for name in ("learners.py", "sharded.py")]


@pytest.fixture(scope="module", autouse=True)
def pair() -> Iterator[None]:
    """Ranks that know the terms of these tests; they are started once for all tests of two ranks."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), before]))
    yield
    if ranks_module._current is not None:
        ranks_module._current.close()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


def settings(world: int = 2, **given: Any) -> LearnerSettings:
    return LearnerSettings(learner="fsdp", world=world, learner_seconds=60.0, **given)


def sharded(world: int = 2, tokens: int = 4096, start: Any = None, adapter: Any = None, **given: Any) -> ShardedLearner:
    s = settings(world, micro_tokens=tokens, **given)
    return ShardedLearner.started(WEIGHTS, CAST, start or model(), 0, s, adapter, ("ref",), FILES)


def local(tokens: int = 4096, start: Any = None, adapter: Any = None, **given: Any) -> LocalLearner:
    s = LearnerSettings(micro_tokens=tokens, **given)
    return LocalLearner(WEIGHTS, CAST, start or model(), 0, s, adapter, ("ref",))


def gradient_of(run: LocalLearner, update: Update) -> dict[str, torch.Tensor]:
    if isinstance(run, ShardedLearner):
        return run.gradients(update.params)
    own = {f"{g}/{n}": p for g in update.params for n, p in run.groups[g].named_parameters().items()}
    return {n: p.grad for n, p in own.items() if p.grad is not None}


def distance(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    """The largest difference, relative to the largest number."""
    assert a.keys() == b.keys()
    size = max(float(t.abs().max()) for t in b.values())
    return max(float((a[n].detach() - b[n].detach()).abs().max()) for n in b) / max(size, 1e-30)


@pytest.mark.parametrize("tokens", [4096, 9])
def test_updates_of_every_scope_step_to_the_same_weights(tokens: int) -> None:
    # Adam divides by the gradient's own size: with a small eps a gradient of rounding errors becomes a whole step.
    # The norm by which a gradient is clipped is rounded to float32 in one process.
    one, two = (make(tokens=tokens, adam_eps=1e-3, grad_clip=1e6) for make in (local, sharded))
    for name, update in UPDATES.items():
        batch = loss_weights(made(), update)
        a, b = one.backward(batch, update), two.backward(batch, update)
        assert a.keys() == b.keys(), name
        for metric in a:
            np.testing.assert_allclose(b[metric], a[metric], rtol=1e-9, atol=1e-12, err_msg=f"{name} {metric}")
        assert distance(gradient_of(two, update), gradient_of(one, update)) < 1e-10, name
        first, second = one.step(update, 1e-2), two.step(update, 1e-2)
        assert np.isclose(first["grad_norm"], second["grad_norm"], rtol=1e-9), name
    one.copy("ref", "policy", 0.3)
    two.copy("ref", "policy", 0.3)
    for group in WEIGHTS:
        assert distance(dict(two.weights(group)), dict(one.weights(group))) < 1e-9, group
    want = ("logp", "entropy", "ref_logp", "critic_value", "rm_scalar_after", "logp_told")
    columns = [made(), made()]
    for run, batch in zip((one, two), columns, strict=True):
        run.forward(batch, want)
    for name in want:
        np.testing.assert_allclose(columns[1].get(name), columns[0].get(name), atol=1e-12, err_msg=name)


def test_adapters_recomputed_layers_and_bf16_are_sharded_too() -> None:
    update = UPDATES["with a constant"]
    batch = loss_weights(made(), update)
    cases: tuple[tuple[dict[str, Any], float], ...] = (
        ({"adapter": Adapter(LoraConfig(2, dropout=0.2), {})}, 1e-6),
        ({"recompute": True}, 1e-6),
        ({"dtype": "bfloat16", "recompute": True}, 0.05),
    )
    for case, near in cases:
        given: dict[str, Any] = {"start": model(double=False), "adam_eps": 1e-3, **case}
        runs = [local(**given), sharded(**given)]
        for run in runs:
            for _ in range(2):
                run.backward(batch, update)
                run.step(update, 1e-2)
            run.backward(batch, update)
        one, two = runs
        assert distance(gradient_of(two, update), gradient_of(one, update)) < near, given
        assert distance(dict(two.weights("policy")), dict(one.weights("policy"))) < near, given
        if "adapter" in given:
            merged = lora.merged_copy(two.trunk("policy"))
            assert distance(merged.named_tensors(), dict(two.weights("policy"))) < 1e-7
            assert two.fingerprint("policy") == files.fingerprint(merged.named_tensors())


# ---- layers that are cut over ranks


@pytest.mark.parametrize("shape", [{}, {"qk_norm": True, "attention_bias": True}, {"sandwich": True, "tied": False}])
def test_layers_cut_over_two_ranks_give_the_gradient_of_one_process(shape: dict[str, Any], tmp_path: Path) -> None:
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    start = Transformer(replace(SHAPE, **shape)).initialise(3)
    one, two = local(start=start, adam_eps=1e-3), sharded(2, start=start, adam_eps=1e-3, tensor_parallel=2)
    first, second = one.backward(batch, update), two.backward(batch, update)
    np.testing.assert_allclose(second["loss"], first["loss"], rtol=1e-5)  # counted once, not by both
    assert second["rows"] == first["rows"]
    assert distance(gradient_of(two, update), gradient_of(one, update)) < 1e-6
    for _ in range(2):  # the norm of the gradient too, by which it is clipped
        np.testing.assert_allclose(two.step(update, 1e-2)["grad_norm"], one.step(update, 1e-2)["grad_norm"], rtol=1e-5)
        for run in (one, two):
            run.backward(batch, update)
    assert distance(dict(two.weights("policy")), dict(one.weights("policy"))) < 1e-5
    two.save(tmp_path)
    again, alone = sharded(2, start=start, tensor_parallel=2), local(start=start)
    for run in (again, alone):
        run.load(tmp_path)
        have, want = dict(run.weights("policy")), dict(two.weights("policy"))
        assert all(torch.equal(have[n], want[n]) for n in want)  # the same files, for any division
    columns = [made(), made()]
    for run, found in zip((alone, again), columns, strict=True):
        run.forward(found, ("logp", "ref_logp", "residuals"))
    for name in ("logp", "ref_logp", "residuals"):
        np.testing.assert_allclose(columns[1].get(name), columns[0].get(name), atol=1e-5, err_msg=name)
    assert distance(two.trunk("policy").named_tensors(), dict(two.weights("policy"))) == 0.0


def test_a_rank_has_some_heads_and_some_hidden_units() -> None:
    held = {n: p.to_local().shape for n, p in sharded(2, tensor_parallel=2).groups["policy"].named_parameters().items()}
    first = "model.layers.0."
    # 4 heads of 4, 2 key-value heads, 24 hidden units, a width of 16, each of the first three halved
    assert held[first + "self_attn.q_proj.weight"] == (8, 16) and held[first + "self_attn.k_proj.weight"] == (4, 16)
    assert held[first + "self_attn.o_proj.weight"] == (16, 8) and held[first + "mlp.down_proj.weight"] == (16, 12)
    assert held[first + "mlp.gate_proj.weight"] == (12, 16) and held["model.norm.weight"] == (16,)


def test_foreign_models_are_cut_by_their_own_plan(tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "max_position_embeddings": 64, "bos_token_id": None, "eos_token_id": None}
    torch.manual_seed(0)
    config = hf.OlmoConfig(vocab_size=13, pad_token_id=None, **sizes, **more)
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    update = UPDATES["with a constant"]
    batch = loss_weights(made(), update)
    one = local(start=files.load_model(tmp_path), adam_eps=1e-3)
    two = sharded(start=files.load_model(tmp_path), adam_eps=1e-3, tensor_parallel=2)
    for run in (one, two):
        run.backward(batch, update)
    assert distance(gradient_of(two, update), gradient_of(one, update)) < 1e-6


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"world": 3, "tensor_parallel": 2}, "tensor_parallel 2: 3 processes are no multiple of it; give --world 2"),
        (
            {"world": 4, "tensor_parallel": 4},
            "tensor_parallel 4: the model's key-value heads (2) cannot be divided by it; give a divisor of it",
        ),
        (
            {"tensor_parallel": 2, "adapter": Adapter(LoraConfig(2), {})},
            "tensor_parallel 2: adapters are small, and not cut; leave --tensor-parallel out, or --lora-rank",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused_before_any_rank_is_started(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadValue) as raised:
        sharded(**given)
    assert str(raised.value) == why


def test_a_run_of_one_process_has_none_to_cut_layers_over() -> None:
    with pytest.raises(BadValue, match=r"^tensor_parallel 2: the learner is local; give --learner fsdp$"):
        check_layers_divide(model(), RunSettings(tensor_parallel=2))
    check_layers_divide(model(), RunSettings())
    check_layers_divide(model(), RunSettings(learner="fsdp", world=2, tensor_parallel=2))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("gpt2", "tensor_parallel: transformers has no plan for gpt2; leave --tensor-parallel out"),
        ("mixtral", "tensor_parallel: transformers' plan for mixtral has "),
    ],
)
def test_foreign_models_without_a_plan_that_is_done_here_are_refused(kind: str, why: str) -> None:
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = hf.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=13) if kind == "gpt2" else None
    config = config or hf.MixtralConfig(num_key_value_heads=2, num_local_experts=2, vocab_size=13, **sizes)
    inner = hf.AutoModelForCausalLM.from_config(config)
    foreign = HFModel(inner, HFModelConfig(kind, 13, 16, 64, "transformers"))
    with pytest.raises(BadValue) as raised:
        check_tensor_parallel(foreign, 2, 2, False)
    assert str(raised.value).startswith(why) and "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", ["gpt2", "mixtral"])
def test_models_of_transformers_are_sharded_too(kind: str, tmp_path: Path) -> None:
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    shape: dict[str, Any] = {"vocab_size": 13, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if kind == "gpt2":
        config = hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **shape)
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        more = {"num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2}
        config = hf.MixtralConfig(max_position_embeddings=64, **sizes, **more, **shape)
    torch.manual_seed(0)
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    update = UPDATES["with a constant"]
    batch = loss_weights(made(), update)
    one, two = (make(start=files.load_model(tmp_path), adam_eps=1e-3) for make in (local, sharded))
    for run in (one, two):
        run.backward(batch, update)
    assert distance(gradient_of(two, update), gradient_of(one, update)) < 1e-6
    for run in (one, two):
        run.step(update, 1e-2)
    assert distance(dict(two.weights("policy")), dict(one.weights("policy"))) < 1e-6
    assert distance(two.trunk("policy").named_tensors(), dict(one.weights("policy"))) < 1e-6


def test_each_parameter_is_held_in_parts() -> None:
    run = sharded(2)
    for name, p in run.groups["policy"].named_parameters().items():
        rows = p.to_local().shape[0]  # type: ignore[operator]
        assert rows == (p.shape[0] + 1) // 2 < p.shape[0], name


def test_a_checkpoint_is_the_same_for_any_number_of_ranks(tmp_path: Path) -> None:
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    two = sharded(2)
    for _ in range(2):
        two.backward(batch, update)
        two.step(update, 1e-2)
    two.save(tmp_path)
    one, again = local(), sharded(2)
    one.load(tmp_path)
    again.load(tmp_path)
    (tmp_path / "local").mkdir()
    one.save(tmp_path / "local")
    for file in ("policy", "value_head", "optimiser"):
        a = files.read_tensors(tmp_path / f"{file}.safetensors")
        b = files.read_tensors(tmp_path / "local" / f"{file}.safetensors")
        assert a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a), file
    for run in (one, two, again):
        run.backward(batch, update)
        run.step(update, 1e-2)
    for group in ("policy", "value_head"):
        first, second = dict(two.weights(group)), dict(again.weights(group))
        assert all(torch.equal(first[n], second[n]) for n in first)  # the same number of ranks: the same bits
        # AdamW divides by the root of the second moment, and where that is smallest rounding shows
        assert distance(dict(one.weights(group)), first) < 1e-8


def test_an_optimiser_is_reset_on_every_rank() -> None:
    update = UPDATES["value, shared trunk"]
    batch = loss_weights(made(), update)
    one, two = (make(adam_eps=1e-3, grad_clip=1e6) for make in (local, sharded))
    for run in (one, two):
        for _ in range(2):
            run.backward(batch, update)
            run.step(update, 1e-2)
        run.reset_optimisers(["policy"])
        run.backward(batch, update)
        run.step(update, 1e-2)
    steps = [float(t) for n, t in two.optimisers.tensors().items() if n.endswith("|step")]
    assert steps and set(steps) == {1.0}
    for group in ("policy", "value_head"):
        assert distance(dict(two.weights(group)), dict(one.weights(group))) < 1e-9, group


def test_memory_that_runs_out_on_one_rank_halves_the_micro_batches_of_all() -> None:
    update = Update(("policy",), (Term(learn_hungry(rows_at_most=99), BOTH),))
    hungry = Update(("policy",), (Term(learn_hungry(rows_at_most=9), BOTH),))
    batch = loss_weights(made(), update)
    want, run, warned = sharded(2), sharded(2), list[str]()
    want.backward(batch, update)
    run.warn = warned.append
    run.backward(batch, hungry)
    assert run.tokens < 4096 and warned and "out of memory: micro-batches are of" in warned[0]
    assert distance(run.gradients(("policy",)), want.gradients(("policy",))) < 1e-12


def test_what_a_term_raises_on_one_rank_is_raised_and_the_learner_goes_on() -> None:
    run, broken = sharded(2), Update(("policy",), (Term(learn_broken(), BOTH),))
    batch = loss_weights(made(), broken)
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run.backward(batch, broken)
    fresh = sharded(2)
    fresh.backward(loss_weights(made(), UPDATES["token"]), UPDATES["token"])
    assert fresh.step(UPDATES["token"], 1e-2)["grad_norm"] > 0


def test_a_gradient_that_is_not_finite_names_its_sequences_and_moves_nothing() -> None:
    update = UPDATES["token"]
    batch = loss_weights(made(), update)
    old = np.array(batch.get("old_logp"))
    old[3] = -np.inf
    batch.put("old_logp", "token", old)
    one, two = local(), sharded(2)
    said = []
    for run in (one, two):
        before = dict(run.weights("policy"))
        run.backward(batch, update)
        with pytest.raises(NotFinite) as raised:
            run.step(update, 1e-2)
        said.append(str(raised.value))
        after = dict(run.weights("policy"))
        assert all(torch.equal(before[n], after[n]) for n in before)
    assert said[0] == said[1] and "sample" in said[0]


def test_shares_are_of_equal_tokens_and_split_no_unit() -> None:
    batch = made()
    for unit in ("seq", "group"):
        shares = split_by_tokens(batch, 2, unit)
        assert shares is not None
        assert sorted(np.concatenate(shares).tolist()) == list(range(batch.size("seq")))
        tokens = [np.diff(batch.start)[share].sum() for share in shares]
        assert min(tokens) > 0.4 * max(tokens)
        if unit == "group":
            groups = [set(batch.get("group", "seq")[share].tolist()) for share in shares]
            assert not groups[0] & groups[1]
    assert split_by_tokens(batch, 99, "group") is None


def test_the_gradient_of_every_method_is_that_of_one_process() -> None:
    """Where two methods ask the same of the learner, of the first of them."""
    start, worst = copy.deepcopy(toy()).float(), dict[str, float]()  # a copy: it is shared by all tests
    met = set[str]()

    def on_two(*given: Any) -> Any:
        return recording(*given[:4], replace(given[4], learner="fsdp", world=2, learner_seconds=60.0), None, (), FILES)

    for name, entry in registry.methods.items():
        if not entry.build.__module__.startswith("selfteach."):
            continue
        one = Study(entry(), groups_of(), 64, start, make=RecordingLearner)
        if one.computed in met:
            continue
        met.add(one.computed)
        two = Study(entry(), groups_of(), 64, start, make=on_two)
        if not one.gradient:
            assert not two.gradient, name
            continue
        worst[name] = distance(two.gradient, one.gradient)
        assert one.metrics.keys() == two.metrics.keys(), name
        for n, value in one.metrics.items():
            if isinstance(value, float) and "/loss" in n:
                np.testing.assert_allclose(two.metrics[n], value, rtol=1e-5, atol=1e-6, err_msg=f"{name} {n}")
    assert len(worst) > 70 and max(worst.values()) < 1e-6, sorted(worst.items(), key=lambda w: -w[1])[:5]


# ---- whole runs, and ranks that are lost


def job(small_start: Callable[..., Path], world: int, **given: Any) -> Any:
    config = short_job("grpo", small_start)
    return config.override(learner="fsdp", world=world, steps=4, checkpoint_every=1, learner_seconds=60.0, **given)


def test_a_killed_rank_ends_the_run_which_goes_on_to_the_same_bits(tmp_path: Path, small_start: Callable[..., Path]):
    whole = api.train(job(small_start, 2), tmp_path / "whole")
    want = files.read_tensors(whole.model / "model.safetensors")

    def kill(step: Any) -> None:
        if step.number == 1:
            os.kill(ranks_module._current.workers[0].pid, signal.SIGKILL)  # type: ignore[union-attr]

    folder = tmp_path / "killed"
    with pytest.raises(RankFailed, match=r"^learner: rank 1 was killed \(SIGKILL\).*--resume$"):
        api.train(job(small_start, 2), folder, callbacks=[kill])
    run = api.resume(folder)
    assert run.done
    found = files.read_tensors(run.model / "model.safetensors")
    assert all(torch.equal(found[n], want[n]) for n in want)

    one = api.train(job(small_start, 2).override(learner="local", world=0), tmp_path / "local")
    near = files.read_tensors(one.model / "model.safetensors")
    assert distance(near, want) < 1e-4


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/net/tcp")
def test_ranks_of_one_machine_listen_to_this_machine_alone() -> None:
    ranks = sharded(2).ranks
    inodes = set[str]()
    for pid in (os.getpid(), *(w.pid for w in ranks.workers)):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(fd).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]]
    listening = {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
    assert listening == {"0100007F"}, "what ranks send is unpickled, so nobody else may send it"


def test_a_rank_that_hangs_is_named_after_the_deadline() -> None:
    ranks_module._current.close() if ranks_module._current else None  # type: ignore[func-returns-value]
    s = LearnerSettings(learner="fsdp", world=2, learner_seconds=5.0)
    run = ShardedLearner.started(WEIGHTS, CAST, model(), 0, s, None, (), FILES)
    worker, begun = run.ranks.workers[0].pid, time.monotonic()
    while ranks_module.NOTHING not in run.ranks._read("at/1") and time.monotonic() - begun < 30:
        time.sleep(0.02)  # it is still on its way out of the last order
    os.kill(worker, signal.SIGSTOP)
    update = UPDATES["token"]
    begun = time.monotonic()
    with pytest.raises(RankFailed, match=r"no answer within 5 s \(rank 0: backward.*rank 1: waits for work"):
        run.backward(loss_weights(made(), update), update)
    assert time.monotonic() - begun < 60
    with pytest.raises(RankFailed, match="its ranks have ended"):
        run.step(update, 0.1)


def test_worlds_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadValue, match="adamw8bit: not with --learner fsdp"):
        sharded(optimiser="adamw8bit")
    with pytest.raises(BadValue, match=r"device cuda: no GPU"):
        sharded(device="cuda")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(BadValue, match="2 ranks are asked for, and torchrun started 3"):
        ranks_module.world_size(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with pytest.raises(BadValue, match="the port is in use"):
            ranks_module.join("cpu", 5.0)


def test_one_and_four_ranks_give_the_gradient_of_two() -> None:
    update = UPDATES["token"]
    batch = loss_weights(made(), update)
    one = local()
    one.backward(batch, update)
    want = gradient_of(one, update)
    for world, cut in ((1, 1), (4, 1), (4, 2)):
        run = sharded(world, tensor_parallel=cut)
        run.backward(batch, update)
        assert distance(run.gradients(update.params), want) < 1e-12, (world, cut)
    run.step(update, 1e-2)  # of two pairs of ranks: each layer cut by two, and its parts sharded by two
    one.step(update, 1e-2)
    assert distance(dict(run.weights("policy")), dict(one.weights("policy"))) < 1e-6
