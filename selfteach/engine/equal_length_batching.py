"""The equal-length batching engine, for models without custom attention: one batch after the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..core import random_keys
from ..core.errors import BadValue, EngineMismatch, NotFinite
from ..core.protocols import Completion, EngineCapabilities
from ..core.task import Sampling, Steering
from ..model import quantities
from ..model.base import Model
from ..model.residual import changed
from ..model.tokenizer import Tokenizer
from . import sampler
from .pump import Pumped
from .sampler import pad_rows
from .stop_strings import StopStrings
from .weights import EngineWeights, align_scores, check_request, reads_layers

SCORE_ROWS = 512  # rows of logits that a score computes at a time


@dataclass(eq=False, slots=True)
class PendingTurn:
    """One turn being generated: its context i64[L], and what has been drawn."""

    group: str
    ids: np.ndarray
    sampling: Sampling
    rng_key: int
    table: int
    future: asyncio.Future[Completion]
    tokens: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    recorded: dict[str, list[float]] = field(default_factory=dict)
    on_tokens: Callable[[np.ndarray], object] | None = None


class EqualLengthEngine(Pumped, EngineWeights):
    """Batches of contexts of equal length, generated together until all have ended.

    There is no left padding, so any positional scheme is right. A context that several share (a group's prompt) is
    computed once. The next batch is that of the oldest request. Rows are padded to a multiple of 8, which on a CPU
    keeps the bits of most models from depending on the number of rows, without a guarantee.

    slots    rows that run at once
    length   tokens of a context (None: what the model allows)
    counts   tokens generated, prefilled, reused, scored; steps
    """

    batch_invariant = False
    capabilities = EngineCapabilities("equal-length")

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
        heads: Mapping[str, Mapping[str, torch.nn.Linear]] | None = None,
        model_heads: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(models, model_roles, tokenizer, length, heads, model_heads)
        if slots < 1:
            raise BadValue(f"engine: slots ({slots}) must be at least 1")
        self.slots, self.device = slots, torch.device(device)
        self.counts: Counter[str] = Counter(generated=0, prefilled=0, reused=0, scored=0, steps=0)
        self.stops: dict[int, StopStrings] = {}
        for model in self.models.values():
            model.to(self.device, dtype)
            self.stops.setdefault(model.config.vocab, StopStrings(tokenizer.pieces, model.config.vocab))
        self.queue: list[PendingTurn] = []
        self.running: list[PendingTurn] = []

    async def generate(
        self,
        model_role: str,
        context: np.ndarray,
        sampling: Sampling,
        rng_key: int,
        on_tokens: Callable[[np.ndarray], object] | None = None,
    ) -> Completion:
        """As BuiltinEngine.generate."""
        group = self.group_of(model_role)
        vocab = self.models[group].config.vocab
        ids = check_request(context, vocab, sampling.record, sampling)
        self.check_steering(group, sampling)
        if len(ids) >= self.lengths[group]:
            empty = np.zeros(0, np.float32)
            return Completion(
                empty.astype(np.int32), empty, "limit", self.versions[group], dict.fromkeys(sampling.record, empty)
            )
        self._keep_working()
        table = self.stops[vocab].index_of(sampling.stop)
        future = asyncio.get_running_loop().create_future()
        row = PendingTurn(group, ids, sampling, rng_key, table, future, on_tokens=on_tokens)
        self.queue.append(row)
        return await row.future

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """As BuiltinEngine.score, one text at a time."""
        group = self.group_of(model_role)
        model, start = self.models[group], len(context)
        check_request(context, model.config.vocab, want, inputs=self.score_inputs(model_role))
        ids = check_request(np.concatenate([context, tokens]), model.config.vocab, ())
        if len(ids) > self.lengths[group]:
            raise BadValue(
                f"engine: {start} + {len(tokens)} tokens to score do not fit the context of {self.lengths[group]}"
            )
        if len(ids) == start:
            return {name: np.zeros(0, np.float32) for name in want}
        self.counts["scored"] += len(ids) - start
        if reads_layers(want):
            return self.score_by_layers(model_role, ids[:start], ids[start:], want)
        return self._score_text(model_role, model, ids, start, want)

    @torch.inference_mode()
    def _score_text(
        self, model_role: str, model: Model, ids: np.ndarray, start: int, want: Sequence[str]
    ) -> Mapping[str, np.ndarray]:
        hidden = model.extend(self._to(ids[None]))[0][0, start - 1 :]
        ids = np.append(ids, 0)  # a dummy token for the state after the last one
        parts: list[dict[str, np.ndarray]] = []
        for a in range(0, len(hidden), SCORE_ROWS):
            logits = model.logits(hidden[a : a + SCORE_ROWS]).float()
            given = {
                "logits": logits,
                "logprobs": quantities.logprobs(logits, 1.0),
                "hidden": hidden[a : a + SCORE_ROWS],
            }
            given |= {
                "ids": self._to(ids[start + a : start + a + SCORE_ROWS]),
                **self.head_values(model_role, hidden[a : a + SCORE_ROWS]),
            }
            parts.append({name: quantities.compute(name, given).float().cpu().numpy() for name in want})
        return align_scores({name: np.concatenate([part[name] for part in parts]) for name in want})

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """As EngineWeights.load.

        Raises EngineMismatch while requests of the group run: their tokens would be of two versions.
        """
        if waiting := sum(row.group == group and not row.future.done() for row in (*self.queue, *self.running)):
            raise EngineMismatch(f"weights of {group!r} cannot change while {waiting} of its requests run")
        return super().load(group, weights, version)

    async def _work(self) -> None:
        """Generate batch after batch while there are requests; rollout programs run between tokens."""
        while self.queue:
            await self._let_programs_run()
            first = self.queue[0]
            like = [r for r in self.queue if r.group == first.group and len(r.ids) == len(first.ids)]
            self.running = [r for r in like[: self.slots] if not r.future.done()]
            taken = set(map(id, like[: self.slots]))
            self.queue = [r for r in self.queue if id(r) not in taken]
            await self._batch(self.running)

    async def _let_programs_run(self) -> None:
        """Let ready coroutines run, longer while requests come; nested gathers take several rounds."""
        rounds = 3
        while rounds:
            before = len(self.queue)
            await asyncio.sleep(0)
            rounds = rounds - 1 if len(self.queue) == before else 3

    async def _batch(self, rows: list[PendingTurn]) -> None:
        """Generate after contexts of one length until every row has ended."""
        if not rows:
            return
        model = self.models[rows[0].group]
        steered = [row.sampling.steering for row in rows]
        kinds = list(dict.fromkeys(steered))
        marked = [
            [*row.ids, kinds.index(s)] for row, s in zip(rows, steered, strict=True)
        ]  # a text, and how it is steered
        found, own = np.unique(np.array(marked), axis=0, return_inverse=True)
        contexts = np.ascontiguousarray(found[:, :-1])
        self.counts["prefilled"] += contexts.size
        self.counts["reused"] += (len(rows) - len(contexts)) * contexts.shape[1]
        padded = pad_rows(np.arange(len(contexts)))
        hidden, past = self._extend(model, contexts[padded], None, [kinds[k] for k in found[padded, -1]])
        row_of = own.reshape(-1)  # of each request, in the last forward pass
        while rows:
            drawn = self._draw(model, hidden[self._to(pad_rows(row_of))][:, -1], rows)
            keep = np.array([not self._ended(row) for row in rows])
            rows = [row for row, kept in zip(rows, keep, strict=True) if kept]
            self.running = rows
            await asyncio.sleep(0)
            if rows:
                where, row_of = pad_rows(row_of[keep]), np.arange(len(rows))
                wide = pad_rows(row_of)
                steered = [rows[i].sampling.steering for i in wide]
                drawn_ids = drawn[keep][wide][:, None]
                hidden, past = self._extend(model, drawn_ids, (past, where), steered, len(rows[0].tokens))

    @torch.inference_mode()
    def _extend(
        self,
        model: Model,
        ids: np.ndarray,
        cached: tuple[Any, np.ndarray] | None,
        steered: Sequence[Steering | None],
        n_drawn: int = 0,
    ) -> tuple[torch.Tensor, Any]:
        """steered: how the states of each row are, from its context's last token on, after which it has `n_drawn`."""
        self.counts["steps"] += 1
        past = None if cached is None else model.select_rows(cached[0], self._to(cached[1]))
        with changed(model, _changes(steered, n_drawn)):
            return model.extend(self._to(ids), past)

    @torch.inference_mode()
    def _draw(self, model: Model, hidden: torch.Tensor, rows: list[PendingTurn]) -> np.ndarray:
        """Draw the next token of each row, i64[R], and add it to the row; hidden [padded R, width]."""
        padded_rows = [rows[i] for i in pad_rows(np.arange(len(rows)))]
        logits = model.logits(hidden).float()
        temperature, top_p = (
            np.array([float(getattr(r.sampling, n)) for r in padded_rows]) for n in ("temperature", "top_p")
        )
        uniform = random_keys.uniform(
            np.array([r.rng_key for r in padded_rows], np.uint64), np.full(len(padded_rows), len(rows[0].tokens))
        )
        drawn = sampler.draw(logits, temperature, np.array([r.sampling.top_k for r in padded_rows]), top_p, uniform)
        ids, logp = drawn.ids.cpu().numpy(), drawn.logp.cpu().numpy()
        if not np.isfinite(logp[: len(rows)]).all():
            raise NotFinite(
                f"weights of {rows[0].group!r}: they give logits that are not finite, so no token can be drawn"
            )
        given = {
            "logits": logits,
            "logprobs": sampler.tempered_logprobs(logits, temperature),
            "ids": drawn.ids,
            "hidden": hidden,
        }
        recorded = {
            name: quantities.compute(name, given).float().cpu().numpy()
            for name in sorted({n for r in rows for n in r.sampling.record})
        }
        for n, row in enumerate(rows):
            row.tokens.append(int(ids[n]))
            row.logp.append(float(logp[n]))
            for name in row.sampling.record:
                row.recorded.setdefault(name, []).append(float(recorded[name][n]))
            if row.on_tokens is not None and not row.future.done():
                row.on_tokens(ids[n : n + 1].astype(np.int32))
        self.counts["generated"] += len(rows)
        return ids[: len(rows)]

    def _ended(self, row: PendingTurn) -> bool:
        """Whether a row has ended; then its request gets its result, unless it was cancelled."""
        if row.future.done():
            return True
        stops, last, total = (
            self.stops[self.models[row.group].config.vocab],
            row.tokens[-1],
            len(row.ids) + len(row.tokens),
        )
        stop = last in self.tokenizer.eos_token_ids or bool(
            stops.may_complete[row.table, last] and stops.ended(row.table, np.array(row.tokens))
        )
        full = len(row.tokens) == row.sampling.max_tokens
        if not (stop or full or total >= self.lengths[row.group]):
            return False
        recorded = {name: np.array(values, np.float32) for name, values in row.recorded.items()}
        status = "stop" if stop else "length" if full else "limit"
        drawn = np.array(row.tokens, np.int32), np.array(row.logp, np.float32)
        row.future.set_result(Completion(*drawn, status, self.versions[row.group], recorded))
        return True

    def _fail_all(self, error: BaseException) -> None:
        """End every request with an error."""
        for row in (*self.running, *self.queue):
            if not row.future.done() and not row.future.get_loop().is_closed():
                row.future.set_exception(error) if isinstance(error, Exception) else row.future.cancel()
        self.queue, self.running = [], []

    def _to(self, x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(x)).to(self.device)


def _changes(steered: Sequence[Steering | None], n_drawn: int) -> dict[int, Callable[[torch.Tensor], torch.Tensor]]:
    """What the steering of each row makes of layers' outputs [R, T, width], of the last n_drawn + 1 states of T: all of
    them where a cache has those before.
    """

    def change(layer: int) -> Callable[[torch.Tensor], torch.Tensor]:
        rows = [i for i, s in enumerate(steered) if s is not None and s.layer == layer]
        vectors = torch.tensor([s.vector for s in steered if s is not None and s.layer == layer])

        def changed_states(out: torch.Tensor) -> torch.Tensor:
            first = max(0, out.shape[1] - 1 - n_drawn)
            added = vectors.to(out)[:, None].expand(-1, out.shape[1] - first, -1)
            last = out[:, first:].index_add(0, torch.tensor(rows, device=out.device), added)
            return torch.cat([out[:, :first], last], 1)

        return changed_states

    return {layer: change(layer) for layer in sorted({s.layer for s in steered if s is not None})}
