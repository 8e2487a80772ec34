"""What vLLM's workers do for selfteach: load weights from a file, and say what they then hold.

A class for `vllm serve --worker-extension-cls selfteach_worker.WeightReceiver`, called by /collective_rpc. It stands in
a folder of its own, which is on vLLM's PYTHONPATH: it imports nothing of selfteach, which need not be installed there.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

ROWS = 64  # of every tensor, that the fingerprint reads (selfteach.model.files.fingerprint)
COLUMNS = 512  # unit vectors at a time, by which the weights of a packed layer are read


class WeightReceiver:
    """Methods that vLLM adds to its worker."""

    def selfteach_load(self, path: str) -> dict[str, Any]:
        """Load the weights of a safetensors file, by their names on the Hub, as vLLM loads a checkpoint.

        Returns `arrived`, the fingerprint of what was read; `held`, that of what layers now compute with, None where
        it cannot be told (tensor parallel, quantised, another layout); `dtype`; `seconds`.
        """
        begun = time.monotonic()
        arrived = _Fingerprint()
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())

            def tensors() -> Any:
                for name in names:
                    tensor = file.get_tensor(name)
                    arrived.add(name, tensor)
                    yield name, tensor

            self.reload_weights(weights_iterator=tensors())  # type: ignore[attr-defined]
            _repack_tied_head(self.model_runner.get_model(), names)  # type: ignore[attr-defined]
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
        seconds = time.monotonic() - begun
        held, dtype = self._selfteach_held(shapes)
        return {"arrived": arrived.digest(), "held": held, "dtype": dtype, "seconds": seconds}

    @torch.inference_mode()
    def selfteach_adapter(self, path: str, shapes: dict[str, list[int]]) -> dict[str, Any]:
        """Compare what layers hold with an adapter in peft's files that vLLM has just loaded, the only one.

        Returns `arrived`, the fingerprint of the file; `wrong`, what a layer holds that is not of it ("" where
        nothing is, None where it cannot be told: tensor parallel); `base`, the fingerprint of the weights beside it, of
        these shapes, as `held` of selfteach_load.
        """
        with open(f"{path}/adapter_config.json", encoding="utf-8") as file:
            config = json.load(file)
        scale = config["lora_alpha"] / (config["r"] ** 0.5 if config["use_rslora"] else config["r"])
        arrived, factors = _Fingerprint(), dict[str, torch.Tensor]()
        with safe_open(f"{path}/adapter_model.safetensors", framework="pt") as file:
            for name in sorted(file.keys()):
                tensor = file.get_tensor(name)
                arrived.add(name, tensor)
                factors[name.removeprefix("base_model.model.").removesuffix(".weight")] = tensor
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        wrong = _wrong_factors(model, factors, scale)
        base, _ = self._selfteach_held({name: tuple(shape) for name, shape in shapes.items()})
        return {"arrived": arrived.digest(), "wrong": wrong, "base": base}

    def selfteach_about(self) -> dict[str, Any]:
        """That the extension is there, and the dtype of the model."""
        return {"selfteach": 1, "dtype": str(self.model_runner.model_config.dtype)}  # type: ignore[attr-defined]

    @torch.inference_mode()
    def _selfteach_held(self, shapes: dict[str, tuple[int, ...]]) -> tuple[str | None, str]:
        """(fingerprint of the weights that layers compute with, dtype), taken apart again into the Hub's tensors."""
        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        modules, found = _own_modules(model), _Fingerprint()
        parts = {p: (whole, n) for whole, of in _packed(model).items() for n, p in enumerate(of)}
        dtype = str(self.model_runner.model_config.dtype)  # type: ignore[attr-defined]
        for name in sorted(shapes):
            tensor = _held(modules, parts, name)
            if tensor is None or tuple(tensor.shape) != shapes[name]:
                return None, dtype
            found.add(name, tensor)
        head, embedding = _tied(modules, shapes)
        if head is not None:  # it has no tensor of its own, and may still compute with another
            own, shared = _weight(head), _weight(embedding)
            if own is None or shared is None:
                return None, dtype
            if not torch.equal(own, shared):
                found.add("lm_head.weight", own)
        return found.digest(), dtype


def _own_modules(model: Any) -> dict[str, Any]:
    """The layers of a model by name; in place of one that vLLM has wrapped for adapters, the layer inside."""
    every = dict(model.named_modules())
    return {path.replace(".base_layer", ""): m for path, m in every.items() if not hasattr(m, "base_layer")}


def _wrong_factors(model: Any, factors: dict[str, torch.Tensor], scale: float) -> str | None:
    """What is wrong with the factors that the layers of a model hold; "": nothing, None: it cannot be told.

    A layer has room for one adapter, of which the first rows are A's, the first columns B's, times the scale.
    """
    packed, seen = _packed(model), set[str]()
    for path, layer in model.named_modules():
        if not isinstance(getattr(layer, "lora_b_stacked", None), tuple):
            continue
        if getattr(layer, "tp_size", 1) != 1:
            return None
        parent, _, leaf = path.rpartition(".")
        names = [f"{parent}.{part}" for part in packed.get(leaf, [leaf])]
        for n, (room_a, room_b) in enumerate(zip(layer.lora_a_stacked, layer.lora_b_stacked, strict=True)):
            a, b = factors.get(f"{names[n]}.lora_A"), factors.get(f"{names[n]}.lora_B")
            if a is None or b is None:
                if room_b.any():
                    return f"{names[n]} has one that was not sent"
                continue
            seen.add(names[n])
            held_a, held_b = room_a[0, 0, : a.shape[0]], room_b[0, 0, :, : b.shape[1]]
            scaled = b.to(room_b) * scale
            if not torch.equal(held_a, a.to(room_a)) or not torch.equal(held_b, scaled):
                return f"{names[n]} holds another"
    missing = sorted({name.rpartition(".")[0] for name in factors} - seen)
    return f"{missing[0]} takes none" if missing else ""


def _packed(model: Any) -> dict[str, list[str]]:
    """Names of fused layers, and of the layers on the Hub that they are made of, in their order."""
    usual = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    return {**usual, **getattr(model, "packed_modules_mapping", {})}


def _held(modules: dict[str, Any], parts: dict[str, tuple[str, int]], name: str) -> torch.Tensor | None:
    """The tensor of that name on the Hub, out of the layer that has it; None where it is not found whole."""
    path, _, kind = name.rpartition(".")
    parent, _, leaf = path.rpartition(".")
    layer, part = modules.get(path), None
    if layer is None and leaf in parts:
        whole, part = parts[leaf]
        layer = modules.get(f"{parent}.{whole}")
    if layer is None or getattr(layer, "tp_size", 1) != 1 or kind not in ("weight", "bias"):
        return None
    tensor = _weight(layer) if kind == "weight" else getattr(layer, "bias", None)
    if tensor is None:
        return None
    if part is not None:
        sizes = [int(n) for n in layer.output_sizes]
        return tensor[sum(sizes[:part]) : sum(sizes[: part + 1])]
    rows = getattr(layer, "org_vocab_size", None)
    return tensor if rows is None else tensor[:rows]  # embeddings are padded


def _tied(modules: dict[str, Any], names: Any) -> tuple[Any, Any]:
    """(head, embedding) where the output head has no weights of its own; (None, None) where it has."""
    heads = [(path, m) for path, m in modules.items() if type(m).__name__ == "ParallelLMHead"]
    embeddings = [m for m in modules.values() if type(m).__name__ == "VocabParallelEmbedding"]
    if len(heads) != 1 or len(embeddings) != 1 or f"{heads[0][0]}.weight" in names:
        return None, None
    return heads[0][1], embeddings[0]


def _repack_tied_head(model: Any, names: list[str]) -> None:
    """Pack the weights of a tied head again: a reload packs those of layers that the file has tensors of."""
    head, embedding = _tied(dict(model.named_modules()), names)
    if head is not None:
        head.weight = embedding.weight
        if hasattr(head, "cpu_linear"):
            head.quant_method.process_weights_after_loading(head)


def _weight(layer: Any) -> torch.Tensor | None:
    """The weight [outputs, inputs] that a layer computes with.

    On a processor vLLM packs weights, and drops the originals of linear layers. So they are read from what the layer
    makes of unit vectors, exactly: each sum has one term that is not 0.
    """
    weight = getattr(layer, "weight", None)
    compute, name = getattr(layer, "cpu_linear", None), type(layer).__name__
    if weight is None or compute is None or name == "VocabParallelEmbedding":
        return weight
    size, dtype = int(layer.embedding_dim if name == "ParallelLMHead" else layer.input_size), weight.dtype
    columns: list[torch.Tensor] = []
    for start in range(0, size, COLUMNS):
        n = min(COLUMNS, size - start)
        unit = torch.zeros(n, size, dtype=dtype)
        unit[torch.arange(n), torch.arange(start, start + n)] = 1
        columns.append(compute(unit, weight, None))
    return torch.cat(columns).T.contiguous()


class _Fingerprint:
    """selfteach.model.files.fingerprint, one tensor at a time, in the order of their names."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor in."""
        rows = tensor.detach().reshape(tensor.shape[0] if tensor.ndim > 1 else 1, -1)
        if len(rows) > ROWS:
            rows = rows[torch.linspace(0, len(rows) - 1, ROWS).long()]
        self._hash.update(name.encode())
        self._hash.update(np.ascontiguousarray(rows.float().cpu().numpy()).tobytes())

    def digest(self) -> str:
        """The hash of what was taken in."""
        return self._hash.hexdigest()
