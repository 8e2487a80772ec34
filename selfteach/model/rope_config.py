"""Rotary positions in config.json: `rope_theta` and `rope_scaling` (transformers 4), `rope_parameters` (5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .rotary import RopeScaling

Data = Mapping[str, Any]
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor")
COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}
KINDS: dict[str, set[str]] = {  # scaling -> the keys it may have besides
    "default": set(),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
}


class UnsupportedConfig(Exception):
    """Something in a config.json that is not supported; callers raise it as a BadCheckpoint naming the file."""


def theta_of(data: Data, default: float) -> float:
    """The base of the rotary frequencies."""
    theta = _rope(data).get("rope_theta") or data.get("rope_theta") or default
    if not isinstance(theta, int | float) or theta <= 1:
        raise UnsupportedConfig(f"rope_theta is {theta!r}, and must be a number above 1")
    return float(theta)


def scaling_of(data: Data) -> RopeScaling | None:
    """The scaling of positions; None: none. Raises UnsupportedConfig for an unknown type, or key of one."""
    rope = _rope(data)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in KINDS:
        raise UnsupportedConfig(f"rope_scaling of the type {kind!r} is not known; there are: {', '.join(KINDS)}")
    for key, value in rope.items():
        if key not in COMMON | KINDS[kind] and value is not None:
            raise UnsupportedConfig(f"rope_scaling of the type {kind} has {key}, which is not understood")
    for holder in (data, rope):
        if holder.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise UnsupportedConfig(
                f"partial_rotary_factor is {holder['partial_rotary_factor']}: heads turned in part are not supported"
            )
    if kind == "default":
        return None
    lacking = sorted(
        k
        for k in {"factor", "low_freq_factor", "high_freq_factor"} & KINDS[kind]
        if not isinstance(rope.get(k), int | float)
    )
    if lacking and not (kind == "yarn" and rope.get("factor") is None):
        raise UnsupportedConfig(f"rope_scaling of the type {kind} lacks the number {lacking[0]}")
    length = data["max_position_embeddings"]
    original = int(rope.get("original_max_position_embeddings") or length)
    factor = float(rope["factor"] if rope.get("factor") is not None else length / original)
    if factor < 1:
        raise UnsupportedConfig(f"rope_scaling has the factor {factor}, and must have one of at least 1")
    if kind == "llama3":
        return RopeScaling(
            kind, factor, original, low=float(rope["low_freq_factor"]), high=float(rope["high_freq_factor"])
        )
    if kind == "yarn":
        fast, slow = float(rope.get("beta_fast") or 32), float(rope.get("beta_slow") or 1)
        return RopeScaling(
            kind,
            factor,
            original,
            fast=fast,
            slow=slow,
            attention=_attention(rope, factor),
            truncate=rope.get("truncate") is not False,
        )
    return RopeScaling(kind, factor)


def _attention(rope: Data, factor: float) -> float:
    """Factor of cos and sin in yarn: 0.1 ln(factor) + 1 (Peng et al. 2023, eq. 22), or that of the file."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    grown = lambda m: 0.1 * m * math.log(factor) + 1  # noqa: E731
    top, bottom = rope.get("mscale"), rope.get("mscale_all_dim")
    return grown(top) / grown(bottom) if top and bottom else grown(1)


def local_rope(data: Data) -> dict[str, Any]:
    """Gemma 3's two tables: one for the full layers, one without scaling for those with a window."""
    tables = data.get("rope_parameters") or {}
    if tables and not tables.keys() <= {"full_attention", "sliding_attention"}:
        raise UnsupportedConfig("rope_parameters must name full_attention and sliding_attention")
    windowed = tables.get("sliding_attention") or {}
    if scaling_of({**data, "rope_parameters": windowed, "rope_scaling": None}) is not None:
        raise UnsupportedConfig("rope_parameters of sliding_attention are stretched, which is not supported")
    full = {**(tables.get("full_attention") or {}), **(data.get("rope_scaling") or {})}
    whole = {**data, "rope_parameters": full, "rope_scaling": None}
    local = windowed.get("rope_theta") or data.get("rope_local_base_freq") or 10_000.0
    return {"rope_theta": theta_of(whole, 1_000_000.0), "scaling": scaling_of(whole), "local_theta": float(local)}


def rope_to_json(s: RopeScaling | None) -> dict[str, Any] | None:
    """`rope_scaling` as transformers 4 and 5 and vLLM read it."""
    if s is None:
        return None
    out: dict[str, Any] = {"rope_type": s.kind, "factor": s.factor}
    if s.kind in ("llama3", "yarn"):
        out["original_max_position_embeddings"] = s.original
    if s.kind == "llama3":
        out |= {"low_freq_factor": s.low, "high_freq_factor": s.high}
    if s.kind == "yarn":
        out |= {"beta_fast": s.fast, "beta_slow": s.slow, "attention_factor": s.attention, "truncate": s.truncate}
    return out


def _rope(data: Data) -> Data:
    rope = data.get("rope_scaling") or data.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise UnsupportedConfig(f"rope_scaling is {rope!r}, and must be a table")
    return rope
