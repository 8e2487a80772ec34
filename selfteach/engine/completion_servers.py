"""Requests and answers of completion servers that take token ids and return token ids with log-probabilities.

    vllm       POST /v1/completions   prompt = ids, return_token_ids; prompt_logprobs scores given tokens
    sglang     POST /generate         input_ids, return_logprob; input_token_logprobs scores given tokens
    llamacpp   POST /completion       prompt = ids, return_tokens, n_probs, post_sampling_probs; scores nothing

Anything else is asked as vLLM is. What a server sends is checked before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from ..core.task import Sampling

Kind = Literal["vllm", "sglang", "llamacpp"]
SLACK = 1e-3  # by which a log-probability may be above 0, of rounding


class WrongAnswer(Exception):
    """An answer that lacks something or cannot be; says what."""


class Request(NamedTuple):
    """A request: path under the server's address, and its JSON body."""

    path: str
    body: dict[str, Any]


class Drawn(NamedTuple):
    """Tokens drawn, their log-probabilities as the server gives them (NaN: not given), and whether it says that the
    turn was cut for its length.
    """

    ids: list[int]
    logp: list[float]
    cut: bool


@dataclass(frozen=True)
class CompletionServer:
    """How one kind of server is spoken to. model: the name of what it serves; vocab: ids of the model."""

    kind: Kind
    model: str
    vocab: int
    eos: tuple[int, ...]

    @property
    def scores_tokens(self) -> bool:
        """Whether it gives log-probabilities of given tokens."""
        return self.kind != "llamacpp"

    def draw(self, ids: Sequence[int], sampling: Sampling, max_tokens: int, seed: int) -> Request:
        """The request for a turn after `ids`. seed: 64 bits, of which a server takes what it can."""
        temperature = float(cast(float, sampling.temperature))
        common = {"temperature": temperature, "top_p": sampling.top_p, "min_p": 0.0, "stop": list(sampling.stop)}
        if self.kind == "llamacpp":
            return Request(
                "/completion",
                common
                | {
                    "prompt": list(ids),
                    "n_predict": max_tokens,
                    "top_k": sampling.top_k,
                    "seed": seed % (2**32 - 1),
                    # Only these, in this order, which is ours: its default one truncates before the temperature.
                    "samplers": ["temperature", "top_k", "top_p"],
                    "repeat_penalty": 1.0,
                    "n_probs": 1,
                    "post_sampling_probs": True,
                    "return_tokens": True,
                },
            )
        common |= {"top_k": sampling.top_k or -1, "skip_special_tokens": False, "stop_token_ids": list(self.eos)}
        common |= {"spaces_between_special_tokens": False, "repetition_penalty": 1.0}
        if self.kind == "sglang":
            params = common | {"max_new_tokens": max_tokens, "no_stop_trim": True, "sampling_seed": seed % 2**31}
            return Request(
                "/generate",
                {
                    "input_ids": list(ids),
                    "sampling_params": params,
                    "return_logprob": True,
                    "logprob_start_len": -1,
                    "return_text_in_logprobs": False,
                },
            )
        return Request(
            "/v1/completions",
            common
            | {
                "model": self.model,
                "prompt": list(ids),
                "max_tokens": max_tokens,
                "seed": seed % 2**63,
                "ignore_eos": True,  # the tokenizer's own are in stop_token_ids
                "include_stop_str_in_output": True,
                "logprobs": 0,
                "return_token_ids": True,
            },
        )

    def drawn(self, answer: Any, max_tokens: int) -> Drawn:
        """What an answer to `draw` holds. Raises WrongAnswer."""
        read = {"vllm": _vllm_drawn, "sglang": _sglang_drawn, "llamacpp": _llamacpp_drawn}[self.kind]
        ids, logp, cut = read(_mapping(answer, "the answer"))
        if len(ids) > max_tokens:
            raise WrongAnswer(f"{len(ids)} tokens where {max_tokens} were asked for")
        if len(logp) != len(ids):
            raise WrongAnswer(f"{len(logp)} log-probabilities of {len(ids)} tokens")
        self._check_ids(ids)
        exempt = self.kind == "llamacpp"  # which gives none of a token that ends inside a character
        if bad := [x for x in logp if not ((x <= SLACK and x > -math.inf) or (exempt and math.isnan(x)))]:
            raise WrongAnswer(f"a log-probability of {bad[0]}")
        return Drawn(ids, [min(x, 0.0) if x == x else x for x in logp], cut)

    def score(self, ids: Sequence[int], start: int) -> Request:
        """The request for the log-probabilities of ids[start:] after those before."""
        if self.kind == "sglang":
            return Request(
                "/generate",
                {
                    "input_ids": list(ids),
                    "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
                    "return_logprob": True,
                    "logprob_start_len": start - 1,
                },
            )
        return Request(
            "/v1/completions",
            {
                "model": self.model,
                "prompt": list(ids),
                "max_tokens": 1,
                "temperature": 1.0,
                "prompt_logprobs": 0,
                "return_token_ids": True,
            },
        )

    def scored(self, answer: Any, ids: Sequence[int], start: int) -> list[float]:
        """The log-probabilities that an answer to `score` holds. Raises WrongAnswer."""
        answer, given = _mapping(answer, "the answer"), list(ids[start:])
        if self.kind == "sglang":
            meta = _mapping(answer.get("meta_info"), "meta_info")
            entries = _list(meta.get("input_token_logprobs"), "input_token_logprobs")
            pairs = [_pair(entry) for entry in entries[-len(given) :]]
            held, logp = [i for _, i in pairs], [x for x, _ in pairs]
        else:
            choice = _choice(answer)
            entries = _list(choice.get("prompt_logprobs", answer.get("prompt_logprobs")), "prompt_logprobs")[start:]
            held, logp = given, list[float]()
            for entry, i in zip(entries, given, strict=False):
                own = _mapping(entry, "prompt_logprobs").get(str(i))
                if own is None:
                    raise WrongAnswer(f"no log-probability of the token {i}, which was to be scored")
                logp.append(_number(_mapping(own, "prompt_logprobs").get("logprob")))
        if len(logp) != len(given) or held != given:
            raise WrongAnswer(f"log-probabilities of {len(logp)} of the {len(given)} tokens to score")
        if bad := [x for x in logp if not (x <= SLACK and x > -math.inf)]:
            raise WrongAnswer(f"a log-probability of {bad[0]}")
        return logp

    def _check_ids(self, ids: Collection[int]) -> None:
        if bad := [i for i in ids if not 0 <= i < self.vocab]:
            raise WrongAnswer(f"the token id {bad[0]}, and the model has ids 0 to {self.vocab - 1}")


def server_of(models: Any, vocab: int, eos: Collection[int]) -> tuple[CompletionServer, int | None]:
    """(the server, its context length where it says one), by its answer to GET /v1/models. Raises WrongAnswer."""
    cards = _list(_mapping(models, "/v1/models").get("data"), "data of /v1/models")
    if not cards:
        raise WrongAnswer("it serves no model")
    card = _mapping(cards[0], "data of /v1/models")
    owner = card.get("owned_by")
    kind: Kind = owner if owner in ("sglang", "llamacpp") else "vllm"
    meta = card.get("meta")
    meta = cast("Mapping[str, Any]", meta) if isinstance(meta, Mapping) else {}
    longest = card.get("max_model_len") or meta.get("n_ctx")
    if kind == "llamacpp" and isinstance(held := meta.get("n_vocab"), int) and held != vocab:
        raise WrongAnswer(f"its model has {held} token ids, not {vocab}")
    server = CompletionServer(kind, str(card.get("id", "")), vocab, tuple(sorted(int(i) for i in eos)))
    return server, longest if isinstance(longest, int) and longest > 0 else None


def _vllm_drawn(answer: Mapping[str, Any]) -> tuple[list[int], list[float], bool]:
    choice = _choice(answer)
    logprobs = choice.get("logprobs")
    if logprobs is None:
        raise WrongAnswer("no log-probabilities")
    logprobs = _mapping(logprobs, "logprobs")
    ids = choice.get("token_ids")
    if ids is None:  # an older one names tokens by their ids, if it is asked to
        named = [str(t) for t in _list(logprobs.get("tokens"), "token_ids")]
        if not all(t.startswith("token_id:") and t[9:].isdecimal() for t in named):
            raise WrongAnswer("no token ids, only text")
        ids = [int(t[9:]) for t in named]
    return (
        _ids(ids),
        [_number(x) for x in _list(logprobs.get("token_logprobs"), "token_logprobs")],
        (choice.get("finish_reason") == "length"),
    )


def _sglang_drawn(answer: Mapping[str, Any]) -> tuple[list[int], list[float], bool]:
    meta = _mapping(answer.get("meta_info"), "meta_info")
    reason = meta.get("finish_reason")
    why = cast("Mapping[str, Any]", reason).get("type") if isinstance(reason, Mapping) else reason
    if why == "abort":
        raise WrongAnswer("the request was aborted")
    if meta.get("output_token_logprobs") is None:
        raise WrongAnswer("no log-probabilities")
    pairs = [_pair(entry) for entry in _list(meta["output_token_logprobs"], "output_token_logprobs")]
    return _ids([i for _, i in pairs]), [x for x, _ in pairs], why == "length"


def _llamacpp_drawn(answer: Mapping[str, Any]) -> tuple[list[int], list[float], bool]:
    ids = _ids(answer.get("tokens"))
    probs = answer.get("completion_probabilities")
    if ids and probs is None:
        raise WrongAnswer("no log-probabilities")
    # Those of tokens that end inside a character, or belong to a stop string, are left out.
    left = [_mapping(p, "completion_probabilities") for p in _list(probs or [], "completion_probabilities")][::-1]
    logp: list[float] = []
    for i in ids:
        if left and left[-1].get("id") == i:
            p = _number(left.pop().get("prob"))
            if not 0 <= p <= 1 + SLACK:
                raise WrongAnswer(f"a probability of {p}")
            logp.append(math.log(p) if p else math.nan)
        else:
            logp.append(math.nan)
    return ids, logp, answer.get("stop_type") == "limit"


def _choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = _list(answer.get("choices"), "choices")
    if len(choices) != 1:
        raise WrongAnswer(f"{len(choices)} choices where one was asked for")
    return _mapping(choices[0], "choices")


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WrongAnswer(f"{what}: is no JSON object")
    return cast("Mapping[str, Any]", value)


def _list(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise WrongAnswer(f"no {what}")
    return cast("list[Any]", value)


def _ids(value: Any) -> list[int]:
    ids = _list(value, "token ids")
    if bad := [i for i in ids if not isinstance(i, int) or isinstance(i, bool)]:
        raise WrongAnswer(f"a token id {bad[0]!r}")
    return ids


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise WrongAnswer(f"a log-probability {value!r}")
    return float(value)


def _pair(entry: Any) -> tuple[float, int]:
    """(log-probability, id) of an entry [log-probability, id, text]."""
    values = _list(entry, "token log-probabilities")
    if len(values) < 2:
        raise WrongAnswer("an entry without log-probability or id")
    return _number(values[0]), _ids([values[1]])[0]
