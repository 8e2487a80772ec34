"""The examples in the docstrings of blocks and methods are true."""

from __future__ import annotations

import doctest
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import selfteach

ROOT = Path(selfteach.__file__).parent
PACKAGES = ("core", "curriculum", "rollout", "reward", "credit", "objective", "tasks", "methods")
MODULES = [
    f"selfteach.{package}.{file.stem}"
    for package in PACKAGES
    for file in sorted((ROOT / package).glob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str):
    importlib.import_module(name)
    found = doctest.testmod(sys.modules[name], extraglobs={"np": np, "torch": torch})
    assert not found.failed
