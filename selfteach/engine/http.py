"""An engine that samples from completion servers: vLLM, SGLang, llama.cpp's, or another that answers as vLLM does.

Contexts go as token ids. What comes back is cut at the first token that ends the turn, as every engine here ends it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from ..core.errors import BadValue, EngineMismatch, unknown
from ..core.protocols import Completion, EngineCapabilities, LogpKind
from ..core.task import Sampling
from ..model import quantities
from ..model.base import Model
from ..model.tokenizer import Tokenizer
from .completion_servers import Request, WrongAnswer, server_of
from .endpoints import Endpoint, Endpoints, Failed, ask_now, check_url
from .stop_strings import StopStrings
from .weight_files import HOW, takes_weights
from .weights import check_request

LEAST_FIRST: tuple[LogpKind, ...] = ("none", "raw", "tempered", "sampling")
SCORED = frozenset({"logp", "raw_logp"})  # which at temperature 1 are the same
PROBED = 8  # tokens drawn to compare a server's weights with the model's
PROCESSED = 1e-4  # |log-probability| of the only token that top-k 1 leaves, where it is of what is left
TEMPERED = 1e-3  # by which one at temperature 0.5 differs from that at 1, where it is of the tempered distribution


class Delivery(Protocol):
    """How weights get to the servers of an engine.

    It may have `serves`, the name under which a server then serves them, where that is not its model's own.
    """

    def put(self, weights: Mapping[str, Any], version: int) -> None:
        """Put weights where servers can read them."""
        ...

    def deliver(self, url: str, version: int) -> str:
        """Have a server load what was put, and drop its prefix cache; the fingerprint of what it then holds."""
        ...

    def close(self) -> None:
        """Remove what was put."""
        ...


class HttpEngine:
    """Samples from one or several servers of one model.

    model_roles  model role -> weight group; of one group
    vocab        ids of the model; length: tokens of a context
    in_flight    requests that each server is given at once; others wait
    timeout      seconds that a server may take for one request
    patience     seconds without any live server after which EngineLost is raised
    delivery     makes what brings weights to the servers, where all of them take weights; None: they keep what they
                 were started with
    counts       tokens generated and scored; requests, and those that were another try
    """

    def __init__(
        self,
        urls: Sequence[str],
        model_roles: Mapping[str, str],
        tokenizer: Tokenizer,
        vocab: int,
        length: int,
        *,
        in_flight: int = 64,
        timeout: float = 600.0,
        patience: float = 60.0,
        delivery: Callable[[], Delivery] | None = None,
        name: str = "http",
    ) -> None:
        self.model_roles, self.tokenizer, self.vocab, self.length = dict(model_roles), tokenizer, vocab, length
        self.timeout = timeout  # also of the first request, for which a server may compile kernels
        self.versions, self.held = dict.fromkeys(self.model_roles.values(), 0), dict[str, str]()
        if len(self.versions) != 1:
            raise BadValue(f"engine {name}: holds one weight group, not {', '.join(sorted(self.versions))}")
        if not urls:
            raise BadValue(f"engine {name}: no server; give one by --url, such as http://127.0.0.1:8000")
        found = [self._found(check_url(url)) for url in dict.fromkeys(urls)]
        if len({e.server.kind for e in found}) > 1:
            kinds = ", ".join(f"{e.url} is {e.server.kind}" for e in found)
            raise BadValue(f"engine {name}: servers of several kinds ({kinds}); give servers of one kind")
        self.delivery: Delivery | None = None
        why = f"no weights can be loaded into {found[0].server.kind} over this interface"
        if delivery is not None and found[0].server.kind == "vllm":
            without = [e.url for e in found if not takes_weights(e.url)]
            why = f"{without[0]} takes no weights; {HOW}" if without else ""
            self.delivery = None if without else delivery()
        self.endpoints = Endpoints(found, in_flight, timeout, patience)
        self.counts: Counter[str] = self.endpoints.counts
        self.stops = StopStrings(tokenizer.pieces, vocab)
        server = found[0].server
        given: set[LogpKind] = {self._logp_kind(e) for e in found}
        self.capabilities = EngineCapabilities(
            name=f"{name} ({server.kind})",
            keyed_samples=False,
            logp=min(given, key=LEAST_FIRST.index),
            scores=SCORED if server.scores_tokens else frozenset(),
            records=frozenset(),
            scalar_heads=False,
            weight_groups=1,
            updates=True if self.delivery is not None else why,
            remote=True,
            steers=False,
        )

    @property
    def group(self) -> str:
        """The name of its weight group."""
        return next(iter(self.versions))

    @property
    def groups(self) -> Sequence[str]:
        """Names of the weight groups that can be loaded."""
        return [self.group] if self.delivery is not None else []

    def about(self) -> str:
        """In a line: the servers, and what they cannot do."""
        able, n = self.capabilities, len(self.endpoints.every)
        lacks = ["no samples that are functions of their RNG keys alone"]
        lacks += {
            "sampling": [],
            "tempered": ["no log-probabilities after top-p and top-k"],
            "raw": ["no log-probabilities at another temperature than 1 or after top-p and top-k"],
            "none": ["no log-probabilities"],
        }[able.logp]
        lacks += [] if able.scores else ["no log-probabilities of given tokens"]
        checked = getattr(self.delivery, "checked", "")
        lacks += [f"no new weights ({able.updates})"] if able.updates is not True else []
        known = f"; weights are compared by fingerprints of {checked}" if checked else ""
        return f"engine {able.name}, {n} server{'s' if n > 1 else ''}: it gives {', '.join(lacks)}{known}"

    async def generate(
        self,
        model_role: str,
        context: np.ndarray,
        sampling: Sampling,
        rng_key: int,
        on_tokens: Callable[[np.ndarray], object] | None = None,
    ) -> Completion:
        """As BuiltinEngine.generate; the RNG key is the server's seed. Log-probabilities that it does not give for the
        distribution that was drawn from are NaN.
        """
        self._check_role(model_role)
        ids = check_request(context, self.vocab, (), sampling)
        if sampling.record:
            raise BadValue(f"engine {self.capabilities.name}: records no quantities ({', '.join(sampling.record)})")
        if sampling.steering is not None:
            raise BadValue(
                f"engine {self.capabilities.name}: has no place for a steering vector; take --engine builtin"
            )
        version, left = self.versions[self.group], self.length - len(ids)
        if left <= 0:
            return Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), "limit", version, {})
        most, given = min(left, sampling.max_tokens or left), ids.tolist()
        drawn = await self.endpoints.ask(
            lambda server: server.draw(given, sampling, most, rng_key),
            lambda server, answer: server.drawn(answer, most),
        )
        n = self._first_stop(drawn.ids, sampling.stop)
        tokens = np.array(drawn.ids[:n], np.int32)
        self.counts["generated"] += len(tokens)
        status = "stop"
        if n is None and (drawn.cut or len(tokens) >= most):
            status = "length" if len(tokens) == sampling.max_tokens else "limit"
        if on_tokens is not None and len(tokens):
            on_tokens(tokens)
        logp = np.array(drawn.logp[:n], np.float32)
        if sampling.temperature == 0:
            logp = np.zeros(len(tokens), np.float32)
        elif not self.capabilities.gives_logp(sampling):
            logp = np.full(len(tokens), np.nan, np.float32)
        return Completion(tokens, logp, status, version, {})

    async def score(
        self, model_role: str, context: np.ndarray, tokens: np.ndarray, want: Sequence[str] = ("logp",)
    ) -> Mapping[str, np.ndarray]:
        """Log-probabilities of given tokens (i32[n]) after a context at temperature 1: name -> f32[n].

        Raises BadValue for any other quantity, and where the server gives none.
        """
        self._check_role(model_role)
        if other := sorted(set(want) - (self.capabilities.scores or frozenset())):
            raise BadValue(f"engine {self.capabilities.name}: cannot compute {', '.join(other)} of given tokens")
        start = len(check_request(context, self.vocab, ()))
        ids = check_request(np.concatenate([context, tokens]), self.vocab, ()).tolist()
        if len(ids) > self.length:
            raise BadValue(f"engine: {start} + {len(tokens)} tokens to score do not fit the context of {self.length}")
        if len(ids) == start:
            return {name: np.zeros(0, np.float32) for name in want}
        self.counts["scored"] += len(ids) - start
        logp = await self.endpoints.ask(
            lambda server: server.score(ids, start), lambda server, answer: server.scored(answer, ids, start)
        )
        return {name: np.array(logp, np.float32) for name in want}

    def load(self, group: str, weights: Mapping[str, Any], version: int) -> str:
        """Deliver weights to every live server; to one that comes back later, before it is asked again.

        Returns their fingerprint, which is the same on all. Raises EngineMismatch where requests run, no server takes
        them, or servers then hold different ones.
        """
        if self.delivery is None or group != self.group:
            raise unknown("weight group that can be loaded", group, self.groups)
        if running := sum(e.in_flight for e in self.endpoints.every):
            raise EngineMismatch(f"weights of {group!r} cannot change while {running} of its requests run")
        self.delivery.put(weights, version)
        self.versions[group] = self.endpoints.version = version
        self.endpoints.deliver = self._deliver_late
        found: dict[str, str] = {}
        for endpoint in self.endpoints.every:
            endpoint.version = None
            try:
                found[endpoint.url] = self._delivered(endpoint, version)
                endpoint.answered()
            except Failed as error:
                endpoint.fail(Failed(str(error), gone=True))
        if not found:
            why = "; ".join(e.why for e in self.endpoints.every)
            raise EngineMismatch(f"weights {group!r}, version {version}: no server took them ({why})")
        if len(set(found.values())) > 1:
            held = ", ".join(f"{url} {fingerprint}" for url, fingerprint in found.items())
            raise EngineMismatch(f"weights {group!r}, version {version}: servers hold different ones ({held})")
        self.held[group] = next(iter(found.values()))
        return self.held[group]

    def fingerprint(self, group: str) -> str:
        """A short hash of the weights delivered last, as the servers computed it."""
        if group not in self.held:
            raise unknown("weight group that was delivered", group, self.held)
        return self.held[group]

    @torch.inference_mode()
    def check_model(self, model: Model, bound: float) -> float:
        """The mean |log-probability of a server - of a model| over a few tokens that each server draws.

        Raises EngineMismatch above `bound`: the server holds other weights.
        """
        worst = 0.0
        for endpoint in self.endpoints.every:
            context = self._probe_context()
            drawn = self._asked(endpoint, endpoint.server.draw(context, Sampling(), PROBED, 1), PROBED)
            ids = torch.tensor([context + drawn.ids])
            device = next(iter(model.named_tensors().values())).device
            hidden = model.extend(ids.to(device))[0][0, len(context) - 1 : -1]
            logprobs = quantities.logprobs(model.logits(hidden).float(), 1.0).cpu()
            own = logprobs.gather(-1, torch.tensor(drawn.ids)[:, None])[:, 0].numpy()
            differ = np.abs(own - np.array(drawn.logp))
            mismatch = float(np.nanmean(differ)) if np.isfinite(differ).any() else 0.0
            if mismatch > bound:
                raise EngineMismatch(
                    f"engine: {endpoint.url} and the model differ by {mismatch:.3g} nats a token (bound {bound:g}); the"
                    " server holds other weights; serve this model, or the run's export"
                )
            worst = max(worst, mismatch)
        return worst

    async def close(self) -> None:
        """Close the connections, and remove what was put for the servers."""
        await self.endpoints.close()
        if self.delivery is not None:
            self.delivery.close()

    def _deliver_late(self, endpoint: Endpoint) -> None:
        """Deliver to a server that was not there when the others were. Raises Failed."""
        held = self._delivered(endpoint, self.versions[self.group])
        if held != self.held[self.group]:
            endpoint.version = None
            raise Failed(f"{endpoint.url}: holds {held} after a delivery, not {self.held[self.group]}")

    def _delivered(self, endpoint: Endpoint, version: int) -> str:
        """Deliver what was put to a server; the fingerprint of what it then holds. Raises Failed, EngineMismatch."""
        assert self.delivery is not None
        held = self.delivery.deliver(endpoint.url, version)
        endpoint.version = version
        if serves := getattr(self.delivery, "serves", ""):
            endpoint.server = replace(endpoint.server, model=serves)
        return held

    def _found(self, url: str) -> Endpoint:
        """A server, asked what it is. Raises BadValue where it does not answer."""
        try:
            server, longest = server_of(ask_now(url, "/v1/models"), self.vocab, self.tokenizer.eos_token_ids)
        except Failed as error:
            raise BadValue(f"engine: no server answers ({error}); start it, or give its address by --url") from None
        except WrongAnswer as error:
            raise BadValue(f"engine: {url}: {error}") from None
        if longest is not None and longest < self.length:
            raise BadValue(
                f"engine: {url} serves contexts of {longest} tokens, not {self.length}; start it with a longer one, or"
                f" ask for --context {longest}"
            )
        return Endpoint(url, server)

    def _logp_kind(self, endpoint: Endpoint) -> LogpKind:
        """Which log-probabilities a server gives, by what it draws. Raises BadValue for one that gives no token ids."""
        context, server = self._probe_context(), endpoint.server
        only = self._asked(endpoint, server.draw(context, Sampling(top_k=1), 1, 1), 1)
        if not only.ids or math.isnan(only.logp[0]):
            return "none"
        if abs(only.logp[0]) < PROCESSED:
            return "sampling"
        if not server.scores_tokens:
            return "raw"
        half = self._asked(endpoint, server.draw(context, Sampling(temperature=0.5), 1, 1), 1)
        try:
            ids = context + half.ids
            at_one = server.scored(
                ask_now(endpoint.url, *server.score(ids, len(context)), self.timeout), ids, len(context)
            )[0]
        except (Failed, WrongAnswer) as error:
            raise BadValue(f"engine: {endpoint.url}: {error}") from None
        return "tempered" if abs(half.logp[0] - at_one) > TEMPERED else "raw"

    def _asked(self, endpoint: Endpoint, request: Request, most: int) -> Any:
        try:
            return endpoint.server.drawn(ask_now(endpoint.url, *request, self.timeout), most)
        except WrongAnswer as error:
            raise BadValue(
                f"engine: {endpoint.url} ({endpoint.server.kind}) answered with {error}; it must return token ids and"
                " log-probabilities (docs/engines.md)"
            ) from None
        except Failed as error:
            raise BadValue(f"engine: {error}") from None

    def _probe_context(self) -> list[int]:
        """A few ids that are no special tokens."""
        plain = [i for i, piece in enumerate(self.tokenizer.pieces) if piece and i < self.vocab]
        return plain[:: max(1, len(plain) // 7)][1:6] or plain[:1]

    def _first_stop(self, ids: Sequence[int], stop: tuple[str, ...]) -> int | None:
        """How many ids there are up to the first that ends the turn; None where none does."""
        table = self.stops.index_of(stop)
        for n, i in enumerate(ids):
            if i in self.tokenizer.eos_token_ids:
                return n + 1
            if self.stops.may_complete[table, i] and self.stops.ended(table, np.array(ids[: n + 1])):
                return n + 1
        return None

    def _check_role(self, model_role: str) -> None:
        if model_role not in self.model_roles:
            raise unknown("model", model_role, self.model_roles)
