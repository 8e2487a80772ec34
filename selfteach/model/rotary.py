"""Rotary positions (Su et al. 2021) and the ways in which models stretch them to a longer context."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels import overrides


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies were stretched.

    kind        linear (Chen et al. 2023), dynamic (NTK by length), llama3 (Llama 3.1), yarn (Peng et al. 2023)
    factor      new context length / original one
    original    the original context length, in tokens (llama3, yarn)
    low, high   llama3: frequencies of wavelengths above original / low are divided by the factor, those below
                original / high are unchanged
    fast, slow  yarn: dimensions that turn more than `fast` times in the original context are unchanged, those that
                turn fewer than `slow` times are divided by the factor
    attention   yarn: cos and sin are multiplied by it
    truncate    yarn: the two bounds are rounded outwards to whole dimensions
    """

    kind: str
    factor: float
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    fast: float = 32.0
    slow: float = 1.0
    attention: float = 1.0
    truncate: bool = True


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Angles per position, f32[head_dim / 2]: theta^(-2i / head_dim), scaled.

    `dynamic` changes nothing here: it depends on the text's length only beyond the model's context, which no text
    exceeds.
    """
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim)
    if scaling is None or scaling.kind == "dynamic":
        return inverse
    if scaling.kind == "linear":
        return inverse / scaling.factor
    return {"llama3": _llama3, "yarn": _yarn}[scaling.kind](inverse, theta, scaling)


def _llama3(inverse: Tensor, theta: float, s: RopeScaling) -> Tensor:
    """Long wavelengths divided by the factor, short ones unchanged, those between interpolated."""
    del theta
    wavelength = 2 * math.pi / inverse
    smooth = ((s.original / wavelength - s.low) / (s.high - s.low)).clamp(0, 1)
    return (1 - smooth) * inverse / s.factor + smooth * inverse


def _yarn(inverse: Tensor, theta: float, s: RopeScaling) -> Tensor:
    """A ramp over dimensions, from those unchanged to those divided by the factor."""
    dim = 2 * len(inverse)
    low, high = (
        dim * math.log(s.original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (s.fast, s.slow)
    )
    if s.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low or 0.001)).clamp(0, 1)
    return inverse / s.factor * ramp + inverse * (1 - ramp)


def rotary_table(head_dim: int, length: int, theta: float, scaling: RopeScaling | None = None) -> tuple[Tensor, Tensor]:
    """The tables cos and sin, f32[length, head_dim], halves repeated, as in Llama's rotate-half form."""
    angle = torch.outer(torch.arange(length, dtype=torch.float32, device="cpu"), frequencies(head_dim, theta, scaling))
    angle = torch.cat([angle, angle], -1)
    if scaling is None or scaling.attention == 1.0:
        return angle.cos(), angle.sin()
    return angle.cos() * scaling.attention, angle.sin() * scaling.attention


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    """The heads x [B, T, H, hd], rotated by cos and sin of their positions ([B or 1, T, hd]); None: x itself."""
    if rotary is None:
        return x
    if (kernels := overrides.active()) and (out := kernels.rotate(x, *rotary)) is not None:
        return out
    cos, sin = rotary[0][:, :, None].to(x.dtype), rotary[1][:, :, None].to(x.dtype)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin
