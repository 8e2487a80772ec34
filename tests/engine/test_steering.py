"""A vector added to the residual stream as tokens are sampled: in every engine as by a hook on a plain forward."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import SHAPES, TOKENIZER, VOCAB, model
from support.models import mini

from selfteach.core import (
    Episode,
    Ref,
    RolloutGroup,
    RolloutRequest,
    Score,
    Task,
    Trajectory,
    Tree,
    collate,
    random_keys,
)
from selfteach.core.errors import BadValue, UnknownName
from selfteach.core.protocols import Completion
from selfteach.core.serial import from_json, to_json
from selfteach.core.task import Sampling, Steering
from selfteach.credit.composers import per_trajectory
from selfteach.engine import BuiltinEngine, EqualLengthEngine, ReferenceEngine
from selfteach.engine.reference import draw
from selfteach.model.attention import causal_attention
from selfteach.model.base import Model
from selfteach.model.transformer import Config, Transformer

SANDWICH = Config(
    VOCAB, width=32, layers=3, heads=4, kv_heads=2, head_dim=8, hidden=48, max_length=96, sandwich=True, qk_norm=True
)
PROMPT = np.array([5, 9, 31, 7, 7, 40], np.int32)


def steered(width: int, layer: int, size: float = 2.0, seed: int = 0) -> Steering:
    return Steering(layer, tuple(size * np.random.default_rng(seed).standard_normal(width)))


def by_hook(m: Model, layers: Any, context: np.ndarray, sampling: Sampling, key: int) -> tuple[list[int], list[float]]:
    """What is sampled where a hook of torch's own adds the vector at the states that tokens are drawn from."""
    ids, logp, start = [int(i) for i in context], list[float](), len(context)
    assert sampling.steering is not None
    vector = torch.tensor(sampling.steering.vector, dtype=torch.float32)

    def hook(module: Any, given: Any, out: Any) -> Any:
        states = (out[0] if isinstance(out, tuple) else out).clone()
        states[:, start - 1 :] += vector
        return (states, *out[1:]) if isinstance(out, tuple) else states

    handle = layers[sampling.steering.layer].register_forward_hook(hook)
    with torch.inference_mode():
        for n in range(sampling.max_tokens or 0):
            logits = m.logits(m(torch.tensor([ids]), causal_attention)[0, -1:])[0]
            token, lp = draw(logits.double().numpy(), sampling, float(random_keys.uniform(key, n)))
            ids, logp = [*ids, token], [*logp, lp]
            if token in TOKENIZER.eos_token_ids:
                break
    handle.remove()
    return ids[start:], logp


def same(done: Completion, right: tuple[list[int], list[float]]) -> None:
    assert done.ids.tolist() == right[0]
    np.testing.assert_allclose(done.logp, right[1], atol=2e-5, rtol=0)


@pytest.mark.parametrize("kernel", ["native", "torch", "reference"])
@pytest.mark.parametrize("shape", ["grouped", "qwen", "sandwich"])
def test_every_engine_samples_as_a_hook_on_the_plain_forward_does(shape: str, kernel: Any) -> None:
    m = model(shape) if shape in SHAPES else Transformer(SANDWICH).initialise(1)
    c, roles = m.config, {"policy": "w"}
    engine: Any = ReferenceEngine({"w": m}, roles, TOKENIZER)
    if kernel != "reference":
        engine = BuiltinEngine({"w": m}, roles, TOKENIZER, slots=3, chunk=4, kernel=kernel)
    last = c.layers - 1
    requests = [
        Sampling(max_tokens=14, steering=steered(c.width, 0)),
        Sampling(max_tokens=14, steering=steered(c.width, last)),
        Sampling(max_tokens=9, temperature=0.7, steering=steered(c.width, 0, seed=1)),
        Sampling(max_tokens=14),
        Sampling(max_tokens=5, top_p=0.8, steering=steered(c.width, last, seed=2)),
    ]

    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*[engine.generate("policy", PROMPT, s, 11) for s in requests])

    found = asyncio.run(all_of_them())
    for s, done in zip(requests, found, strict=True):
        if s.steering is not None:
            same(done, by_hook(m, m.model.layers, PROMPT, s, 11))
    drawn = {tuple(done.ids.tolist()) for done in found}
    assert len(drawn) > 3  # the vectors do move what is drawn


def test_what_is_not_steered_has_the_bits_that_it_has_alone_and_a_longer_context_is_computed_without_it() -> None:
    m, vector = model(), steered(32, 0)
    longer = Sampling(max_tokens=8, temperature=0.9)

    async def asked(engine: BuiltinEngine, first: Sampling) -> list[Completion]:
        before = await engine.generate("policy", PROMPT, first, 3)
        whole = np.concatenate([PROMPT, before.ids])
        plain, again = await asyncio.gather(
            engine.generate("policy", whole, longer, 4),  # its context was sampled with the vector, and is read without
            engine.generate("policy", whole, longer.replace(steering=vector), 4),
        )
        return [before, plain, again]

    engines = [BuiltinEngine({"w": m}, {"policy": "w"}, TOKENIZER, slots=s) for s in (1, 4)]
    for engine in engines:
        before, plain, again = asyncio.run(asked(engine, Sampling(max_tokens=20, steering=vector)))
        whole = np.concatenate([PROMPT, before.ids])
        fresh = BuiltinEngine({"w": m}, {"policy": "w"}, TOKENIZER)
        alone = asyncio.run(fresh.generate("policy", whole, longer, 4))
        assert alone.ids.tolist() == plain.ids.tolist() and alone.logp.tobytes() == plain.logp.tobytes()
        same(again, by_hook(m, m.model.layers, whole, longer.replace(steering=vector), 4))


def test_a_vector_of_zeros_changes_no_bit_and_turns_go_on_in_place_without_one() -> None:
    m = model()
    engine = BuiltinEngine({"w": m}, {"policy": "w"}, TOKENIZER, kernel="native")
    sampling = Sampling(max_tokens=30)
    without = asyncio.run(engine.generate("policy", PROMPT, sampling, 9))
    zeros = asyncio.run(engine.generate("policy", PROMPT, sampling.replace(steering=Steering(1, (0.0,) * 32)), 9))
    assert without.ids.tolist() == zeros.ids.tolist() and without.logp.tobytes() == zeros.logp.tobytes()


@pytest.mark.parametrize("cached", [True, False])
def test_foreign_models_are_steered_too_row_by_row(cached: bool) -> None:
    transformers = pytest.importorskip("transformers")
    from selfteach.model.hf_model import HFModel, HFModelConfig

    shape = transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=2, n_head=2)
    torch.manual_seed(0)
    inner = transformers.GPT2LMHeadModel(shape).eval()
    m = HFModel(inner, HFModelConfig("gpt2", VOCAB, 16, 64, "transformers"))
    if not cached:
        m.cache_argument = None
    engine = EqualLengthEngine({"w": m}, {"policy": "w"}, TOKENIZER)
    requests = [
        Sampling(max_tokens=6, steering=steered(16, 0)),
        Sampling(max_tokens=8, steering=steered(16, 1, seed=5)),
        Sampling(max_tokens=7, steering=steered(16, 0, seed=6)),
    ]

    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*[engine.generate("policy", PROMPT, s, 2) for s in requests])

    for s, done in zip(requests, asyncio.run(all_of_them()), strict=True):
        same(done, by_hook(m, inner.transformer.h, PROMPT, s, 2))


@pytest.mark.parametrize(
    ("steering", "why"),
    [
        (lambda: Steering(2, (0.0,) * 32), "steering: layer 2 is not there, the model has layers 0 to 1"),
        (lambda: Steering(0, (1.0,) * 3), "steering: the vector has 3 numbers, and the model's residual stream 32"),
        (lambda: Steering(-1, (1.0,)), "steering: layer must be at least 0, not -1"),
        (lambda: Steering(0, (float("nan"),)), "steering: its vector holds numbers that are not finite"),
    ],
)
@pytest.mark.parametrize("kind", [BuiltinEngine, ReferenceEngine])
def test_a_vector_that_does_not_fit_is_refused(steering: Any, why: str, kind: Any) -> None:
    engine = kind({"w": model()}, {"policy": "w"}, TOKENIZER)
    with pytest.raises(BadValue) as raised:
        asyncio.run(engine.generate("policy", PROMPT, Sampling(steering=steering()), 1))
    assert str(raised.value) == why


def test_it_goes_to_json_and_back() -> None:
    s = Sampling(steering=Steering(1, np.array([0.1, -2.0])))  # type: ignore[arg-type]
    assert from_json(to_json(s)) == s


def test_the_shape_of_mini_models_is_steered_by_both_runners_alike() -> None:
    m = mini(VOCAB)
    vector = steered(m.config.width, m.config.layers - 1, 1.0)
    sampling = Sampling(max_tokens=10, steering=vector, record=("entropy",))
    found = [
        asyncio.run(
            BuiltinEngine({"w": m}, {"policy": "w"}, TOKENIZER, kernel=kernel).generate("policy", PROMPT, sampling, 8)
        )
        for kernel in ("native", "torch")
    ]
    assert found[0].ids.tolist() == found[1].ids.tolist()
    np.testing.assert_allclose(found[0].recorded["entropy"], found[1].recorded["entropy"], atol=3e-5)


@pytest.mark.parametrize("kind", [BuiltinEngine, ReferenceEngine])
def test_the_residual_stream_of_given_tokens_is_what_hooks_on_the_layers_see(kind: Any) -> None:
    m, tokens, seen = model(), np.array([3, 8, 1], np.int32), list[np.ndarray]()
    handles = [x.register_forward_hook(lambda layer, given, out: seen.append(out[0].numpy())) for x in m.model.layers]
    with torch.inference_mode():
        m(torch.tensor([[*PROMPT.tolist(), *tokens.tolist()]]), causal_attention)
    for handle in handles:
        handle.remove()
    engine = kind({"w": m}, {"policy": "w"}, TOKENIZER)
    found = asyncio.run(engine.score("policy", PROMPT, tokens, ("residuals", "logp")))
    right = np.stack(
        [x[5:8] for x in seen], 1
    )  # the states before the three tokens: of the prompt's last, and two more
    assert found["residuals"].shape == (3, 2, 32)
    np.testing.assert_allclose(found["residuals"], right, atol=1e-6)
    alone = asyncio.run(engine.score("policy", PROMPT, tokens))
    np.testing.assert_allclose(found["logp"], alone["logp"], atol=1e-5)


def test_they_cannot_be_recorded_as_tokens_are_drawn() -> None:
    engine = ReferenceEngine({"w": model()}, {"policy": "w"}, TOKENIZER)
    with pytest.raises(UnknownName, match="input of the quantity residuals in the engine"):
        asyncio.run(engine.generate("policy", PROMPT, Sampling(record=("residuals",)), 1))


def test_what_was_sampled_so_has_no_temperature_at_which_it_could_be_learned() -> None:
    vectors = Sampling(), Sampling(steering=Steering(0, (0.5,) * 4))
    groups = []
    for n, sampling in enumerate(vectors):
        tree = Tree()
        leaf = tree.add(tree.add(-1, (1, 2)), (3, 4), action_mask=True, logp=[-1.0, -1.0], version=0, sampling=sampling)
        at = Ref(f"e{n}", leaf)
        episode = Episode(at.episode, tree, [Trajectory(at, "policy", "k")])
        request = RolloutRequest(Task("k", "p"), 1, key="k")
        groups.append(RolloutGroup(request, [episode], {"reward": {at: Score(1.0)}}, "k"))
    trees = {e.id: e.tree for g in groups for e in g.episodes}
    batch = collate(per_trajectory()(groups=groups), trees.__getitem__)
    np.testing.assert_array_equal(batch.get("temperature"), [1.0, 1.0, np.nan, np.nan])
