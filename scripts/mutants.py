"""Mutation check: which small faults in blocks the tests find.

    make mutants                                            a sample of 200, as many at a time as there are cores
    .venv/bin/python scripts/mutants.py --sample 40 --seed 7 --only credit/returns.py

A mutant is a block (a function under @block in a slot's package or a method's file) with one sign, comparison, constant
or operator changed, or one term dropped. Nothing is written. The tests are collected once and run once as they are, in
forked processes that note which blocks each test calls and how long it takes. Then each mutant is a forked process in
which the block's code is replaced, and which runs the tests that call the block, the shortest first, until one fails.
These are taken from the tests of its file and of three methods that use it, the battery of these methods, the examples
in docstrings, and the tests elsewhere that name the block. Exits 1 where fewer than the target share are killed.
"""

from __future__ import annotations
import __future__ as future

import argparse
import ast
import builtins
import contextlib
import copy
import inspect
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PACKAGES = ("curriculum", "rollout", "reward", "credit", "objective", "methods")
PATIENCE = 10  # a mutant that takes this many times what the tests take without it, and 20 s more, counts as killed
# The battery is taken by method; the others read the source, or start processes, which do not see a mutant.
APART = ("test_battery", "test_architecture", "test_docs", "test_vocabulary", "test_cli", "test_kernel_build")
BATTERY = ("test_columns_and_gradient_are_as_recorded", "test_a_short_real_run")
SIGNATURES = "test_a_number_stands_once"  # of the battery: it reads blocks and calls none

# Mutants that behave as the original does, by "block: old -> new", with the reason.
EXCUSED: dict[str, str] = {
    "class_balanced: reward >= above -> reward < above": "the two classes are treated alike, whichever is called right",
    "from_easy_to_failed: 1.0 -> 2.0": "weights that are all equal draw alike",
    "web: 0 -> 1": "of a key's draws one is as random as another",
    "citation_aware: 0.0 -> 1.0": "the largest of no shares is that of a group without answers, which pays nobody",
}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """A block's function with one expression replaced."""

    block: str
    file: Path
    line: int
    original: FunctionNode
    number: int  # of the expression, in the order of ast.walk
    old: str
    new: ast.expr

    def __str__(self) -> str:
        return f"{self.block}: {self.old} -> {ast.unparse(self.new)}"

    def tree(self) -> FunctionNode:
        """The function with the expression replaced."""
        tree = copy.deepcopy(self.original)
        _Replace(list(ast.walk(tree))[self.number], self.new).visit(tree)
        return ast.fix_missing_locations(tree)


# ---- making mutants


def tree_of(fn: Callable[..., Any]) -> FunctionNode:
    """A block's function as it is written, without its decorators."""
    file = Path(inspect.getsourcefile(fn) or "")
    tree = next(n for n in ast.parse(file.read_text(encoding="utf-8")).body if getattr(n, "name", "") == fn.__name__)
    assert isinstance(tree, FunctionNode)
    tree.decorator_list = []
    return tree


def mutants_of(name: str, fn: Callable[..., Any]) -> Iterator[Mutant]:
    """Every mutant of a block's function."""
    tree = tree_of(fn)
    silent = {id(n) for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.JoinedStr) for n in ast.walk(node)}
    # a zip's `strict` is a check that no right program fails
    silent |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.keyword) and n.arg == "strict"}
    silent |= {id(n) for arg in tree.args.kwonlyargs if arg.annotation for n in ast.walk(arg.annotation)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in silent and isinstance(node, ast.expr):
            for new in replacements(node):
                file = Path(inspect.getsourcefile(fn) or "")
                yield Mutant(name, file, node.lineno, tree, number, ast.unparse(node), new)


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
    from selfteach.core import registry
    from selfteach.loop.dependencies import blocks_in

    out: dict[str, list[str]] = {}
    for method, entry in registry.methods.items():
        if not entry.build.__module__.startswith("selfteach."):
            continue  # a test's own
        for block in {b.name for b in blocks_in(entry())}:
            out.setdefault(block, []).append(method)
    return out


@cache
def words_of(file: Path) -> list[tuple[str, frozenset[str]]]:
    """Each test function or class of a file with the names and strings in it."""

    def words(tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            yield from (getattr(node, "id", ""), getattr(node, "attr", ""), str(getattr(node, "value", "")))

    tests = [
        n for n in ast.parse(file.read_text(encoding="utf-8")).body if getattr(n, "name", "").lower().startswith("test")
    ]
    return [(getattr(n, "name", ""), frozenset(words(n))) for n in tests]


def tests_of(mutant: Mutant) -> list[str]:
    """The tests that may see a mutant, as arguments of pytest: those of its file and of three methods that use it, the
    battery of these, the examples in its docstrings, and whatever else names the block.
    """
    from selfteach.core import registry

    methods = methods_by_block().get(mutant.block, [])[:3]
    own = [n for n, e in registry.methods.items() if e.build.__module__ == f"selfteach.methods.{mutant.file.stem}"]
    stems = {registry.methods.get(m).build.__module__.rsplit(".", 1)[-1] for m in methods} | {mutant.file.stem}
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if f.stem not in APART]
    near = [f for f in files if f.stem.removeprefix("test_") in stems]
    battery = [f"{TESTS}/test_battery.py::{check}[{m}]" for m in methods for check in BATTERY]
    battery += [f"{TESTS}/test_battery.py::{SIGNATURES}[{m}]" for m in own[:1]]
    far = [f"{f}::{test}" for f in files if f not in near for test, words in words_of(f) if mutant.block in words]
    module = ".".join(mutant.file.relative_to(ROOT).with_suffix("").parts)
    examples = (
        [f"{TESTS}/test_docstrings.py::test_examples[{module}]"]
        if ">>> " in mutant.file.read_text(encoding="utf-8")
        else []
    )
    return [*map(str, near), *examples, *battery, *far]


@dataclass
class Outcome:
    """How a test went without any mutant."""

    passed: bool
    seconds: float
    blocks: frozenset[str]  # that it called


class MutationRun:
    """A plugin of pytest: in place of running what was collected it runs it once as it is, then once for each mutant.

    The tests of a mutant run in a process of its own, with a temporary folder of its own.
    """

    def __init__(self, mutants: Sequence[Mutant], jobs: int):
        self.mutants, self.jobs = mutants, jobs
        self.failing, self.alive = list[str](), list[Mutant]()

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors while tests were collected")
        from _pytest.tmpdir import TempPathFactory

        self.folders: TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        self.base = self.folders.getbasetemp()
        began = time.perf_counter()
        outcomes = self.as_it_is(session.items)
        again = [i for i in session.items if not outcomes[i.nodeid].passed]  # on a busy machine a deadline may pass
        outcomes |= self.as_it_is(again)
        self.failing = [n for n, o in outcomes.items() if not o.passed]
        seconds = time.perf_counter() - began
        print(f"{len(outcomes)} tests pass without a mutant, {len(self.failing)} do not ({seconds:.0f} s)", flush=True)
        if not self.failing:
            self.with_mutants(session.items, outcomes)
        return True

    def as_it_is(self, items: list[pytest.Item]) -> dict[str, Outcome]:
        """Every test's outcome; they are dealt out to as many processes as there may be."""
        parts = [part for i in range(self.jobs) if (part := items[i :: self.jobs])]
        out = dict[str, Outcome]()
        todo = [lambda send, part=part: self._trace(part, send) for part in parts]
        for _, part in in_processes(todo, [float("inf")] * len(parts), self.jobs):
            out |= part
        return out

    def _trace(self, items: list[pytest.Item], send: Callable[[Any], None]) -> None:
        from selfteach.core import registry

        called, out = set[str](), dict[str, Outcome]()
        builtins.__dict__[PROBE] = called.add
        for name in {m.block for m in self.mutants}:
            tree = tree_of(inspect.unwrap(registry.blocks.get(name)))
            tree.body.insert(0, ast.parse(f"{PROBE}({name!r})").body[0])
            replace_code(name, tree)
        for item, after in zip(items, [*items[1:], None], strict=True):
            called.clear()
            began = time.perf_counter()
            passed = not any(r.failed for r in runtestprotocol(item, log=False, nextitem=after))
            out[item.nodeid] = Outcome(passed, time.perf_counter() - began, frozenset(called))
        send(out)

    def with_mutants(self, items: list[pytest.Item], outcomes: Mapping[str, Outcome]) -> None:
        """Run each mutant's tests; report those that none of them kills."""
        todo, limits = list[Callable[[Callable[[Any], None]], None]](), list[float]()
        for number, mutant in enumerate(self.mutants):
            given = set(tests_of(mutant))
            mine = [i for i in items if given & set(names_of(i))]
            mine = [i for i in mine if mutant.block in outcomes[i.nodeid].blocks or SIGNATURES in i.nodeid]
            mine.sort(key=lambda i: outcomes[i.nodeid].seconds)
            todo.append(
                lambda send, m=mutant, mine=mine, n=number: self._kill(m, mine, self.base / f"mutant-{n}", send)
            )
            limits.append(20 + PATIENCE * sum(outcomes[i.nodeid].seconds for i in mine))
        for done, (number, passed) in enumerate(in_processes(todo, limits, self.jobs), 1):
            shutil.rmtree(self.base / f"mutant-{number}", ignore_errors=True)
            mutant = self.mutants[number]
            if passed is not None:
                self.alive.append(mutant)
                where = f"{mutant.file.relative_to(ROOT)}:{mutant.line}"
                print(f"survived {passed:4} tests  {where}  {mutant}", flush=True)
            if sys.stderr.isatty():
                print(f"{done} of {len(self.mutants)}", end="\r", file=sys.stderr)

    def _kill(self, mutant: Mutant, items: list[pytest.Item], folder: Path, send: Callable[[Any], None]) -> None:
        """Run tests until one fails; send None then, and how many there were if none does."""
        folder.mkdir()
        if (self.base / "starts").is_dir():  # untrained models, which no block has made
            (folder / "starts").symlink_to(self.base / "starts")
        self.folders._basetemp = folder
        replace_code(mutant.block, mutant.tree())
        for item, after in zip(items, [*items[1:], None], strict=True):
            if any(r.failed for r in runtestprotocol(item, log=False, nextitem=after)):
                return send(None)
        send(len(items))


PROBE = "_block_is_called"


def names_of(item: pytest.Item) -> tuple[str, ...]:
    """What a test may be called on pytest's command line: its file, its class or function, itself."""
    file, *inner = f"{item.path}::{item.nodeid.split('::', 1)[1]}".split("::")
    return (file, f"{file}::{inner[0].split('[')[0]}", "::".join((file, *inner)))


def in_processes(
    todo: Sequence[Callable[[Callable[[Any], None]], None]], limits: Sequence[float], jobs: int
) -> Iterator[tuple[int, Any]]:
    """Fork a process for each function, as many at a time as `jobs`; yields its number and what it sent, or None where
    it took longer than its limit (seconds), and was killed. Raises RuntimeError where one ends without having sent any.
    """
    context = multiprocessing.get_context("fork")
    running, waiting = dict[Any, tuple[int, Any, float]](), list(enumerate(todo))[::-1]
    while waiting or running:
        while waiting and len(running) < jobs:
            number, work = waiting.pop()
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=_in_process, args=(work, send))
            process.start()
            send.close()
            running[receive] = number, process, time.monotonic() + limits[number]
        ready = wait(list(running), timeout=1)
        for receive, (number, process, until) in list(running.items()):
            if receive in ready:
                try:
                    result = receive.recv()
                except EOFError:
                    process.join()
                    raise RuntimeError(f"process {number} ended with exit code {process.exitcode}") from None
            elif time.monotonic() > until:
                kill_children(process.pid or 0)
                process.kill()
                result = None
            else:
                continue
            process.join()
            del running[receive]
            yield number, result


def _in_process(work: Callable[[Callable[[Any], None]], None], connection: Connection) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    work(connection.send)
    kill_children(os.getpid())
    os._exit(0)  # whatever threads a test has left behind


def kill_children(pid: int) -> None:
    """Kill the processes that a process has started, also those in a session of their own (where Linux tells them)."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text(encoding="utf-8").split()):
            kill_children(child)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def replace_code(block: str, tree: FunctionNode) -> None:
    """Give the block's function the code and the defaults of a tree."""
    from selfteach.core import blocks, registry

    fn = inspect.unwrap(registry.blocks.get(block))
    made: dict[str, Any] = dict(fn.__globals__)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    exec(compile(module, fn.__code__.co_filename, "exec", future.annotations.compiler_flag), made)
    fn.__code__, fn.__kwdefaults__ = made[fn.__name__].__code__, made[fn.__name__].__kwdefaults__
    for cached in vars(blocks).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="how many mutants (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default 0)")
    parser.add_argument("--only", default="", help="blocks of files whose path holds this")
    parser.add_argument("--target", type=float, default=0.9, help="least share to be killed (default 0.9)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time (default: one a core)")
    given = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(TESTS)]
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    import hypothesis
    import torch
    from support.runs import BANDIT

    from selfteach.core import registry

    torch.set_num_threads(1)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None)  # the same share every time
    hypothesis.settings.load_profile("mutants")
    began = time.perf_counter()
    mutants = sample(given.sample, given.seed, given.only)
    registry.load_file(BANDIT)
    run = MutationRun(mutants, given.jobs)
    tests = sorted({t for m in mutants for t in tests_of(m)})
    code = pytest.main(["-s", "--no-header", "--no-summary", "-p", "no:terminalreporter", *tests], plugins=[run])
    if run.failing or code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print("the tests fail without any mutant: mend that first", *run.failing, sep="\n  ")
        return 1
    share = 1 - len(run.alive) / max(1, len(mutants))
    took = time.perf_counter() - began
    print(
        f"{len(mutants) - len(run.alive)} of {len(mutants)} mutants killed ({share:.0%}) in {took:.0f} s; "
        f"{len(EXCUSED)} excused"
    )
    return 0 if share >= given.target else 1


if __name__ == "__main__":
    sys.exit(main())
