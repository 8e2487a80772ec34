"""A run up to its first finished episode, in a fresh process: `python -m selfteach.bench.own.start` prints a line when
it is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import time

if __name__ == "__main__":
    began = time.perf_counter()
    from selfteach import api
    from selfteach.loop import assemble

    async def main() -> None:
        job = api.plan("grpo")
        source = api.task_source(job.task, job.task_options)
        assemble.check(job.method, source)
        heard: list[str] = []
        start = await api.start_model(job, source, lambda event: heard.append(event["event"]))
        session = api.make_session(job, source, start, None, api.ignore_events)
        await session.measure(k=1, tasks=1)
        print(json.dumps({"seconds": time.perf_counter() - began, "cached": "warm_found" in heard}), flush=True)

    asyncio.run(main())
    os._exit(0)  # only the way to the first episode is timed, not the taking down of libraries and threads
