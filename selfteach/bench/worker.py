"""One system in a process of its own, one line of JSON per message and response: `python worker.py TARGET`.

TARGET is a file of `peers/` or the name of a module. This file needs the standard library alone, so that any
interpreter may run it. What libraries print goes to standard error: standard output carries the responses.
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
    """The packages that a module needs and that are not installed, as a message."""
    names = [name for name in getattr(module, "NEEDS", ()) if importlib.util.find_spec(name) is None]
    return f"{', '.join(names)} not installed" if names else None


def resident() -> int:
    """Resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="utf-8") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def message_of(error: BaseException) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> None:
    """Serve requests from standard input until it ends."""
    # A copy of standard output that libraries cannot write to.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    del sys.path[0]  # the folder of this file: its names must not hide packages
    module = run = None
    for text in sys.stdin:
        request = json.loads(text)
        try:
            if request["op"] == "prepare":
                module = module or load(sys.argv[1])
                if message := missing(module):
                    response = {"missing": message}
                else:
                    info, run = module.prepare(request["workload"])
                    response = {"info": info}
            else:
                assert run is not None, "run before prepare"
                response = {**run(request["inputs"]), "rss": resident()}
        except (Exception, SystemExit) as error:
            response = {"error": message_of(error)}
        print(json.dumps(response), file=pipe, flush=True)


if __name__ == "__main__":
    main()
