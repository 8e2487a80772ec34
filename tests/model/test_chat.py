"""Tokenizers as the Hub has them, chat templates whose turns are appended, and tags that are many tokens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.episodes import full_text, scripted_context, spans
from support.models import mini
from support.templates import FAMILIES, TOKENIZERS, assistant, user
from tokenizers import Tokenizer as Inner
from tokenizers import processors

from selfteach.core import RolloutRequest, Sampling, Task, TaskSource, Turn, block
from selfteach.core.errors import BadCheckpoint, BadValue, UnknownName
from selfteach.engine.builtin import BuiltinEngine
from selfteach.engine.reference import ReferenceEngine
from selfteach.engine.stop_strings import StopStrings
from selfteach.loop.assemble import with_chat_prompts
from selfteach.loop.episode import play
from selfteach.methods.ssrl import PLACEHOLDERS, search_format
from selfteach.model import catalog, chat
from selfteach.model import gguf as gguf_files
from selfteach.model.tokenizer import Tokenizer
from selfteach.rollout.single import conclusion, plain
from selfteach.tasks.atlas import atlas

words = st.text(st.sampled_from("aTq .\n?é日🙂12<"), min_size=1, max_size=12).map(lambda s: "x" + s + "y")


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=25)
@given(turns=st.lists(st.tuples(words, words), min_size=1, max_size=4), last=words)
def test_more_turns_extend_the_tokens_of_fewer(family: str, turns: list[tuple[str, str]], last: str) -> None:
    t = TOKENIZERS[family]
    messages = [user(turns[0][0])]
    ids = t.render(messages).tolist()
    for n, (_, reply) in enumerate(turns):
        ask = user(turns[n + 1][0] if n + 1 < len(turns) else last)
        ids += [*t.encode(reply).tolist(), t.eos_token_id]
        new, _, why = t.continuation(messages, reply, assistant(reply), ask, ids[-1])
        assert why is None
        ids += new.tolist()
        messages += [assistant(reply), ask]
        assert t.decode(ids) == t.decode(t.render(messages))
        if family != "mistral":  # its [/INST] is no token, and a reply may grow into it
            assert ids == t.render(messages).tolist()
    cut = [
        *t.render(messages[:1]).tolist(),
        *t.encode("x").tolist(),
    ]  # a turn that did not come to its end: it is ended
    assert t.message_ids(user(last), cut[-1]).tolist() == [
        t.eos_token_id,
        *t.message_ids(user(last), t.eos_token_id).tolist(),
    ]


DRIFTS = {
    "chatml": {},
    "llama3": {"spaces": chat.WHITESPACE_DRIFT, "tool calls": chat.TOOL_CALL_CHANGED},
    "mistral": {"system": chat.ROLE_REFUSED, "tool": chat.ROLE_REFUSED},
    "mistral-system": {"system": chat.HISTORY_REWRITTEN},
    "gemma": {"spaces": chat.WHITESPACE_DRIFT, "system": chat.ROLE_REFUSED, "tool": chat.ROLE_REFUSED},
    "qwen3": {"thinking": chat.THINKING_STRIPPED, "tool calls": chat.TOOL_CALL_CHANGED},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_where_a_template_does_not_extend_it_says_why(family: str) -> None:
    assert TOKENIZERS[family].drifts == DRIFTS[family]


def test_what_cannot_be_appended_is_refused_with_its_cause() -> None:
    system = [{"role": "system", "content": "Be brief."}, user("One?")]
    with pytest.raises(BadValue, match="roles must alternate"):
        TOKENIZERS["gemma"].message_ids({"role": "tool", "content": "Two?"}, 5)
    with pytest.raises(BadValue, match="System role not supported"):
        TOKENIZERS["gemma"].render(system)
    open_ended = Tokenizer(
        TOKENIZERS["chatml"].inner, [0], {"chat_template": "{% for m in messages %}{{ m.content }} {% endfor %}"}
    )
    assert set(open_ended.drifts.values()) == {chat.NO_END_OF_TURN}
    with pytest.raises(BadValue, match=chat.NO_END_OF_TURN):
        open_ended.message_ids(user("Two?"), 5)
    with pytest.raises(BadValue, match="messages with a role"):
        open_ended.render([{"content": "x"}])
    with pytest.raises(BadValue, match="TemplateSyntaxError"):
        Tokenizer(TOKENIZERS["chatml"].inner, [0], {"chat_template": "{% for %}"}).render([user("x")])


def test_templates_run_in_a_sandbox_and_know_the_hubs_words() -> None:
    write = lambda template, **more: chat.ChatTemplate(template).render([{**user("é"), **more}])  # noqa: E731
    for attack in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"):
        with pytest.raises(BadValue, match="SecurityError"):
            write(attack)
    assert write("{% generation %}{{ messages[0].content | tojson }}{% endgeneration %}") == '"é"'
    assert write("{{ strftime_now('%Y') }}") == "2024"
    assert write("{% for m in messages %}{% break %}{% endfor %}ok") == "ok"
    several = chat.ChatTemplate.from_config(
        {"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]}
    )
    assert several is not None and several.template == "b" and chat.ChatTemplate.from_config({}) is None


@pytest.mark.parametrize("family", FAMILIES)
@settings(deadline=None, max_examples=40)
@given(text=st.text(max_size=20))
def test_pieces_are_the_bytes_of_any_tokenizer(family: str, text: str) -> None:
    t = TOKENIZERS[family]
    if "\r" in text or "▁" in text or any(s in text for s in FAMILIES[family][1]):
        return
    ids = t.encode(text).tolist()
    assert t.decode(ids) == text and b"".join(t.pieces[i] for i in ids) == text.encode()
    assert len(t.pieces) == len(t) and all(t.pieces[i] == b"" for i in t.eos_token_ids)


def test_ids_of_a_text_are_the_callers_own() -> None:
    t = TOKENIZERS["mistral"]
    first = t.encode("the fox")
    first[:] = 0
    assert t.decode(t.encode("the fox")) == "the fox"


def test_a_context_of_text_begins_as_the_model_wants_it() -> None:
    mistral, chatml = TOKENIZERS["mistral"], TOKENIZERS["chatml"]
    assert (
        mistral.decode(mistral.render("the fox")) == "<s> the fox"
        and mistral.decode(mistral.encode("the fox")) == "the fox"
    )
    assert chatml.render("the fox").tolist() == chatml.encode("the fox").tolist()
    ended = Inner.from_str(mistral.inner.to_str())
    ended.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    assert Tokenizer(ended, [2]).render("the fox").tolist() == mistral.render("the fox").tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tokenizer_is_saved_with_its_template_and_ends(family: str, tmp_path: Path) -> None:
    t = TOKENIZERS[family]
    t.save(tmp_path)
    back = Tokenizer.load(tmp_path)
    assert (back.eos_token_ids, back.pieces, back.fingerprint, back.drifts) == (
        t.eos_token_ids,
        t.pieces,
        t.fingerprint,
        t.drifts,
    )
    assert t.eos_token_ids == (
        (t.eos_token_id,) if family != "gemma" else (t.eos_token_id, t.inner.token_to_id("<eos>"))
    )  # gemma's turns and texts end otherwise
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "chat_template.jinja").write_text(config.pop("chat_template"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, t.eos_token_id, 99999]}))
    assert (
        (other := Tokenizer.load(tmp_path)).eos_token_ids[0] == t.eos_token_id
        and 3 in other.eos_token_ids
        and other.chat == t.chat
    )
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(BadCheckpoint, match="not JSON"):
        Tokenizer.load(tmp_path)
    for name in ("generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).unlink()
    with pytest.raises(BadCheckpoint, match="no EOS token"):
        Tokenizer.load(tmp_path)


@block
async def agent(*, request: RolloutRequest, rollout: Any) -> str:
    context = rollout.policy.begin(request.task.prompt)
    turn = await context.sample(stop=("</search>",))
    context.say("user", f"found: {turn.between('search')}", span="information")
    last = await context.sample()
    context.close()
    return last.text


@pytest.mark.parametrize("family", FAMILIES)
def test_an_episode_is_a_conversation_of_messages(family: str) -> None:
    t = TOKENIZERS[family]
    context = scripted_context(agent(), ["is <search>fox</search> so", "brown"], t)
    episode = asyncio.run(play(context, [RolloutRequest(Task("t", [user("what fox?")]))]))[0].episodes[0]
    assert episode.answer == "brown", episode.why
    replayed = [
        *t.render([user("what fox?")]),
        *t.encode("is <search>fox</search>"),
        *t.message_ids(user("found: fox"), None),
        *t.encode("brown"),
        t.eos_token_id,
    ]
    assert full_text(episode, t) == t.decode(replayed)
    assert "found: fox" in spans(episode, t, "information")
    tree = episode.tree
    assert t.decode(tree.id[tree.action_mask]) == "is <search>fox</search>brown" and tree.id[-1] == t.eos_token_id
    plain = asyncio.run(
        play(
            scripted_context(agent(), ["x"], Tokenizer(t.inner, t.eos_token_ids)),
            [RolloutRequest(Task("t", "what fox?"))],
        )
    )[0].episodes[0]
    assert plain.status == "error" and "has no chat template; use append" in plain.why


def test_a_source_is_asked_in_messages_where_there_is_a_template() -> None:
    task = Task("t", "what is it?\n", "it")
    source = TaskSource("s", lambda i: task, [task], lambda i: Task("d", "note", data=("x",)))
    assert with_chat_prompts(source, Tokenizer(TOKENIZERS["chatml"].inner, [0])) is source
    asked = with_chat_prompts(source, TOKENIZERS["chatml"])
    assert (
        asked.train(0).prompt == asked.test[0].prompt == [user("what is it?")]
        and asked.demos
        and asked.demos(0).prompt == [user("note")]
    )
    own = with_chat_prompts(
        TaskSource("s", lambda i: task, [task], chat=lambda t: [user("please: " + t.prompt)]), TOKENIZERS["chatml"]
    )
    assert own.test[0].prompt == [user("please: what is it?\n")] and own.test[0].answer == "it"


def test_atlas_asks_in_english_and_plain_answers_are_read() -> None:
    last = {
        style: with_chat_prompts(atlas(ask=style), TOKENIZERS["chatml"]).test[0].prompt
        for style in ("search", "answer", "plain")
    }
    assert [len(m) for m in last.values()] == [5, 5, 1]
    question = last["plain"][0]["content"]
    assert (
        question.startswith("What is the ")
        and question.endswith("?")
        and all(m[-1] == user(question) for m in last.values())
    )
    shown = last["search"][1]["content"]
    assert search_format(text=shown).value > 0 and "<answer> Euro</answer>" in shown  # type: ignore[union-attr]
    with pytest.raises(UnknownName, match="option ask of atlas"):
        atlas(ask="politely")
    for style, turns in (("instruct", 1), ("instruct_search", 5)):
        asked = with_chat_prompts(atlas(ask=style), TOKENIZERS["chatml"]).test[0].prompt
        first, last_one = asked[0]["content"], asked[-1]["content"]
        assert len(asked) == turns and last_one.endswith(question)
        assert all(f"<{tag}>{left}</{tag}>" in first for tag, left in PLACEHOLDERS.items())
        assert sum("your query" in m["content"] for m in asked) == 1  # said once
    for text, gold in {
        "The capital of Peru is Lima.": "Lima",
        "Lima": "Lima",
        "It is: Lima, in Peru.\nYes.": "Lima",
        "": "",
    }.items():
        assert conclusion(text) == gold
    context = scripted_context(plain(), ["The capital of Peru is Lima."], TOKENIZERS["chatml"])
    assert asyncio.run(play(context, [RolloutRequest(Task("t", last["plain"]))]))[0].episodes[0].answer == "Lima"


def test_any_of_several_ends_ends_a_turn(letters: Tokenizer) -> None:
    t = Tokenizer(letters.inner, [letters.eos_token_id, *letters.encode("ae")])
    assert len(t.eos_token_ids) == 3 and t.eos_token_id == letters.eos_token_id

    async def turns(engine: Any) -> list[tuple[list[int], str]]:
        asked = [
            engine.generate("policy", letters.encode("xyz"), Sampling(max_tokens=100), rng_key) for rng_key in range(12)
        ]
        return [(c.ids.tolist(), c.status) for c in await asyncio.gather(*asked)]

    def model() -> Any:
        return mini(264).initialise(1)

    got = asyncio.run(turns(BuiltinEngine({"m": model()}, {"policy": "m"}, t)))
    assert got == asyncio.run(turns(ReferenceEngine({"m": model()}, {"policy": "m"}, t)))
    stopped = [ids for ids, status in got if status == "stop"]
    assert (
        stopped
        and all(ids[-1] in t.eos_token_ids and not set(ids[:-1]) & set(t.eos_token_ids) for ids in stopped)
        and len({ids[-1] for ids in stopped}) > 1
    )


def split_tags(t: Tokenizer, text: str) -> list[list[int]]:
    """Tokenisations of a text: the tokenizer's own, byte by byte, and of pieces cut at every place in turn."""
    byte = {p: i for i, p in enumerate(t.pieces) if len(p) == 1}
    ways = [t.encode(text).tolist(), [byte[bytes([b])] for b in text.encode()]]
    ways += [[*t.encode(text[:n]).tolist(), *t.encode(text[n:]).tolist()] for n in range(1, len(text))]
    return ways


def tags_hold(t: Tokenizer) -> int:
    """Check marks, stops and `between` for many tokenisations of one turn; how many were different."""
    text = "I <search>the fox</search> see<information>brown</information>.</answer>\n"
    ways = split_tags(t, text)
    stops = StopStrings(t.pieces, len(t))
    stop_table, context = stops.index_of(("</answer>", "</search>")), scripted_context(agent(), ["x"], t)

    @block
    async def marked(*, request: RolloutRequest, rollout: Any) -> int:
        for ids in ways:
            context = rollout.policy.begin("x")
            context.adopt(ids)
            turn = Turn(context.at, t.decode(ids), "stop")
            assert turn.between("search") == "the fox" and turn.text == text
            context.mark(turn, "information")
            tree, node = context.tree, turn.at.node
            inside = [i for i in range(tree.begin[node], tree.stop(node)) if tree.spans[tree.span[i]] == "information"]
            covered = t.decode(tree.id[inside])
            assert inside == list(range(inside[0], inside[-1] + 1)) and "<information>brown</information>" in covered
            shorter = [t.decode(tree.id[inside[1:]]), t.decode(tree.id[inside[:-1]])]
            assert not any("<information>brown</information>" in s for s in shorter)  # no token more than it takes
        return 1

    context.programs = {"main": marked()}
    episode = asyncio.run(play(context, [RolloutRequest(Task("t", "x"))]))[0].episodes[0]
    assert episode.answer == 1, episode.why
    for ids in ways:
        first = next(n for n in range(1, len(ids) + 1) if b"</search>" in b"".join(t.pieces[i] for i in ids[:n]))
        found = [
            n
            for n in range(1, len(ids) + 1)
            if stops.may_complete[stop_table, ids[n - 1]] and stops.ended(stop_table, np.array(ids[:n]))
        ]
        assert found[0] == first
    return len({tuple(w) for w in ways})


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_hold_however_they_are_split(family: str) -> None:
    assert tags_hold(TOKENIZERS[family]) > 5


@pytest.fixture(scope="module")
def smol() -> Tokenizer:
    try:
        file = catalog.packaged_gguf("smollm2-135m")
    except BadValue as error:
        pytest.skip(str(error))
    pytest.importorskip("gguf")
    return gguf_files.build_tokenizer(file, gguf_files.read_gguf(file)[1])


def test_smollm2_has_its_own_template(smol: Tokenizer) -> None:
    t = smol
    assert t.eos_token_ids == (2,) and t.pieces[2] == b"" and not t.drifts and len(t) == 49152
    ids = t.render([user("What is 1234?")])
    assert t.decode(ids).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM") and ids[0] == 1
    assert [t.pieces[i] for i in t.encode("in 1789")] == [b"in", b" ", b"1", b"7", b"8", b"9"]
    assert tags_hold(t) > 50
