"""Models that are none of our families, run by the library transformers: slower, behind the same doors. It is imported only here.

Rows are whole texts, and sampling goes through transformers' own cache. What is trusted is tried when a model is loaded: that it is
causal, that its logits are its output embedding of its last hidden states, and that its cache changes nothing. Code that comes with a
checkpoint is never run.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint, BadValue, nearest
from .base import Model
from .hub import FAMILIES
from .transformer import capped, causal

UNBOUNDED = 1 << 20  # a context, in tokens, of a model that has no positions (state spaces, relative biases)
CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "context_length", "n_ctx")
CACHES = ("past_key_values", "cache_params")  # what a model calls the state that it is handed back
PROBE = 12  # tokens


@dataclass(frozen=True)
class Shape:
    """What the others need to know of a model: its model_type, ids, width of its last hidden state, context; and by what it runs."""

    kind: str
    vocab: int
    width: int
    max_length: int
    through: str
    scale: float = 1.0  # of the logits
    logit_cap: float | None = None


class Foreign(Model):
    """A causal model of transformers. Parameters carry the names that it gives them."""

    pluggable = False

    def __init__(self, inner: Any, c: Shape):
        super().__init__()
        self.c = c
        self.inner = inner
        self.lm_head = inner.get_output_embeddings()
        self.plain_head = c.scale == 1 and self.lm_head.bias is None
        known = inspect.signature(inner.base_model.forward).parameters
        self.past = next((name for name in CACHES if name in known), None)  # None: everything is computed again for each token

    def forward(self, ids: Tensor, attend: Callable[..., Tensor] = causal, positions: Tensor | None = None) -> Tensor:
        """ids i64[B, T] -> hidden [B, T, width], after the last norm. Raises BadValue beyond the context, or for another attention."""
        if attend is not causal or positions is not None:
            raise BadValue(f"model: {self.c.kind} runs through transformers, which takes whole rows; its attention cannot be handed in")
        if ids.shape[1] > self.c.max_length:
            raise BadValue(f"model: {ids.shape[1]} tokens do not fit its context of {self.c.max_length}")
        return self.inner.base_model(input_ids=ids, use_cache=False).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [..., width] -> logits [..., vocab]."""
        out = self.lm_head(hidden)
        return capped(out if self.c.scale == 1 else out * self.c.scale, self.c.logit_cap)

    def names(self) -> dict[str, Tensor]:
        """Parameter name -> tensor, a tied head once: what is delivered and fingerprinted."""
        return dict(self.inner.named_parameters())

    def extend(self, ids: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """The next tokens of rows after what `past` holds, by transformers' cache, which changes in place (Model.extend)."""
        if self.past is None:
            return super().extend(ids, past)
        given = {} if past is None else {self.past: past}
        out = self.inner.base_model(input_ids=ids, use_cache=True, **given)
        return out.last_hidden_state, out[self.past]

    def pick(self, past: Any, rows: Tensor) -> Any:
        """What `past` holds of some rows; it changes in place."""
        if self.past is None:
            return super().pick(past, rows)
        past.reorder_cache(rows)
        return past

    def save(self, folder: Path, **more: Any) -> None:
        """Write config.json and model.safetensors (or shards) by save_pretrained; `more`: keys of config.json and generation_config.json."""
        self.inner.save_pretrained(folder, max_shard_size="5GB")
        for name in ("config.json", "generation_config.json"):
            if (file := folder / name).is_file():
                data = json.loads(file.read_text())
                file.write_text(json.dumps(data | {k: v for k, v in more.items() if v is not None}, indent=2) + "\n")


def library(what: str) -> Any:
    """The module transformers. Raises BadCheckpoint saying what to install for `what`, where it is not there."""
    try:
        import transformers
    except ModuleNotFoundError:
        raise BadCheckpoint(f"{what}, and runs through the library transformers, which is not installed; pip install 'selfteach[hf]'") from None
    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        transformers.utils.logging.set_verbosity_error()  # advice about kernels, and loading bars
        transformers.utils.logging.disable_progress_bar()
    return transformers


def load(folder: Path, kind: str, dtype: torch.dtype = torch.float32) -> Foreign:
    """A model without its tokenizer, by transformers, from safetensors on disk alone.

    Raises BadCheckpoint naming the file and what is wrong: transformers is missing or does not know the model_type, tensors are missing or
    left over, the model wants code of its own, is not causal, or has logits that are not its output embedding's.
    """
    file = folder / "config.json"
    hf = library(f"{file}: model_type {kind!r} is none of selfteach's own families")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if kind not in KNOWN:
        raise BadCheckpoint(
            f"{file}: model_type {kind!r} cannot be loaded: transformers has no causal model of it; {nearest(kind, {*FAMILIES, *KNOWN})}"
        )
    try:
        inner, info = hf.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:
        raise BadCheckpoint(f"{folder}: transformers cannot load it ({_line(error)})") from error
    for lost in sorted(map(str, info["missing_keys"]))[:1]:
        raise BadCheckpoint(f"{folder}: its weights lack {lost}, which a {kind} as in config.json has; take both anew from where the model is from")
    for left in sorted(map(str, info["unexpected_keys"]))[:1]:
        raise BadCheckpoint(
            f"{folder}: its weights hold {left}, which a {kind} as in config.json has not; take both anew from where the model is from"
        )
    for t in (*inner.parameters(), *inner.buffers()):
        t.data = t.data.clone()  # they may be the mapped file itself, and what is trained must not depend on a file staying as it is
    return tried(wrapped(inner.eval().requires_grad_(False), kind, hf.__version__, folder), folder)


def wrapped(inner: Any, kind: str, version: str, folder: Path) -> Foreign:
    """A model of transformers behind our doors. Raises BadCheckpoint where it has no trunk and output embedding to take apart."""
    config = inner.config.get_text_config()
    head = inner.get_output_embeddings()
    if inner.base_model is inner or getattr(head, "weight", None) is None:
        raise BadCheckpoint(f"{folder}: {kind} has no output embedding over hidden states, which learning needs")
    length = next((n for name in CONTEXTS if isinstance(n := getattr(config, name, None), int) and n > 0), UNBOUNDED)
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    vocab, width = head.weight.shape
    return Foreign(inner, Shape(kind, vocab, width, length, f"transformers {version}", scale, None if cap is None else float(cap)))


@torch.no_grad()
def tried(model: Foreign, folder: Path) -> Foreign:
    """The model, after a short text has shown that it is what we take it for; without its cache where that changes what it says."""
    n = min(PROBE, model.c.max_length)
    ids = (torch.arange(2 * n) * 7 + 3).remainder(model.c.vocab).view(2, n)
    near = 1e-3 if model.lm_head.weight.dtype in (torch.float32, torch.float64) else 5e-2

    def same(a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and bool((a - b).abs().max() <= near * (1 + b.abs().max()))

    try:
        whole, right = model(ids), model.inner(input_ids=ids, use_cache=False).logits
        short = model(ids[:, : n // 2])
    except Exception as error:
        raise BadCheckpoint(f"{folder}: transformers loads this {model.c.kind}, but cannot run it here ({_line(error)})") from error
    if not same(short, whole[:, : n // 2]):
        raise BadCheckpoint(f"{folder}: this {model.c.kind} is not causal (what follows changes what comes before), so it cannot be sampled from")
    if not same(model.logits(whole), right):
        raise BadCheckpoint(
            f"{folder}: the logits of this {model.c.kind} are not its output embedding of its last hidden states, so it cannot be taught"
        )
    try:
        first, past = model.extend(ids[:, : n // 2])
        past = model.pick(past, torch.tensor([1, 0, 1]))
        parts = [first[[1, 0, 1]]]
        for at in range(n // 2, n):
            hidden, past = model.extend(ids[[1, 0, 1], at : at + 1], past)
            parts.append(hidden)
        cached = same(torch.cat(parts, 1), whole[[1, 0, 1]])
    except Exception:  # whatever a cache of an unknown kind may raise, there is a way without it
        cached = False
    if not cached:
        model.past = None
    return model


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
