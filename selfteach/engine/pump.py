"""The task in which an engine steps while requests wait: begun by the first of them, over with the last."""

from __future__ import annotations

import asyncio


class Pumped:
    """What works in a task of the event loop whenever it has something to do."""

    _pump: asyncio.Task[None] | None = None

    async def _work(self) -> None:
        """Step while there are requests."""
        raise NotImplementedError

    def _fail_all(self, error: BaseException) -> None:
        """End every request with an error."""
        raise NotImplementedError

    def _keep_working(self) -> None:
        """See that there is a task for what is queued before control next goes to the event loop.

        Requests of an event loop that was closed are cancelled, so this comes before the next one is queued.
        """
        loop = asyncio.get_running_loop()
        if self._pump is not None and self._pump.get_loop() is not loop:
            self._pump = None
            self._fail_all(asyncio.CancelledError())
        if self._pump is None:
            self._pump = loop.create_task(self._work_or_fail(), name="engine")
            # What a signal raised within a step has reached all who wait; asyncio need not report it as well.
            self._pump.add_done_callback(lambda pump: pump.cancelled() or pump.exception())

    async def _work_or_fail(self) -> None:
        try:
            await self._work()
            self._pump = None
        except GeneratorExit:
            raise  # its event loop was closed; present requests belong to another task
        except BaseException as error:
            self._pump = None
            self._fail_all(error)
            if not isinstance(error, Exception):
                raise
