"""The house: arrows point down only, blocks are functions, randomness has an address, and importing costs nothing."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from selfteach.core.registry import blocks, methods

ROOT = Path(__file__).parent.parent / "selfteach"
FILES = sorted(ROOT.rglob("*.py"))
FLOORS = [
    {"cli", "commands"},
    {"bench"},
    {"experiment"},
    {"kept"},
    {"api"},
    {"methods"},
    {"tasks"},
    {"tools"},
    {"curriculum", "rollout", "reward", "credit", "objective"},
    {"analysis"},
    {"loop"},
    {"engine", "learner"},
    {"model"},
    {"core"},
]
FLOOR = {room: n for n, rooms in enumerate(FLOORS) for room in rooms}
APART = {"curriculum", "rollout", "reward", "credit", "objective", "engine", "learner"}  # rooms of one floor that do not know each other


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT.parent))


def imported(file: Path) -> set[str]:
    """The rooms of the house that a file imports, wherever in the file it does."""
    package = ["selfteach", *file.relative_to(ROOT).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{a.name}" for a in node.names)}
    rooms = {m.split(".")[1] for m in found if m.startswith("selfteach.")}
    return {r for r in rooms if r in FLOOR}


def test_every_room_has_a_floor():
    rooms = {p.stem if p.suffix else p.name for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    assert rooms - {"__init__", "__main__"} <= FLOOR.keys()


@pytest.mark.parametrize("room", sorted(FLOOR))
def test_arrows_point_down(room):
    wrong = []
    for file in FILES:
        if file.relative_to(ROOT).parts[0].removesuffix(".py") != room:
            continue
        for other in imported(file) - {room}:
            if FLOOR[other] < FLOOR[room] or (room in APART and FLOOR[other] == FLOOR[room]):
                wrong.append(f"{name_of(file)} imports {other}")
    assert not wrong


def test_methods_import_blocks_and_methods_only():
    allowed = {"methods", "core", "curriculum", "rollout", "reward", "credit", "objective"}
    wrong = {name_of(f): imported(f) - allowed for f in (ROOT / "methods").rglob("*.py")}
    assert not {k: v for k, v in wrong.items() if v}


def test_importing_sees_imports_inside_functions(tmp_path, monkeypatch):
    file = ROOT / "core" / "errors.py"
    text = "def f():\n    from ..loop.run import Loop\n    import selfteach.model.files\n    from . import part\n"
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    assert imported(file) == {"loop", "model", "core"}


@pytest.mark.parametrize("room", ["credit", "objective"])
def test_credit_and_objective_are_functions(room):
    for file in (ROOT / room).glob("*.py"):
        tree = ast.parse(file.read_text())
        assert not [n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)], name_of(file)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{name_of(file)}: {node.name} has no docstring"


def calls(file: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of every call in a file."""
    return [(n.lineno, ast.unparse(n.func)) for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]


def test_no_global_randomness():
    legacy = ("np.random.", "numpy.random.", "random.", "torch.manual_seed", "torch.rand", "torch.multinomial", "torch.randperm", "torch.bernoulli")
    fine = ("np.random.Generator", "np.random.Philox")
    wrong = [f"{name_of(f)}:{line} {c}" for f in FILES for line, c in calls(f) if c.startswith(legacy) and c not in fine]
    assert not wrong


def test_no_loss_is_averaged_where_it_stands():
    """The mean over rows is a weighting, taken over the whole optimiser batch; a term that averages would depend on the split."""
    wrong = [f"{name_of(f)}:{line} {c}" for f in (ROOT / "objective").glob("*.py") for line, c in calls(f) if c.endswith(".mean")]
    assert not wrong


def test_no_failure_becomes_a_zero():
    for file in FILES:
        shell = file.relative_to(ROOT).parts[0] in ("cli.py", "commands")  # there 0 is an exit status
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ExceptHandler):
                for inner in ast.walk(node):
                    zero = isinstance(inner, ast.Return) and isinstance(inner.value, ast.Constant) and inner.value.value in (0, 0.0)
                    assert shell or not zero, f"{name_of(file)}:{node.lineno}"
                assert node.type is not None, f"{name_of(file)}:{node.lineno} catches everything, Ctrl-C too"


def test_the_loop_knows_no_method_by_name():
    names = set(methods)
    for room in ("loop", "engine", "learner", "core"):
        for file in (ROOT / room).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Compare):
                    words = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
                    assert not words & names, f"{name_of(file)}:{node.lineno} {ast.unparse(node)}"


def test_importing_the_library_costs_nothing():
    code = "import sys, time; t = time.perf_counter(); import selfteach; print(time.perf_counter()-t, 'torch' in sys.modules, selfteach.__version__)"
    seconds, torch_loaded, version = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert float(seconds) < 0.5 and torch_loaded == "False" and version


def test_the_core_loads_no_torch_and_no_other_room():
    code = "import sys, selfteach.core; print('torch' in sys.modules, *[m for m in sys.modules if m.startswith('selfteach.')])"
    loaded, *modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == "False" and all(m.startswith("selfteach.core") for m in modules)


def test_every_folder_says_what_lives_there():
    for init in ROOT.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(init.read_text())), name_of(init)


def test_every_public_name_of_the_library_exists():
    import selfteach

    for name in selfteach.__all__:
        assert getattr(selfteach, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = selfteach.nothing


def test_every_block_and_method_has_a_docstring():
    for fn in [*(b for _, b in blocks.items()), *(e.build for _, e in methods.items())]:
        if fn.__module__.startswith("selfteach."):  # other tests register some of their own
            assert inspect.getdoc(fn), fn


def test_method_files_are_short():
    for file in (ROOT / "methods").rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 150, name_of(file)
