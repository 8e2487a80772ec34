"""A model's files as somebody else may have made them: each is refused in one line, soon, and nothing hangs."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from selfteach.core.errors import BadValue, SelfteachError
from selfteach.model import files, outside_files, peft_files
from selfteach.model.chat import ChatTemplate
from selfteach.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, mini_folder: Path) -> Path:
    """A small model with all the files that a folder of the Hub has."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    shutil.copytree(mini_folder, folder)
    eos = Tokenizer.load(folder).eos_token_id
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": "{{ 1 }}"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos]}))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    files.load(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "model")
    return tmp_path / "model"


@contextmanager
def soon(seconds: int = 20) -> Iterator[None]:
    """Fail where what is inside hangs: the signal interrupts also the opening of a pipe."""

    def late(*_: Any) -> None:
        raise AssertionError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def refused(folder: Path) -> str:
    with soon(), pytest.raises(SelfteachError) as error:
        files.load(folder)
    line = str(error.value)
    assert "\n" not in line and len(line) < 700 and str(folder) in line
    return line


TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
KINDS: dict[str, Any] = {
    "pipe": os.mkfifo,
    "device": lambda f: f.symlink_to("/dev/zero"),
    "folder": lambda f: f.mkdir(),
    "dangling": lambda f: f.symlink_to("/nowhere"),
    "loop": lambda f: f.symlink_to(f),
    "huge": lambda f: (f.touch(), os.truncate(f, 1 << 34)),
    "not UTF-8": lambda f: f.write_bytes(b'{"a": "\xff\xfe"}'),
    "nested": lambda f: f.write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "nested a little": lambda f: f.write_text('{"a": ' + "[" * 500 + "]" * 500 + "}"),
    "half a character": lambda f: f.write_text('{"chat_template": "\\ud800", "a": "\\ud800"}'),
    "a list": lambda f: f.write_text("[]"),
    "a number of many digits": lambda f: f.write_text('{"a": ' + "9" * 5000 + "}"),
    "empty": lambda f: f.write_text(""),
    "cut": lambda f: f.write_text('{"a": 1'),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_any_kind_is_refused_in_one_line(kind: str, name: str, folder: Path) -> None:
    if name == "chat_template.jinja" and kind not in ("pipe", "device", "folder", "huge", "not UTF-8", "loop"):
        pytest.skip("a template may be any text")
    (folder / name).unlink()
    KINDS[kind](folder / name)
    if name == "tokenizer.json" and kind in ("half a character", "nested a little", "a number of many digits"):
        assert refused(folder)
        return
    assert name in refused(folder)


# ---- values

WILD: tuple[Any, ...] = (
    None, -1, 0, 1, 3, 10**9, 10**12, 10**30, 1e30, 0.5, -0.5, True, "", "x", [], [1], {}, {"a": 1}, [None], [[]],
    float("nan"), float("inf"), [-1], ["x"], {"content": 3}, [{"name": "default"}], [{"template": "x"}], "{{ 1",
)  # fmt: skip


def changed(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key in data:
        for value in WILD:
            out = copy.deepcopy(data)
            out[key] = value
            yield f"{key} = {value!r}", out


MORE: dict[str, dict[str, Any]] = {
    "config.json": {"rope_scaling": None, "sliding_window": None, "eos_token_id": 1, "model_type": "llama"},
    "tokenizer_config.json": {"bos_token": "x", "chat_template": "{{ 1 }}", "eos_token": "<|end|>"},
    "generation_config.json": {"eos_token_id": 1},
}


@pytest.mark.parametrize("name", MORE)
def test_every_value_of_every_kind_is_read_or_refused_in_one_line(name: str, folder: Path) -> None:
    data = json.loads((folder / name).read_text()) | MORE[name]
    (folder / "chat_template.jinja").unlink()
    tried = turned_away = 0
    for what, other in changed(data):
        (folder / name).write_text(json.dumps(other))
        tried += 1
        try:
            with soon():
                files.load(folder)
        except SelfteachError as error:
            turned_away += 1
            assert "\n" not in str(error) and str(folder) in str(error), what
        except Exception as error:
            raise AssertionError(f"{name}: {what}") from error
    assert tried >= len(data) * len(WILD) and turned_away > tried / 10


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text"])
def test_every_family_reads_or_refuses_every_value(kind: str, tmp_path: Path) -> None:
    base = {
        "model_type": kind, "vocab_size": 264, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_theta": 10000.0, "layer_types": None,
        "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1, "no_rope_layers": None,
        "no_rope_layer_interval": 4, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 30.0,
        "final_logit_softcapping": 30.0, "hidden_act": "silu", "rope_parameters": None, "rope_local_base_freq": 1e4,
    }  # fmt: skip
    file = tmp_path / "config.json"
    for what, other in changed(base):
        file.write_text(json.dumps(other))
        try:
            with soon():
                files.read_config(file)
        except SelfteachError as error:
            assert "\n" not in str(error) and str(file) in str(error), what
        except Exception as error:
            raise AssertionError(what) from error


@pytest.mark.parametrize("layers", [3, 500, 4096, 4097, 10**9, 10**18])
def test_more_layers_than_tensors_are_refused_before_any_is_built(layers: int, folder: Path) -> None:
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "num_hidden_layers": layers}))
    started = time.process_time()
    line = refused(folder)
    assert time.process_time() - started < 5 and ("num_hidden_layers" in line or "layers" in line)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_not_finite_are_refused_by_name(value: float, dtype: torch.dtype, folder: Path) -> None:
    tensors = {n: t.to(dtype) for n, t in load_file(folder / "model.safetensors").items()}
    for name in sorted(tensors)[:: max(1, len(tensors) // 4)]:
        broken = {n: t.clone() for n, t in tensors.items()}
        broken[name].view(-1)[-1] = value
        save_file(broken, str(folder / "model.safetensors"), metadata={"format": "pt"})
        line = refused(folder)
        assert name in line and "not finite" in line
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    files.load(folder)


def test_a_large_but_finite_tensor_is_finite(tmp_path: Path) -> None:
    big = torch.full((10,), 3e38)
    assert outside_files.check_finite(tmp_path, "w", big) is big


def test_a_tokenizer_with_one_large_id_is_refused(folder: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["far"] = 4_000_000_000
    (folder / "tokenizer.json").write_text(json.dumps(data))
    assert "4000000001" in refused(folder)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "dangling"])
def test_an_index_or_adapter_of_any_kind_is_refused_in_one_line(kind: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = folder / files.INDEX
    KINDS[kind](index)
    refused(folder)
    adapter = folder / peft_files.CONFIG
    KINDS[kind](adapter)
    with soon(), pytest.raises(SelfteachError) as error:
        peft_files.read(folder, None)  # type: ignore[arg-type]
    assert "\n" not in str(error.value) and str(folder) in str(error.value)


# ---- templates

ENDLESS = (
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "{% for a in messages * 9000 %}{% for b in messages * 9000 %}{{ a }}{% endfor %}{% endfor %}",
    "{% for a in range(90000) if a is odd %}{% for b in range(9) recursive %}{{ loop([1]) }}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=[1, 1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = [n.s, n.s] | join %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s.join([n.s, n.s]) %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s.replace('x', 'xxxx') %}{% endfor %}",
    "{% set n = namespace(s='xx') %}{% for i in range(99) %}{% set n.s = n.s | replace('x', 'xxxx') %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(90000) %}{{ s }}{% endfor %}",
    "{% set s = range(90000) | list %}{% for i in range(90000) %}{{ s | map('string') | join | length }}{% endfor %}",
    "{% set s = range(90000) | list %}{% for i in range(90000) %}{{ s | sort | sum }}{% endfor %}",
    "{{ 'x' * 10 ** 10 }}",
    "{{ [1] * 10 ** 10 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 'x' | center(10 ** 10) }}",
    "{{ 'x'.ljust(10 ** 10) }}",
    "{{ 'x'.zfill(10 ** 10) }}",
    "{{ '%10000000000d' % 1 }}",
    "{{ '%*d' % (10 ** 10, 1) }}",
    "{{ '%10000000000d' | format(1) }}",
    "{{ '{:10000000000}'.format(1) }}",
    "{{ lipsum(n=10 ** 6) }}",
    "{{ range(10 ** 12) | list }}",
    "x" * (1 << 21),
)


@pytest.mark.parametrize("template", ENDLESS, ids=range(len(ENDLESS)))
def test_a_template_without_end_is_refused_in_bounded_work(template: str) -> None:
    started = time.process_time()
    with soon(60), pytest.raises(BadValue) as error:
        ChatTemplate(template).render([{"role": "user", "content": "x"}] * 10)
    assert str(error.value).startswith("chat template: ") and "\n" not in str(error.value)
    assert time.process_time() - started < 20


def test_an_ordinary_long_conversation_is_far_from_the_bounds() -> None:
    template = "{% for m in messages %}{{ '<' ~ m.role + '>' + m['content'] | trim + '%s' % 1 }}{% endfor %}"
    said = "word " * 200
    text = ChatTemplate(template).render([{"role": "user", "content": said}] * 2000)
    assert text == ("<user>" + said.strip() + "1") * 2000


def test_bounds_are_of_one_render() -> None:
    template = ChatTemplate("{% for a in range(90000) %}{% endfor %}x")
    assert [template.render([]) for _ in range(8)] == ["x"] * 8


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_tokenizer_on_a_full_disk_raises_what_full_disks_raise(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        Tokenizer.load(whole).save(tmp_path)


def test_a_saved_tokenizer_file_is_what_its_library_writes(whole: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(whole)
    tokenizer.save(tmp_path)
    tokenizer.inner.save(str(tmp_path / "by_library.json"))
    assert (tmp_path / "tokenizer.json").read_bytes() == (tmp_path / "by_library.json").read_bytes()
