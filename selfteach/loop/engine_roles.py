"""Who of a method's cast an engine must hold."""

from __future__ import annotations

from ..core.method import Method
from ..core.scoring import nested


def named_model_roles(method: Method) -> set[str]:
    """The members that a program, a select, a reward or a way to decode names: those whose scalar heads may be asked in
    an episode.
    """
    parts = [*method.decode.values(), *(p for s in method.stages for p in (s.select, *s.programs.values(), *s.reward))]
    parts += [n for p in parts for n in nested(p)]
    return {v for p in parts for v in p.hyper_parameters.values() if isinstance(v, str) and v in method.models}


def speakers(method: Method) -> list[str]:
    """The members that an engine holds: those with a vocabulary, and the named.

    The reference is read by the learner, unless it is named.
    """
    named = named_model_roles(method)
    return [name for name, m in method.models.items() if name in named or ("vocab" in m.heads and name != "ref")]
