"""The page docs/metrics.md: what every metric means.

python scripts/metrics_page.py           write it
python scripts/metrics_page.py --check   exit 1 where it is not what it should be
"""

from __future__ import annotations

import sys
from pathlib import Path

from selfteach.analysis.metrics_page import metrics_page

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"

if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == metrics_page() else f"{PAGE} is not up to date: make format")
    PAGE.write_text(metrics_page(), encoding="utf-8")
