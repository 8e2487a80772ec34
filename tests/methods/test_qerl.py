"""QeRL by hand: what four bits leave of weights, the noise of a stage, who samples with it, and who learns."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.battery import of
from support.by_hand import token_gradient
from support.episodes import single_turn_group
from support.loops import bandit
from support.models import mini
from support.runs import run_config_of, same_run

from selfteach import api
from selfteach.core import BadValue
from selfteach.evaluation import trained_model
from selfteach.methods.qerl import E2M1, in_format, noise_of, norm_noise
from selfteach.model import lora
from selfteach.model.catalog import StartModel
from selfteach.preparation import quantised


def row(*values: float, width: int) -> torch.Tensor:
    return torch.tensor([[*values, *[0.0] * (width - len(values))]], dtype=torch.float64)


def test_nvfp4_rounds_to_its_values_by_blocks_of_sixteen():
    # the largest is 12, so that the scale is 2: 0.9 -> 0.45 -> 0.5 -> 1; 4.9 -> 2.45 -> 2 -> 4; 5.1 -> 2.55 -> 3 -> 6
    got = in_format(weight=row(12.0, 0.9, 4.9, -5.1, 0.4, width=16))
    assert got[0, :5].tolist() == pytest.approx([12.0, 1.0, 4.0, -6.0, 0.0], rel=1e-9)
    # another block has a scale of its own: 0.9 of a block up to 0.9 stays (in E4M3, to 1/16)
    far = in_format(weight=torch.cat([row(12.0, width=16), row(0.9, 0.45, width=16)], 1))
    assert far[0, 16:18].tolist() == pytest.approx([0.9, 0.45], rel=1 / 16)
    assert far[0, 16] != 1.0, "not rounded by the first block's scale"
    drawn = torch.from_numpy(np.random.default_rng(0).normal(size=(8, 64)))
    blocks = in_format(weight=drawn).unflatten(1, (-1, 16))
    shares = (blocks.abs() / blocks.abs().amax(-1, keepdim=True)).unique()
    levels = {round(v / 6, 6) for v in E2M1}
    assert {round(float(s), 6) for s in shares} <= levels


def test_mxfp4_has_scales_that_are_powers_of_two_and_int8_rounds_whole_rows():
    # the largest is 7: 2^(2 - 2) = 1, so that values are E2M1 itself, and 7 is beyond them
    assert in_format(weight=row(7.0, 2.4, -0.3, width=32), form="mxfp4")[0, :3].tolist() == [6.0, 2.0, -0.5]
    assert in_format(weight=row(127.0, 3.4, -3.6, width=4), form="int8")[0].tolist() == pytest.approx([127, 3, -4, 0])
    for form in ("nvfp4", "mxfp4", "int8"):
        assert not in_format(weight=torch.zeros(2, 20), form=form).any(), "a block of zeros stays"  # type: ignore[arg-type]


def test_the_noise_begins_in_the_second_stage_and_falls_to_the_last():
    assert [noise_of(k, 0.01, 0.0001, 4) for k in range(4)] == pytest.approx([0.0, 0.01, 0.001, 0.0001])
    weights = {"model.norm.weight": torch.ones(4000), "model.layers.0.mlp.up_proj.weight": torch.ones(2, 2)}
    given: dict[str, Any] = {"weights": weights, "steps": 40, "seed": 0, "start": 0.1, "end": 0.001, "stages": 4}
    assert not norm_noise(step=9, **given), "stage 0 is the first quarter"
    for step, sigma in ((10, 0.1), (19, 0.1), (20, 0.01), (39, 0.001)):
        (noisy,) = norm_noise(step=step, **given).values()
        assert float((noisy - 1).std()) == pytest.approx(sigma, rel=0.05) and abs(float(noisy.mean()) - 1) < sigma / 10
    one, two = (norm_noise(step=step, **given)["model.norm.weight"] for step in (10, 11))
    assert not torch.equal(one, two) and torch.equal(one, norm_noise(step=10, **given)["model.norm.weight"])
    with pytest.raises(BadValue, match="at least 3"):
        noise_of(1, 0.1, 0.01, 2)


def test_projections_of_the_start_are_rounded_and_nothing_else(letters: Any):
    start, before = StartModel(mini(264), letters, True, {}), mini(264)
    after = quantised(start, of("qerl").quantise).model
    projections = {f"{n}.weight" for n in lora.adaptable_linears(before)}
    for name, weight in before.named_tensors().items():
        same = torch.equal(weight, after.named_tensors()[name])
        assert same == (name not in projections), name
        if name in projections:
            assert torch.equal(after.named_tensors()[name], in_format(weight=weight))
    assert of("qerl", weights="none").quantise is None and of("qerl", noise_start=0.0).stage.sampler is None


def test_the_ratio_is_to_the_learner_or_to_who_sampled():
    group = single_turn_group([(5,), (6,)], [1.0, 0.0])  # sampled with a log-probability of -1
    a = 0.5 / np.sqrt(0.5)
    live, start = [-1 + np.log(1.5), -1.0], np.array([-1 + np.log(1.5), -1.0])
    # to the learner's own the ratio is 1 and nothing is clipped; to the sampler's it is 1.5, above 1.28
    assert token_gradient(of("qerl"), [group], live, prox_logp=start) == pytest.approx([-a / 2, a / 2], rel=1e-5)
    assert token_gradient(of("qerl", old="sampler"), [group], live) == pytest.approx([0.0, a / 2], rel=1e-5)


def test_adapters_are_over_the_rounded_model_also_in_a_run_that_goes_on(tmp_path: Path, mini_folder: Path):
    made = of("qerl", groups=4, rollouts=4, noise_start=0.1, noise_end=0.05, stages=3).replace(
        reward=bandit().stage.reward
    )
    out, cut = tmp_path / "whole", tmp_path / "cut"
    assert api.train(run_config_of(mini_folder, made, steps=4, lora_rank=2, lora_targets=("q_proj",)), out).done
    shutil.copytree(out, cut, symlinks=True)
    shutil.rmtree(cut / "checkpoints" / "000004")
    (cut / "last").unlink()  # what is left holds adapters alone
    rounded = {n: in_format(weight=w) for n, w in mini(264).named_tensors().items() if n.endswith("up_proj.weight")}
    there = trained_model(cut).model.named_tensors()
    assert rounded and all(torch.equal(there[n], w) for n, w in rounded.items())
    api.resume(cut)
    same_run(out, cut)
