"""The architecture: imports point down only, a paper is read in one file, blocks are functions, randomness has a key,
and importing costs nothing.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from selfteach.core.registry import blocks, methods

TESTS = Path(__file__).parent
WHOLE_HOUSE = {
    "architecture",
    "battery",
    "docs",
    "site",
    "docstrings",
    "enumeration",
    "examples",
    "extension",
    "extras",
    "slots",
    "vocabulary",
}
ROOT = TESTS.parent / "selfteach"
FILES = sorted(ROOT.rglob("*.py"))
LAYERS = [
    {"cli", "commands"},
    {"bench"},
    {"experiments"},
    {"run_cache"},
    {"viewer"},
    {"serving"},
    {"api"},
    {"training"},
    {"evaluation"},
    {"preparation"},
    {"progress", "tracking"},
    {"configuration"},
    {"given_parts"},
    {"methods"},
    {"regimes"},
    {"tasks"},
    {"tools"},
    {"curriculum", "rollout", "reward", "credit", "objective"},
    {"analysis"},
    {"loop"},
    {"cluster"},
    {"engine", "learner"},
    {"model"},
    {"kernels", "retrieval"},
    {"core"},
]
LAYER = {package: n for n, packages in enumerate(LAYERS) for package in packages}
SLOTS = ("curriculum", "rollout", "reward", "credit", "objective")
INDEPENDENT = {*SLOTS, "engine", "learner"}  # packages of one layer that do not import each other

# Blocks of a slot that one method or none uses. A block of one paper belongs into the file of its method.
TEXTBOOK = {
    "gae": "Schulman et al. 2016",
    "gae_shaped": "GAE over rewards of every token",
    "kl_per_token": "the KL penalty of RLHF as a reward of each token",
    "kl_in_reward": "the same, summed over a sequence",
    "moving_baseline": "REINFORCE with a moving average",
    "entropy_bonus": "Williams and Peng 1991",
    "value_loss": "regression of a critic",
    "clipped_value_loss": "PPO's, clipped",
    "sequence_ratio": "GSPO's ratio, which others start from",
    "clipped_importance": "IMPALA's truncated importance weight",
    "dpo": "Rafailov et al. 2023",
    "preference_pairs": "the pairs that DPO and reward models learn from",
    "replay": "experience replay",
    "delayed": "learning from stale samples, for any method",
    "shuffled": "the control of every regime",
    "shuffled_stateful": "the same where the reward is stateful",
    "overlong": "DAPO's length penalty, in use everywhere",
    "refill": "dynamic sampling, in use everywhere",
    "right_only": "rejection sampling: imitate what is right",
    "prompt_mean": "a loss weighting",
    "class_balanced": "a loss weighting",
    "linear": "a schedule",
    "after": "a schedule",
    "before": "a schedule",
    "every": "a schedule",
    "gate": "arithmetic of rewards",
    "clip": "arithmetic of rewards",
    "over_episode": "any reward of an episode in several contexts",
    "isolated": "any reward in a process of its own",
    "same_text": "the verifier of tasks with text answers",
    "makes": "the verifier of tasks with expressions",
    "plain": "a prompt read as it is: what a policy is measured by",
    "play": "any game, whoever plays",
    "function_reward": "a user's own",
    "verl_reward": "a user's own",
    "trl_reward": "a user's own",
    "applicable_sum": "a user's own, several of them",
    "act": "any environment",
    "call_functions": "any typed functions",
    "episode_return": "the return of any environment",
    "reasoning_core_score": "Reasoning Core's own scorers, the verifier of its task",
    "reasoning_score": "reasoning-gym's own scorers, the verifier of its task",
}
LONG = {  # files of methods above the bound, and why
    "cooper": "two papers' worth of blocks: a policy and a reward model that learn side by side",
    "deep_researcher": "a web of a task's documents or of a user's engine, and who reads it",
    "laser": "a probe, its regression, its share of the advantage and a vote by it",
    "q_sharp": "decoding by two models, roll-outs of one from states of both, and the value that is learned of them",
    "qwen_math": "four stages: a reward model, imitation by it, questions within reach, and RL on it and the rule",
    "rest_mcts": "a tree search, a value model and what both learn from",
    "ssp": "a proposer's, a checker's and a solver's programs",
    "zerosearch": "what a simulator of documents learns from, what it writes, and how noise grows",
    "tango": "a generator and a verifier, each with programs and credit of its own",
}


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT.parent))


def imported(file: Path) -> set[str]:
    """The packages of the library that a file imports, wherever in the file it does."""
    package = ["selfteach", *file.relative_to(ROOT).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{a.name}" for a in node.names)}
    packages = {m.split(".")[1] for m in found if m.startswith("selfteach.")}
    return {p for p in packages if p in LAYER}


def test_every_package_has_a_layer():
    packages = {
        p.stem if p.suffix else p.name for p in ROOT.iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()
    }
    assert packages - {"__init__", "__main__"} <= LAYER.keys()


@pytest.mark.parametrize("package", sorted(LAYER))
def test_imports_point_down(package):
    wrong = []
    for file in FILES:
        if file.relative_to(ROOT).parts[0].removesuffix(".py") != package:
            continue
        for other in imported(file) - {package}:
            if LAYER[other] < LAYER[package] or (package in INDEPENDENT and LAYER[other] == LAYER[package]):
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


@pytest.mark.parametrize("package", ["credit", "objective"])
def test_credit_and_objective_are_functions(package):
    for file in (ROOT / package).glob("*.py"):
        tree = ast.parse(file.read_text())
        assert not [n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)], name_of(file)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{name_of(file)}: {node.name} has no docstring"


def calls(file: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of every call in a file."""
    return [(n.lineno, ast.unparse(n.func)) for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Call)]


def test_no_global_randomness():
    legacy = (
        "np.random.",
        "numpy.random.",
        "random.",
        "torch.manual_seed",
        "torch.rand",
        "torch.multinomial",
        "torch.randperm",
        "torch.bernoulli",
    )
    fine = ("np.random.Generator", "np.random.Philox")
    lent = {"reasoning_core_worker"}  # a process of generators that draw from them, which it seeds for each item
    files = [f for f in FILES if f.stem not in lent]
    wrong = [
        f"{name_of(f)}:{line} {c}" for f in files for line, c in calls(f) if c.startswith(legacy) and c not in fine
    ]
    assert not wrong


def test_no_loss_is_averaged_in_its_term():
    """The mean over rows is a weighting, taken over the whole optimiser batch; a term that averages would depend on the
    split.
    """
    built = [entry() for _, entry in methods.items()]
    terms = {t.fn.fn for m in built for s in m.stages for u in s.updates for t in u.terms}
    in_slot = [n.fn for n in (b() for _, b in blocks.items()) if n.fn.__module__.startswith("selfteach.objective.")]
    wrong = [fn.__qualname__ for fn in {*terms, *in_slot} if ".mean(" in inspect.getsource(fn)]
    assert not wrong


def test_text_files_are_utf_8_whatever_the_locale():
    """Ruff's PLW1514 sees the calls whose type it can infer; these are all."""
    wrong = []
    for file in [
        *ROOT.rglob("*.py"),
        *(ROOT.parent / "scripts").glob("*.py"),
        *(ROOT.parent / "benchmarks").glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or any(k.arg == "encoding" for k in node.keywords):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            of = node.func.value if isinstance(node.func, ast.Attribute) else None
            args = [a.value for a in node.args if isinstance(a, ast.Constant)]
            opens = name in ("open", "fdopen") and (of is None or (isinstance(of, ast.Name) and of.id == "os"))
            mode = [a for a in args if isinstance(a, str) and set(a) <= set("rwaxbt+")]
            system = isinstance(of, ast.Name) and of.id == "os" and name == "open"  # a descriptor, no text
            text = name in ("read_text", "write_text") or (
                name in ("open", "fdopen") and not system and (mode or opens) and not any("b" in m for m in mode)
            )
            if text or (name in ("run", "Popen", "check_output") and any(k.arg == "text" for k in node.keywords)):
                wrong.append(f"{file.name}:{node.lineno} {name}")
    assert not wrong


def test_no_failure_becomes_a_zero():
    for file in FILES:
        shell = file.relative_to(ROOT).parts[0] in ("cli.py", "commands")  # there 0 is an exit status
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ExceptHandler):
                for inner in ast.walk(node):
                    zero = (
                        isinstance(inner, ast.Return)
                        and isinstance(inner.value, ast.Constant)
                        and inner.value.value in (0, 0.0)
                    )
                    assert shell or not zero, f"{name_of(file)}:{node.lineno}"
                assert node.type is not None, f"{name_of(file)}:{node.lineno} catches everything, Ctrl-C too"


def test_the_loop_knows_no_method_by_name():
    names = set(methods)
    for package in ("loop", "engine", "learner", "core"):
        for file in (ROOT / package).glob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Compare):
                    words = {
                        c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)
                    }
                    assert not words & names, f"{name_of(file)}:{node.lineno} {ast.unparse(node)}"


def test_importing_the_library_costs_nothing():
    code = "import sys, selfteach; print(*sys.modules, selfteach.__version__)"
    *modules, version = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert version and not {"torch", "numpy", "tokenizers", "safetensors", "jinja2", "rich"} & set(modules)


def test_a_run_on_one_machine_imports_no_sharding_and_no_extras():
    """Which would take seconds of every command's start."""
    code = "import sys, selfteach.training; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("torch.distributed.fsdp", "torch.distributed.tensor", "torch._dynamo", "ray", "transformers", "matplotlib")
    assert "torch" in loaded and not set(heavy) & set(loaded)


def test_the_core_loads_no_torch_and_no_other_package():
    code = "import sys, selfteach.core; print('torch' in sys.modules, *[m for m in sys.modules if 'selfteach.' in m])"
    loaded, *modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == "False" and all(m.startswith("selfteach.core") for m in modules)


def test_what_cannot_run_is_refused_before_torch_is_imported():
    code = "import sys; from selfteach.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    command_lines = (
        "train grpo --lr nan",
        "train grpo --groups -1",
        "train grpo --set least=99",
        "compare grpo rloo --lr 1e-4 --steps x",
        "eval ssrl --set hops=9",
        "train ssrl --corpus nowhere.jsonl",
        "serve-search nowhere.jsonl",
    )
    for line in command_lines:
        ran = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True)
        assert ran.stdout.split() == ["2", "False"], (line, ran.stdout, ran.stderr)


def test_every_package_says_what_is_in_it():
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


# ---- a paper in one file

METHODS = [f for f in sorted((ROOT / "methods").glob("*.py")) if f.stem not in ("__init__", "base")]


def defined_blocks(file: Path) -> list[str]:
    """The blocks that a file defines."""
    functions = [n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [n.name for n in functions if "block" in map(ast.unparse, n.decorator_list)]


def imported_names(file: Path) -> set[str]:
    return {a.name for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.ImportFrom) for a in n.names}


def test_a_block_of_one_method_is_in_its_file():
    used = [name for file in (ROOT / "methods").glob("*.py") for name in imported_names(file)]
    slots = {name: file for slot in SLOTS for file in (ROOT / slot).glob("*.py") for name in defined_blocks(file)}
    for_all = imported_names(ROOT / "methods" / "base.py")
    for_all |= {name for file in (ROOT / "regimes").glob("*.py") for name in imported_names(file)}
    wrong = {
        f"{name_of(file)}: {name}"
        for name, file in slots.items()
        if used.count(name) < 2 and name not in TEXTBOOK.keys() | for_all
    }
    assert not wrong, (
        "one method or none uses them: move each into its method's file (or, of a textbook, into TEXTBOOK)"
    )
    assert TEXTBOOK.keys() <= slots.keys(), "TEXTBOOK names what is gone"


def test_no_method_file_imports_the_blocks_of_another():
    own = {name: file for file in METHODS for name in defined_blocks(file)}
    wrong = [
        f"{name_of(f)} imports {n} of {name_of(own[n])}"
        for f in METHODS
        for n in imported_names(f) & own.keys()
        if own[n] != f
    ]
    assert not wrong, "what two methods use belongs into its slot's package"


@pytest.mark.parametrize("file", METHODS, ids=lambda f: f.stem)
def test_a_method_file_is_short_in_order_and_tested(file: Path):
    assert len(file.read_text().splitlines()) <= (470 if file.stem in LONG else 290)
    body = ast.parse(file.read_text()).body
    functions = [n for n in body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    if file.stem.endswith("_experiments") and not functions:
        return  # claims alone, all of which one test resolves
    assert (TESTS / "methods" / f"test_{file.stem}.py").is_file(), "its tests are missing"
    is_method = ["method" in ast.unparse(n.decorator_list[0]) if n.decorator_list else False for n in functions]
    assert is_method and is_method == sorted(is_method, reverse=True), "first the method, then its blocks"
    claims = [n for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]).endswith(".claim")]
    assert claims == [n for n in body[-len(claims) :] if claims], "its claim is last"


def test_every_claim_names_its_regime():
    claimed = [e for _, e in methods.items() if e.claim and e.build.__module__.startswith("selfteach.")]
    assert [e.name for e in claimed if not e.claim.regime] == []


def test_tests_do_not_import_tests():
    wrong = [
        f"{file.name}: {name}"
        for file in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
        )
        if isinstance(node, ast.Import | ast.ImportFrom) and name.split(".")[-1].startswith(("test_", "conftest"))
    ]
    assert not wrong, "what several tests use is in tests/support"


def test_tests_mirror_the_packages():
    folders = {f.name for f in TESTS.iterdir() if f.is_dir() and any(f.glob("test_*.py"))}
    packages = {f.name for f in ROOT.iterdir() if f.is_dir()}
    assert folders <= packages, "a folder of tests is named as the package that it tests"
    whole = {f.stem.removeprefix("test_") for f in TESTS.glob("test_*.py")}
    assert whole == WHOLE_HOUSE, "only tests of the whole house stand at the top"


def test_every_test_that_a_guarantee_names_exists():
    page = (TESTS.parent / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", page)
    missing = [f"{file}::{test}" for file, test in named if f"def {test}(" not in (TESTS / file).read_text()]
    assert len(named) > 30 and not missing
