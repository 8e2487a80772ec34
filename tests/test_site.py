"""The documents as a site: every page builds without a warning, and the pages made from the code hold all of it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import selfteach
from selfteach.core import registry

ROOT = Path(__file__).parents[1]
NEEDS = ("sphinx", "myst_parser", "furo")


@pytest.mark.skipif(any(importlib.util.find_spec(n) is None for n in NEEDS), reason=f"needs {', '.join(NEEDS)}")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert ran.returncode == 0, ran.stderr
    methods, api = ((tmp_path / "reference" / f"{name}.html").read_text() for name in ("methods", "api"))
    built_in = [n for n, e in registry.methods.items() if e.build.__module__.startswith("selfteach.")]
    assert built_in and all(f"<h3>{name}<" in methods for name in built_in)
    assert all(f'id="selfteach.{name}"' in api for name in selfteach.__all__)
    pages = set(re.findall(r"(live/\w+\.html)", (ROOT / "docs" / "live.md").read_text()))
    assert pages == {"live/ssrl.html", "live/ledger.html", "live/regimes.html"}
    assert all((tmp_path / page).is_file() for page in pages)
    assert 'href="live/regimes.html"' in (tmp_path / "regimes.html").read_text()
    _open_in_a_browser([tmp_path / page for page in sorted(pages)])
    assert (tmp_path / "index.html").read_text().count("https://") < 20  # nothing is loaded from elsewhere


def _open_in_a_browser(pages: list[Path]) -> None:
    """Each of the live pages shows what it is about, offline, without a word in the browser's console."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None or importlib.util.find_spec("playwright") is None:
        return
    from playwright.sync_api import sync_playwright

    shows = {"ledger.html": "tr.link", "regimes.html": "tr.link", "ssrl.html": ".chart canvas"}
    tabs = {"ledger.html": ["Ledger"], "regimes.html": ["Regimes"], "ssrl.html": ["Curves", "Rollouts", "Trees"]}
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for page in pages:
            at, said = browser.new_page(), list[str]()
            at.on("console", lambda m, said=said: said.append(m.text))
            at.on("pageerror", lambda e, said=said: said.append(str(e)))
            at.goto(page.as_uri())
            at.wait_for_selector(shows[page.name], timeout=60_000)
            assert at.locator(".tabs a").all_inner_texts() == tabs[page.name] and not said
        browser.close()
