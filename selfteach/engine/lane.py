"""The sequences of one weight group: who waits, who has which slot, and one step of all that run."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ..core import address as at
from ..core.errors import NotFinite
from ..core.protocols import Completion
from ..core.task import Sampling
from ..model import quantities
from . import sampler
from .runner import Runner
from .sampler import padded
from .stops import Stops

WORTH = 8  # tokens that a sibling must be about to compute for waiting on it to be worth a step


@dataclass(eq=False, slots=True)
class Request:
    """One turn to draw (`sampling`), or tokens to score (`want`).

    `ids` i64: the context, of a score also the tokens but the last; `start`: length of the context; `tokens` i64: what to score.
    """

    ids: np.ndarray
    start: int
    future: asyncio.Future
    sampling: Sampling | None = None
    address: int = 0
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    want: tuple[str, ...] = ()
    member: str = ""
    scores: list[dict[str, np.ndarray]] = field(default_factory=list)
    slot: int = -1


class Lane:
    """Continuous batching over the slots of one weight group's cache.

    A slot keeps its sequence after it ended, until the slot is needed (least recently used first): new requests begin with the
    longest prefix found in any slot. State stands in arrays over slots; Python touches a sequence when it comes, ends, or may have stopped.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        slots: int,
        length: int,
        chunk: int,
        stops: Stops,
        ends: Sequence[int],
        counts: Counter,
        said: Callable[[str, torch.Tensor], dict[str, torch.Tensor]] = lambda member, hidden: {},
    ):
        self.name, self.runner, self.stops, self.counts, self.said = name, runner, stops, counts, said
        self.final = np.zeros(max(runner.model.c.vocab, *ends, 0) + 1, bool)  # the ids that end a turn
        self.final[[*ends]] = True
        self.length, self.chunk, self.version = length, chunk, 0
        self.queue: deque[Request] = deque()
        self.leaving: list[Request] = []
        self._room(slots)

    def _room(self, slots: int) -> None:
        """Empty slots."""
        length = self.length
        self.held: list[Request | None] = [None] * slots
        self.record: Counter[str] = Counter()  # how many running requests want each quantity
        self.tokens = np.zeros((slots, length), np.int64)
        self.known = np.zeros(slots, np.int64)  # tokens of the slot's sequence, while it runs
        self.filled = np.zeros(slots, np.int64)  # how many of them are in the cache
        self.running = np.zeros(slots, bool)
        self.draws = np.zeros(slots, bool)  # runs to draw tokens, not to score given ones
        self.used = np.zeros(slots, np.int64)  # when it last changed hands
        self.clock = 0
        self.high = 0  # positions of the cache that were written since it was last cleared
        self.start, self.limit = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self.temperature, self.top_p, self.top_k = np.ones(slots), np.ones(slots), np.zeros(slots, np.int64)
        self.address, self.table = np.zeros(slots, np.uint64), np.zeros(slots, np.int64)
        self.logp = np.zeros((slots, length), np.float32)
        self.recorded: dict[str, np.ndarray] = {}

    @property
    def pending(self) -> bool:
        return bool(self.queue) or bool(self.running.any())

    def forget(self) -> None:
        """Drop what the slots hold: the weights changed."""
        self.filled[:] = 0
        self.runner.clear(self.high)
        self.high = 0

    def fail(self, error: BaseException) -> None:
        """End every request with an error, and forget what was half done."""
        for request in [*self.queue, *filter(None, self.held)]:
            if not request.future.done() and not request.future.get_loop().is_closed():
                request.future.set_exception(error) if isinstance(error, Exception) else request.future.cancel()
        self.queue.clear()
        self.leaving.clear()
        self.record.clear()
        self.held = [None] * len(self.held)
        self.running[:] = False
        self.forget()

    def shrink(self) -> int:
        """Go on with half the slots, where memory has run out; what ran begins anew, and draws the same tokens.

        -> how many there are now; 0: there was one only, and nothing was done.
        """
        slots = len(self.held) // 2
        if slots:
            begun = sorted(filter(None, self.held), key=lambda r: self.used[r.slot])
            for request in begun:
                request.slot = -1
                request.scores.clear()
            self.queue.extendleft(reversed(begun))
            self.runner.resize(slots)
            self._room(slots)
        return slots

    @torch.inference_mode()
    def step(self) -> bool:
        """Let requests leave and join, and give every running sequence its next tokens. True where a request ended."""
        for request in self.leaving:
            if request.slot >= 0 and self.held[request.slot] is request:
                self._release(request.slot)
        self.leaving.clear()
        if self.queue and not self.running.all():
            self._admit()
        slots, take = self._pieces()
        if not len(slots):
            return False
        self.counts["steps"] += 1
        self.counts["prefilled"] += int(take.sum() - (self.filled[slots] >= self.start[slots]).sum())
        self.high = max(self.high, int((self.filled[slots] + take).max()))
        hidden, last = self.runner.forward(self.tokens, slots, self.filled[slots], take)
        self.filled[slots] += take
        ready = self.filled[slots] == self.known[slots]
        draws = self.draws[slots]
        ended = [self._score(hidden, s, row, n) for s, row, n in zip(slots[~draws], last[~draws], take[~draws], strict=True)]
        if (ready & draws).any():
            ended.append(self._draw(hidden, slots[ready & draws], last[ready & draws]))
        return any(ended)

    def _pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """The slots of this step and how many tokens each puts in: the decoding ones one, the others in order up to the chunk."""
        slots = np.flatnonzero(self.running)
        take = self.known[slots] - self.filled[slots]
        if (take > 1).any():
            many = np.flatnonzero(take > 1)
            many = many[np.argsort(self.used[slots[many]])]
            before = np.cumsum(take[many]) - take[many]
            take[many] = np.clip(self.chunk - before, 0, take[many])
        return slots[take > 0], take[take > 0]

    def _draw(self, hidden: torch.Tensor, slots: np.ndarray, rows: np.ndarray) -> bool:
        """Draw the next token of these slots from the hidden states in `rows`."""
        n, known, wide = len(slots), self.known[slots], slots
        if self.record or self.runner.pads:
            wide, rows = padded(slots), padded(rows)
        hidden, wide_logits = self.runner.logits(hidden, rows)
        uniform = at.uniform(self.address[wide], self.known[wide] - self.start[wide])
        drawn = self.runner.draw(wide_logits, self.temperature[wide], self.top_k[wide], self.top_p[wide], uniform)
        columns = [*drawn]
        if self.record:
            given = {"logits": wide_logits, "logprobs": sampler.tempered(wide_logits, self.temperature[wide]), "ids": drawn.ids, "hidden": hidden}
            columns += [quantities.compute(name, given).float() for name in self.record]
        ids, logp, *told = torch.stack([c[:n].double() for c in columns]).cpu().numpy()  # the step's one wait for the device
        if not np.isfinite(logp).all():
            raise NotFinite(f"weights of {self.name!r}: they give logits that are not finite, so no token can be drawn")
        ids = ids.astype(np.int64)
        self.tokens[slots, known], self.logp[slots, known] = ids, logp
        for name, values in zip(self.record, told, strict=True):
            self.recorded.setdefault(name, np.zeros_like(self.logp))[slots, known] = values
        self.known[slots] = known = known + 1
        self.counts["generated"] += n
        stop = self.final[ids]
        for i in np.flatnonzero(self.stops.could[self.table[slots], ids] & ~stop):
            s = slots[i]
            stop[i] = self.stops.ended(int(self.table[s]), self.tokens[s, self.start[s] : self.known[s]])
        over = np.flatnonzero(stop | (known >= self.limit[slots]))
        for i in over:
            self._finish(int(slots[i]), bool(stop[i]))
        return bool(len(over))

    def _finish(self, slot: int, stop: bool) -> None:
        request = self.held[slot]
        assert request is not None and request.sampling is not None
        a, z = request.start, int(self.known[slot])
        status = "stop" if stop else "length" if z - a == request.sampling.max_tokens else "limit"
        recorded = {name: self.recorded[name][slot, a:z].copy() for name in request.sampling.record}
        self._release(slot)
        if not request.future.done():
            ids = self.tokens[slot, a:z].astype(np.int32)
            request.future.set_result(Completion(ids, self.logp[slot, a:z].copy(), status, self.version, recorded))

    def _score(self, hidden: torch.Tensor, slot: int, row: int, count: int) -> bool:
        """Take the quantities of a score request from the `count` rows up to `row`; the last rows end it."""
        request = self.held[slot]
        assert request is not None
        stop = int(self.filled[slot])
        first = max(stop - count, request.start - 1)
        if first < stop:
            rows = np.arange(row - (stop - first) + 1, row + 1)
            ids = request.tokens[padded(np.arange(first, stop)) - request.start + 1]
            hidden, wide_logits = self.runner.logits(hidden, padded(rows))
            given = {"logits": wide_logits, "ids": torch.from_numpy(ids).to(hidden.device), "hidden": hidden}
            if {*request.want} - {"logp"}:
                given |= self.said(request.member, hidden)
                given["logprobs"] = quantities.logprobs(wide_logits, 1.0)
            told = {n: self.runner.logp(wide_logits, ids) if n == "logp" else quantities.compute(n, given).float() for n in request.want}
            request.scores.append({name: values.cpu().numpy()[: len(rows)] for name, values in told.items()})
        if stop < self.known[slot]:
            return False
        self._release(slot)
        if not request.future.done():
            request.future.set_result({name: np.concatenate([part[name] for part in request.scores]) for name in request.want})
        return True

    def _release(self, slot: int) -> None:
        """Let the slot's request go; what is in the cache stays to be found."""
        request = self.held[slot]
        if request is not None and request.sampling is not None:
            self.record -= Counter(request.sampling.record)
        self.held[slot] = None
        self.running[slot] = False
        self._touch(slot)

    def _touch(self, slot: int) -> None:
        self.clock += 1
        self.used[slot] = self.clock

    def _admit(self) -> None:
        """Give waiting requests slots, in order; those whose prefix a running sequence is about to compute wait for it."""
        waiting: list[Request] = []
        while self.queue and not self.running.all():
            request = self.queue.popleft()
            if not request.future.done() and not self._place(request):
                waiting.append(request)
        self.queue.extendleft(reversed(waiting))

    def _place(self, request: Request) -> bool:
        """Find a slot: the one whose whole content begins this request, or the least recently used, with the longest prefix there is."""
        most = request.start - 1  # the context's last token is always computed: what follows is drawn from its hidden state
        same = self.tokens[:, :most] == request.ids[:most]
        common = np.where(same.all(1), most, same.argmin(1)) if most else np.zeros(len(same), np.int64)
        ready = np.minimum(common, self.filled)
        source = int(np.lexsort((self.used, ~self.running & (self.filled <= common), ready))[-1])
        share = int(ready[source])
        if np.where(self.running, np.minimum(common, self.known), 0).max() >= share + WORTH:
            return False
        if not self.running[source] and share == self.filled[source]:
            slot = source
        else:
            idle = np.flatnonzero(~self.running)
            keep = idle[idle != source]
            slot = int(keep[np.lexsort((self.used[keep], self.filled[keep] > 0))[0]]) if len(keep) else source
        self.counts["copied"] += self.runner.share(source, slot, share)
        self.counts["reused"] += share
        n = len(request.ids)
        self.tokens[slot, :n] = request.ids
        self.known[slot], self.filled[slot], self.start[slot] = n, share, request.start
        self.running[slot], self.draws[slot] = True, request.sampling is not None
        self.held[slot], request.slot = request, slot
        self._touch(slot)
        if (s := request.sampling) is not None:
            self.limit[slot] = min(self.length, request.start + (s.max_tokens or self.length))
            self.temperature[slot], self.top_p[slot], self.top_k[slot] = float(s.temperature), s.top_p, s.top_k  # type: ignore[arg-type]
            self.address[slot], self.table[slot] = np.uint64(request.address), self.stops.number(s.stop)
            self.record += Counter(s.record)
        return True
