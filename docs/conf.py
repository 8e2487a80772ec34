"""The documents as a site: `make docs` builds it into build/site, and fails on any warning (Sphinx with MyST)."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "scripts")]

from site_pages import escaped_docstring, write_pages  # noqa: E402

from selfteach.viewer.export import read_answers, table_answers, write_page  # noqa: E402

project = "selfteach"
author = copyright = "the authors of selfteach"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header"]  # pages may begin with any level
exclude_patterns = ["_build", "extra", "live"]
html_extra_path = ["extra"]  # pages that stand by themselves
html_theme = "furo"
html_title = "selfteach"
html_copy_source = False
html_show_sphinx = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
maximum_signature_line_length = 100


def setup(app: object) -> None:
    """Write the pages that are made from the code and its results, and show docstrings as they are written."""
    write_pages(DOCS / "reference")
    write_live_pages(DOCS / "extra" / "live")
    app.connect("autodoc-process-docstring", escaped_docstring)  # type: ignore[attr-defined]


def write_live_pages(folder: Path) -> None:
    """Write the pages that stand by themselves: the runs of docs/live, the ledger, the regimes."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in sorted((DOCS / "live").glob("*.json.gz")):
        write_page(read_answers(run), folder / f"{run.name.partition('.')[0]}.html")
    for table in ("ledger", "regimes"):
        write_page(table_answers(table), folder / f"{table}.html")
