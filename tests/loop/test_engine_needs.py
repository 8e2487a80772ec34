"""What a method needs of an engine, compared with what the engine can, before any work."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.models import mini

from selfteach.core.errors import BadValue
from selfteach.core.protocols import EngineCapabilities
from selfteach.core.registry import methods
from selfteach.core.task import Sampling
from selfteach.loop import assemble
from selfteach.loop.engine_roles import check_engine
from selfteach.loop.method_on_task import needed
from selfteach.loop.settings import RunSettings
from selfteach.model import files, lora

VLLM = EngineCapabilities(
    "vllm",
    keyed_samples=False,
    scores=frozenset({"logp", "raw_logp"}),
    records=frozenset(),
    scalar_heads=False,
    weight_groups=1,
    remote=True,
)


def method(name: str, **args: Any) -> Any:
    return needed(methods.get(name)(**args))


@pytest.mark.parametrize("name", sorted(methods))
def test_the_built_in_engine_takes_every_method_and_vllm_says_why_it_does_not(name: str) -> None:
    made = method(name)
    check_engine(made, EngineCapabilities())
    try:
        check_engine(made, VLLM)
    except BadValue as error:
        assert str(error).startswith(f"method {made.name} with the engine vllm: its ") and "\n" not in str(error)


@pytest.mark.parametrize("name", ["grpo", "rloo", "dapo", "gspo", "cispo", "ssrl", "search_r1", "ttrl", "spec_rl"])
def test_methods_of_one_policy_run_on_vllm(name: str) -> None:
    check_engine(method(name), VLLM)


@pytest.mark.parametrize(
    ("name", "args", "why"),
    [
        ("spec_rl", {"lenience": 1.0}, "its program same_draw reads cdf_below of given tokens"),
        ("self_certainty", {}, "its reward certainty reads self_certainty_at of given tokens"),
        ("tango", {}, "are sampled from 3 weight groups"),
        ("pcl", {}, "has the scalar head value"),
        ("efficiency_steering", {}, "its reward remember_direction reads residuals of given tokens"),
    ],
)
def test_what_vllm_lacks_is_named_with_the_methods_part(name: str, args: dict[str, Any], why: str) -> None:
    with pytest.raises(BadValue, match=why):
        check_engine(method(name, **args), VLLM)


def test_random_numbers_that_are_drawn_twice_are_refused_where_they_cannot_be() -> None:
    with pytest.raises(BadValue, match="draws twice with the same random numbers"):
        check_engine(method("spec_rl", lenience=1.0), replace(VLLM, scores=None))


def test_weights_that_cannot_be_loaded_are_needed_for_training_alone() -> None:
    still = replace(VLLM, updates="no weights can be loaded into llamacpp over this interface")
    with pytest.raises(BadValue, match="its weights policy are trained, and no weights can be loaded"):
        check_engine(method("grpo"), still)
    check_engine(method("grpo"), still, trains=False)


@pytest.mark.parametrize(
    ("kind", "sampling", "fits"),
    [
        ("sampling", Sampling(temperature=0.6, top_p=0.9), True),
        ("tempered", Sampling(temperature=0.6), True),
        ("tempered", Sampling(temperature=0.6, top_p=0.9), False),
        ("raw", Sampling(), True),
        ("raw", Sampling(temperature=0.6), False),
        ("none", Sampling(), False),
    ],
)
def test_log_probabilities_of_another_distribution_are_refused_where_they_are_read(
    kind: Any, sampling: Sampling, fits: bool
) -> None:
    made = method("grpo").replace(sampling=sampling)
    if fits:
        check_engine(made, replace(VLLM, logp=kind))
        return
    with pytest.raises(BadValue, match="processed_logprobs"):
        check_engine(made, replace(VLLM, logp=kind))


@pytest.mark.parametrize(
    ("name", "settings", "ranks", "rank"),
    [
        ("grpo", {"lora_rank": 3}, 0, 3),
        ("grpo", {"lora_rank": 3, "lora_delivery": "merged"}, 0, None),
        ("grpo", {"lora_rank": 3}, 2, None),  # what ranks hold in parts is given whole
        ("qerl", {"lora_rank": 3}, 0, None),  # it samples with noise beside its adapter
        ("grpo", {}, 0, None),
    ],
)
def test_vllm_is_started_on_the_base_where_adapters_alone_are_delivered(
    name: str, settings: dict[str, Any], ranks: int, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, given = mini(64), list[Any]()
    adapted = lora.adapt(base, lora.LoraConfig(3)) if settings else base
    for tensor in lora.factors(adapted).values():
        tensor.data.fill_(0.1)
    learner: Any = SimpleNamespace(trunk=lambda group: adapted, groups=SimpleNamespace(ranks=ranks))
    start: Any = SimpleNamespace(model=base)
    monkeypatch.setattr(assemble, "vllm_engine", lambda *all_given: given.extend(all_given))
    assemble.remote_engine(
        method(name), learner, start, RunSettings(engine="vllm", context=32, **settings), None, print
    )
    served, last = given[2], given[-1]
    assert last == rank
    same = files.fingerprint(served.named_tensors()) == files.fingerprint(base.named_tensors())
    assert same == (rank is not None or not settings), "merged weights are others"


def test_a_program_that_steers_is_refused_by_an_engine_without_a_place_for_it() -> None:
    made = method("efficiency_steering")
    with pytest.raises(BadValue) as raised:
        check_engine(made, replace(EngineCapabilities(), name="http", steers=False))
    assert str(raised.value) == (
        "method efficiency_steering with the engine http: its program steered adds a vector to hidden states as it"
        " samples, which this engine cannot; take --engine builtin"
    )
