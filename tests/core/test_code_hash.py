"""What a kept run and a kept warm start depend on: each file reached changes their key, and no other file does."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import selfteach
from selfteach import run_cache
from selfteach.configuration import plan
from selfteach.core import code_hash as hashing
from selfteach.core import registry
from selfteach.core.code_hash import code_hash, reached
from selfteach.loop import warmstart
from selfteach.loop.dependencies import source_files
from selfteach.loop.settings import RunSettings, WarmStartConfig
from selfteach.model.catalog import build

ROOT = Path(selfteach.__file__).parent


def roots_of(name: str, task: str = "chain_sum") -> list[Path]:
    """Where the hash of a run begins, relative to the package."""
    files = source_files(registry.methods.get(name)(), task) | {ROOT / "training.py", ROOT / "methods" / "sft.py"}
    return [f.relative_to(ROOT) for f in files]


def touch(file: Path) -> None:
    """Change what a file does, and its time too where the clock is coarse."""
    write(file, file.read_text() + "\nTOUCHED = 1\n")


def write(file: Path, text: str) -> None:
    """Write a file that already is there, with a newer time."""
    file.write_text(text)
    os.utime(file, ns=(time.time_ns(), file.stat().st_mtime_ns + 10**7))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The package's source in a folder of its own."""
    return Path(shutil.copytree(ROOT, tmp_path / "selfteach", ignore=shutil.ignore_patterns("__pycache__")))


def test_every_file_that_a_run_reaches_changes_its_key(copied: Path):
    roots = [copied / f for f in roots_of("grpo")]
    files, libraries = reached(roots)
    names = {str(Path(f).relative_to(copied)) for f in files}
    assert {
        "core/blocks.py",
        "credit/advantages.py",
        "objective/policy.py",
        "objective/segments.py",
        "tasks/chain_sum.py",
    } <= names
    assert {"credit/example_recipes.py", "credit/segments.py", "reward/answer.py", "loop/warmstart.py"} <= names
    assert {str(f.relative_to(copied)) for f in copied.rglob("*.cpp")} <= names
    assert {str(f.relative_to(copied)) for f in copied.rglob("*.h")} <= names
    assert {"torch", "numpy", "tokenizers"} <= libraries and "selfteach" not in libraries
    seen = {code_hash(roots)}
    for n, file in enumerate(sorted(files), 2):
        touch(Path(file))
        seen.add(code_hash(roots))
        assert len(seen) == n, f"{file} was changed, and the key was not"


def test_what_a_run_does_not_reach_leaves_its_key_alone(copied: Path):
    roots = [copied / f for f in roots_of("grpo")]
    before = code_hash(roots)
    files = {Path(f) for f in reached(roots)[0]}
    others = [f for f in (copied / "methods").glob("*.py") if f not in files]
    assert len(others) > 30 and copied / "methods" / "tango.py" in others
    for file in [*others, *(copied / "commands").glob("*.py"), *(copied / "analysis").glob("*.py"), copied / "cli.py"]:
        touch(file)
    assert code_hash(roots) == before
    assert code_hash([copied / f for f in roots_of("tango")]) != before


SOURCE = """
from math import cos, sin

def f(x: float = 1.0) -> float:
    assert x
    return sin(x) if x in {1, 2, "a", "b"} else 0.0

f.claim = cos
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("def f", "# why\n\ndef f", True),
        ("    assert", '    """What it is."""\n    assert', True),
        ("f.claim = cos", "f.claim = (\n    cos, 2\n)", True),
        ("import cos, sin", "import sin, tan", True),  # what only the claim used; a name that nothing uses
        ("= 1.0", "= 2.0", False),
        ("x: float", "x: int", False),
        ("sin(x)", "sin(-x)", False),
        ("else 0.0", "else -0.0", False),
        ('"b"}', '"c"}', False),
        ("import cos, sin", "import cos, tan as sin", False),
        ("f.claim", "f.other", False),
    ],
)
def test_of_a_module_what_it_runs_counts(tmp_path: Path, old: str, new: str, same: bool):
    file = tmp_path / "one.py"
    file.write_text(SOURCE)
    before = code_hash([file])
    assert old in SOURCE
    write(file, SOURCE.replace(old, new))
    assert (code_hash([file]) == before) == same


def test_the_hash_does_not_depend_on_the_hashes_of_strings(tmp_path: Path):
    (tmp_path / "one.py").write_text(SOURCE)
    call = "from selfteach.core.code_hash import *; print(code_hash(['one.py']))"
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2", "3")]
    run = [subprocess.run([sys.executable, "-c", call], cwd=tmp_path, env=e, capture_output=True) for e in seeds]
    assert len({r.stdout for r in run}) == 1 and run[0].stdout.strip()


def test_where_the_package_lies_does_not_matter(copied: Path):
    roots = roots_of("ppo")
    assert code_hash(copied / f for f in roots) == code_hash(ROOT / f for f in roots)


@pytest.mark.parametrize("name", ["arena_rl", "pcl", "laser", "thr"])
def test_a_methods_own_blocks_are_reached(name: str):
    names = {str(Path(f).relative_to(ROOT)) for f in reached(ROOT / f for f in roots_of(name))[0]}
    assert {str(f) for f in roots_of(name)} <= names and len(names) > 100


def test_imports_are_those_of_the_whole_file():
    for file in sorted(ROOT.rglob("*.py")):
        text = hashing.without_types(file.read_text())
        quick = {ast.dump(n) for n in hashing._statements(text) if isinstance(n, ast.Import | ast.ImportFrom)}
        whole = {ast.dump(n) for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Import | ast.ImportFrom)}
        assert quick == whole, file


def test_a_file_of_a_users_own_counts_with_what_lies_beside_it(tmp_path: Path):
    (tmp_path / "mine.py").write_text("import helper\nfrom selfteach.methods import prime\n")
    (tmp_path / "helper.py").write_text("x = 1\n")
    files, _ = reached([tmp_path / "mine.py"])
    assert {str(tmp_path / "helper.py"), str(ROOT / "methods" / "prime.py")} <= files
    before = code_hash([tmp_path / "mine.py"])
    (tmp_path / "helper.py").write_text("x = 22\n")
    assert code_hash([tmp_path / "mine.py"]) != before


def test_versions_of_libraries_count(monkeypatch: pytest.MonkeyPatch):
    before = code_hash([ROOT / "training.py"])
    real = hashing.version
    monkeypatch.setattr(hashing, "version", lambda name: "99" if name == "tokenizers" else real(name))
    assert code_hash([ROOT / "training.py"]) != before


def test_a_run_is_keyed_by_its_configuration_its_use_files_and_its_model(tmp_path: Path):
    run_config = plan("grpo", "chain_sum")
    keys = {run_cache.run_key(run_config), run_cache.run_key(run_config.override(seed=1))}
    use = tmp_path / "mine.py"
    use.write_text("x = 1\n")
    keys.add(run_cache.run_key(replace(run_config, use=(str(use),))))
    use.write_text("x = 22\n")
    keys.add(run_cache.run_key(replace(run_config, use=(str(use),))))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    keys.add(run_cache.run_key(replace(run_config, model=str(tmp_path / "model"))))
    (tmp_path / "model" / "config.json").write_text("{ }")
    keys.add(run_cache.run_key(replace(run_config, model=str(tmp_path / "model"))))
    assert len(keys) == 6 and run_cache.run_key(run_config) in keys


def test_a_warm_start_is_keyed_by_the_code_that_makes_it(monkeypatch: pytest.MonkeyPatch):
    source = registry.tasks.get("chain_sum")()
    start, sft = build("tiny-s", source), registry.methods.get("sft")(batch=8)
    asked: list[set[str]] = []
    monkeypatch.setattr(warmstart, "code_hash", lambda roots: str(asked.append(reached(roots)[0])) + str(len(asked)))
    keys = {warmstart.cache_key(source, start, sft, WarmStartConfig(), RunSettings(device="cpu")) for _ in range(2)}
    names = {str(Path(f).relative_to(ROOT)) for f in asked[0]}
    assert len(keys) == 2, "other code, another key"
    assert {"loop/warmstart.py", "kernels/layer_ops.cpp", "objective/likelihood.py", "tasks/chain_sum.py"} <= names
    monkeypatch.setattr(warmstart, "code_hash", lambda roots: "the same")
    keys = [
        warmstart.cache_key(source, start, sft, WarmStartConfig(steps=n), RunSettings(device="cpu")) for n in (5, 5, 6)
    ]
    assert keys[0] == keys[1] != keys[2]
