"""The models of a method that an engine must hold."""

from __future__ import annotations

from ..core.method import Method
from ..core.scoring import nested


def named_model_roles(method: Method) -> set[str]:
    """The models that a program, select, reward or decode program names: their scalar heads may be read in episodes."""
    parts = [*method.decode.values(), *(p for s in method.stages for p in (s.select, *s.programs.values(), *s.reward))]
    parts += [n for p in parts for n in nested(p)]
    return {v for p in parts for v in p.hyper_parameters.values() if isinstance(v, str) and v in method.models}


def engine_model_roles(method: Method) -> list[str]:
    """The models that an engine holds: those with a vocabulary head, and the named ones.

    The reference model is computed by the learner, unless it is named.
    """
    named = named_model_roles(method)
    return [name for name, m in method.models.items() if name in named or ("vocab" in m.heads and name != "ref")]
