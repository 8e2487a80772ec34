"""What `python -m vllm... serve FOLDER --host H --port P` would be, over the reference engine, for tests without vLLM.

stub_vllm.py -c CODE             says that it is installed
stub_vllm.py -m MODULE serve FOLDER ... --host H --port P
"""

from __future__ import annotations

import sys
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route


async def health(request: object) -> Response:
    return Response("")


def main(words: list[str]) -> None:
    if words[0] == "-c":
        print("0.0 vllm")
        return
    import uvicorn

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from selfteach.engine import ReferenceEngine
    from selfteach.model import files
    from support.completion_servers import FakeServer

    model, tokenizer = files.load(Path(words[words.index("serve") + 1]))
    server = FakeServer("vllm", ReferenceEngine({"w": model}, {"policy": "w"}, tokenizer))
    server.takes_weights = True
    application = server.application()
    application.routes.insert(0, Route("/health", health, methods=["GET"]))
    host, port = (words[words.index(f"--{name}") + 1] for name in ("host", "port"))
    uvicorn.run(application, host=host, port=int(port), log_level="error", lifespan="off")


if __name__ == "__main__":
    main(sys.argv[1:])
