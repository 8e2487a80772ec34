"""A run up to its first finished episode: `python -m selfteach.bench.own.startup` prints one line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
import time

if __name__ == "__main__":
    start_time = time.perf_counter()
    from selfteach import preparation
    from selfteach.configuration import plan, task_source
    from selfteach.loop import method_on_task
    from selfteach.loop.session import ignore_events

    async def first_episode() -> None:
        """Start as `selfteach train grpo` does, play one episode, and print the seconds since the process began."""
        run_config = plan("grpo")
        source = task_source(run_config.task, run_config.task_options)
        method_on_task.check(run_config.method, source)
        events: list[str] = []
        model = await preparation.start_model(run_config, source, lambda event: events.append(event["event"]))
        session = preparation.make_session(run_config, source, model, None, ignore_events)
        await session.measure(k=1, tasks=1)
        print(json.dumps({"seconds": time.perf_counter() - start_time, "cached": "warm_found" in events}), flush=True)

    asyncio.run(first_episode())
    os._exit(0)  # the shutdown of libraries and threads is not timed
