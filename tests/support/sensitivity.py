"""Whether a hyper-parameter of a method changes what the method does: its structure, or what a block of it does.

Blocks of columns (credit assigners, loss terms, loss weights) and schedules are run on random columns at several steps
of a run. Other blocks (programs, rewards, curricula, composers) must read the hyper-parameter, and a test set it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from selfteach.core import BadValue, Batch, Block, Example, History, Method, Segment, collate
from selfteach.core.blocks import initial_state
from selfteach.core.method import MethodEntry

STEPS = (0, 1, 2, 3, 5, 8, 13, 21, 40, 79, 150)
TESTS = Path(__file__).parents[1]
COLUMNS = (
    "credit",
    "assign",
    "where",
    "fn",
    "loss_weights",
    "coef",
    "lr",
    "when",
    "until",
)  # slots of blocks of columns


# ---- values to try


def alternatives(p: inspect.Parameter) -> list[Any]:
    """Other values than the default that a hyper-parameter may take."""
    default, args = p.default, typing.get_args(p.annotation)
    if typing.get_origin(p.annotation) is Literal:
        return [value for value in args if value != default]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int):
        return [default + 1, 3]
    if isinstance(default, float):
        return [default / 2, default * 2] if default and np.isfinite(default) else [0.1]
    if isinstance(default, tuple):
        return [default[:-1] if default else ("other",)]
    if default is None:
        return [{int: 3, float: 0.25, str: "other", bool: True}.get(t, "other") for t in args if t is not type(None)]
    return [f"{default}-other"]


def build(entry: MethodEntry[Any], **values: Any) -> Method | str:
    """The method, or why it refuses the values."""
    try:
        return entry(**values)
    except BadValue as error:
        return str(error)


def rows(made: Method | str) -> Any:
    return made if isinstance(made, str) else made.table()


def changes(entry: MethodEntry[Any], name: str) -> Iterator[tuple[Method | str, Method | str]]:
    """Pairs of a method with and without another value of a hyper-parameter, which differ; in the surroundings of the
    defaults, or (a hyper-parameter of one variant) of another choice for one of the others.
    """
    parameters = entry.hyper_parameters
    others = sorted((k for k in parameters if k != name), key=lambda k: _is_number(parameters[k].default))
    for around in [{}, *({k: v} for k in others for v in alternatives(parameters[k]))]:
        for value in alternatives(parameters[name]):
            plain, other = build(entry, **around), build(entry, **around, **{name: value})
            refused = isinstance(other, str) and not isinstance(value, str)
            if rows(plain) != rows(other) and not refused:
                yield plain, other


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def matters(entry: MethodEntry[Any], name: str) -> bool:
    """Whether another value of a hyper-parameter changes what the method does."""
    return any(reacts(plain, other, name) for plain, other in changes(entry, name))


# ---- what differs


def slots(method: Method) -> dict[str, Any]:
    """Everything that a method is made of, by its place."""
    out: dict[str, Any] = {}
    for i, s in enumerate(method.stages):
        out |= {
            f"{i}.{n}": getattr(s, n)
            for n in ("groups", "rollouts", "sampling", "sync", "enter", "reset", "data", "staleness")
        }
        out |= {f"{i}.select": s.select, f"{i}.until": s.until, f"{i}.sampler": s.sampler}
        out |= {f"{i}.program.{k}": p for k, p in s.programs.items()}
        out |= {f"{i}.reward.{k}": p for k, p in enumerate(s.reward)}
        out |= {f"{i}.credit.{k}": p for k, p in enumerate(s.credit)}
        for j, u in enumerate(s.updates):
            out |= {
                f"{i}.{j}.{n}": getattr(u, n)
                for n in ("params", "where", "epochs", "minibatches", "lr", "when", "reset")
            }
            out |= {f"{i}.{j}.assign.{k}": p for k, p in enumerate(u.assign)}
            for t, term in enumerate(u.terms):
                out |= {
                    f"{i}.{j}.{t}.{n}": getattr(term, n) for n in ("fn", "on", "loss_weights", "coef", "denominator")
                }
    for n in ("weights", "models", "tools", "decode"):
        out |= {f"{n}.{k}": v for k, v in getattr(method, n).items()}
    return out | {"repeat": method.repeat, "quantise": method.quantise}


def reacts(plain: Method | str, other: Method | str, name: str) -> bool:
    """Whether two methods that differ in the hyper-parameter `name` do something different."""
    if isinstance(plain, str) or isinstance(other, str):
        return True
    a, b = slots(plain), slots(other)
    return any(_different(a.get(k), b.get(k), k, name) for k in {**a, **b} if a.get(k) != b.get(k))


def _different(x: Any, y: Any, slot: str, name: str) -> bool:
    """Whether two values of a slot do something different; other numbers and other blocks do by what a slot is."""
    if not (isinstance(x, Block) and isinstance(y, Block) and x.fn is y.fn and x.reads == y.reads):
        return True
    if any(kind in slot.split(".") for kind in COLUMNS) and "groups" not in x.needs:
        term = slot.endswith(".fn")
        if outcome(x, term) != outcome(y, term):
            return True
    values = [(k, v, y.hyper_parameters[k]) for k, v in x.hyper_parameters.items() if v != y.hyper_parameters[k]]
    if any(_read_and_tested(x, own, name) for own, _, _ in values):
        return True
    inner = [pair for _, v, w in values for pair in zip(_blocks(v), _blocks(w), strict=False)]
    return any(p != q and _different(p, q, slot, name) for p, q in inner)


def _blocks(value: Any) -> list[Block]:
    if isinstance(value, Block):
        return [value]
    return [p for v in value for p in _blocks(v)] if isinstance(value, tuple) else []


# ---- blocks that cannot be run here


def _read_and_tested(part: Block, own: str, name: str) -> bool:
    """Whether a block reads a hyper-parameter, and a call of the block, or any in the tests of its file, sets it.

    own, name: what the block and the method call it.
    """
    tests = f"test_{part.fn.__module__.rsplit('.', 1)[-1]}"
    return own in _names_read(part.fn) and bool({(part.name, own), (tests, own), (tests, name)} & arguments_in_tests())


@cache
def _names_read(fn: Any) -> frozenset[str]:
    tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(fn)))
    return frozenset(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


@cache
def arguments_in_tests() -> frozenset[tuple[str, str]]:
    """(called, argument) and (file, argument) of every call with named arguments in the tests."""
    found: set[tuple[str, str]] = set()
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).split(".")[-1]
                found |= {(c, k.arg) for c in (called, file.stem) for k in node.keywords if k.arg}
    return frozenset(found)


# ---- blocks of columns


def outcome(part: Block, term: bool) -> str:
    """A hash of what a block of columns or a schedule gives on random columns at several steps; of a term also of the
    gradients.
    """
    key = (part.fn, str(part), term)
    if key not in _outcomes:
        _outcomes[key] = _outcome(part, term)
    return _outcomes[key]


_outcomes: dict[tuple[Any, str, bool], str] = {}


def _outcome(part: Block, term: bool) -> str:
    found = hashlib.blake2b(digest_size=8)
    state = initial_state(part) if "state" in part.needs else None
    for step in STEPS:
        given = _inputs(part, step)
        if term:
            given = {n: _leaf(v) for n, v in given.items()}
        if "state" in part.needs:
            value, state = part(**given, state=state)
        else:
            value = part(**given)
        _add(found, value)
        if term:
            loss = value[0] if isinstance(value, tuple) else value
            leaves = [v for v in given.values() if v.requires_grad]
            _add(found, torch.autograd.grad(loss.sum(), leaves, allow_unused=True))
    return found.hexdigest()


def _leaf(column: np.ndarray) -> torch.Tensor:
    return torch.tensor(column, requires_grad=column.dtype.kind == "f")


def _add(found: Any, value: Any) -> None:
    """Take a value into a hash: arrays by their bytes, whatever holds arrays by its items."""
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, tuple | list):
        for v in value:
            _add(found, v)
    else:
        plain = isinstance(value, np.ndarray) and value.dtype != object
        found.update(np.ascontiguousarray(value).tobytes() if plain else repr(value).encode())


LENGTHS = ((2, 3, 3, 1), (10, 5, 6, 20), (2, 4, 100, 127, 131, 8, 3, 5, 2, 1))  # of sequences, by group


@cache
def _layout() -> Batch:
    """A batch of three groups of sequences, for its indices; a group's sequences begin alike, and every other one is
    preferred over the next.
    """
    rng, examples = np.random.default_rng(0), []
    for g, lengths in enumerate(LENGTHS):
        for i, length in enumerate(lengths):
            answer = tuple(rng.integers(0, 3, length).tolist())
            over = (len(examples) + 1,) if i % 2 == 0 else ()
            parts = (Segment((1, 2), None), Segment(answer, "main"))
            examples.append(Example(parts, "policy", f"g{g}", f"g{g}/{i}", preferred_over=over))
    return collate(examples, {}.__getitem__)


def _inputs(part: Block, step: int) -> dict[str, Any]:
    """What a block names: indices of a batch, and for every other column random numbers of its kind."""
    batch, rng, given = _layout(), np.random.default_rng(step), dict[str, Any]()
    spread, near = (0.0003, 0.1, 0.5, 1.5)[step % 4], -np.abs(rng.standard_normal(batch.size("token")))
    for name, unit in part.needs.items():
        if name == "history":
            given[name] = History(step=step)
        elif name != "state":
            column = part.reads.get(name, name)
            wide = spread * rng.standard_normal(len(near))
            given[name] = near + wide if column.endswith("logp") else _column(batch, column, unit, rng)
    return given


def _column(batch: Batch, name: str, unit: Any, rng: np.random.Generator) -> Any:
    if name in ("seq", "group", "step", "batch", "id", "pos", "loss_stream", "win", "lose"):
        return batch.get(name, unit)
    n = batch.size(unit)
    if name == "length":
        return batch.lengths()
    if name in ("task", "category", "role"):
        return np.array([f"{name}{i}" for i in rng.integers(0, 2, n)], object)
    if name == "last_hidden" or name.endswith("vocab_logits"):
        return rng.standard_normal((n, 4))
    if name == "label" or name == "reward":
        return rng.integers(0, 2, n).astype(np.float64) if rng.random() < 0.7 else rng.random(n)
    if name in ("necessary", "thinking"):
        return rng.integers(1, 6, n).astype(np.float64)
    return rng.random(n) if name in ("rate", "self_reward") else rng.standard_normal(n)
