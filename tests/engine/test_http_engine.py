"""The engine over HTTP against servers that answer as real ones do, and against their faults."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch

from selfteach.core.errors import BadValue, EngineLost, EngineMismatch
from selfteach.core.protocols import Completion
from selfteach.core.task import Sampling, Steering
from selfteach.engine import ReferenceEngine

pytest.importorskip("httpx2")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.responses import JSONResponse, Response, StreamingResponse
from support.completion_servers import FakeServer
from support.engines import TOKENIZER, VOCAB, model

from selfteach.engine import endpoints
from selfteach.engine.http import HttpEngine
from selfteach.engine.weight_files import AdapterDelivery, FileDelivery, room_for
from selfteach.model import files, lora

KINDS = ("vllm", "sglang", "llamacpp")
CONTEXT = np.array([5, 80, 33, 7], np.int32)


def reference(seed: int = 0) -> ReferenceEngine:
    return ReferenceEngine({"w": model("grouped", seed)}, {"policy": "w"}, TOKENIZER)


def engine_at(*urls: str, **more: Any) -> HttpEngine:
    return HttpEngine(urls, {"policy": "w"}, TOKENIZER, VOCAB, 160, **more)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "PAUSE", 0.02)


@pytest.fixture
def servers() -> Iterator[Any]:
    """A function that starts a server and gives it and its address."""
    with ExitStack() as stack:

        def start(
            kind: str = "vllm", seed: int = 0, takes_weights: bool = False, **more: Any
        ) -> tuple[FakeServer, str]:
            server = FakeServer(kind, reference(seed), **more)
            server.takes_weights = takes_weights
            return server, stack.enter_context(server.at())

        yield start


def run(engine: HttpEngine, main: Any) -> Any:
    async def whole() -> Any:
        try:
            return await main
        finally:
            await engine.close()

    return asyncio.run(whole())


def draw(engine: HttpEngine, sampling: Sampling, key: int = 11, context: np.ndarray = CONTEXT) -> Completion:
    return run(engine, engine.generate("policy", context, sampling, key))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=12),
        Sampling(temperature=0.7, max_tokens=12),
        Sampling(temperature=1.3, top_k=7, top_p=0.8, max_tokens=12),
        Sampling(temperature=0.0, max_tokens=5),
        Sampling(max_tokens=30, stop=("e", "the")),
        Sampling(),
    ],
    ids=["plain", "tempered", "truncated", "greedy", "stop", "to the end"],
)
def test_each_kind_of_server_gives_what_the_reference_gives(servers: Any, kind: str, sampling: Sampling) -> None:
    engine = engine_at(servers(kind)[1])
    assert engine.capabilities.logp == ("tempered" if kind == "sglang" else "sampling")
    done = draw(engine, sampling)
    right = asyncio.run(reference().generate("policy", CONTEXT, sampling, 11))
    assert (done.ids.tolist(), done.status) == (right.ids.tolist(), right.status)
    assert done.ids.dtype == np.int32 and done.logp.dtype == np.float32
    known = np.isfinite(done.logp)
    np.testing.assert_allclose(done.logp[known], right.logp[known], atol=1e-5)
    if kind == "sglang":  # which does not say what truncation makes of them
        assert known.all() if sampling.untruncated else not known.any()
    if kind == "vllm":
        assert known.all()
    if kind == "llamacpp" and not sampling.stop:
        assert known.all()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_given_tokens_are_scored_as_the_reference_scores_them(servers: Any, kind: str) -> None:
    engine, tokens = engine_at(servers(kind)[1]), np.array([9, 100, 5, 61], np.int32)
    right = asyncio.run(reference().score("policy", CONTEXT, tokens))["logp"]
    found = run(engine, engine.score("policy", CONTEXT, tokens, ("logp", "raw_logp")))
    np.testing.assert_allclose(found["logp"], right, atol=1e-5)
    np.testing.assert_array_equal(found["logp"], found["raw_logp"])
    with pytest.raises(BadValue, match="cannot compute entropy"):
        run(engine, engine.score("policy", CONTEXT, tokens, ("entropy",)))
    assert not len(run(engine, engine.score("policy", CONTEXT, tokens[:0]))["logp"])


def test_a_server_of_raw_log_probabilities_is_known_for_it_and_none_is_taken_for_another(servers: Any) -> None:
    engine = engine_at(servers("vllm", raw=True)[1])
    assert engine.capabilities.logp == "raw"
    assert np.isfinite(draw(engine, Sampling(max_tokens=6)).logp).all()
    for other in (Sampling(temperature=0.6, max_tokens=6), Sampling(top_p=0.9, max_tokens=6)):
        assert np.isnan(draw(engine, other).logp).all()


def test_a_text_that_fills_the_context_is_not_sent(servers: Any) -> None:
    server, url = servers()
    engine = engine_at(url)
    before = len(server.bodies)
    done = draw(engine, Sampling(), context=np.zeros(160, np.int32) + 5)
    assert (len(done.ids), done.status, len(server.bodies)) == (0, "limit", before)


def test_a_steering_vector_is_refused_and_nothing_is_sent(servers: Any) -> None:
    server, url = servers()
    engine = engine_at(url)
    before = len(server.bodies)
    with pytest.raises(BadValue, match=r"has no place for a steering vector; take --engine builtin$"):
        draw(engine, Sampling(steering=Steering(0, (0.5,) * 32)))
    assert not engine.capabilities.steers and len(server.bodies) == before


def test_what_is_not_a_server_or_another_models_is_refused_in_a_line(servers: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with pytest.raises(BadValue, match="no server answers"):
        engine_at(f"http://127.0.0.1:{port}")
    with pytest.raises(BadValue, match="is no address"):
        engine_at("127.0.0.1:80")
    with pytest.raises(BadValue, match="contexts of 99 tokens, not 160"):
        engine_at(servers(longest=99)[1])
    with pytest.raises(BadValue, match="several kinds"):
        engine_at(servers("vllm")[1], servers("sglang")[1])
    engine = engine_at(servers(seed=0)[1])
    assert engine.check_model(model("grouped", 0), 0.01) < 1e-4
    with pytest.raises(EngineMismatch, match="holds other weights"):
        engine.check_model(model("grouped", 1), 0.01)


def status(code: int, **headers: str) -> Any:
    return lambda answer: JSONResponse({"error": {"message": "so it is"}}, code, headers)


def without(*path: Any) -> Any:
    def fault(answer: dict[str, Any]) -> dict[str, Any]:
        place: Any = answer
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = None
        return answer

    return fault


def replaced(value: Any, *path: Any) -> Any:
    def fault(answer: dict[str, Any]) -> dict[str, Any]:
        place: Any = answer
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return answer

    return fault


def cut_off(answer: Any) -> Response:
    async def some() -> Any:
        yield b'{"choices": [{"tok'
        raise ConnectionError("the connection is dropped in the middle of an answer")

    return StreamingResponse(some(), headers={"content-length": "5000"})


async def hangs(answer: Any) -> Any:
    await asyncio.sleep(30)


CHOICE = ("choices", 0)
FAULTS = {
    "500": status(500),
    "503": status(503, **{"retry-after": "0"}),
    "dropped": cut_off,
    "hang": hangs,
    "no json": lambda answer: Response("<html>"),
    "no ids": replaced({"token_logprobs": [-1.0], "tokens": ["a"]}, *CHOICE, "logprobs"),
    "ids of no token": replaced([1, VOCAB + 3], *CHOICE, "token_ids"),
    "text for ids": replaced(["a"] * 5, *CHOICE, "token_ids"),
    "too many": lambda answer: replaced([1] * 99, *CHOICE, "token_ids")(answer),
    "no logprobs": without(*CHOICE, "logprobs"),
    "too few logprobs": replaced([-1.0], *CHOICE, "logprobs", "token_logprobs"),
    "NaN": replaced([math.nan] * 5, *CHOICE, "logprobs", "token_logprobs"),
    "positive": replaced([0.5] * 5, *CHOICE, "logprobs", "token_logprobs"),
    "no choice": replaced([], "choices"),
    "a list": lambda answer: [answer],
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_costs_another_try_and_changes_nothing(servers: Any, name: str) -> None:
    (server, url), sampling = servers(), Sampling(max_tokens=5)
    engine = engine_at(url, timeout=0.5 if name == "hang" else 20.0)
    fault = FAULTS[name]
    if name == "no ids":
        fault = lambda answer: FAULTS["no ids"](without(*CHOICE, "token_ids")(answer))  # noqa: E731
    server.faults = iter([fault, fault])
    done = draw(engine, sampling)
    right = asyncio.run(reference().generate("policy", CONTEXT, sampling, 11))
    assert done.ids.tolist() == right.ids.tolist()
    np.testing.assert_allclose(done.logp, right.logp, atol=1e-5)
    assert engine.counts["retried"] == 2


def test_a_fault_that_stays_ends_the_request_in_a_line_and_a_refusal_at_once(servers: Any) -> None:
    server, url = servers()
    engine = engine_at(url)
    server.faults = iter([FAULTS["NaN"]] * 99)
    with pytest.raises(
        EngineMismatch, match=r"answered wrongly: a log-probability of nan .*the last of 6 tries"
    ) as caught:
        draw(engine, Sampling(max_tokens=5))
    assert "\n" not in str(caught.value)
    server.faults = iter([status(400)])
    asked = len(server.bodies)
    with pytest.raises(BadValue, match="status 400: so it is"):
        draw(engine, Sampling(max_tokens=5))
    assert len(server.bodies) == asked + 1


def test_a_dead_server_is_routed_around_and_taken_back(servers: Any) -> None:
    (_, good), (bad, url) = servers(), servers()
    engine = engine_at(good, url)
    bad.faults = iter([status(500)] * 6)

    async def many(n: int) -> list[Completion]:
        return await asyncio.gather(
            *[engine.generate("policy", CONTEXT, Sampling(max_tokens=3), key) for key in range(n)]
        )

    async def both() -> tuple[list[Completion], int]:
        first = await many(12)
        (left_alone,) = [e for e in engine.endpoints.every if e.url == url]
        left_alone.fail(endpoints.Failed("gone", gone=True))
        asked = len(bad.bodies)
        await asyncio.sleep(max(left_alone.again_at - time.monotonic(), 0.0) + 0.01)
        await many(4)
        assert len(bad.bodies) == asked + 1 and left_alone.down is None  # one request tries it
        await many(4)
        return first, len(bad.bodies) - asked - 1

    first, asked = run(engine, both())
    assert asked == 2  # half of them
    for key, done in enumerate(first):
        right = asyncio.run(reference().generate("policy", CONTEXT, Sampling(max_tokens=3), key))
        assert done.ids.tolist() == right.ids.tolist()


def test_no_server_is_given_more_than_it_takes(servers: Any) -> None:
    pairs = [servers(), servers()]
    engine = engine_at(*[url for _, url in pairs], in_flight=3)
    for server, _ in pairs:
        server.hold = 0.02

    async def many() -> Any:
        await asyncio.gather(*[engine.generate("policy", CONTEXT, Sampling(max_tokens=1), key) for key in range(40)])

    run(engine, many())
    assert [server.most for server, _ in pairs] == [3, 3]


def test_where_all_are_dead_the_engine_is_lost_in_its_time() -> None:
    server = FakeServer("vllm", reference())
    with server.at() as url:
        engine = engine_at(url, patience=0.5)

    async def some() -> list[Any]:
        calls = [engine.generate("policy", CONTEXT, Sampling(max_tokens=3), key) for key in range(3)]
        return await asyncio.gather(*calls, return_exceptions=True)

    began = time.monotonic()
    found = run(engine, some())
    assert all(isinstance(error, EngineLost) for error in found)
    assert "no server answers for 0.5 s" in str(found[0]) and "\n" not in str(found[0])
    assert time.monotonic() - began < 10


def test_a_request_that_is_cancelled_leaves_its_place(servers: Any) -> None:
    server, url = servers()
    engine = engine_at(url, in_flight=1)
    server.hold = 0.3

    async def both() -> Completion:
        late = asyncio.ensure_future(engine.generate("policy", CONTEXT, Sampling(max_tokens=3), 1))
        await asyncio.sleep(0.1)
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        return await engine.generate("policy", CONTEXT, Sampling(max_tokens=3), 2)

    assert len(run(engine, both()).ids)
    assert engine.endpoints.every[0].in_flight == 0


def test_weights_are_delivered_to_every_server(servers: Any) -> None:
    pairs = [servers(takes_weights=True), servers(takes_weights=True)]
    engine, new = engine_at(*[url for _, url in pairs], delivery=FileDelivery), model("grouped", 1)
    assert engine.capabilities.updates is True and engine.groups == ["w"]
    assert engine.load("w", new.named_tensors(), 7) == files.fingerprint(new.named_tensors()) == engine.fingerprint("w")
    for server, _ in pairs:
        assert server.controls[1:] == ["pause", "collective_rpc", "reset_prefix_cache", "resume"]
    right = reference(1)

    async def many() -> list[Completion]:
        calls = [engine.generate("policy", CONTEXT, Sampling(max_tokens=4), key) for key in range(8)]
        return await asyncio.gather(*calls)

    for key, done in enumerate(run(engine, many())):
        same = asyncio.run(right.generate("policy", CONTEXT, Sampling(max_tokens=4), key))
        assert (done.ids.tolist(), done.version) == (same.ids.tolist(), 7)
    assert not list(engine.delivery.folder.parent.glob(engine.delivery.folder.name))  # type: ignore[union-attr]


def test_a_server_that_missed_a_delivery_gets_it_before_it_is_asked_again(servers: Any) -> None:
    (_, good), (late, url) = servers(takes_weights=True), servers(takes_weights=True)
    engine, right = engine_at(good, url, delivery=FileDelivery, in_flight=1), reference(1)
    late.load_faults = iter([status(500)])
    engine.load("w", model("grouped", 1).named_tensors(), 2)
    assert late.engine.fingerprint("w") != engine.fingerprint("w")

    async def some() -> list[Completion]:
        await asyncio.sleep(0.3)  # longer than it is left alone
        calls = [engine.generate("policy", CONTEXT, Sampling(max_tokens=4), key) for key in range(12)]
        return await asyncio.gather(*calls)

    before = len(late.bodies)
    for key, done in enumerate(run(engine, some())):
        same = asyncio.run(right.generate("policy", CONTEXT, Sampling(max_tokens=4), key))
        assert done.ids.tolist() == same.ids.tolist()
    assert len(late.bodies) > before and late.engine.fingerprint("w") == engine.fingerprint("w")


def test_a_server_that_holds_something_else_after_a_delivery_is_found_out(servers: Any) -> None:
    server, url = servers(takes_weights=True)
    engine, new = engine_at(url, delivery=FileDelivery), model("grouped", 1).named_tensors()
    server.load_faults = iter([lambda answer: answer])  # it says what it holds, and loaded nothing
    assert engine.load("w", new, 1) == server.engine.fingerprint("w") != files.fingerprint(new)
    server.load_faults = iter([status(500)])
    with pytest.raises(EngineMismatch, match=r"version 2: no server took them \(.*status 500"):
        engine.load("w", new, 2)
    assert server.controls[-1] == "resume"


def adapted(base: Any, seed: int, rank: int = 3) -> lora.MergedTensors:
    """A base with an adapter that changes what it says."""
    made, draw = lora.adapt(base, lora.LoraConfig(rank, 5.0), seed), np.random.default_rng(seed)
    for name, tensor in lora.factors(made).items():
        if name.endswith("lora_B"):
            tensor.data.copy_(torch.from_numpy(draw.normal(0, 0.3, tensor.shape)))
    return lora.MergedTensors(made)


def test_of_an_adapter_the_factors_alone_are_delivered_and_sampled_from(servers: Any) -> None:
    server, url = servers(takes_weights=True)
    base = model("grouped", 0)
    engine = engine_at(url, delivery=lambda: AdapterDelivery(base))
    for version in (3, 4):
        new = adapted(base, version)
        server.controls.clear()
        assert engine.load("w", new, version) == files.fingerprint(new) == engine.fingerprint("w")
        steps = ["pause", "load_lora_adapter", "collective_rpc", "reset_prefix_cache", "resume"]
        assert server.controls == steps
    assert isinstance(engine.delivery, AdapterDelivery)
    assert engine.delivery.bytes < 0.3 * sum(t.numel() * 4 for t in base.named_tensors().values())
    assert "fingerprints of the base and the adapter that the layers hold" in engine.about()
    with pytest.raises(BadValue, match="--lora-delivery merged"):
        engine.load("w", base.named_tensors(), 5)
    right = ReferenceEngine({"w": lora.merged_copy(new.model)}, {"policy": "w"}, TOKENIZER)
    done = draw(engine, Sampling(max_tokens=6))
    same = asyncio.run(right.generate("policy", CONTEXT, Sampling(max_tokens=6), 11))
    plain = asyncio.run(reference(0).generate("policy", CONTEXT, Sampling(max_tokens=6), 11))
    assert done.ids.tolist() == same.ids.tolist() != plain.ids.tolist()
    assert server.bodies[-1]["model"] == "adapter" and not engine.delivery.folder.exists()


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({"wrong": "model.layers.0.mlp.down_proj holds another"}, "do not compute with the adapter .*down_proj"),
        ({"arrived": "00"}, "the file was changed"),
        ({"base": "00"}, "holds another base"),
    ],
)
def test_an_adapter_that_layers_do_not_compute_with_is_found_out(servers: Any, held: Any, why: str) -> None:
    server, url = servers(takes_weights=True)
    base = model("grouped", 0)
    engine = engine_at(url, delivery=lambda: AdapterDelivery(base))
    server.load_faults = iter([lambda answer: {**answer, **held}])
    with pytest.raises(EngineMismatch, match=why):
        engine.load("w", adapted(base, 1), 1)
    assert server.controls[-1] == "resume"
    asyncio.run(engine.close())


def test_vllm_makes_room_for_some_ranks() -> None:
    assert [room_for(r) for r in (1, 5, 8, 9, 512)] == [1, 8, 8, 16, 512]
    with pytest.raises(BadValue, match="rank 512 at most, not 513; give --lora-delivery merged"):
        room_for(513)


def test_a_server_without_the_workers_part_keeps_its_weights_and_says_how_it_would_not(servers: Any) -> None:
    engine = engine_at(servers()[1], delivery=FileDelivery)
    assert engine.groups == [] and "--worker-extension-cls" in str(engine.capabilities.updates)
    assert "no new weights" in engine.about()
