"""One contestant in a process of its own, asked in JSON, a line each way: `python worker.py TARGET`.

TARGET is a file of `peers/` or the name of a module. This file needs the standard library alone, so that any
interpreter may run it. What libraries print goes to standard error: standard output is the pipe.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from typing import Any


def load(target: str) -> Any:
    """The module of a name, or of a file together with its folder as a package."""
    if not target.endswith(".py"):
        return importlib.import_module(target)
    folder, file = os.path.split(os.path.abspath(target))
    spec = importlib.util.spec_from_file_location(
        "peers", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = package
    spec.loader.exec_module(package)
    return importlib.import_module("peers." + file[:-3])


def missing(module: Any) -> str | None:
    """Which of the packages that it needs is not there."""
    lost = [name for name in getattr(module, "NEEDS", ()) if importlib.util.find_spec(name) is None]
    return f"{', '.join(lost)} not installed" if lost else None


def resident() -> int:
    """Bytes of memory that this process holds now."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> None:
    # A copy of standard output that libraries cannot write to.
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    del sys.path[0]  # the folder of this file: its names must not hide packages
    module = run = None
    for text in sys.stdin:
        asked = json.loads(text)
        try:
            if asked["do"] == "prepare":
                module = module or load(sys.argv[1])
                if lost := missing(module):
                    answer = {"missing": lost}
                else:
                    about, run = module.prepare(asked["work"])
                    answer = {"about": about}
            else:
                assert run is not None, "run before prepare"
                answer = {**run(asked["given"]), "rss": resident()}
        except (Exception, SystemExit) as error:
            answer = {"error": line(error)}
        print(json.dumps(answer), file=pipe, flush=True)


if __name__ == "__main__":
    main()
