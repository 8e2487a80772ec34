"""Mutation check: which small faults in blocks the tests find.

    make mutants                                            a sample of 100, as many at a time as there are cores
    .venv/bin/python scripts/mutants.py --sample 40 --seed 7 --only credit/returns.py

A mutant is a block (a function under @block in a slot's package or a method's file) with one sign, comparison, constant
or operator changed, or one term dropped. Nothing is written: each mutant is a forked process in which the block's code
is replaced, and which runs the tests that can see the block: those that name it, those of its file and of the methods
that use it, and the battery of these methods. Exits 1 where fewer than the target share are killed.
"""

from __future__ import annotations
import __future__ as future

import argparse
import ast
import copy
import inspect
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PACKAGES = ("curriculum", "rollout", "reward", "credit", "objective", "methods")
SECONDS = 240  # after which a mutant that runs on counts as killed
BATTERY = ("test_columns_and_gradient_are_as_recorded", "test_a_short_real_run")

# Mutants that behave as the original does, by "block: old -> new", with the reason.
EXCUSED: dict[str, str] = {}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A block's function with one expression replaced."""

    block: str
    file: Path
    line: int
    old: str
    new: str
    tree: ast.FunctionDef | ast.AsyncFunctionDef

    def __str__(self) -> str:
        return f"{self.block}: {self.old} -> {self.new}"


# ---- making mutants


def mutants_of(name: str, fn: Callable[..., Any]) -> Iterator[Mutant]:
    """Every mutant of a block's function."""
    file = Path(inspect.getsourcefile(fn) or "")
    tree = next(n for n in ast.parse(file.read_text()).body if getattr(n, "name", "") == fn.__name__)
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    tree.decorator_list = []
    silent = {id(n) for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.JoinedStr) for n in ast.walk(node)}
    silent |= {id(n) for arg in tree.args.kwonlyargs if arg.annotation for n in ast.walk(arg.annotation)}
    nodes = list(ast.walk(tree))
    for number, node in enumerate(nodes):
        if id(node) in silent or not isinstance(node, ast.expr):
            continue
        for new in replacements(node):
            mutated = copy.deepcopy(tree)
            target = list(ast.walk(mutated))[number]
            _Replace(target, new).visit(mutated)
            ast.fix_missing_locations(mutated)
            yield Mutant(name, file, node.lineno, ast.unparse(node), ast.unparse(new), mutated)


def replacements(node: ast.expr) -> list[ast.expr]:
    """What an expression may be replaced by."""
    swap = lambda op: SWAPS[type(op)]()  # noqa: E731
    if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        out: list[ast.expr] = [ast.BinOp(node.left, swap(node.op), node.right)]
        return [*out, node.left] if isinstance(node.op, ast.Add | ast.Sub) else out
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        return [ast.Compare(node.left, [swap(node.ops[0]), *node.ops[1:]], node.comparators)]
    if isinstance(node, ast.BoolOp):
        return [ast.BoolOp(swap(node.op), node.values)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        return [node.operand]
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        value = not node.value if isinstance(node.value, bool) else node.value + 1
        return [ast.Constant(value)]
    return []


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.expr):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return copy.deepcopy(self.new) if node is self.old else self.generic_visit(node)


def sample(count: int, seed: int, only: str) -> list[Mutant]:
    """Mutants of blocks drawn evenly over blocks: a long one has no more than a short one."""
    from selfteach.core import registry

    functions = {n: inspect.unwrap(b) for n, b in registry.blocks.items()}
    rng, out = random.Random(seed), list[list[Mutant]]()
    for name, fn in functions.items():
        path = inspect.getsourcefile(fn) or ""
        if fn.__module__.startswith(tuple(f"selfteach.{p}." for p in PACKAGES)) and only in path:
            out.append([m for m in mutants_of(name, fn) if str(m) not in EXCUSED])
    for have in out:
        rng.shuffle(have)
    rng.shuffle(out)
    in_turns = [have[i] for i in range(max(map(len, out), default=0)) for have in out if i < len(have)]
    return in_turns[:count]


# ---- running the tests that see a mutant


@cache
def methods_by_block() -> dict[str, list[str]]:
    """Block -> names of the methods that use it, in any place."""
    from selfteach.core import Block, registry

    def names(value: Any) -> Iterator[str]:
        if isinstance(value, Block):
            yield value.name
            value = value.args
        elif is_dataclass(value) and not isinstance(value, type):
            value = tuple(getattr(value, f.name) for f in fields(value))
        for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else ():
            yield from names(item)

    out: dict[str, list[str]] = {}
    for method, entry in registry.methods.items():
        if not entry.build.__module__.startswith("selfteach."):
            continue  # a test's own
        for block in set(names(entry())):
            out.setdefault(block, []).append(method)
    return out


@cache
def words_of(file: Path) -> frozenset[str]:
    """The names and strings in a test file."""
    out: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        out |= {getattr(node, "id", ""), getattr(node, "attr", ""), str(getattr(node, "value", ""))}
        out |= {a.name for a in getattr(node, "names", []) if isinstance(a, ast.alias)}
    return frozenset(out)


def tests_of(mutant: Mutant) -> list[str]:
    """The tests that can see a mutant, the likeliest first: those of its file and of three methods that use it, the
    battery of these, and whatever else names the block.
    """
    from selfteach.core import registry

    methods = methods_by_block().get(mutant.block, [])[:3]
    stems = {registry.methods.get(m).build.__module__.rsplit(".", 1)[-1] for m in methods} | {mutant.file.stem}
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if f.stem not in ("test_battery", "test_architecture")]
    near = [f for f in files if f.stem.removeprefix("test_") in stems]
    far = [f for f in files if f not in near and mutant.block in words_of(f)]
    near.sort(key=lambda f: mutant.block not in words_of(f))
    battery = [f"{TESTS}/test_battery.py::{check}[{m}]" for m in methods for check in BATTERY]
    return [*map(str, near), *battery, *map(str, far)]


def survives(mutant: Mutant | None, tests: list[str]) -> bool:
    """Whether tests pass with a block mutated (None: as it is). In a process of its own.

    Raises RuntimeError where pytest could not run them.
    """
    process = multiprocessing.get_context("fork").Process(target=_run, args=(mutant, tests))
    process.start()
    process.join(SECONDS if mutant else None)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        return False
    if process.exitcode not in (0, 1, 2):  # passed, failed, stopped at a failure
        raise RuntimeError(f"{mutant}: pytest ended with exit code {process.exitcode}")
    return process.exitcode == 0


def _run(mutant: Mutant | None, tests: list[str]) -> None:
    import pytest

    os.setpgid(0, 0)
    if mutant is not None:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        replace_code(mutant)
    code = pytest.main(["-x", "--tb=line", *([] if mutant else ["-n", "logical"]), *tests])
    os._exit(int(code))


def replace_code(mutant: Mutant) -> None:
    """Give the block's function the mutant's code and defaults."""
    from selfteach.core import blocks, registry

    fn = inspect.unwrap(registry.blocks.get(mutant.block))
    made: dict[str, Any] = dict(fn.__globals__)
    module = ast.Module([mutant.tree], [])
    exec(compile(module, str(mutant.file), "exec", future.annotations.compiler_flag), made)
    fn.__code__, fn.__kwdefaults__ = made[fn.__name__].__code__, made[fn.__name__].__kwdefaults__
    for cached in vars(blocks).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=100, help="how many mutants (default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--only", default="", help="blocks of files whose path holds this")
    parser.add_argument("--target", type=float, default=0.9, help="least share to be killed (default 0.9)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(TESTS)]
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    import torch
    from support.runs import BANDIT

    from selfteach.core import registry

    torch.set_num_threads(1)
    mutants = sample(given.sample, given.seed, given.only)
    registry.load_file(BANDIT)
    tests = [tests_of(m) for m in mutants]
    if not survives(None, sorted({t for ts in tests for t in ts})):
        print("the tests fail without any mutant: mend that first")
        return 1
    alive = list[Mutant]()
    with ThreadPoolExecutor(given.jobs) as pool:
        for n, (mutant, left) in enumerate(zip(mutants, pool.map(survives, mutants, tests), strict=True), 1):
            if left:
                alive.append(mutant)
                print(f"survived  {mutant.file.relative_to(ROOT)}:{mutant.line}  {mutant}", flush=True)
            if sys.stderr.isatty():
                print(f"{n} of {len(mutants)}", end="\r", file=sys.stderr)
    share = 1 - len(alive) / max(1, len(mutants))
    print(f"{len(mutants) - len(alive)} of {len(mutants)} mutants killed ({share:.0%}); {len(EXCUSED)} excused")
    return 0 if share >= given.target else 1


if __name__ == "__main__":
    sys.exit(main())
