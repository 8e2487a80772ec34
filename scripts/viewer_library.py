"""Put the chart library of `selfteach view` into the package: uPlot, one minified file and its styles.

python scripts/viewer_library.py 1.6.32     fetch that version by npm and write selfteach/viewer/page/uPlot.*

uPlot (https://github.com/leeoniya/uPlot, MIT): 51 kB, draws on a canvas, and forty charts of ten runs in tens of
milliseconds, where general libraries take a megabyte and a second. It has zoom, a cursor that several charts share, and
bands; the little that it lacks here (a picture as SVG) is in page/charts.js.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PAGE = Path(__file__).parent.parent / "selfteach" / "viewer" / "page"

if __name__ == "__main__":
    version = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", f"uplot@{version}", "--pack-destination", folder], check=True)
        with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
            for name, target in (
                ("dist/uPlot.iife.min.js", "uPlot.iife.min.js"),
                ("dist/uPlot.min.css", "uPlot.min.css"),
                ("LICENSE", "uPlot.LICENSE"),
            ):
                found = archive.extractfile(f"package/{name}")
                assert found is not None
                (PAGE / target).write_bytes(found.read())
    (PAGE / "uPlot.VERSION").write_text(f"uplot {version}, MIT, https://github.com/leeoniya/uPlot\n", encoding="utf-8")
