"""A model asked for text: pieces that are the whole answer, stop strings, whole characters, seeds, and an end to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import mini
from support.runs import run_config_of

from selfteach import api
from selfteach.core import BadValue, Sampling, SelfteachError
from selfteach.core.tool_calls import ToolCall, read_tool_calls
from selfteach.engine import BuiltinEngine
from selfteach.engine.equal_length_batching import EqualLengthEngine
from selfteach.model.tokenizer import Tokenizer, train_tokenizer
from selfteach.serving import loading
from selfteach.serving.text_model import TextModel, TextStream, rng_key_of


@pytest.fixture(scope="module")
def model(letters: Tokenizer) -> Iterator[TextModel]:
    roles, engine = {"policy": "policy"}, {"policy": mini(264)}
    with TextModel("mini", letters, BuiltinEngine(engine, roles, letters, slots=4), 128) as made:
        yield made


def pieces_of(model: TextModel, *args: Any) -> list[Any]:
    async def gather() -> list[Any]:
        async with aclosing(model.stream(*args)) as pieces:
            return [p async for p in pieces]

    return asyncio.run(gather())


def test_pieces_are_the_answer_and_those_of_an_engine_alone(model: TextModel, letters: Tokenizer) -> None:
    ids, sampling = model.prompt_ids("abc"), Sampling(max_tokens=40)
    pieces = pieces_of(model, ids, sampling, 5)
    answer = asyncio.run(model.answer(ids, sampling, 5))
    assert "".join(p.text for p in pieces) == answer.text and pieces[-1].reason == answer.reason
    assert sum((p.ids for p in pieces), ()) == answer.ids
    alone = BuiltinEngine({"policy": mini(264)}, {"policy": "policy"}, letters)
    drawn = asyncio.run(alone.generate("policy", ids, sampling, 5)).ids.tolist()
    assert [i for i in drawn if i not in letters.eos_token_ids] == [*answer.ids]


def test_a_model_without_a_cache_of_ours_streams_too(letters: Tokenizer) -> None:
    engine = EqualLengthEngine({"policy": mini(264)}, {"policy": "policy"}, letters)
    with TextModel("mini", letters, engine, 128) as other:
        ids, sampling = other.prompt_ids("abc"), Sampling(max_tokens=12)
        pieces = pieces_of(other, ids, sampling, 5)
        answer = asyncio.run(other.answer(ids, sampling, 5))
        assert len(pieces) > 5 and sum((p.ids for p in pieces), ()) == answer.ids
        assert "".join(p.text for p in pieces) == answer.text
        early = asyncio.run(other.answer(ids, sampling, 5, (answer.text[3],)))
        assert early.text == answer.text[: answer.text.index(answer.text[3])] and not other.engine.counts["scored"]


def test_many_at_once_are_what_each_is_alone(model: TextModel) -> None:
    sampling = Sampling(max_tokens=20)

    async def all_of() -> list[Any]:
        return await asyncio.gather(
            *(model.answer(model.prompt_ids("q"), sampling, rng_key_of(1, i)) for i in range(9))
        )

    together = asyncio.run(all_of())
    alone = [asyncio.run(model.answer(model.prompt_ids("q"), sampling, rng_key_of(1, i))) for i in range(9)]
    assert together == alone and len(set(together)) > 1


def test_a_stop_string_ends_the_answer_and_is_not_in_it(model: TextModel) -> None:
    ids, sampling = model.prompt_ids("abc"), Sampling(max_tokens=60)
    whole = asyncio.run(model.answer(ids, sampling, 3))
    stop = whole.text[7:9]
    cut = asyncio.run(model.answer(ids, sampling, 3, ("never in it", stop)))
    assert cut.text == whole.text[: whole.text.index(stop)] and cut.reason == "stop"
    assert cut.ids == whole.ids[: len(cut.ids)] and len(cut.ids) < len(whole.ids)


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=3), max_size=2), st.data())
def test_a_stream_of_bytes_is_the_text_up_to_the_stop(text: str, stop: list[str], data: Any) -> None:
    letters = _letters()
    ids = letters.encode(text).tolist()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    stream, out, read = TextStream(letters, stop), "", 0
    for a, z in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        if not stream.ended:
            more, n = stream.add(ids[a:z])
            out, read = out + more, read + n
    out += stream.close()
    found = [text.index(s) for s in stop if s in text]
    # of two stop strings the one that is complete first ends the text
    ends = [text.index(s) + len(s) for s in stop if s in text]
    if not found:
        assert out == text and read == len(ids) and not stream.ended
    else:
        assert stream.ended and text.startswith(out) and not any(s in out for s in stop)
        assert read == len(text[: min(ends)].encode())


@cache
def _letters() -> Tokenizer:
    return train_tokenizer(["ab"], (), 257)


def test_whoever_stops_listening_ends_the_generation(model: TextModel) -> None:
    async def leave() -> None:
        async with aclosing(model.stream(model.prompt_ids("x"), Sampling(), 2)) as pieces:
            async for _ in pieces:
                break

    asyncio.run(leave())
    scheduler = model.engine.schedulers["policy"]  # type: ignore[union-attr]
    for _ in range(200):
        if not scheduler.pending:
            break
        time.sleep(0.01)
    assert not scheduler.pending and scheduler.n_listening == 0


def test_log_probabilities_are_those_at_temperature_1_with_the_likeliest(model: TextModel) -> None:
    ids = model.prompt_ids("abc")
    answer = asyncio.run(model.answer(ids, Sampling(max_tokens=6, temperature=0.0), 1))
    scores = asyncio.run(model.score(ids, answer.ids, 3))
    assert [s.top[0][0] for s in scores] == [*answer.ids], "greedy takes the likeliest"
    assert all(s.top[0][1] == pytest.approx(s.logp, abs=1e-5) and len(s.top) == 3 for s in scores)
    assert all(s.top[0][1] >= s.top[1][1] >= s.top[2][1] for s in scores)
    assert not asyncio.run(model.score(ids, answer.ids))[0].top
    assert asyncio.run(model.score(ids, (), 3)) == []


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("x" * 200, "leave no room"),
        ("x" * 5000, "can fit the context"),
        ([1, 264], "not one of the model's"),
        ("\udcff", "not text"),
    ],
)
def test_a_prompt_that_cannot_be_taken_is_refused(model: TextModel, prompt: Any, why: str) -> None:
    with pytest.raises(BadValue, match=why):
        model.prompt_ids(prompt)


def test_an_empty_prompt_begins_a_text(model: TextModel, letters: Tokenizer) -> None:
    assert model.prompt_ids("").tolist() == [letters.eos_token_id]


def test_an_error_of_the_engine_reaches_who_asked(model: TextModel) -> None:
    with pytest.raises(BadValue, match="context is empty"):
        asyncio.run(model.answer(np.zeros(0, np.int32), Sampling(max_tokens=2), 1))


# ---- what is loaded


def test_a_run_and_its_checkpoint_say_the_same(mini_folder: Path, tmp_path: Path) -> None:
    api.train(run_config_of(mini_folder, steps=2), tmp_path / "run")
    texts = []
    for word in ("run", "run/last"):
        with loading.load(str(tmp_path / word), threads=1) as model:
            texts.append(asyncio.run(model.answer(model.prompt_ids("say"), Sampling(max_tokens=9), 4)))
            assert model.name == word.split("/")[-1] and model.context == 128
    assert texts[0] == texts[1]


def test_adapters_are_merged(mini_folder: Path, tmp_path: Path) -> None:
    api.train(run_config_of(mini_folder, steps=1, lora_rank=2), tmp_path / "run")
    (tmp_path / "run" / "last" / "config.json").unlink()  # as while it is trained
    with loading.load(str(tmp_path / "run")) as model:
        assert asyncio.run(model.answer(model.prompt_ids("say"), Sampling(max_tokens=3), 4)).ids


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("tiny", "made for a task"),
        ("smolm2-135m", "did you mean smollm2-135m"),
        ("./nowhere", "no such folder"),
        (".", "neither a run nor a model"),
    ],
)
def test_what_is_no_model_is_refused_in_a_line(word: str, why: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SelfteachError, match=why) as error:
        loading.load(word)
    assert "\n" not in str(error.value)


def test_a_run_without_a_checkpoint_is_named(mini_folder: Path, tmp_path: Path) -> None:
    import json

    (tmp_path / "config.json").write_text(json.dumps(run_config_of(mini_folder).to_json()))
    with pytest.raises(BadValue, match="has no checkpoint yet"):
        loading.load(str(tmp_path))


def test_slots_are_as_many_as_fit_the_memory(monkeypatch: Any) -> None:
    import torch

    model, one = mini(264), 2 * 1 * 1 * 16 * 4 * 128
    for free, slots in ((None, 16), (8 * one, 4), (100 * one, 16)):
        monkeypatch.setattr(loading.devices, "free_memory", lambda device, free=free: free)
        assert loading.slots_in_memory(model, 16, 128, "cpu", torch.float32) == slots
    monkeypatch.setattr(loading.devices, "free_memory", lambda device: one)
    with pytest.raises(BadValue, match="smaller --context"):
        loading.slots_in_memory(model, 16, 128, "cpu", torch.float32)


# ---- tool calls

CALL = '{"name": "look", "arguments": {"at": "é"}}'
ARGUMENTS = '{"at": "é"}'


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>{CALL}",  # cut before its end
        f"[TOOL_CALLS] [{CALL}]",
        CALL,
        f"  ```json\n{CALL}\n```",
        f"[{CALL}]",
        CALL.replace("arguments", "parameters"),
        f"<|python_tag|>{CALL}",
        f"<function=look>{ARGUMENTS}</function>",
        '<tool_call>{"name": "look", "arguments": "{\\"at\\": \\"é\\"}"}</tool_call>',
    ],
)
def test_a_call_is_read_in_every_usual_form(text: str) -> None:
    assert read_tool_calls(text, {"look"}) == ("", [ToolCall("look", ARGUMENTS)])


def test_several_calls_and_the_text_beside_them() -> None:
    text, calls = read_tool_calls(f"Wait.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", {"look"})
    assert text == "Wait." and len(calls) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "{",
        "look",
        CALL,
        '{"name": ["x"]}',
        '<tool_call>{"name": "x", "arguments": 3}</tool_call>',
        "[" * 9999,
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert read_tool_calls(text, {"x"}) == (text, [])
