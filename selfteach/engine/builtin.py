"""The engine that comes with the library: all that wait are batched, step by step, in the event loop's own thread."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.errors import BadValue, Unproven
from ..core.protocols import Completion
from ..core.task import Sampling
from ..model.base import Model
from ..model.tokenizer import Tokenizer
from ..model.transformer import Transformer
from . import graphs
from .exact import exact
from .lane import Lane, Request
from .runner import Kernel, runner
from .stops import Stops
from .weights import Weights, aligned, beyond, check


class BuiltinEngine(Weights):
    """Continuous batching with a prefix cache; a sample's bits do not depend on what else is sampled where `exact` is True.

    models   one model per weight group, the engine's own from then on; members: member -> weight group
    slots    sequences that run at once, per weight group
    length   tokens of a whole context (None: what the model allows)
    chunk    prompt tokens computed in one step, so that long prompts do not hold up those who are drawing
    dtype    of weights and cache; kernel: what computes (runner.py), for each weight group told in `how`
    heads    scalar heads and who may be asked for them: as Weights has them
    reserve  bytes of a GPU's memory that the cache must leave to others: there may then be fewer slots, which `told` hears
    counts   tokens generated, prefilled, reused, copied, scored; steps
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        members: Mapping[str, str],
        tokenizer: Tokenizer,
        *,
        slots: int = 64,
        length: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        chunk: int = 512,
        kernel: Kernel = "auto",
        reserve: int = 0,
        heads: Mapping[str, Mapping[str, nn.Linear]] | None = None,
        asked: Mapping[str, Mapping[str, str]] | None = None,
    ):
        super().__init__(models, members, tokenizer, length, heads, asked)
        self.told: Callable[[str], object] = warnings.warn
        if slots < 1 or chunk < 1:
            raise BadValue(f"engine: slots ({slots}) and chunk ({chunk}) must be at least 1")
        self.counts: Counter[str] = Counter(generated=0, prefilled=0, reused=0, copied=0, scored=0, steps=0)
        self.lanes: dict[str, Lane] = {}
        stops: dict[int, Stops] = {}
        for group, model in self.models.items():
            assert isinstance(model, Transformer), group  # others are for engine/cohort.py
            n, vocab = self.lengths[group], model.c.vocab
            fit = self._fitting(model, slots, n, torch.device(device), dtype, reserve)
            own = runner(model, fit, n, torch.device(device), dtype, kernel)
            tables = stops.setdefault(vocab, Stops(tokenizer.pieces, vocab))
            self.lanes[group] = Lane(group, own, fit, n, chunk, tables, tokenizer.ends, self.counts, self.said)
        self.how = {group: lane.runner.how for group, lane in self.lanes.items()}
        self.device = torch.device(device)
        self._pump: asyncio.Task[None] | None = None
        self._arrived = 0

    @cached_property
    def exact(self) -> bool:
        """Whether samples keep their bits in any company, as probed on this machine when first asked."""
        # On a GPU products are computed one way or another by the number of rows, so company shows in the last bits.
        return self.device.type == "cpu" and all(exact(lane.runner) for lane in self.lanes.values())

    async def generate(self, member: str, context: np.ndarray, sampling: Sampling, address: int) -> Completion:
        """Draw tokens after `context` (i32[L]) until a stop, `sampling.max_tokens`, or the context limit.

        Quantities in `sampling.record` are those of the distribution at its temperature before truncation (greedy: at temperature 1).
        Raises UnknownName, BadValue; NotFinite where the weights give no distribution.
        """
        lane = self.lanes[self.group(member)]
        ids = check(context, lane.runner.model.c.vocab, sampling.record, sampling)
        if len(ids) >= lane.length:
            none = np.zeros(0, np.float32)
            return Completion(none.astype(np.int32), none, "limit", lane.version, dict.fromkeys(sampling.record, none))
        return await self._ask(lane, Request(ids, len(ids), _future(), sampling, address))

    async def score(self, member: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens (i32[n]) after a context: name -> f32[n], at temperature 1.

        Raises UnknownName; BadValue where context and tokens are more than the engine's context.
        """
        lane = self.lanes[self.group(member)]
        start = len(check(context, lane.runner.model.c.vocab, want, known=self.known(member)))
        ids = check(np.concatenate([context, tokens]), lane.runner.model.c.vocab, ())
        if len(ids) > lane.length:
            raise BadValue(f"engine: {start} + {len(tokens)} tokens to score do not fit the context of {lane.length}")
        if len(ids) == start:
            return {name: np.zeros(0, np.float32) for name in want}
        self.counts["scored"] += len(ids) - start
        if not any(map(beyond, want)):
            request = Request(ids[:-1], start, _future(), tokens=ids[start:], want=tuple(want), member=member)
            return await self._ask(lane, request)
        whole = np.append(ids[start:], 0)  # the last state comes before no token here
        return aligned(await self._ask(lane, Request(ids, start, _future(), tokens=whole, want=tuple(want), member=member)))

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Copy a weight group in place and drop what was cached under the old one. Returns the fingerprint of what is now held.

        Raises Unproven while requests of the group run: their tokens would be of two versions.
        """
        lane = self.lanes.get(group)
        if lane is not None and lane.pending:
            raise Unproven(f"weights of {group!r} cannot change while {len(lane.queue) + int(lane.running.sum())} of its requests run")
        fingerprint = super().load(group, weights, version)
        if lane is not None:
            lane.version = version
            lane.runner.load()
            lane.forget()
        return fingerprint

    async def _ask(self, lane: Lane, request: Request) -> Any:
        """Queue a request, see that the pump runs, and wait; a waiter that is cancelled takes its sequence out at the next step."""
        loop = asyncio.get_running_loop()
        if self._pump is not None and self._pump.get_loop() is not loop:
            self._give_up(asyncio.CancelledError())  # its loop was closed under it
        lane.queue.append(request)
        self._arrived += 1
        if self._pump is None:
            self._pump = loop.create_task(self._run(), name="engine")
        try:
            return await request.future
        except asyncio.CancelledError:
            lane.leaving.append(request)
            raise

    async def _run(self) -> None:
        """Step while anybody waits. Programs go on between steps, and all that are ready submit before the next one."""
        try:
            ended = True
            while any(lane.pending for lane in self.lanes.values()):
                await self._settle(3 if ended else 1)
                ended = False
                for lane in self.lanes.values():
                    if lane.pending:
                        ended |= self._step(lane)
            self._pump = None
        except GeneratorExit:
            raise  # its loop was closed long ago; whoever waits now waits for another pump
        except BaseException as error:
            self._give_up(error)
            if not isinstance(error, Exception):
                raise

    def _step(self, lane: Lane) -> bool:
        """A step of a lane; where it finds no memory, with half the slots from then on."""
        try:
            return lane.step()
        except torch.OutOfMemoryError as error:
            said = str(error).splitlines()[0]
        left = lane.shrink()  # not while the error is handled, which keeps alive what the step had made
        if not left:
            raise BadValue(f"engine: one sequence of {lane.length} tokens does not fit the memory ({said}); ask for a shorter context")
        self.told(f"engine: memory is full; {left} sequences of {lane.name!r} are drawn at once from now on")
        return False

    def _fitting(self, model: Transformer, slots: int, length: int, device: torch.device, dtype: torch.dtype, reserve: int) -> int:
        """How many slots there will be: those asked for, or what a GPU's memory holds."""
        if device.type != "cuda":
            return slots
        model.to(device, dtype)
        fit = graphs.fitting(slots, length, model, dtype, torch.cuda.mem_get_info(device)[0], reserve)
        if fit < slots:
            self.told(f"engine: memory for {fit} sequences of {length} tokens at once, not {slots}; a shorter context makes room for more")
        return fit

    async def _settle(self, rounds: int) -> None:
        """Let ready coroutines run for some rounds of the event loop (a gather within a gather takes several), longer while requests come."""
        while rounds:
            before = self._arrived
            await asyncio.sleep(0)
            rounds = rounds - 1 if self._arrived == before else max(rounds, 2) - 1

    def _give_up(self, error: BaseException) -> None:
        for lane in self.lanes.values():
            lane.fail(error)
        self._pump = None


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()
