"""llama.cpp's own server, on a file that was exported: it draws what the model draws, and says its probabilities.

SELFTEACH_TEST_LLAMA_SERVER names the program, where `llama-server` is not on the PATH.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfteach.core import Sampling
from selfteach.core.protocols import Completion
from selfteach.engine.reference import ReferenceEngine
from selfteach.model.gguf_export import write_gguf
from selfteach.model.tokenizer import train_tokenizer
from selfteach.model.transformer import Config, Transformer

pytest.importorskip("httpx2", reason="the extra selfteach[http] is not installed")
pytest.importorskip("gguf", reason="the package gguf is not installed")

import httpx2 as httpx

from selfteach.engine.http import HttpEngine

PROGRAM = os.environ.get("SELFTEACH_TEST_LLAMA_SERVER") or shutil.which("llama-server")
if PROGRAM is None:
    pytest.skip("llama.cpp's llama-server is not here (SELFTEACH_TEST_LLAMA_SERVER names it)", allow_module_level=True)

TOKENIZER = train_tokenizer(["12 34 1234 the quick brown fox <think> x </think>"] * 4, ("<think>", "</think>"), 300)
VOCAB = -(-len(TOKENIZER) // 8) * 8
CONTEXT = np.array([5, 80, 33, 7], np.int32)
SHAPES: list[dict[str, Any]] = [{}, {"tied": False, "rope_theta": 5e5}, {"kind": "mistral"}]


def reference(shape: dict[str, Any]) -> ReferenceEngine:
    made = Transformer(
        Config(VOCAB, width=64, layers=2, heads=4, kv_heads=2, head_dim=16, hidden=96, max_length=256, **shape)
    ).initialise(1)
    for p in made.parameters():
        if p.ndim > 1:
            p.data.mul_(5)
    return ReferenceEngine({"w": made}, {"policy": "w"}, TOKENIZER)


@pytest.fixture(params=SHAPES, ids=str)
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[HttpEngine, ReferenceEngine]]:
    own = reference(request.param)
    write_gguf(tmp_path / "m.gguf", own.models["w"], TOKENIZER)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(PROGRAM), "-m", str(tmp_path / "m.gguf"), "--port", str(port), "-c", "512", "--parallel", "2"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as server:
        try:
            url, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
            while time.monotonic() < end and server.poll() is None and not answers(url):
                time.sleep(0.1)
            yield HttpEngine([url], {"policy": "w"}, TOKENIZER, VOCAB, 200, in_flight=2), own
        finally:
            server.kill()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_it_draws_and_tells_what_the_exported_model_does(engines: tuple[HttpEngine, ReferenceEngine]) -> None:
    engine, own = engines
    assert engine.capabilities.name == "http (llamacpp)" and "no log-probabilities of given tokens" in engine.about()

    async def both(sampling: Sampling, key: int) -> tuple[Completion, Completion]:
        return await engine.generate("policy", CONTEXT, sampling, key), await own.generate(
            "policy", CONTEXT, sampling, key
        )

    async def all_of_it() -> None:
        theirs, ours = await both(Sampling(0.0, max_tokens=20), 1)
        assert theirs.ids.tolist() == ours.ids.tolist(), "greedy"
        drawn, _ = await both(Sampling(max_tokens=30), 2)
        told = await own.score("policy", CONTEXT, drawn.ids, ("logp",))
        known = ~np.isnan(drawn.logp)  # not of tokens that end inside a character
        assert known.any() and np.abs(drawn.logp - told["logp"])[known].max() < 5e-3
        await engine.close()

    asyncio.run(all_of_it())
