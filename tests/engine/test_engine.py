"""The engine against its reference, in every kind of company; the sampler, stops, and what ends a request."""

from __future__ import annotations

import asyncio
import copy
import gc
from typing import Any

import numpy as np
import pytest
import torch
from support.engines import TOKENIZER, VOCAB, model

from selfteach.core import random_keys
from selfteach.core.errors import BadCheckpoint, BadValue, EngineMismatch, NotFinite, Terminated, UnknownName
from selfteach.core.loops import run_to_end
from selfteach.core.protocols import Completion
from selfteach.core.task import Sampling, Steering
from selfteach.engine import BuiltinEngine, ReferenceEngine, ScriptedEngine, is_batch_invariant, sampler, scheduler
from selfteach.engine.native_runner import MAX_STEPS
from selfteach.engine.stop_strings import StopStrings
from selfteach.engine.torch_runner import TorchRunner
from selfteach.model import files
from selfteach.model.tokenizer import Tokenizer
from selfteach.model.transformer import Config, Transformer


def builtin(shape: str = "grouped", **options: Any) -> BuiltinEngine:
    return BuiltinEngine({"w": model(shape)}, {"policy": "w", "judge": "w"}, TOKENIZER, **options)


def reference(shape: str = "grouped") -> ReferenceEngine:
    return ReferenceEngine({"w": model(shape)}, {"policy": "w", "judge": "w"}, TOKENIZER)


def ids(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, VOCAB, n).astype(np.int32)


def run(main: Any) -> Any:
    """Run a coroutine; nothing may be left behind in the loop."""

    async def whole() -> Any:
        result = await main
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(whole())


def same_bits(a: Completion, b: Completion) -> None:
    assert (a.ids.tolist(), a.status, a.version) == (b.ids.tolist(), b.status, b.version)
    assert a.logp.tobytes() == b.logp.tobytes()
    assert {n: v.tobytes() for n, v in a.recorded.items()} == {n: v.tobytes() for n, v in b.recorded.items()}


def close(a: Completion, b: Completion) -> None:
    assert (a.ids.tolist(), a.status, a.version) == (b.ids.tolist(), b.status, b.version)
    assert a.ids.dtype == np.int32 and a.logp.dtype == np.float32
    np.testing.assert_allclose(a.logp, b.logp, atol=1e-5, rtol=0)
    assert a.recorded.keys() == b.recorded.keys()
    for name, values in a.recorded.items():
        np.testing.assert_allclose(values, b.recorded[name], atol=3e-5, rtol=1e-5)


def some_sampling(rng: np.random.Generator, shape: Config | None = None) -> Sampling:
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    return Sampling(
        temperature=pick(1.0, 1.0, 0.7, 1.4, 0.0),
        top_p=pick(1.0, 1.0, 0.8, 0.3),
        top_k=pick(0, 0, 7, 1),
        max_tokens=pick(None, 1, 3, 8, 20, 20, 20),
        stop=pick((), (), ("e",), ("x", "the", "</search>"), (" a", "q", "zz")),
        record=pick((), (), ("entropy",), ("mean_logp", "raw_logp")),
        steering=None if shape is None or rng.random() < 0.7 else some_steering(rng, shape),
    )


def some_steering(rng: np.random.Generator, shape: Config) -> Steering:
    return Steering(int(rng.integers(shape.layers)), tuple(rng.standard_normal(shape.width)))


Call = tuple[np.ndarray, Sampling, int, Completion]


def test_steps_in_one_call_draw_what_single_ones_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    requests = [
        (ids(rng, n), Sampling(max_tokens=int(rng.integers(1, 40)), stop=("e",), temperature=float(n % 3) / 2), 5 + n)
        for n in (1, 9, 9, 31, 32, 60, 63, 64, 70)
    ]

    async def everyone(engine: BuiltinEngine) -> list[Completion]:
        return await asyncio.gather(*[engine.generate("policy", c, s, key) for c, s, key in requests])

    many = run(everyone(builtin(slots=4)))
    monkeypatch.setattr(scheduler, "MultiStepRunner", TorchRunner)  # which the runner here is not
    for a, b in zip(many, run(everyone(builtin(slots=4))), strict=True):
        same_bits(a, b)


async def crowd(engine: BuiltinEngine, seed: int, programs: int) -> list[Call]:
    """Programs that come at odd times, share prompts, fork, speak several turns, score, and are sometimes cancelled."""
    rng = np.random.default_rng(seed)
    prompts = [ids(rng, n) for n in (1, 2, 9, 31, 32, 33, 50)]
    calls: list[Call] = []

    async def program(number: int) -> None:
        own = np.random.default_rng([seed, number])
        context = prompts[own.integers(len(prompts))]
        for turn in range(own.integers(1, 4)):
            for _ in range(own.integers(0, 12) if own.random() < 0.6 else 0):
                await asyncio.sleep(0)
            sampling, key = some_sampling(own, engine.models["w"].config), random_keys.key(seed, number, turn)
            if own.random() < 0.15:
                late = asyncio.ensure_future(engine.generate("policy", context, sampling, key))
                for _ in range(own.integers(0, 9)):
                    await asyncio.sleep(0)
                late.cancel()
                await asyncio.gather(late, return_exceptions=True)
            done = await engine.generate("policy", context, sampling, key)
            calls.append((context, sampling, key, done))
            if own.random() < 0.3 and len(done.ids):
                await engine.score("judge", context, done.ids, ("logp", "entropy"))
            whole = np.concatenate([context, done.ids, ids(own, own.integers(0, 12))])
            context = (
                whole[: own.integers(1, len(whole) + 1)] if own.random() < 0.3 else whole
            )  # a fork goes on from the middle

    await asyncio.gather(*[program(n) for n in range(programs)])
    return calls


@pytest.mark.parametrize(
    ("shape", "slots", "chunk", "programs", "kernel"),
    [
        ("grouped", 64, 512, 24, "auto"),
        ("grouped", 7, 16, 20, "auto"),
        ("grouped", 7, 16, 20, "torch"),
        ("grouped", 2, 5, 8, "auto"),
        ("grouped", 1, 512, 6, "torch"),
        ("alone", 6, 40, 16, "auto"),
        ("qwen", 9, 30, 16, "auto"),
        ("qwen", 9, 30, 12, "torch"),
    ],
)
def test_every_company_gives_what_the_reference_gives(
    shape: str, slots: int, chunk: int, programs: int, kernel: str
) -> None:
    engine, right, alone = (
        builtin(shape, slots=slots, chunk=chunk, kernel=kernel),
        reference(shape),
        builtin(shape, slots=1, kernel=kernel),
    )
    assert engine.batch_invariant
    calls = run(crowd(engine, seed=slots, programs=programs))

    async def compare() -> None:
        for context, sampling, key, done in calls:
            close(done, await right.generate("policy", context, sampling, key))
            same_bits(done, await alone.generate("policy", context, sampling, key))

    run(compare())
    assert len({c[3].status for c in calls}) > 1
    assert (
        not engine.schedulers["w"].pending
        and not any(engine.schedulers["w"].requests)
        and not +engine.schedulers["w"].recorded_counts
    )


@pytest.mark.parametrize("own", [{"top_p": 0.95, "record": ("entropy",)}, {"stop": ("zzz",)}, {"temperature": 0.0}])
def test_a_sample_has_the_same_bits_in_any_crowd(own: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    context, sampling = ids(rng, 21), Sampling(**{"max_tokens": 30, "stop": (), **own})
    others = [(ids(rng, n), some_sampling(rng)) for n in rng.integers(1, 100, 40)]

    async def among(n: int, **options: Any) -> Completion:
        engine = builtin(**options)
        rest = [asyncio.ensure_future(engine.generate("policy", c, s, 77 + i)) for i, (c, s) in enumerate(others[:n])]
        await asyncio.sleep(0)
        done = await engine.generate("policy", context, sampling, 2**63 + 11)
        await asyncio.gather(*rest)
        return done

    first = run(among(0))
    assert len(first.ids) > 4
    for n, options in [
        (1, {}),
        (3, {}),
        (12, {"slots": 3}),
        (40, {}),
        (40, {"chunk": 3}),
        (40, {"slots": 5, "chunk": 64}),
        (0, {"length": 70}),
    ]:
        same_bits(first, run(among(n, **options)))


def test_shared_prompts_are_computed_once_and_turns_go_on_in_place() -> None:
    rng = np.random.default_rng(2)
    engine, prompt = builtin(), ids(rng, 40)

    async def group() -> list[Completion]:
        return await asyncio.gather(*[engine.generate("policy", prompt, Sampling(max_tokens=6), i) for i in range(16)])

    first = run(group())
    assert engine.counts["prefilled"] == 40 + 15  # the siblings compute the prompt's last token only
    assert engine.counts["reused"] == 15 * 39
    before = dict(engine.counts)
    longer = np.concatenate([prompt, first[3].ids, ids(rng, 5)])
    run(engine.generate("policy", longer, Sampling(max_tokens=2), 0))
    assert engine.counts["prefilled"] - before["prefilled"] == 1 + 5  # the last token drawn was not yet in the cache
    assert engine.counts["copied"] == before["copied"]


def test_more_requests_than_slots_are_served_in_order() -> None:
    rng = np.random.default_rng(3)
    engine, order = builtin(slots=2), []

    async def one(n: int) -> None:
        await engine.generate("policy", ids(rng, 5), Sampling(max_tokens=4, temperature=1.0, stop=()), n)
        order.append(n)

    async def everyone() -> None:
        await asyncio.gather(*[one(n) for n in range(20)])

    run(everyone())
    assert sorted(order) == list(range(20))
    assert all(abs(place - n) <= 2 for place, n in enumerate(order))


def test_a_cancelled_request_leaves_and_its_slot_is_used_again() -> None:
    engine = builtin(slots=1)
    context = ids(np.random.default_rng(4), 10)

    async def both() -> Completion:
        first = asyncio.ensure_future(engine.generate("policy", context, Sampling(), 1))
        queued = asyncio.ensure_future(engine.generate("policy", context, Sampling(), 2))
        for _ in range(12):
            await asyncio.sleep(0)
        generated = engine.counts["generated"]
        assert generated > 0 and not first.done()
        first.cancel()
        queued.cancel()
        done = await asyncio.wait_for(engine.generate("policy", context, Sampling(max_tokens=3), 3), 20)
        assert first.cancelled() and queued.cancelled()
        assert engine.counts["generated"] <= generated + MAX_STEPS + 3  # it did not run on to its limit
        return done

    close(run(both()), run(reference().generate("policy", context, Sampling(max_tokens=3), 3)))
    with pytest.raises(TimeoutError):
        run(asyncio.wait_for(engine.generate("policy", context, Sampling(), 4), 1e-6))
    assert run(engine.generate("policy", context, Sampling(max_tokens=1), 5)).status in ("length", "stop")


def test_what_a_signal_raises_within_a_step_is_raised_and_not_reported_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Any) -> bool:
        raise Terminated

    engine = builtin()
    monkeypatch.setattr(engine, "_step", interrupted)
    with pytest.raises(Terminated):
        run_to_end(engine.generate("policy", ids(np.random.default_rng(4), 5), Sampling(), 1))
    gc.collect()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("make_engine", [builtin, reference])
def test_what_ends_a_turn(make_engine: Any) -> None:
    engine = make_engine()
    rng = np.random.default_rng(6)
    context = ids(rng, 12)
    flat = Sampling(temperature=1.5)
    full = run(engine.generate("policy", context, flat, 9))
    assert (full.status == "limit" and len(full.ids) == 160 - 12) or (
        full.status == "stop" and full.ids[-1] == TOKENIZER.eos_token_id
    )
    cut = run(engine.generate("policy", context, flat.replace(max_tokens=5), 9))
    assert cut.status == "length" and cut.ids.tolist() == full.ids[:5].tolist()
    for length in (160, 200):
        none = run(engine.generate("policy", ids(rng, length), flat, 9))
        assert none.status == "limit" and not len(none.ids) and not len(none.logp)
    assert run(engine.generate("policy", ids(rng, 159), flat.replace(max_tokens=1), 9)).status in ("length", "stop")
    assert len(run(engine.generate("policy", ids(rng, 159), flat, 9)).ids) == 1


def test_stop_strings_end_at_the_first_token_that_completes_one() -> None:
    engine = builtin()
    context = ids(np.random.default_rng(8), 7)
    full = run(engine.generate("policy", context, Sampling(temperature=1.3, max_tokens=60), 3))
    pieces = [TOKENIZER.pieces[i] for i in full.ids]
    tried = 0
    for first in range(len(pieces) - 3):
        try:
            stop = b"".join(pieces[first : first + 3])[:-1].decode()  # over several tokens, and not all of the last one
        except UnicodeDecodeError:
            continue
        upto = next((n for n in range(1, len(pieces) + 1) if stop.encode() in b"".join(pieces[:n])), None)
        if not stop or upto is None:
            continue
        done = run(
            engine.generate("policy", context, Sampling(temperature=1.3, max_tokens=60, stop=("\x00never", stop)), 3)
        )
        assert (len(done.ids), done.status) == (upto, "stop")
        tried += 1
    assert tried > 5


def test_stop_tables_know_every_way_to_cut_a_string() -> None:
    pieces = [
        b"</",
        b"se",
        b"arch>",
        b"</search>",
        b"a </search> b",
        b"x",
        b">",
        b"",
        b"h",
        b"</searc",
        b"h> and",
        b"</search",
        b">>",
        b"h> and then on",
    ]
    stops = StopStrings(pieces, len(pieces) + 2)
    number = stops.index_of(("</search>",))
    assert number == stops.index_of(("</search>",)) == 1 and not stops.may_complete[0].any()
    rng = np.random.default_rng(0)
    for _ in range(3000):
        turn = rng.integers(0, len(pieces) + 2, rng.integers(1, 7))
        texts = [b"".join(stops.pieces[i] for i in turn[:n]) for n in range(len(turn) + 1)]
        if b"</search>" in texts[-2]:
            continue  # it would have ended before
        now = bool(stops.may_complete[number, turn[-1]]) and stops.ended(number, turn)
        assert now == (b"</search>" in texts[-1])


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.5, 4, 1.0), (1.0, 0, 0.7), (0.8, 6, 0.9)]
)
def test_the_sampler_draws_what_it_says(temperature: float, top_k: int, top_p: float) -> None:
    n, logits = 20_000, torch.tensor([1.0, -0.5, 2.0, 0.0, -2.0, 1.9, -torch.inf, 0.5, 0.49])
    uniform = random_keys.uniform(np.arange(n, dtype=np.uint64) * np.uint64(2654435761), 3)
    drawn = sampler.draw(logits.expand(n, -1), np.full(n, temperature), np.full(n, top_k), np.full(n, top_p), uniform)
    p = (logits.double() / temperature).softmax(-1).numpy()
    order = np.argsort(-p)[: top_k or None]
    keep = order[np.cumsum(p[order]) - p[order] < top_p * p[order].sum()]
    p = np.where(np.isin(np.arange(9), keep), p, 0)
    p /= p.sum()
    seen = np.bincount(drawn.ids, minlength=9)
    assert (seen[p == 0] == 0).all()
    chi2 = ((seen - n * p)[p > 0] ** 2 / (n * p[p > 0])).sum()
    assert chi2 < 26.1  # 8 degrees of freedom: once in a thousand
    np.testing.assert_allclose(drawn.logp, np.log(p[drawn.ids]), atol=1e-6)


def test_the_ends_of_the_unit_interval_never_draw_what_has_no_chance() -> None:
    logits = torch.tensor(
        [[-torch.inf, 0.0, 1.0, -torch.inf], [0.0, -torch.inf, -torch.inf, -200.0]]
    ).repeat_interleave(2, 0)
    ends = np.array([0.0, 1 - 2.0**-53] * 2)
    assert sampler.draw(logits, np.ones(4), np.zeros(4, int), np.ones(4), ends).ids.tolist() == [1, 2, 0, 0]
    wide = torch.randn(64, 5000, generator=torch.Generator().manual_seed(0)) * 8
    one = np.full(64, 1 - 2.0**-53)
    assert sampler.draw(wide, np.ones(64), np.zeros(64, int), np.ones(64), one).logp.isfinite().all()


def test_rows_of_a_draw_do_not_see_each_other() -> None:
    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(0, 3, (40, 300)).astype(np.float32))
    t, k, p = rng.choice([0.0, 0.5, 1.0], 40), rng.choice([0, 3, 50], 40), rng.choice([1.0, 0.9], 40)
    u = rng.random(40)
    every = sampler.draw(logits, t, k, p, u)
    for rows in (slice(0, 8), slice(8, 32), slice(16, 24)):
        some = sampler.draw(logits[rows], t[rows], k[rows], p[rows], u[rows])
        assert all(torch.equal(a[rows], b) for a, b in zip(every, some, strict=True))
    assert (every.logp[t == 0] == 0).all() and torch.equal(every.ids[t == 0], logits[t == 0].argmax(-1))


def test_scores_are_the_reference_s_and_continue_what_is_cached() -> None:
    engine, right = builtin(slots=4, chunk=24), reference()
    rng = np.random.default_rng(9)
    context, want = ids(rng, 30), ("logp", "entropy", "raw_logp")
    cases = [(context, ids(rng, n)) for n in (1, 5, 40, 100)] + [
        (ids(rng, 1), ids(rng, 12)),
        (context[:20], ids(rng, 3)),
        (context, ids(rng, 0)),
    ]

    async def everything() -> None:
        turn = asyncio.ensure_future(engine.generate("policy", context, Sampling(max_tokens=25), 1))
        got = await asyncio.gather(*[engine.score("judge", c, t, want) for c, t in cases])
        done = await turn
        close(done, await right.generate("policy", context, Sampling(max_tokens=25), 1))
        for (c, t), g in zip(cases, got, strict=True):
            r = await right.score("judge", c, t, want)
            for name in want:
                assert g[name].shape == (len(t),) and g[name].dtype == np.float32
                np.testing.assert_allclose(g[name], r[name], atol=2e-5, rtol=1e-5)
        again = await engine.score("policy", context, done.ids)
        assert again["logp"].tobytes() == done.logp.tobytes()  # at temperature 1 the sampler's own record, bit for bit

    run(everything())


def test_a_score_has_the_same_bits_in_any_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SCORED_LOGITS", 100 * model().config.vocab)  # so that a crowd is several parts
    rng = np.random.default_rng(5)
    wants = [("logp",), ("logp", "entropy")]
    cases = [(ids(rng, 10), ids(rng, int(n)), wants[i % 2]) for i, n in enumerate(rng.integers(1, 40, 48))]

    async def scored(at_once: bool) -> list[dict[str, np.ndarray]]:
        engine = builtin(slots=48)
        asked = [engine.score("policy", *case) for case in cases]
        return list(await asyncio.gather(*asked)) if at_once else [await one for one in asked]

    for alone, together in zip(run(scored(False)), run(scored(True)), strict=True):
        assert alone.keys() == together.keys()
        assert all(alone[name].tobytes() == together[name].tobytes() for name in alone)


def test_scalar_heads_are_those_of_their_model() -> None:
    torch.manual_seed(0)
    made = {kind: torch.nn.Linear(32, 1) for kind in ("value", "scalar")}
    where = {
        "heads": {"w": {"scalar": made["scalar"]}, "v": {"value": made["value"]}},
        "model_heads": {"judge": {"scalar": "w"}, "critic": {"value": "v"}},
    }
    model_roles, rng = {"policy": "w", "judge": "w", "critic": "w"}, np.random.default_rng(3)
    context, tokens = ids(rng, 9), ids(rng, 70)
    ours = BuiltinEngine({"w": model()}, model_roles, TOKENIZER, chunk=16, **copy.deepcopy(where))
    plain = ReferenceEngine({"w": model()}, model_roles, TOKENIZER, **copy.deepcopy(where))
    hidden = plain._hidden("w", [*context.tolist(), *tokens.tolist()])
    with torch.no_grad():
        value, scalar = (made[h](hidden)[:, 0].numpy() for h in ("value", "scalar"))
    for engine in (ours, plain):
        before = run(engine.score("critic", context, tokens, ("value",)))["value"]
        both = run(engine.score("judge", context, tokens, ("scalar_after", "logp")))
        assert np.allclose(before, value[8:-1], atol=1e-4) and np.allclose(both["scalar_after"], scalar[9:], atol=1e-4)
        assert np.allclose(both["logp"], run(engine.score("judge", context, tokens))["logp"], atol=1e-5)
        with pytest.raises(UnknownName, match="value"):
            run(engine.score("judge", context, tokens, ("value",)))
        assert engine.groups == ["v", "w"]
        given = {"value_head.weight": torch.ones(1, 32), "value_head.bias": torch.zeros(1)}
        assert engine.load("v", given, 1) == files.fingerprint(given)
        assert np.allclose(
            run(engine.score("critic", context, tokens, ("value",)))["value"], hidden[8:-1].sum(-1), atol=1e-3
        )


def test_loading_drops_what_was_cached_and_shows_its_fingerprint() -> None:
    engine, right = builtin(), reference()
    context, sampling = ids(np.random.default_rng(10), 40), Sampling(max_tokens=10)
    run(engine.generate("policy", context, sampling, 1))
    new = model(seed=1).named_tensors()
    before = engine.fingerprint("w")
    assert (
        engine.load("w", new, 7)
        == engine.fingerprint("w")
        == files.fingerprint(new)
        == right.load("w", new, 7)
        != before
    )
    reused = engine.counts["reused"]
    done = run(engine.generate("policy", context, sampling, 1))
    assert engine.counts["reused"] == reused and done.version == 7
    close(done, run(right.generate("policy", context, sampling, 1)))
    new["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(BadCheckpoint, match=r"model\.norm\.weight"):
        engine.load("w", new, 8)
    assert engine.fingerprint("w") == right.fingerprint("w")

    async def in_flight() -> None:
        turn = asyncio.ensure_future(engine.generate("policy", context, sampling, 1))
        await asyncio.sleep(0)
        with pytest.raises(EngineMismatch, match="1 of its requests"):
            engine.load("w", model().named_tensors(), 9)
        await turn

    run(in_flight())


def test_groups_of_other_weights_run_side_by_side() -> None:
    model_roles = {"policy": "w", "critic": "other"}
    engine = BuiltinEngine({"w": model(), "other": model("alone", 3)}, model_roles, TOKENIZER, slots=3)
    right = ReferenceEngine({"w": model(), "other": model("alone", 3)}, model_roles, TOKENIZER)
    rng = np.random.default_rng(11)
    asks = [(m, ids(rng, 15), i) for i in range(6) for m in model_roles]

    async def everything() -> None:
        got = await asyncio.gather(*[engine.generate(m, c, Sampling(max_tokens=9), i) for m, c, i in asks])
        for (m, c, i), g in zip(asks, got, strict=True):
            close(g, await right.generate(m, c, Sampling(max_tokens=9), i))

    run(everything())


def test_a_request_that_cannot_be_served_raises() -> None:
    engine, context = builtin(), np.array([1, 2, 3], np.int32)
    for call, error, message in [
        (engine.generate("nobody", context, Sampling(), 1), UnknownName, "nobody"),
        (engine.generate("policy", context[:0], Sampling(), 1), BadValue, "context is empty"),
        (engine.generate("policy", np.array([VOCAB]), Sampling(), 1), BadValue, str(VOCAB)),
        (engine.generate("policy", context, Sampling(record=("value",)), 1), UnknownName, "value"),
        (engine.generate("policy", context, Sampling(stop=("",)), 1), BadValue, "empty"),
        (engine.score("policy", context, np.zeros(200, np.int32)), BadValue, "do not fit"),
    ]:
        with pytest.raises(error, match=message):
            run(call)
    with pytest.raises(UnknownName, match="w"):
        engine.load("v", {}, 1)
    with pytest.raises(BadValue, match="length"):
        builtin(length=1000)


def test_an_error_in_a_step_reaches_every_waiter_and_the_engine_goes_on() -> None:
    engine, context = builtin(slots=2), np.array([1, 2, 3], np.int32)
    good = model().named_tensors()
    engine.load("w", {n: torch.full_like(t, torch.nan) for n, t in good.items()}, 1)

    async def everyone() -> list[Any]:
        long = np.arange(70, dtype=np.int32)  # what it leaves in the cache must not reach shorter contexts
        return await asyncio.gather(
            *[engine.generate("policy", long, Sampling(max_tokens=3), i) for i in range(5)], return_exceptions=True
        )

    assert all(isinstance(e, NotFinite) for e in run(everyone()))
    engine.load("w", good, 0)
    close(
        run(engine.generate("policy", context, Sampling(max_tokens=9), 4)),
        run(reference().generate("policy", context, Sampling(max_tokens=9), 4)),
    )


def test_a_loop_that_was_closed_under_the_engine_is_let_go() -> None:
    engine, context = builtin(), np.arange(9, dtype=np.int32)
    loop = asyncio.new_event_loop()
    lost = loop.create_task(engine.generate("policy", context, Sampling(), 1))
    loop.run_until_complete(asyncio.sleep(0))
    lost._log_destroy_pending = False  # type: ignore[attr-defined]
    assert engine._pump is not None
    engine._pump._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    assert len(run(engine.generate("policy", context, Sampling(max_tokens=3), 1)).ids) <= 3


def test_half_precision_runs_too() -> None:
    engine = builtin(dtype=torch.bfloat16)
    done = run(engine.generate("policy", np.arange(20, dtype=np.int32), Sampling(max_tokens=12), 1))
    again = run(engine.score("policy", np.arange(20, dtype=np.int32), done.ids))
    np.testing.assert_allclose(again["logp"], done.logp, atol=0.0 if engine.batch_invariant else 0.2)


def test_the_probe_sees_a_machine_that_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_batch_invariant(TorchRunner(model(), 4, 160))
    forward = Transformer.forward

    def uneven(self: Transformer, ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        return forward(self, ids, *rest) * (1 + 1e-6 * ids.shape[1])

    monkeypatch.setattr(Transformer, "forward", uneven)
    assert not is_batch_invariant(TorchRunner(model(), 4, 160))


def test_a_scripted_engine_says_its_lines() -> None:
    tokenizer: Tokenizer = TOKENIZER
    engine = ScriptedEngine(["the fox</search> and more", "dog"], tokenizer, logp=-1.5)
    context = tokenizer.encode("the quick")
    first = run(engine.generate("policy", context, Sampling(stop=("</search>",)), 1))
    assert tokenizer.decode(first.ids) == "the fox</search>" and first.status == "stop"
    second = run(engine.generate("policy", context, Sampling(), 2))
    assert (
        second.ids[-1] == tokenizer.eos_token_id
        and tokenizer.decode(second.ids) == "dog"
        and (second.logp == -1.5).all()
    )
    assert run(engine.generate("policy", context, Sampling(max_tokens=2), 3)).status == "length"
    assert [c[1] for c in engine.calls] == ["the quick"] * 3
    echo = ScriptedEngine(lambda text, key: f"{text} {key}", tokenizer, length=len(context) + 3)
    assert run(echo.generate("policy", context, Sampling(), 5)).status == "limit"
    weights = model().named_tensors()
    assert echo.load("w", weights, 3) == files.fingerprint(weights)
    assert run(echo.score("policy", context, context))["logp"].tolist() == [0.0] * len(context)


def test_the_protocol_is_kept() -> None:
    from selfteach.core.protocols import Engine

    engines: list[Engine] = [builtin(), reference(), ScriptedEngine(["a"], TOKENIZER)]
    assert all(callable(getattr(e, n)) for e in engines for n in ("generate", "score", "load", "fingerprint"))
