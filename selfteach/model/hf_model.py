"""Models of other families, run by the library transformers (imported only here): slower, same interface.

Rows are whole texts, and sampling uses transformers' own cache. Loading a model verifies that it is causal, that its
logits are its output embedding of its last hidden states, and that its cache changes nothing. Code that comes with a
checkpoint is never run.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import BadCheckpoint, BadValue, nearest
from .attention import AttentionFn, causal_attention, soft_cap
from .base import Model
from .hf_config import FAMILIES
from .outside_files import check_finite

UNBOUNDED = 1 << 20  # a context, in tokens, of a model that has no positions (state spaces, relative biases)
CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "context_length",
    "n_ctx",
)
CACHE_KEYS = ("past_key_values", "cache_params")  # names of the argument that takes the cache
PROBE_TOKENS = 12  # tokens


@dataclass(frozen=True)
class HFModelConfig:
    """The shape of a model run by transformers.

    kind         its model_type
    vocab        number of token ids
    width        of the last hidden state
    max_length   context length, in tokens
    backend      the library and its version
    scale        factor of the logits;  logit_cap: their soft-cap
    """

    kind: str
    vocab: int
    width: int
    max_length: int
    backend: str
    scale: float = 1.0
    logit_cap: float | None = None


class HFModel(Model):
    """A causal model of transformers. Parameters carry the names that it gives them."""

    supports_custom_attention = False

    def __init__(self, inner: Any, c: HFModelConfig) -> None:
        super().__init__()
        self.config = c
        self.inner = inner
        self.lm_head = inner.get_output_embeddings()
        self.plain_head = c.scale == 1 and getattr(self.lm_head, "bias", None) is None
        known = inspect.signature(inner.base_model.forward).parameters
        # None: without a cache, everything is computed again for each token.
        self.cache_argument = next((name for name in CACHE_KEYS if name in known), None)

    def forward(self, ids: Tensor, attend: AttentionFn = causal_attention, positions: Tensor | None = None) -> Tensor:
        """Hidden states [B, T, width], after the last norm, of ids i64[B, T].

        Raises BadValue beyond the context, or for another attention than `causal_attention`.
        """
        if attend is not causal_attention or positions is not None:
            raise BadValue(
                f"model: {self.config.kind} runs through transformers, which takes whole rows and no custom attention"
            )
        if ids.shape[1] > self.config.max_length:
            raise BadValue(f"model: {ids.shape[1]} tokens do not fit its context of {self.config.max_length}")
        return self.inner.base_model(input_ids=ids, use_cache=False).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocab] of hidden states [..., width]."""
        out = self.lm_head(hidden)
        return soft_cap(out if self.config.scale == 1 else out * self.config.scale, self.config.logit_cap)

    def named_tensors(self) -> dict[str, Tensor]:
        """Parameters by name, a tied head once: what engines receive and fingerprints are made of."""
        return dict(self.inner.named_parameters())

    def extend(self, ids: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """(hidden, state) of the next tokens (`Model.extend`), by transformers' cache, which changes in place."""
        if self.cache_argument is None:
            return super().extend(ids, past)
        given = {} if past is None else {self.cache_argument: past}
        out = self.inner.base_model(input_ids=ids, use_cache=True, **given)
        return out.last_hidden_state, out[self.cache_argument]

    def select_rows(self, past: Any, rows: Tensor) -> Any:
        """The state `past` of some rows; it changes in place."""
        if self.cache_argument is None:
            return super().select_rows(past, rows)
        past.reorder_cache(rows)
        return past

    def save(self, folder: Path, **more: Any) -> None:
        """Write config.json and model.safetensors (or shards) by save_pretrained.

        more  further keys of config.json and generation_config.json
        """
        self.inner.save_pretrained(folder, max_shard_size="5GB")
        for name in ("config.json", "generation_config.json"):
            if (file := folder / name).is_file():
                data = json.loads(file.read_text(encoding="utf-8"))
                file.write_text(
                    json.dumps(data | {k: v for k, v in more.items() if v is not None}, indent=2) + "\n",
                    encoding="utf-8",
                )


def import_transformers(what: str) -> Any:
    """The module transformers. Raises BadCheckpoint saying that `what` needs it, where it is not installed."""
    try:
        import transformers
    except ModuleNotFoundError:
        raise BadCheckpoint(
            f"{what}, and runs through the library transformers, which is not installed; pip install 'selfteach[hf]'"
        ) from None
    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        transformers.utils.logging.set_verbosity_error()  # advice about kernels, and loading bars
        transformers.utils.logging.disable_progress_bar()
    return transformers


def load(folder: Path, kind: str, dtype: torch.dtype = torch.float32) -> HFModel:
    """A model without its tokenizer, by transformers, from safetensors on disk alone.

    Raises BadCheckpoint naming the file and what is wrong: transformers is missing or does not know the model_type,
    tensors are missing or left over, the model wants code of its own, is not causal, or has logits that are not its
    output embedding's.
    """
    file = folder / "config.json"
    hf = import_transformers(f"{file}: model_type {kind!r} is none of selfteach's own families")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as KNOWN

    if kind not in KNOWN:
        raise BadCheckpoint(
            f"{file}: model_type {kind!r} cannot be loaded: transformers has no causal model of it; "
            f"{nearest(kind, {*FAMILIES, *KNOWN})}"
        )
    try:
        inner, info = hf.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise BadCheckpoint(f"{folder}: transformers cannot load it ({_line(error)})") from error
    for lost in sorted(map(str, info["missing_keys"]))[:1]:
        raise BadCheckpoint(
            f"{folder}: its weights lack {lost}, which a {kind} as in config.json has; download both again"
        )
    for left in sorted(map(str, info["unexpected_keys"]))[:1]:
        raise BadCheckpoint(
            f"{folder}: its weights hold {left}, which a {kind} as in config.json has not; download both again"
        )
    for name, p in inner.named_parameters():
        check_finite(folder, name, p.data)
    for t in (*inner.parameters(), *inner.buffers()):
        t.data = t.data.clone()  # it may be the mapped file, which can change while the model is trained
    return verify(wrap(inner.eval().requires_grad_(False), kind, hf.__version__, folder), folder)


def wrap(inner: Any, kind: str, version: str, folder: Path) -> HFModel:
    """A model of transformers as a `Model`.

    Raises BadCheckpoint where trunk and output embedding cannot be separated.
    """
    config = inner.config.get_text_config()
    head = inner.get_output_embeddings()
    if inner.base_model is inner or getattr(head, "weight", None) is None:
        raise BadCheckpoint(f"{folder}: {kind} has no output embedding over hidden states, which learning needs")
    length = context_length(config, folder)
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    vocab, width = head.weight.shape
    return HFModel(
        inner,
        HFModelConfig(
            kind, vocab, width, length, f"transformers {version}", scale, None if cap is None else float(cap)
        ),
    )


def context_length(config: Any, folder: Path) -> int:
    """The usable context of a model, in tokens.

    LongRoPE (Ding et al. 2024, Phi-3) changes the frequencies of a whole batch as soon as its longest text exceeds the
    original context: a text's log-probabilities would depend on the batch, and a cache would mix keys of both. So the
    context is the original one.
    """
    length = next(
        (n for name in CONTEXT_KEYS if isinstance(n := getattr(config, name, None), int) and n > 0), UNBOUNDED
    )
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    tables = [rope, *(table for table in rope.values() if isinstance(table, dict))]
    original = [
        table.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", length)
        for table in tables
        if table.get("rope_type", table.get("type")) in ("longrope", "su")
    ]
    if min([length, *original]) < length:
        length = min(original)
        warnings.warn(
            f"{folder}: its context is limited to {length} tokens: beyond that LongRoPE has other frequencies",
            stacklevel=2,
        )
    return length


@torch.no_grad()
def verify(model: HFModel, folder: Path) -> HFModel:
    """The model, after checks on a short text; without its cache where that changes the hidden states.

    Raises BadCheckpoint where it is not causal, or its logits are not its output embedding's.
    """
    n = min(PROBE_TOKENS, model.config.max_length)
    ids = (torch.arange(2 * n) * 7 + 3).remainder(model.config.vocab).view(2, n)
    tolerance = 1e-3 if model.lm_head.weight.dtype in (torch.float32, torch.float64) else 5e-2

    def same(a: Tensor, b: Tensor) -> bool:
        return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * (1 + b.abs().max()))

    try:
        whole, right = model(ids), model.inner(input_ids=ids, use_cache=False).logits
        short = model(ids[:, : n // 2])
    except Exception as error:
        raise BadCheckpoint(
            f"{folder}: transformers loads this {model.config.kind}, but cannot run it here ({_line(error)})"
        ) from error
    if not same(short, whole[:, : n // 2]):
        raise BadCheckpoint(
            f"{folder}: this {model.config.kind} is not causal (what follows changes what comes before), "
            "so it cannot be sampled from"
        )
    if not same(model.logits(whole), right):
        raise BadCheckpoint(
            f"{folder}: the logits of this {model.config.kind} are not its output embedding of its last hidden "
            "states, so it cannot be trained"
        )
    try:
        first, past = model.extend(ids[:, : n // 2])
        past = model.select_rows(past, torch.tensor([1, 0, 1]))
        parts = [first[[1, 0, 1]]]
        for at in range(n // 2, n):
            hidden, past = model.extend(ids[[1, 0, 1], at : at + 1], past)
            parts.append(hidden)
        cached = same(torch.cat(parts, 1), whole[[1, 0, 1]])
    except Exception:  # whatever an unknown cache may raise: the model runs without it
        cached = False
    if not cached:
        model.cache_argument = None
    return model


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
