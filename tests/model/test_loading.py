"""Models are loaded once and copied only where somebody will write: what shares tensors with what, and that it stays as
it is.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import mini
from torch import nn

from selfteach.core import registry
from selfteach.engine.kv_cache import zeros
from selfteach.learner.param_groups import shared_copy
from selfteach.loop import assemble
from selfteach.loop.method_on_task import frozen_groups, needed
from selfteach.model import files
from selfteach.model.catalog import StartModel
from selfteach.model.tokenizer import Tokenizer
from selfteach.model.transformer import Config, Transformer


def places(model: nn.Module) -> list[int]:
    return [p.data_ptr() for p in model.parameters()]


def bits(model: nn.Module) -> str:
    return files.fingerprint(dict(model.named_parameters()), whole=True)


def loop_of(start: StartModel, beta: float, given: bool = False) -> Any:
    method = registry.methods.get("grpo")(groups=2, rollouts=4, beta=beta)
    method = method.replace(reward=registry.methods.get("bandit_reinforce")(paid="spread").stages[0].reward)
    settings = assemble.RunSettings(max_tokens=4, lr=0.05, steps=3)
    return assemble.loop(method, registry.tasks.get("bandit")(), start, settings, donate_start=given)


def test_a_reference_is_the_start_itself_and_does_not_move(letters: Tokenizer):
    start = StartModel(mini(264), letters, False, {})
    was = bits(start.model)
    loop = loop_of(start, beta=0.04)
    groups = loop.learner.groups
    assert places(groups.trunk("ref")) == places(start.model) and list(loop.engine.models) == ["policy"]
    assert len(
        {*places(start.model), *places(groups.trunk("policy")), *places(loop.engine.models["policy"])}
    ) == 3 * len(places(start.model))
    for _ in range(3):
        asyncio.run(loop.advance())
    assert bits(groups.trunk("policy")) != was
    assert bits(groups.trunk("ref")) == bits(start.model) == was
    assert bits(loop.engine.models["policy"]) == bits(groups.trunk("policy"))


@pytest.mark.parametrize("write", ["put", "copy", "moving"])
def test_a_group_that_is_written_to_after_all_takes_its_own_tensors_first(letters: Tokenizer, write: str):
    start = StartModel(mini(264), letters, False, {})
    was, learner = bits(start.model), loop_of(start, beta=0.04).learner
    held = dict(learner.groups["ref"].named_parameters())
    if write == "put":
        learner.put("ref", {n: p + 1 for n, p in start.model.named_tensors().items()})
    elif write == "copy":
        learner.put("policy", {n: p + 1 for n, p in start.model.named_tensors().items()})
        learner.copy("ref", "policy", 0.5)
    else:
        with learner.groups.trainable(("ref",)), torch.no_grad():
            for p in learner.groups["ref"].named_parameters().values():
                p.add_(1)
    assert bits(start.model) == was != bits(learner.groups.trunk("ref"))
    assert all(learner.groups["ref"].named_parameters()[n] is p for n, p in held.items()), (
        "parameters keep their identity, which an optimiser goes by"
    )


def test_a_start_that_nobody_keeps_becomes_the_policy_unless_others_need_it(letters: Tokenizer):
    for beta, given, taken in ((0.0, True, True), (0.0, False, False), (0.04, True, False)):
        start = StartModel(mini(264), letters, False, {})
        loop = loop_of(start, beta, given)
        assert (places(loop.learner.groups.trunk("policy")) == places(start.model)) is taken
        assert not set(places(loop.engine.models["policy"])) & set(places(start.model)), (
            "the engine holds what was delivered, not what is learned"
        )
    mapped = StartModel(mini(264), letters, False, {}, mapped=True)
    assert places(loop_of(mapped, 0.0, True).learner.groups.trunk("policy")) != places(mapped.model), (
        "what is trained has memory of its own"
    )


def test_only_groups_that_nothing_writes_to_are_still():
    def groups(name: str, **args: Any) -> set[str]:
        return frozen_groups(needed(registry.methods.get(name)(**args)))

    assert groups("grpo", beta=0.1) == {"ref"} and groups("grpo") == set()
    made = registry.methods.get("grpo")(beta=0.1)
    entered = made.replace(enter={"ref": "policy"})
    assert frozen_groups(entered) == set(), "a stage that begins by copying into the reference writes to it"


def test_a_twin_shares_tensors_buffers_apart_and_keeps_a_tied_head():
    model = mini(264)
    other = shared_copy(model)
    assert other.lm_head.weight is other.model.embed_tokens.weight is not model.lm_head.weight
    assert places(other) == places(model) and not any(p.requires_grad for p in other.parameters())
    for p in other.parameters():
        p.requires_grad_(True).grad = torch.ones_like(p)
    assert all(p.grad is None for p in model.parameters())


def test_a_mapped_model_never_writes_to_its_file_and_a_loaded_one_never_reads_it_again(
    tmp_path: Path, letters: Tokenizer
):
    files.save(tmp_path, mini(264), letters)
    file = tmp_path / "model.safetensors"
    was = file.read_bytes()
    mapped, loaded = files.load_model(tmp_path, mapped=True), files.load_model(tmp_path)
    assert bits(mapped) == bits(loaded) == bits(mini(264))
    with torch.no_grad():
        for p in mapped.parameters():
            p.zero_()
    assert file.read_bytes() == was
    with file.open("r+b") as f:  # in place, as a careless copy over it would
        f.write(bytes(len(was)))
    assert bits(loaded) == bits(mini(264))


def test_a_model_is_made_without_a_draw_from_the_global_generator():
    before = torch.get_rng_state()
    Transformer.without_weights(Config(vocab=64))
    Transformer(Config(vocab=64))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_lazy_zeros_are_zeros_where_torch_would_put_them(dtype: torch.dtype):
    x = zeros((3, 5, 7), "cpu", dtype)
    assert x.shape == (3, 5, 7) and x.dtype == dtype and x.is_contiguous() and x.data_ptr() % 64 == 0 and not x.any()
    x[1, 2, 3] = 1
    assert x.sum() == 1
