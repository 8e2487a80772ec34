"""The engine for models whose attention cannot be handed in: contexts of one length are drawn after together, one cohort after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..core import address as at
from ..core.errors import BadValue, NotFinite, Unproven
from ..core.protocols import Completion
from ..core.task import Sampling
from ..model import quantities
from ..model.base import Model
from ..model.tokenizer import Tokenizer
from . import sampler
from .sampler import padded
from .stops import Stops
from .weights import Weights, aligned, check

ROWS = 512  # rows of logits that a score makes at a time


@dataclass(eq=False, slots=True)
class Row:
    """One turn to draw: its context i64[L], and what has been drawn."""

    group: str
    ids: np.ndarray
    sampling: Sampling
    address: int
    table: int
    future: asyncio.Future[Completion]
    said: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    recorded: dict[str, list[float]] = field(default_factory=dict)


class CohortEngine(Weights):
    """Batches of contexts of equal length, which go on together until all have ended: no padding stands before a text, so whatever a model
    does about positions is right, and rows of a cohort stay apart. A context that several share (a group's prompt) is computed once.

    The next cohort is that of the longest-waiting request. Rows are filled up to a multiple of 8, which on a CPU keeps the bits of most
    models from depending on how many rows there are; unlike the built-in engine's, they are not claimed not to.

    slots    rows that run at once;  length: tokens of a whole context (None: what the model allows)
    counts   tokens generated, prefilled, reused, scored; steps
    """

    exact = False

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
        heads: Mapping[str, Mapping[str, torch.nn.Linear]] | None = None,
        asked: Mapping[str, Mapping[str, str]] | None = None,
    ):
        super().__init__(models, members, tokenizer, length, heads, asked)
        if slots < 1:
            raise BadValue(f"engine: slots ({slots}) must be at least 1")
        self.slots, self.device = slots, torch.device(device)
        self.counts: Counter[str] = Counter(generated=0, prefilled=0, reused=0, scored=0, steps=0)
        self.stops: dict[int, Stops] = {}
        for model in self.models.values():
            model.to(self.device, dtype)
            self.stops.setdefault(model.c.vocab, Stops(tokenizer.pieces, model.c.vocab))
        self.queue: list[Row] = []
        self.running: list[Row] = []
        self._pump: asyncio.Task[None] | None = None

    async def generate(self, member: str, context: np.ndarray, sampling: Sampling, address: int) -> Completion:
        """As BuiltinEngine.generate."""
        group = self.group(member)
        vocab = self.models[group].c.vocab
        ids = check(context, vocab, sampling.record, sampling)
        if len(ids) >= self.lengths[group]:
            none = np.zeros(0, np.float32)
            return Completion(none.astype(np.int32), none, "limit", self.versions[group], dict.fromkeys(sampling.record, none))
        loop = asyncio.get_running_loop()
        if self._pump is not None and self._pump.get_loop() is not loop:
            self._give_up(asyncio.CancelledError())  # its loop was closed under it
        row = Row(group, ids, sampling, address, self.stops[vocab].number(sampling.stop), loop.create_future())
        self.queue.append(row)
        if self._pump is None:
            self._pump = loop.create_task(self._run(), name="engine")
        return await row.future

    async def score(self, member: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)) -> Mapping[str, np.ndarray]:
        """As BuiltinEngine.score; one text at a time."""
        group = self.group(member)
        model, start = self.models[group], len(context)
        check(context, model.c.vocab, want, known=self.known(member))
        ids = check(np.concatenate([context, tokens]), model.c.vocab, ())
        if len(ids) > self.lengths[group]:
            raise BadValue(f"engine: {start} + {len(tokens)} tokens to score do not fit the context of {self.lengths[group]}")
        if len(ids) == start:
            return {name: np.zeros(0, np.float32) for name in want}
        self.counts["scored"] += len(ids) - start
        return self._scored(member, model, ids, start, want)

    @torch.inference_mode()
    def _scored(self, member: str, model: Model, ids: np.ndarray, start: int, want: Sequence[str]) -> Mapping[str, np.ndarray]:
        hidden = model.extend(self._to(ids[None]))[0][0, start - 1 :]
        ids = np.append(ids, 0)  # the last state comes before no token here
        parts: list[dict[str, np.ndarray]] = []
        for a in range(0, len(hidden), ROWS):
            logits = model.logits(hidden[a : a + ROWS]).float()
            given = {"logits": logits, "logprobs": quantities.logprobs(logits, 1.0), "hidden": hidden[a : a + ROWS]}
            given |= {"ids": self._to(ids[start + a : start + a + ROWS]), **self.said(member, hidden[a : a + ROWS])}
            parts.append({name: quantities.compute(name, given).float().cpu().numpy() for name in want})
        return aligned({name: np.concatenate([part[name] for part in parts]) for name in want})

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """As Weights.load. Raises Unproven while requests of the group run: their tokens would be of two versions."""
        if waiting := sum(row.group == group and not row.future.done() for row in (*self.queue, *self.running)):
            raise Unproven(f"weights of {group!r} cannot change while {waiting} of its requests run")
        return super().load(group, weights, version)

    async def _run(self) -> None:
        """Draw for cohorts while anybody waits. Programs go on between tokens, so that all that are ready come before the next cohort."""
        try:
            while self.queue:
                await self._settle()
                first = self.queue[0]
                like = [r for r in self.queue if r.group == first.group and len(r.ids) == len(first.ids)]
                self.running = [r for r in like[: self.slots] if not r.future.done()]
                taken = set(map(id, like[: self.slots]))
                self.queue = [r for r in self.queue if id(r) not in taken]
                await self._cohort(self.running)
            self._pump = None
        except GeneratorExit:
            raise  # its loop was closed long ago; whoever waits now waits for another pump
        except BaseException as error:
            self._give_up(error)
            if not isinstance(error, Exception):
                raise

    async def _settle(self) -> None:
        """Let ready coroutines run, longer while requests come (a gather within a gather takes several rounds)."""
        rounds = 3
        while rounds:
            before = len(self.queue)
            await asyncio.sleep(0)
            rounds = rounds - 1 if len(self.queue) == before else 3

    async def _cohort(self, rows: list[Row]) -> None:
        """Draw after contexts of one length until every row has ended."""
        if not rows:
            return
        model = self.models[rows[0].group]
        contexts, own = np.unique(np.stack([row.ids for row in rows]), axis=0, return_inverse=True)
        self.counts["prefilled"] += contexts.size
        self.counts["reused"] += (len(rows) - len(contexts)) * contexts.shape[1]
        hidden, past = self._extend(model, contexts[padded(np.arange(len(contexts)))], None)
        stand = own.reshape(-1)  # where each row stands in what was computed last
        while rows:
            drawn = self._draw(model, hidden[self._to(padded(stand))][:, -1], rows)
            keep = np.array([not self._ended(row) for row in rows])
            rows = [row for row, stays in zip(rows, keep, strict=True) if stays]
            self.running = rows
            await asyncio.sleep(0)
            if rows:
                where, stand = padded(stand[keep]), np.arange(len(rows))
                hidden, past = self._extend(model, drawn[keep][padded(stand)][:, None], (past, where))

    @torch.inference_mode()
    def _extend(self, model: Model, ids: np.ndarray, held: tuple[Any, np.ndarray] | None) -> tuple[torch.Tensor, Any]:
        self.counts["steps"] += 1
        past = None if held is None else model.pick(held[0], self._to(held[1]))
        return model.extend(self._to(ids), past)

    @torch.inference_mode()
    def _draw(self, model: Model, hidden: torch.Tensor, rows: list[Row]) -> np.ndarray:
        """The next token of each row, i64[R], noted in it. `hidden` [R, width], padded to 8 by repeating the first."""
        spread = [rows[i] for i in padded(np.arange(len(rows)))]
        logits = model.logits(hidden).float()
        heat, top_p = (np.array([float(getattr(r.sampling, n)) for r in spread]) for n in ("temperature", "top_p"))
        uniform = at.uniform(np.array([r.address for r in spread], np.uint64), np.full(len(spread), len(rows[0].said)))
        drawn = sampler.draw(logits, heat, np.array([r.sampling.top_k for r in spread]), top_p, uniform)
        ids, logp = drawn.ids.cpu().numpy(), drawn.logp.cpu().numpy()
        if not np.isfinite(logp[: len(rows)]).all():
            raise NotFinite(f"weights of {rows[0].group!r}: they give logits that are not finite, so no token can be drawn")
        given = {"logits": logits, "logprobs": sampler.tempered(logits, heat), "ids": drawn.ids, "hidden": hidden}
        made = {name: quantities.compute(name, given).float().cpu().numpy() for name in sorted({n for r in rows for n in r.sampling.record})}
        for n, row in enumerate(rows):
            row.said.append(int(ids[n]))
            row.logp.append(float(logp[n]))
            for name in row.sampling.record:
                row.recorded.setdefault(name, []).append(float(made[name][n]))
        self.counts["generated"] += len(rows)
        return ids[: len(rows)]

    def _ended(self, row: Row) -> bool:
        """Whether a row is over: answered now, or given up by whoever asked."""
        if row.future.done():
            return True
        stops, last, total = self.stops[self.models[row.group].c.vocab], row.said[-1], len(row.ids) + len(row.said)
        stop = last in self.tokenizer.ends or bool(stops.could[row.table, last] and stops.ended(row.table, np.array(row.said)))
        full = len(row.said) == row.sampling.max_tokens
        if not (stop or full or total >= self.lengths[row.group]):
            return False
        recorded = {name: np.array(values, np.float32) for name, values in row.recorded.items()}
        status = "stop" if stop else "length" if full else "limit"
        said = np.array(row.said, np.int32), np.array(row.logp, np.float32)
        row.future.set_result(Completion(*said, status, self.versions[row.group], recorded))
        return True

    def _give_up(self, error: BaseException) -> None:
        """End every request with an error."""
        for row in (*self.running, *self.queue):
            if not row.future.done() and not row.future.get_loop().is_closed():
                row.future.set_exception(error) if isinstance(error, Exception) else row.future.cancel()
        self.queue, self.running, self._pump = [], [], None

    def _to(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)
