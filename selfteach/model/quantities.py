"""The quantities that any method may name: log-probabilities, entropies, hidden states, heads (core/quantity.py).

A method's own quantity is in the method's file.
"""

from __future__ import annotations

from ..core.errors import BadValue, unknown
from ..core.lazy import torch
from ..core.quantity import quantity
from ..core.registry import quantities


@quantity
def logp(*, logprobs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probability of the token under the distribution that it was sampled from (its temperature)."""
    return logprobs.gather(-1, ids[:, None]).squeeze(-1)


@quantity
def raw_logp(*, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Log-probability of the token at temperature 1."""
    return logits.gather(-1, ids[:, None]).squeeze(-1) - logits.logsumexp(-1)


@quantity
def entropy(*, logprobs: torch.Tensor) -> torch.Tensor:
    """Entropy of the distribution that the token was drawn from, in nats."""
    return -(logprobs.exp() * logprobs).sum(-1)


@quantity
def mean_logp(*, logprobs: torch.Tensor) -> torch.Tensor:
    """Mean log-probability over the vocabulary (self-certainty, uniform cross-entropy)."""
    return logprobs.mean(-1)


@quantity
def vocab_logits(*, logits: torch.Tensor) -> torch.Tensor:
    """The logits of all ids [N, V], for what compares whole distributions of two models; as much memory as that is."""
    return logits


@quantity
def lse(*, logits: torch.Tensor) -> torch.Tensor:
    """Log of the sum of exp over the logits, at temperature 1."""
    return logits.logsumexp(-1)


@quantity
def last_hidden(*, hidden: torch.Tensor) -> torch.Tensor:
    """The last hidden state before the token, a vector."""
    return hidden


@quantity
def residuals(*, residuals: torch.Tensor) -> torch.Tensor:
    """The residual stream after each layer, before the token: a vector for each of L layers, [N, L, D]."""
    return residuals


@quantity
def value(*, value: torch.Tensor) -> torch.Tensor:
    """The value head's output before the token: the value of the state in which it was sampled."""
    return value


@quantity
def scalar_after(*, scalar_after: torch.Tensor) -> torch.Tensor:
    """The scalar head's output after the token (a reward model's)."""
    return scalar_after


def compute(name: str, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """The quantity `name` of the tensors in `given`. Raises UnknownName where the model lacks the head it reads."""
    q = quantities.get(name)
    if q.scope == "group":
        raise BadValue(
            f"quantity {name}: it is of a whole group and has no gradient; name it in an assigner (credit, or an "
            "update's assign)"
        )
    for need in q.needs:
        if need not in given:
            raise unknown(f"input of the quantity {name}", need, given)
    return q.fn(**{n: given[n] for n in q.needs})


def logprobs(logits: torch.Tensor, temperature: torch.Tensor | float) -> torch.Tensor:
    """Log-probabilities log_softmax(logits / temperature), [N, V]; temperature [N] or one number.

    In float32, or in float64 where the model is. Sampler and learner share this function.
    """
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if isinstance(temperature, torch.Tensor):
        return (scores / temperature[:, None]).log_softmax(-1)
    # Dividing by 1 changes no bit and costs a pass.
    return (scores if temperature == 1 else scores / temperature).log_softmax(-1)
