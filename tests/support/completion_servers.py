"""Completion servers as vLLM, SGLang and llama.cpp's answer, over the reference engine, with faults on request."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from selfteach.core.task import Sampling
from selfteach.engine import ReferenceEngine
from selfteach.model import files, lora, peft_files
from support.servers import answering

Fault = Callable[[Mapping[str, Any]], Any]  # an answer -> what is answered instead: JSON, or a Response


class FakeServer:
    """kind: vllm, sglang, llamacpp. raw: log-probabilities are those at temperature 1, before truncation (as vLLM).

    faults     taken one by one, a fault or None for each request that draws or scores
    most       requests that were at work at once, and `bodies` what they asked
    takes_weights  it is a vLLM to which weights can be delivered; `load_faults` as `faults`, of deliveries
    """

    def __init__(self, kind: str, engine: ReferenceEngine, raw: bool = False, longest: int | None = None) -> None:
        self.kind, self.engine, self.raw, self.longest = kind, engine, raw, longest
        self.faults: Iterator[Fault | None] = iter(())
        self.bodies: list[dict[str, Any]] = []
        self.now = self.most = 0
        self.hold = 0.0
        self.controls: list[str] = []
        self.takes_weights = False
        self.load_faults: Iterator[Fault | None] = iter(())
        self.base = copy.deepcopy(engine.models["w"])

    def application(self) -> Any:
        paths = {"vllm": "/v1/completions", "sglang": "/generate", "llamacpp": "/completion"}
        return Starlette(
            routes=[
                Route("/v1/models", self.models, methods=["GET"]),
                Route(paths[self.kind], self.complete, methods=["POST"]),
                Route("/v1/load_lora_adapter", self.load_adapter, methods=["POST"]),
                *([Route("/{control}", self.control, methods=["POST"])] if self.takes_weights else []),
            ]
        )

    @contextmanager
    def at(self) -> Iterator[str]:
        with answering(lambda port: self.application()) as url:
            yield url

    async def models(self, request: Request) -> Response:
        card: dict[str, Any] = {"id": "tiny", "owned_by": self.kind}
        if self.longest and self.kind != "llamacpp":
            card["max_model_len"] = self.longest
        return JSONResponse({"data": [card]})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        fault = next(self.faults, None)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.hold:
                await asyncio.sleep(self.hold)
            answer = await getattr(self, self.kind)(body)
            if fault is not None:
                answer = fault(answer)
                if asyncio.iscoroutine(answer):
                    answer = await answer
            return (
                answer
                if isinstance(answer, Response)
                else Response(json.dumps(answer), 200, {"content-type": "application/json"})
            )
        finally:
            self.now -= 1

    async def control(self, request: Request) -> Response:
        """What vLLM's developers' mode and the workers' extension answer."""
        self.controls.append(name := request.path_params["control"])
        if name != "collective_rpc":
            return JSONResponse({"success": True})
        body = await request.json()
        if body["method"] == "selfteach_about":
            return JSONResponse({"results": [{"selfteach": 1, "dtype": "torch.float32"}]})
        fault = next(self.load_faults, None)
        if body["method"] == "selfteach_adapter":
            arrived = files.fingerprint(load_file(f"{body['args'][0]}/adapter_model.safetensors"))
            held = {"arrived": arrived, "wrong": "", "base": files.fingerprint(self.base.named_tensors())}
            return JSONResponse({"results": [held if fault is None else fault(held)]})
        tensors = load_file(body["args"][0])
        if fault is None:
            self.engine.load("w", tensors, 0)
        held = {"held": self.engine.fingerprint("w"), "arrived": files.fingerprint(tensors)}
        answer = {"results": [held | {"dtype": "torch.float32", "seconds": 0.0}]}
        answer = answer if fault is None else fault(answer)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    async def load_adapter(self, request: Request) -> Response:
        """Sample from the base with an adapter of peft's files; answer in plain text, as vLLM does."""
        self.controls.append("load_lora_adapter")
        adapter = peft_files.read(Path((await request.json())["lora_path"]), self.base)
        adapted = lora.adapt(self.base, adapter.lora, given=adapter.tensors)
        self.engine.load("w", lora.MergedTensors(adapted), 0)
        return Response("Success: LoRA adapter 'adapter' added successfully.")

    async def drawn(self, ids: list[int], sampling: Sampling, seed: int) -> tuple[list[int], list[float], str]:
        done = await self.engine.generate("policy", np.array(ids), sampling.replace(record=("logp", "raw_logp")), seed)
        kind = "raw" if self.raw else "tempered" if self.kind == "sglang" else "sampling"
        logp = {"raw": done.recorded["raw_logp"], "tempered": done.recorded["logp"], "sampling": done.logp}[kind]
        return done.ids.tolist(), [float(x) for x in logp], done.status

    async def vllm(self, body: dict[str, Any]) -> Any:
        ids = body["prompt"]
        if "prompt_logprobs" in body:
            logp = (await self.engine.score("policy", np.array(ids[:1]), np.array(ids[1:])))["logp"]
            entries = [None] + [{str(i): {"logprob": float(x), "rank": 1}} for i, x in zip(ids[1:], logp, strict=True)]
            choice = {"index": 0, "text": "", "prompt_logprobs": entries, "finish_reason": "length"}
            return {"object": "text_completion", "choices": [choice]}
        assert body["ignore_eos"] and set(body["stop_token_ids"]) == set(self.engine.tokenizer.eos_token_ids)
        top_k = max(0, body["top_k"])
        sampling = Sampling(body["temperature"], body["top_p"], top_k, body["max_tokens"], tuple(body["stop"]))
        got, logp, status = await self.drawn(ids, sampling, body["seed"])
        logprobs = {"tokens": [f"token_id:{i}" for i in got], "token_logprobs": logp, "top_logprobs": None}
        choice = {"index": 0, "text": "?", "token_ids": got, "logprobs": logprobs}
        choice["finish_reason"] = "stop" if status == "stop" else "length"
        return {"object": "text_completion", "model": "tiny", "choices": [choice]}

    async def sglang(self, body: dict[str, Any]) -> Any:
        ids, params = body["input_ids"], body["sampling_params"]
        meta: dict[str, Any] = {"finish_reason": {"type": "length", "length": 0}}
        if params["max_new_tokens"] == 0:
            logp = (await self.engine.score("policy", np.array(ids[:1]), np.array(ids[1:])))["logp"]
            pairs = [[None, ids[0], None]] + [[float(x), i, None] for i, x in zip(ids[1:], logp, strict=True)]
            return {"text": "", "meta_info": meta | {"input_token_logprobs": pairs[body["logprob_start_len"] :]}}
        top_k = max(0, params["top_k"])
        temperature = 0.0 if top_k == 1 else params["temperature"]  # which it takes for greedy
        sampling = Sampling(temperature, params["top_p"], top_k, params["max_new_tokens"], tuple(params["stop"]))
        got, logp, status = await self.drawn(ids, sampling, params["sampling_seed"])
        meta["finish_reason"] = {"type": "stop" if status == "stop" else "length"}
        meta["output_token_logprobs"] = [[x, i, None] for x, i in zip(logp, got, strict=True)]
        return {"text": "?", "meta_info": meta}

    async def llamacpp(self, body: dict[str, Any]) -> Any:
        assert body["samplers"] == ["temperature", "top_k", "top_p"] and body["post_sampling_probs"]
        sampling = Sampling(body["temperature"], body["top_p"], body["top_k"], body["n_predict"], tuple(body["stop"]))
        got, logp, status = await self.drawn(body["prompt"], sampling, body["seed"])
        probs = [{"id": i, "token": "?", "prob": math.exp(x), "top_probs": []} for i, x in zip(got, logp, strict=True)]
        text = b"".join(self.engine.tokenizer.pieces[i] for i in got)
        word = next((s for s in body["stop"] if s.encode() in text), None)
        if word is not None:  # it leaves as many out as the string has tokens
            probs = probs[: max(0, len(probs) - len(self.engine.tokenizer.encode(word)))]
        return {"content": "?", "tokens": got, "completion_probabilities": probs, "stop": True} | {
            "stop_type": "word" if word else "eos" if status == "stop" else "limit"
        }
