"""The built-in engine: continuous batching of all requests, in the event loop's thread."""

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

from ..core.errors import BadValue, EngineMismatch
from ..core.protocols import Completion
from ..core.task import Sampling
from ..model.base import Model
from ..model.tokenizer import Tokenizer
from ..model.transformer import Transformer
from .batch_invariance import is_batch_invariant
from .cuda_graphs import slots_that_fit
from .pump import Pumped
from .runner import Kernel, make_runner
from .scheduler import EngineRequest, Scheduler
from .stop_strings import StopStrings
from .weights import EngineWeights, align_scores, check_request, reads_after_token, reads_layers


class BuiltinEngine(Pumped, EngineWeights):
    """Continuous batching with a prefix cache.

    Where `batch_invariant` is True, a sample's bits do not depend on what else is sampled.

    models       weight group -> model; they belong to the engine from then on
    model_roles  model role -> weight group
    slots        sequences that run at once, per weight group
    length       tokens of a context (None: what the model allows)
    chunk        prompt tokens computed in one step (chunked prefill)
    dtype        of weights and cache
    kernel       the runner to take (runner.py); `backend` says for each weight group which one it is
    heads, model_heads  scalar heads, and which model role has them, as in EngineWeights
    reserve      bytes of a GPU's memory that the cache must leave free; where that leaves fewer slots, `warn` is called
    counts       tokens generated, prefilled, reused, copied, scored; steps
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        model_roles: Mapping[str, str],
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
        model_heads: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(models, model_roles, tokenizer, length, heads, model_heads)
        self.warn: Callable[[str], object] = warnings.warn
        if slots < 1 or chunk < 1:
            raise BadValue(f"engine: slots ({slots}) and chunk ({chunk}) must be at least 1")
        self.counts: Counter[str] = Counter(generated=0, prefilled=0, reused=0, copied=0, scored=0, steps=0)
        self.schedulers: dict[str, Scheduler] = {}
        stops: dict[int, StopStrings] = {}
        for group, model in self.models.items():
            assert isinstance(model, Transformer), group  # others are for EqualLengthEngine
            n, vocab = self.lengths[group], model.config.vocab
            n_slots = self._fitting_slots(model, slots, n, torch.device(device), dtype, reserve)
            own = make_runner(model, n_slots, n, torch.device(device), dtype, kernel)
            tables = stops.setdefault(vocab, StopStrings(tokenizer.pieces, vocab))
            self.schedulers[group] = Scheduler(
                group, own, n_slots, n, chunk, tables, tokenizer.eos_token_ids, self.counts, self.head_values
            )
        self.backend = {group: scheduler.runner.backend for group, scheduler in self.schedulers.items()}
        self.device = torch.device(device)
        self._n_submitted = self._metered = 0

    @cached_property
    def batch_invariant(self) -> bool:
        """Whether samples have the same bits in any batch, measured on this machine on first use."""
        # On a GPU the algorithm of a matmul depends on the number of rows, so the batch changes the last bits.
        return self.device.type == "cpu" and all(
            is_batch_invariant(scheduler.runner) for scheduler in self.schedulers.values()
        )

    async def generate(
        self,
        model_role: str,
        context: np.ndarray,
        sampling: Sampling,
        rng_key: int,
        on_tokens: Callable[[np.ndarray], object] | None = None,
    ) -> Completion:
        """Draw tokens after `context` (i32[L]) until a stop, `sampling.max_tokens`, or the context limit.

        on_tokens  called with i32[n] as tokens are drawn; it may neither raise nor take long

        Quantities in `sampling.record` are those of the distribution at its temperature before truncation (greedy: at
        temperature 1). Raises UnknownName, BadValue; NotFinite where the weights give no distribution.
        """
        scheduler = self.schedulers[self.group_of(model_role)]
        ids = check_request(context, scheduler.runner.model.config.vocab, sampling.record, sampling)
        self.check_steering(self.group_of(model_role), sampling)
        if len(ids) >= scheduler.length:
            empty = np.zeros(0, np.float32)
            return Completion(
                empty.astype(np.int32), empty, "limit", scheduler.version, dict.fromkeys(sampling.record, empty)
            )
        request = EngineRequest(ids, len(ids), _future(), sampling, rng_key, on_tokens=on_tokens)
        return await self._submit(scheduler, request)

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Quantities of given tokens (i32[n]) after a context: name -> f32[n], at temperature 1.

        Raises UnknownName; BadValue where context and tokens are more than the engine's context.
        """
        scheduler = self.schedulers[self.group_of(model_role)]
        start = len(
            check_request(context, scheduler.runner.model.config.vocab, want, inputs=self.score_inputs(model_role))
        )
        ids = check_request(np.concatenate([context, tokens]), scheduler.runner.model.config.vocab, ())
        if len(ids) > scheduler.length:
            raise BadValue(
                f"engine: {start} + {len(tokens)} tokens to score do not fit the context of {scheduler.length}"
            )
        if len(ids) == start:
            return {name: np.zeros(0, np.float32) for name in want}
        self.counts["scored"] += len(ids) - start
        if reads_layers(want):
            return self.score_by_layers(model_role, ids[:start], ids[start:], want)
        if not any(map(reads_after_token, want)):
            request = EngineRequest(
                ids[:-1], start, _future(), tokens=ids[start:], want=tuple(want), model_role=model_role
            )
            return await self._submit(scheduler, request)
        whole = np.append(ids[start:], 0)  # a dummy token for the state after the last one
        return align_scores(
            await self._submit(
                scheduler, EngineRequest(ids, start, _future(), tokens=whole, want=tuple(want), model_role=model_role)
            )
        )

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Copy a weight group in place, clear its cache, and return the fingerprint of the weights now held.

        Raises EngineMismatch while requests of the group run: their tokens would be of two versions.
        """
        scheduler = self.schedulers.get(group)
        if scheduler is not None and scheduler.pending:
            raise EngineMismatch(
                f"weights of {group!r} cannot change while {len(scheduler.queue) + int(scheduler.running.sum())} of "
                "its requests run"
            )
        return self.load_running(group, weights, version)

    def load_running(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """As `load`, also while requests of the group run: they go on under the new weights from the token that they
        are at, after what they have is computed again (AReaL's interruption, 2505.24298, section 4.1).
        """
        fingerprint = super().load(group, weights, version)
        if (scheduler := self.schedulers.get(group)) is not None:
            scheduler.change_weights(version)
        return fingerprint

    def meter(self) -> dict[str, int]:
        """What it did since this was last asked: steps, and the most tokens of sequences that generated at once."""
        steps, self._metered = self.counts["steps"] - self._metered, self.counts["steps"]
        peak = sum(scheduler.peak_tokens for scheduler in self.schedulers.values())
        for scheduler in self.schedulers.values():
            scheduler.peak_tokens = 0
        return {"steps": steps, "peak_tokens": peak}

    async def _submit(self, scheduler: Scheduler, request: EngineRequest) -> Any:
        """Queue a request, make sure that the pump runs, and wait for the result.

        Where the waiter is cancelled, its sequence is dropped at the next step.
        """
        self._keep_working()
        scheduler.queue.append(request)
        self._n_submitted += 1
        try:
            return await request.future
        except asyncio.CancelledError:
            scheduler.cancelled.append(request)
            raise

    async def _work(self) -> None:
        """Step while there are requests; rollout programs run between steps and submit their next requests."""
        ended = True
        while any(scheduler.pending for scheduler in self.schedulers.values()):
            await self._let_programs_run(3 if ended else 1)
            ended = False
            for scheduler in self.schedulers.values():
                if scheduler.pending:
                    ended |= self._step(scheduler)

    def _step(self, scheduler: Scheduler) -> bool:
        """Run one step of a scheduler; out of memory, halve its slots. Whether a request ended."""
        try:
            return scheduler.step()
        except torch.OutOfMemoryError as error:
            reason = str(error).splitlines()[0]
        left = scheduler.shrink()  # outside the handler, since the error keeps the step's tensors alive
        if not left:
            raise BadValue(
                f"engine: one sequence of {scheduler.length} tokens does not fit the memory ({reason}); ask for a "
                "shorter context"
            )
        self.warn(f"engine: out of memory; {left} sequences of {scheduler.name!r} run at once from now on")
        return False

    def _fitting_slots(
        self, model: Transformer, slots: int, length: int, device: torch.device, dtype: torch.dtype, reserve: int
    ) -> int:
        """The number of slots: as configured, or what a GPU's memory holds; puts the model on its device."""
        if device.type != "cuda":
            return slots
        model.to(device, dtype)
        n_slots = slots_that_fit(slots, length, model, dtype, torch.cuda.mem_get_info(device)[0], reserve)
        if n_slots < slots:
            self.warn(
                f"engine: memory for {n_slots} sequences of {length} tokens at once, not {slots}; take a shorter "
                "context to run more"
            )
        return n_slots

    async def _let_programs_run(self, rounds: int) -> None:
        """Let ready coroutines run for some rounds of the event loop, longer while requests come.

        Nested gathers take several rounds.
        """
        while rounds:
            before = self._n_submitted
            await asyncio.sleep(0)
            rounds = rounds - 1 if self._n_submitted == before else max(rounds, 2) - 1

    def _fail_all(self, error: BaseException) -> None:
        """End every request with an error."""
        for scheduler in self.schedulers.values():
            scheduler.fail(error)


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()
