"""The scheduler of one weight group: its queue, its slots, and steps of all running sequences."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..core import random_keys
from ..core.errors import NotFinite
from ..core.protocols import Completion
from ..core.task import Sampling
from ..model import quantities
from . import sampler
from .runner import MultiStepRunner, Runner
from .sampler import pad_rows
from .step_steering import StepSteering
from .stop_strings import StopStrings

ENDED_SHARE = 8  # steps in one call are over once one in so many of its sequences may have ended
SCORED_LOGITS = 1 << 22  # about so many are held at once to score tokens, those of one request at least
MIN_SHARED = 8  # tokens of prefix that make it worth a step to wait for a running sequence to compute them


@dataclass(eq=False, slots=True)
class EngineRequest:
    """One turn to generate (with `sampling`), or tokens to score (with `want`).

    ids     i64[L]  the context; of a score also its tokens but the last
    start   length of the context
    tokens  i64[n]  tokens to score
    on_tokens       called with i32[n], the tokens drawn since the last call
    versions        (version, n): its first n tokens were drawn under that version or an earlier one; the rest under
                    the scheduler's own
    """

    ids: np.ndarray
    start: int
    future: asyncio.Future[Any]
    sampling: Sampling | None = None
    rng_key: int = 0
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    want: tuple[str, ...] = ()
    model_role: str = ""
    scores: list[dict[str, np.ndarray]] = field(default_factory=list)
    slot: int = -1
    on_tokens: Callable[[np.ndarray], object] | None = None
    n_passed: int = 0  # tokens that `on_tokens` was called with
    versions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def token_versions(self, n: int, version: int) -> int | np.ndarray:
        """The version under which its n tokens were drawn, i32[n] where they were several; `version`: of the last."""
        if not self.versions:
            return version
        ends = [end for _, end in self.versions]
        own = np.array([*(v for v, _ in self.versions), version], np.int32)
        return own[np.searchsorted(ends, np.arange(n), "right")]


class Scheduler:
    """Continuous batching over the slots of one weight group's cache.

    A slot keeps its sequence after it ended, until the slot is needed (least recently used first): new requests reuse
    the longest prefix in any slot. State is in arrays over slots; Python handles a sequence only when it is admitted,
    ends, or may have stopped.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        slots: int,
        length: int,
        chunk: int,
        stops: StopStrings,
        eos_token_ids: Sequence[int],
        counts: Counter[str],
        head_values: Callable[[str, torch.Tensor], dict[str, torch.Tensor]] = lambda model_role, hidden: {},
    ) -> None:
        self.name, self.runner, self.stops, self.counts, self.head_values = name, runner, stops, counts, head_values
        self.multi_step = runner if isinstance(runner, MultiStepRunner) else None
        self.is_eos = np.zeros(max(runner.model.config.vocab, *eos_token_ids, 0) + 1, bool)
        self.is_eos[[*eos_token_ids]] = True
        self.length, self.chunk, self.version = length, chunk, 0
        self.peak_tokens = 0  # of sequences that generated at once, since it was last read
        self.queue: deque[EngineRequest] = deque()
        self.cancelled: list[EngineRequest] = []
        self._reset_slots(slots)

    def _reset_slots(self, slots: int) -> None:
        """Reset the state to `slots` empty slots."""
        length = self.length
        self.requests: list[EngineRequest | None] = [None] * slots
        self.recorded_counts: Counter[str] = Counter()  # how many running requests want each quantity
        self.tokens = np.zeros((slots, length), np.int64)
        self.n_known = np.zeros(slots, np.int64)  # tokens of the slot's sequence
        self.n_cached = np.zeros(slots, np.int64)  # of these, tokens in the cache
        self.running = np.zeros(slots, bool)
        self.is_generating = np.zeros(slots, bool)  # generates tokens, rather than scoring given ones
        self.is_plain = np.zeros(slots, bool)  # generates, without truncation, recorded quantities and steering
        self.is_steered = np.zeros(slots, bool)  # its last sequence was, from its context's last token on
        self.last_used = np.zeros(slots, np.int64)  # the clock when its request last changed
        self.clock = 0
        self.n_written = 0  # positions of the cache written since it was last cleared
        self.start, self.limit = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        self.temperature, self.top_p, self.top_k = np.ones(slots), np.ones(slots), np.zeros(slots, np.int64)
        self.rng_key, self.stop_table = np.zeros(slots, np.uint64), np.zeros(slots, np.int64)
        self.logp = np.zeros((slots, length), np.float32)
        self.recorded: dict[str, np.ndarray] = {}
        self.n_listening = 0  # running requests with `on_tokens`

    @property
    def pending(self) -> bool:
        """Whether requests wait or run."""
        return bool(self.queue) or bool(self.running.any())

    def change_weights(self, version: int) -> None:
        """Take over the model's weights, which changed in place, and drop the cached prefixes.

        Running sequences are computed again under the new weights, and go on from the token that they were at.
        """
        for slot in np.flatnonzero(self.running):
            request = self.requests[slot]
            assert request is not None
            request.scores.clear()  # those of a text are all of one version
            if (n := int(self.n_known[slot]) - request.start) and request.sampling is not None:
                request.versions.append((self.version, n))
        self.version = version
        self.runner.load()
        self.clear_cache()

    def clear_cache(self) -> None:
        """Drop the cached prefixes, after the weights changed."""
        self.n_cached[:] = 0
        self.runner.clear(self.n_written)
        self.n_written = 0

    def fail(self, error: BaseException) -> None:
        """End every request with an error, and clear queue and cache."""
        for request in [*self.queue, *filter(None, self.requests)]:
            if not request.future.done() and not request.future.get_loop().is_closed():
                request.future.set_exception(error) if isinstance(error, Exception) else request.future.cancel()
        self.queue.clear()
        self.cancelled.clear()
        self.recorded_counts.clear()
        self.n_listening = 0
        self.requests = [None] * len(self.requests)
        self.running[:] = False
        self.clear_cache()

    def shrink(self) -> int:
        """Halve the slots, after memory has run out; running requests start again, and draw the same tokens.

        Returns the number of slots; 0 where there was only one, which stays as it is.
        """
        slots = len(self.requests) // 2
        if slots:
            begun = sorted(filter(None, self.requests), key=lambda r: self.last_used[r.slot])
            for request in begun:
                request.slot = -1
                request.scores.clear()
                request.versions.clear()
            self.queue.extendleft(reversed(begun))
            self.runner.resize(slots)
            self._reset_slots(slots)
        return slots

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit requests, drop cancelled ones, and run one forward pass; returns whether a request ended."""
        for request in self.cancelled:
            if request.slot >= 0 and self.requests[request.slot] is request:
                self._release(request.slot)
        self.cancelled.clear()
        if self.queue and not self.running.all():
            self._admit()
        slots, take = self._next_pieces()
        if not len(slots):
            return False
        if self.multi_step and self.is_plain[slots].all() and take.max() == 1:
            return self._generate(self.multi_step, slots)
        self.counts["steps"] += 1
        self.counts["prefilled"] += int(take.sum() - (self.n_cached[slots] >= self.start[slots]).sum())
        self.n_written = max(self.n_written, int((self.n_cached[slots] + take).max()))
        steering = self._steering(slots) if self.is_steered[slots].any() else None
        hidden, last = self.runner.forward(self.tokens, slots, self.n_cached[slots], take, steering)
        self.n_cached[slots] += take
        ready = self.n_cached[slots] == self.n_known[slots]
        generating = self.is_generating[slots]
        ended = [self._score(hidden, slots[~generating], last[~generating], take[~generating])]
        if (ready & generating).any():
            ended.append(self._draw(hidden, slots[ready & generating], last[ready & generating]))
        return any(ended)

    def _next_pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """The slots of this step and the tokens of each: decoding slots one, prefilling slots up to the chunk."""
        slots = np.flatnonzero(self.running)
        take = self.n_known[slots] - self.n_cached[slots]
        if (take > 1).any():
            many = np.flatnonzero(take > 1)
            many = many[np.argsort(self.last_used[slots[many]])]
            before = np.cumsum(take[many]) - take[many]
            take[many] = np.clip(self.chunk - before, 0, take[many])
        return slots[take > 0], take[take > 0]

    def _steering(self, slots: np.ndarray) -> StepSteering:
        """The vectors of those of these slots that are steered."""
        own = slots[self.is_steered[slots]]
        found = [r.sampling.steering for s in own if (r := self.requests[s]) is not None and r.sampling is not None]
        layer = np.array([s.layer for s in found if s is not None])
        vectors = np.array([s.vector for s in found if s is not None], np.float32)
        return StepSteering(own, self.start[own] - 1, layer, vectors)

    def _draw(self, hidden: torch.Tensor, slots: np.ndarray, rows: np.ndarray) -> bool:
        """Draw the next token of these slots from the hidden states in `rows`."""
        n, n_known, wide = len(slots), self.n_known[slots], slots
        if self.recorded_counts or self.runner.needs_padding:
            wide, rows = pad_rows(slots), pad_rows(rows)
        hidden, wide_logits = self.runner.logits(hidden, rows)
        uniform = random_keys.uniform(self.rng_key[wide], self.n_known[wide] - self.start[wide])
        drawn = self.runner.draw(wide_logits, self.temperature[wide], self.top_k[wide], self.top_p[wide], uniform)
        columns = [*drawn]
        if self.recorded_counts:
            given = {
                "logits": wide_logits,
                "logprobs": sampler.tempered_logprobs(wide_logits, self.temperature[wide]),
                "ids": drawn.ids,
                "hidden": hidden,
            }
            columns += [quantities.compute(name, given).float() for name in self.recorded_counts]
        if hidden.device.type == "cpu":
            ids, logp, *values = (c[:n].numpy() for c in columns)
        else:  # the only wait for the device in a step
            ids, logp, *values = torch.stack([c[:n].double() for c in columns]).cpu().numpy()
        if not np.isfinite(logp).all():
            raise self._not_finite()
        ids = ids.astype(np.int64)
        self.tokens[slots, n_known], self.logp[slots, n_known] = ids, logp
        for name, column in zip(self.recorded_counts, values, strict=True):
            self.recorded.setdefault(name, np.zeros_like(self.logp))[slots, n_known] = column
        self.n_known[slots] = n_known + 1
        self.counts["generated"] += n
        return self._finish_ended(slots, ids)

    def _generate(self, runner: MultiStepRunner, slots: np.ndarray) -> bool:
        """Draw several tokens of slots that decode, as steps with `_draw` would; whether a request ended.

        No request is admitted and no program goes on meanwhile, so it is over once an eighth of them may have ended.
        """
        steps = runner.steps_at_once(len(slots))
        before, known = self.n_known[slots], self.n_known[slots]
        uniform = random_keys.uniform(
            self.rng_key[slots][:, None], (before - self.start[slots])[:, None] + np.arange(steps)
        )
        stops = self.stops.may_complete | self.is_eos[: self.stops.may_complete.shape[1]], self.stop_table[slots]
        done = runner.generate(
            self.tokens,
            self.logp,
            slots,
            known,
            self.limit[slots],
            self.temperature[slots],
            uniform,
            stops,
            -(-len(slots) // ENDED_SHARE),
        )
        if done < 0:
            raise self._not_finite()
        self.n_known[slots], self.n_cached[slots] = known, known - 1
        self.n_written = max(self.n_written, int(known.max()) - 1)
        self.counts["steps"] += done
        self.counts["prefilled"] += int((before == self.start[slots]).sum())
        self.counts["generated"] += int((known - before).sum())
        return self._finish_ended(slots, self.tokens[slots, known - 1])

    def _not_finite(self) -> NotFinite:
        return NotFinite(f"weights of {self.name!r}: they give logits that are not finite, so no token can be drawn")

    def _finish_ended(self, slots: np.ndarray, ids: np.ndarray) -> bool:
        """Finish those slots that end with their last token, given in `ids`; whether there was one."""
        self.peak_tokens = max(self.peak_tokens, int(self.n_known[self.is_generating & self.running].sum()))
        if self.n_listening:
            self._pass_on(slots)
        stop = self.is_eos[ids]
        for i in np.flatnonzero(self.stops.may_complete[self.stop_table[slots], ids] & ~stop):
            s = slots[i]
            stop[i] = self.stops.ended(int(self.stop_table[s]), self.tokens[s, self.start[s] : self.n_known[s]])
        over = np.flatnonzero(stop | (self.n_known[slots] >= self.limit[slots]))
        for i in over:
            self._finish(int(slots[i]), bool(stop[i]))
        return bool(len(over))

    def _pass_on(self, slots: np.ndarray) -> None:
        """Call `on_tokens` of these slots' requests with what was drawn since."""
        for slot in slots:
            request = self.requests[slot]
            if request is None or request.on_tokens is None:
                continue
            a, z = request.start + request.n_passed, int(self.n_known[slot])
            if z > a:  # less, where it began again with fewer slots
                request.n_passed = z - request.start
                request.on_tokens(self.tokens[slot, a:z].astype(np.int32))

    def _finish(self, slot: int, stop: bool) -> None:
        """End the generation of a slot's request, and set its result."""
        request = self.requests[slot]
        assert request is not None and request.sampling is not None
        a, z = request.start, int(self.n_known[slot])
        status = "stop" if stop else "length" if z - a == request.sampling.max_tokens else "limit"
        recorded = {name: self.recorded[name][slot, a:z].copy() for name in request.sampling.record}
        self._release(slot)
        if not request.future.done():
            ids = self.tokens[slot, a:z].astype(np.int32)
            version = request.token_versions(z - a, self.version)
            request.future.set_result(Completion(ids, self.logp[slot, a:z].copy(), status, version, recorded))

    def _score(self, hidden: torch.Tensor, slots: np.ndarray, last: np.ndarray, counts: np.ndarray) -> bool:
        """Compute the quantities of score requests, of each on the `counts` rows up to `last`; whether one ended."""
        asked: dict[tuple[tuple[str, ...], str], list[tuple[EngineRequest, np.ndarray, np.ndarray]]] = {}
        for slot, row, count in zip(slots, last, counts, strict=True):
            request = self.requests[slot]
            assert request is not None
            stop = int(self.n_cached[slot])
            first = max(stop - count, request.start - 1)
            if first < stop:
                ids = request.tokens[first - request.start + 1 : stop - request.start + 1]
                rows = np.arange(row - len(ids) + 1, row + 1)
                asked.setdefault((request.want, request.model_role), []).append((request, rows, ids))
        most = max(1, SCORED_LOGITS // self.runner.model.config.vocab)  # rows
        for (want, model_role), pieces in asked.items():
            n_rows = np.cumsum([len(rows) for _, rows, _ in pieces])
            for part in np.split(np.arange(len(pieces)), np.flatnonzero(np.diff((n_rows - 1) // most)) + 1):
                self._score_rows(hidden, want, model_role, [pieces[i] for i in part])
        ended = [self._ended_score(slot) for slot in slots]  # of every slot
        return any(ended)

    def _score_rows(
        self,
        hidden: torch.Tensor,
        want: tuple[str, ...],
        model_role: str,
        pieces: Sequence[tuple[EngineRequest, np.ndarray, np.ndarray]],
    ) -> None:
        """Compute what some requests want alike, of each on its rows of `hidden`, where its ids follow."""
        rows, ids = (np.concatenate(parts) for parts in zip(*[(r, i) for _, r, i in pieces], strict=True))
        ids = pad_rows(ids)
        hidden, logits = self.runner.logits(hidden, pad_rows(rows))
        given = {"logits": logits, "ids": torch.from_numpy(ids).to(hidden.device), "hidden": hidden}
        if {*want} - {"logp"}:
            given |= self.head_values(model_role, hidden)
            given["logprobs"] = quantities.logprobs(logits, 1.0)
        values = {
            n: (self.runner.logp(logits, ids) if n == "logp" else quantities.compute(n, given).float()).cpu().numpy()
            for n in want
        }
        at = 0
        for request, own, _ in pieces:
            request.scores.append({name: x[at : at + len(own)] for name, x in values.items()})
            at += len(own)

    def _ended_score(self, slot: int) -> bool:
        """Set the result of a score request whose tokens are all computed; whether they are."""
        request = self.requests[slot]
        assert request is not None
        if self.n_cached[slot] < self.n_known[slot]:
            return False
        self._release(slot)
        if not request.future.done():
            request.future.set_result(
                {name: np.concatenate([part[name] for part in request.scores]) for name in request.want}
            )
        return True

    def _release(self, slot: int) -> None:
        """Free a slot; its cached prefix can still be reused."""
        request = self.requests[slot]
        if request is not None and request.sampling is not None and request.sampling.record:
            self.recorded_counts -= Counter(request.sampling.record)
        if request is not None and request.on_tokens is not None:
            self.n_listening -= 1
        self.requests[slot] = None
        self.running[slot] = False
        self._touch(slot)

    def _touch(self, slot: int) -> None:
        self.clock += 1
        self.last_used[slot] = self.clock

    def _admit(self) -> None:
        """Admit queued requests in order; one whose prefix a running sequence is about to compute waits."""
        waiting: list[EngineRequest] = []
        prefix, common = b"", np.zeros(0, np.int64)
        while self.queue and not self.running.all():
            request = self.queue.popleft()
            if request.future.done():
                continue
            if (own := request.ids[: request.start - 1].tobytes()) != prefix or not len(common):
                prefix, common = own, self._common_prefix(request)
            if self._place(request, common):
                common[request.slot] = request.start - 1  # for the next one, often of the same group
            else:
                waiting.append(request)
        self.queue.extendleft(reversed(waiting))

    def _common_prefix(self, request: EngineRequest) -> np.ndarray:
        """i64[slots]: the tokens of each slot with which a request's context begins, without the context's last."""
        # That one is always computed, since its hidden state gives the next token.
        longest = request.start - 1
        if not longest:
            return np.zeros(len(self.tokens), np.int64)
        other = self.tokens[:, :longest] != request.ids[:longest]
        first = other.argmax(1)  # 0 also where nothing differs
        return np.where(other[np.arange(len(other)), first], first, longest)

    def _place(self, request: EngineRequest, common: np.ndarray) -> bool:
        """Place a request in a slot with the longest cached prefix; False where it should wait for a longer one.

        common: as `_common_prefix` gives it. The slot is the one whose whole content is a prefix of the request, else
        the least recently used.
        """
        if self.is_steered.any():  # what is steered is another text's hidden states to all others
            common = np.where(self.is_steered, np.minimum(common, self.start - 1), common)
        ready = np.minimum(common, self.n_cached)
        source = int(np.lexsort((self.last_used, ~self.running & (self.n_cached <= common), ready))[-1])
        n_shared = int(ready[source])
        if np.where(self.running, np.minimum(common, self.n_known), 0).max() >= n_shared + MIN_SHARED:
            return False
        if not self.running[source] and n_shared == self.n_cached[source]:
            slot = source
        else:
            idle = np.flatnonzero(~self.running)
            keep = idle[idle != source]
            slot = int(keep[np.lexsort((self.last_used[keep], self.n_cached[keep] > 0))[0]]) if len(keep) else source
        self.counts["copied"] += self.runner.share_prefix(source, slot, n_shared)
        self.counts["reused"] += n_shared
        n = len(request.ids)
        self.tokens[slot, :n] = request.ids
        self.n_known[slot], self.n_cached[slot], self.start[slot] = n, n_shared, request.start
        self.running[slot], self.is_generating[slot] = True, request.sampling is not None
        self.requests[slot], request.slot = request, slot
        self._touch(slot)
        if (s := request.sampling) is not None:
            self.limit[slot] = min(self.length, request.start + (s.max_tokens or self.length))
            self.temperature[slot], self.top_p[slot], self.top_k[slot] = float(s.temperature), s.top_p, s.top_k  # type: ignore[arg-type]
            self.rng_key[slot], self.stop_table[slot] = np.uint64(request.rng_key), self.stops.index_of(s.stop)
            if s.record:
                self.recorded_counts += Counter(s.record)
        if request.on_tokens is not None:
            self.n_listening += 1
        self.is_steered[slot] = s is not None and s.steering is not None
        self.is_plain[slot] = s is not None and not s.record and s.top_p == 1 and s.top_k == 0 and s.steering is None
        return True
