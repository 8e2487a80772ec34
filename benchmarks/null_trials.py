"""A against A in a regime: how often the baseline is found different from itself. It should be in 5 % of trials.

    python benchmarks/null_trials.py REGIME [--trials 20] [--measure accuracy] [--jobs N] [--use FILE]

Twenty trials take 56 runs. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json

from selfteach.commands.common import load_files
from selfteach.experiments.null_trials import null_trials
from selfteach.experiments.runs import available_cores
from selfteach.progress import show_progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regime", help="a regime's name")
    parser.add_argument("--trials", type=int, default=20, help="comparisons of eight pairs each (default: 20)")
    parser.add_argument("--measure", default="accuracy", help="the figure that is compared (default: accuracy)")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="runs at once (default: as many as cores)")
    parser.add_argument("--use", action="append", default=[], help="a file of your own that registers the regime")
    given = parser.parse_args()
    used = load_files(given.use)
    with show_progress() as progress:
        found = null_trials(given.regime, given.trials, given.measure, jobs=given.jobs, observer=progress, use=used)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
