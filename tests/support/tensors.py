"""Small tensors and gradients."""

from __future__ import annotations

import numpy as np
import torch


def f64(*x, grad=False):
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


def slope(fn, x):
    """Gradient of the sum of fn(x)."""
    x = x.detach().clone().requires_grad_()
    fn(x).sum().backward()
    return x.grad


def columns(seed, lengths, spread=0.5):
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    seq = torch.tensor(np.repeat(np.arange(len(lengths)), lengths))
    old = torch.tensor(-rng.exponential(size=n))
    return old + spread * torch.tensor(rng.normal(size=n)), old, torch.tensor(rng.normal(size=len(lengths))), seq


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()
