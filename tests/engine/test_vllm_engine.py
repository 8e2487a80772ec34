"""vLLM as an engine: conformance with the reference, weights that change while it runs, and its end.

Where vLLM is in another environment, SELFTEACH_TEST_VLLM_PYTHON names its Python; SELFTEACH_TEST_VLLM_URL names a
server that runs already, of a model of this shape.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import TOKENIZER, VOCAB

from selfteach.core.errors import BadValue, EngineLost, EngineMismatch
from selfteach.core.protocols import Completion
from selfteach.core.task import Sampling
from selfteach.engine import ReferenceEngine
from selfteach.engine import vllm_server as launcher
from selfteach.model import files, lora
from selfteach.model.transformer import Config, Transformer

pytest.importorskip("httpx2")

from selfteach.engine.http import HttpEngine
from selfteach.engine.weight_files import AdapterDelivery, FileDelivery

PYTHON = os.environ.get("SELFTEACH_TEST_VLLM_PYTHON")
CONTEXT = np.array([5, 80, 33, 7], np.int32)
SHAPE = Config(  # heads of 32 numbers are the smallest that vLLM takes on a processor
    VOCAB, width=64, layers=2, heads=2, kv_heads=1, head_dim=32, hidden=96, max_length=256, attention_bias=True
)


def model(seed: int) -> Transformer:
    made = Transformer(SHAPE).initialise(seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in made.parameters():
            _ = p.mul_(6.0) if p.ndim > 1 else p.add_(torch.randn(p.shape, generator=draw) * 0.1)
    return made


def reference(seed: int) -> ReferenceEngine:
    return ReferenceEngine({"w": model(seed)}, {"policy": "w"}, TOKENIZER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("SELFTEACH_TEST_VLLM_URL"):
        yield url
        return
    try:
        launcher.installed(PYTHON)
    except BadValue as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("vllm")
    files.save(folder / "model", model(0), TOKENIZER)
    made = launcher.VllmServer(
        folder / "model",
        python=PYTHON,
        length=160,
        slots=16,
        dtype="float32",
        cache_bytes=64 << 20,
        log=folder / "vllm.log",
        threads=1,
    )
    yield made.start()
    made.stop()


@pytest.fixture
def engine(server: str) -> Iterator[HttpEngine]:
    made = HttpEngine([server], {"policy": "w"}, TOKENIZER, VOCAB, 160, in_flight=16, delivery=FileDelivery)
    made.load("w", model(0).named_tensors(), 0)
    yield made
    asyncio.run(made.close())


def drawn(engine: HttpEngine, sampling: Sampling, n: int = 8) -> list[Completion]:
    async def many() -> list[Completion]:
        try:
            return await asyncio.gather(*[engine.generate("policy", CONTEXT, sampling, key) for key in range(n)])
        finally:
            await engine.endpoints.close()

    return asyncio.run(many())


def test_it_says_what_it_can_do(engine: HttpEngine) -> None:
    able = engine.capabilities
    assert (able.logp, able.updates, able.keyed_samples) == ("sampling", True, False)
    assert "what the layers hold" in engine.about()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=12),
        Sampling(max_tokens=40, stop=("e", "the")),
        Sampling(temperature=0.6, max_tokens=12),
        Sampling(temperature=1.4, top_k=9, top_p=0.8, max_tokens=12),
        Sampling(),
    ],
    ids=["plain", "stop", "tempered", "truncated", "to the end"],
)
def test_turns_are_what_the_sampling_parameters_say(engine: HttpEngine, sampling: Sampling) -> None:
    right = reference(0)
    for done in drawn(engine, sampling):
        text = b"".join(TOKENIZER.pieces[i] for i in done.ids)
        complete = done.ids[-1] in TOKENIZER.eos_token_ids or any(s.encode() in text for s in sampling.stop)
        shorter = b"".join(TOKENIZER.pieces[i] for i in done.ids[:-1])
        assert not any(s.encode() in shorter for s in sampling.stop)
        ended = "stop" if complete else "length" if len(done.ids) == sampling.max_tokens else "limit"
        assert done.status == ended and len(done.ids) <= (sampling.max_tokens or 160 - len(CONTEXT))
        for n, (i, logp) in enumerate(zip(done.ids, done.logp, strict=True)):
            before = np.concatenate([CONTEXT, done.ids[:n]])
            hidden = right._hidden("w", before.tolist())[-1:]
            z = right.models["w"].logits(hidden)[0].double() / sampling.temperature
            p = z.softmax(-1).numpy()
            order = np.argsort(-p)[: sampling.top_k or None]
            kept = order[np.cumsum(p[order]) - p[order] < sampling.top_p * p[order].sum()]
            assert i in kept and abs(np.log(p[i] / p[kept].sum()) - logp) < 1e-4


def test_greedy_turns_are_the_references(engine: HttpEngine) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=10)
    right = asyncio.run(reference(0).generate("policy", CONTEXT, sampling, 1))
    for done in drawn(engine, sampling, 2):
        assert done.ids.tolist() == right.ids.tolist() and not done.logp.any()


def test_given_tokens_are_scored(engine: HttpEngine) -> None:
    tokens = np.array([9, 100, 5, 61], np.int32)
    right = asyncio.run(reference(0).score("policy", CONTEXT, tokens))["logp"]

    async def score() -> Any:
        try:
            return await engine.score("policy", CONTEXT, tokens)
        finally:
            await engine.endpoints.close()

    np.testing.assert_allclose(asyncio.run(score())["logp"], right, atol=1e-5)


def test_new_weights_are_sampled_from_after_a_delivery_and_proven_to_be_held(engine: HttpEngine) -> None:
    for version, seed in enumerate((1, 0, 1), 5):
        new = model(seed)
        assert engine.load("w", new.named_tensors(), version) == files.fingerprint(new.named_tensors())
        assert engine.delivery is not None and getattr(engine.delivery, "checked", "") == "what the layers hold"
        right = reference(seed)
        for done in drawn(engine, Sampling(max_tokens=10), 4):
            own = asyncio.run(right.score("policy", CONTEXT, done.ids))["logp"]
            np.testing.assert_allclose(done.logp, own, atol=1e-4)
            assert done.version == version


def test_a_delivery_that_does_not_arrive_whole_is_refused(engine: HttpEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    put = FileDelivery.put

    def another(self: FileDelivery, weights: Any, version: int) -> None:
        put(self, model(3).named_tensors(), version)
        sent = dict(self._fingerprints)
        put(self, weights, version)
        self._fingerprints = sent

    monkeypatch.setattr(FileDelivery, "put", another)
    with pytest.raises(EngineMismatch, match="the file was changed"):
        engine.load("w", model(1).named_tensors(), 9)


class Wrapped(torch.nn.Module):
    """A layer that vLLM has wrapped for adapters: a layer inside, and room for one adapter of rank 4 of each part."""

    tp_size = 1

    def __init__(self, outputs: tuple[int, ...]) -> None:
        super().__init__()
        self.base_layer = torch.nn.Linear(3, sum(outputs))
        self.lora_a_stacked = tuple(torch.zeros(1, 1, 4, 3) for _ in outputs)
        self.lora_b_stacked = tuple(torch.zeros(1, 1, out, 4) for out in outputs)


def test_what_layers_hold_other_than_the_adapter_that_was_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(launcher.IN_VLLM))
    from selfteach_worker import _own_modules, _wrong_factors

    model = torch.nn.Module()
    model.qkv_proj, model.down_proj = Wrapped((2, 1, 1)), Wrapped((5,))  # of q, k and v; and alone
    root = torch.nn.Module()
    root.mlp = model
    wrong = lambda sent: _wrong_factors(root, sent, 2.0)  # noqa: E731
    a, b = torch.arange(6.0).view(2, 3), torch.arange(2.0).view(1, 2)
    sent = {"mlp.v_proj.lora_A": a, "mlp.v_proj.lora_B": b}
    assert wrong({}) == "" and wrong(sent) == "mlp.v_proj holds another"
    model.qkv_proj.lora_a_stacked[2][0, 0, :2] = a
    model.qkv_proj.lora_b_stacked[2][0, 0, :, :2] = 2 * b  # the scale is in B
    assert wrong(sent) == "" and wrong({**sent, "mlp.v_proj.lora_A": a + 1}) == "mlp.v_proj holds another"
    assert wrong({}) == "mlp.v_proj has one that was not sent"
    assert wrong({**sent, "mlp.gate_proj.lora_A": a, "mlp.gate_proj.lora_B": b}) == "mlp.gate_proj takes none"
    model.down_proj.tp_size = 2
    assert wrong(sent) is None
    assert _own_modules(root)["mlp.down_proj"] is model.down_proj.base_layer


@pytest.fixture(scope="module")
def for_adapters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        launcher.installed(PYTHON)
    except BadValue as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("vllm")
    files.save(folder / "model", model(0), TOKENIZER)
    given: dict[str, Any] = {"length": 160, "slots": 16, "dtype": "float32", "cache_bytes": 64 << 20, "threads": 1}
    made = launcher.VllmServer(folder / "model", python=PYTHON, log=folder / "vllm.log", lora_rank=5, **given)
    yield made.start()
    made.stop()


def test_an_adapter_is_loaded_beside_the_base_and_proven_to_be_held(for_adapters: str) -> None:
    base = model(0)
    made = HttpEngine([for_adapters], {"policy": "w"}, TOKENIZER, VOCAB, 160, delivery=lambda: AdapterDelivery(base))
    for version, targets in enumerate((("all-linear",), ("q_proj", "down_proj"))):
        adapted = lora.adapt(base, lora.LoraConfig(5, 7.0, targets), version)
        for name, tensor in lora.factors(adapted).items():
            if name.endswith("lora_B"):
                tensor.data.copy_(torch.from_numpy(np.random.default_rng(version).normal(0, 0.3, tensor.shape)))
        merged = lora.MergedTensors(adapted)
        assert made.load("w", merged, version) == files.fingerprint(merged)
        right = ReferenceEngine({"w": lora.merged_copy(adapted)}, {"policy": "w"}, TOKENIZER)
        for done in drawn(made, Sampling(max_tokens=10), 4):
            own = asyncio.run(right.score("policy", CONTEXT, done.ids))["logp"]
            np.testing.assert_allclose(done.logp, own, atol=1e-4)
    assert "the adapter that the layers hold" in made.about()
    asyncio.run(made.close())


def test_an_environment_without_vllm_is_named(tmp_path: Path) -> None:
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    with pytest.raises(BadValue, match=r"has no vLLM; install it .*--vllm-python"):
        launcher.installed(str(without))
    with pytest.raises(BadValue, match="cannot be run"):
        launcher.installed("/no/such/python")


SLEEPS = "import time, subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])"
SLEEPS += "; time.sleep(99)"


def test_the_whole_group_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    supervisor = launcher.IN_VLLM / "selfteach_supervisor.py"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE,"
            " start_new_session=True); print(p.pid, flush=True); time.sleep(99)",
            *[sys.executable, str(supervisor), sys.executable, "-c", SLEEPS],
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    until = time.monotonic() + 20
    while _size(group) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    assert _size(group) == 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while _size(group) and time.monotonic() < until + 20:
        time.sleep(0.1)
    assert _size(group) == 0


def _size(group: int) -> int:
    """Processes of a group that still run."""
    count = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        count += int(fields[2]) == group and fields[0] != "Z"
    return count


def test_a_server_that_ends_as_it_starts_is_said_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "installed", lambda python: ("0", "vllm"))
    bad = tmp_path / "python"
    bad.write_text("#!/bin/sh\necho 'ValueError: no such head' >&2\nexit 3\n")
    bad.chmod(0o755)
    made = launcher.VllmServer(
        tmp_path, python=str(bad), length=8, slots=1, dtype="float32", cache_bytes=None, log=tmp_path / "vllm.log"
    )
    with pytest.raises(EngineLost, match=r"vLLM ended with status 3 \(ValueError: no such head\); see .*vllm.log"):
        made.start()
