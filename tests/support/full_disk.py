"""In a process of its own, with disk_faults.c preloaded: runs on a disk that is full at the n-th byte, for many n.

Arguments: the library, a RunConfig in JSON, a folder to work in, the number of places, "run", "log" or "cache".
Prints a line of JSON per place: {"at", "error"}.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from selfteach import api
from selfteach.configuration import RunConfig
from selfteach.core.errors import SelfteachError
from support.disk_faults import functions
from support.runs import same_run


def main(library: str, config: str, home: Path, places: int, which: str) -> None:
    """Run undisturbed and count the bytes; then for each place fill the disk there, free it, and go on."""
    torch.set_num_threads(1)
    disk, _ = functions(library)
    run_config = RunConfig.from_json(json.loads(config), trust=True)
    out, cache = home / "run", home / "cache"
    watched = str({"run": out, "log": out / "log", "cache": cache / "warm"}[which]).encode()
    os.environ["SELFTEACH_CACHE"] = str(cache)
    disk(watched, -1)
    api.train(run_config, out)
    total = disk(b"", -1)
    shutil.move(out, home / "undisturbed")
    for place in range(places):
        at = total * place // places
        shutil.rmtree(cache / "warm", ignore_errors=True)
        disk(watched, at)
        error: Any = None
        try:
            api.train(run_config, out)
        except SelfteachError as raised:
            error = str(raised)
        disk(b"", -1)
        (api.resume(out) if (out / "config.json").exists() else api.train(run_config, out))
        same_run(home / "undisturbed", out)
        shutil.rmtree(out)
        print(json.dumps({"at": at, "error": error}), flush=True)
    left = [str(p.relative_to(home)) for p in cache.rglob(".*")]
    print(json.dumps({"total": total, "left": left}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).read_text(), Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
