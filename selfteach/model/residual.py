"""The residual stream after a model's layers: read as it passes, and changed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ..core.errors import BadValue


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: those of its largest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return list(max(lists, key=lambda m: sum(p.numel() for p in m.parameters()))) if lists else []


def check_steering(model: nn.Module, width: int, layer: int, size: int) -> None:
    """Raise BadValue where a vector of `size` numbers cannot be added after a layer of a model of this width."""
    n = len(layers_of(model))
    if layer >= n:
        raise BadValue(f"steering: layer {layer} is not there, the model has layers 0 to {n - 1}")
    if size != width:
        raise BadValue(f"steering: the vector has {size} numbers, and the model's residual stream {width}")


@contextmanager
def changed(model: nn.Module, changes: Mapping[int, Callable[[Tensor], Tensor]]) -> Generator[None]:
    """Within it, what a layer (by its number) gives, [..., width], is what its function makes of that."""

    def hook(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Any, Any], Any]:
        def changed_output(module: nn.Module, given: Any, out: Any) -> Any:
            return (change(out[0]), *out[1:]) if isinstance(out, tuple) else change(out)  # a tuple: of transformers

        return changed_output

    layers = layers_of(model) if changes else []
    with ExitStack() as hooks:
        for number, change in changes.items():
            hooks.enter_context(_removed(layers[number].register_forward_hook(hook(change))))
        yield


@contextmanager
def kept(model: nn.Module) -> Generator[list[Tensor]]:
    """A list that has, after a forward pass within it, what each layer gave: [..., width]."""
    found: list[Tensor] = []

    def keep(out: Tensor) -> Tensor:
        found.append(out)
        return out

    with changed(model, dict.fromkeys(range(len(layers_of(model))), keep)):
        yield found


@contextmanager
def _removed(handle: Any) -> Generator[None]:
    try:
        yield
    finally:
        handle.remove()
