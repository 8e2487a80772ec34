"""Models given as objects of transformers, or by a name of the Hub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.families import TOKENIZER, their

from selfteach.commands import common
from selfteach.configuration import plan
from selfteach.core import BadValue
from selfteach.model import files
from selfteach.model.outside_models import located, stored

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any]:
    """A small Llama with random weights, and a tokenizer, as transformers has them."""
    special = TOKENIZER.inner.id_to_token(TOKENIZER.eos_token_id)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.inner, eos_token=special)
    return their("llama"), tokenizer


# ---- objects


def test_a_model_object_is_stored_once_and_loads_as_it_is(pair):
    folder = stored(*pair)
    model, tokenizer = files.load(folder)
    theirs = pair[0].state_dict()
    assert all(torch.equal(t, theirs[n]) for n, t in model.named_tensors().items())
    assert tokenizer.encode("the fox").tolist() == pair[1]("the fox", add_special_tokens=False)["input_ids"]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert located(pair) == str(folder) and (folder / "model.safetensors").stat().st_mtime_ns == before


def test_other_weights_are_another_folder(pair):
    other = their("llama")
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    assert stored(other, pair[1]) != stored(*pair)
    assert stored(other.bfloat16(), pair[1]) != stored(other.float(), pair[1])  # bytes that NumPy has no type for


def test_a_plan_names_the_stored_folder(pair):
    config = plan("grpo", "chain_sum", model=pair, steps=1)
    assert config.model == str(stored(*pair)) and config.settings.lr == 1e-5  # as for any pre-trained model


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (3, r"a name, a folder, a .gguf file, or \(model, tokenizer\)"),
        (("model",), r"a pair is \(model, tokenizer\), and this has 1"),
        (("model", "tokenizer"), "the model is one of transformers"),
        ((SimpleNamespace(save_pretrained=0), "tokenizer"), "the tokenizer is one of transformers"),
        ((SimpleNamespace(save_pretrained=0, peft_config=0), SimpleNamespace(save_pretrained=0)), "merge_and_unload"),
        ((SimpleNamespace(save_pretrained=0), SimpleNamespace(save_pretrained=0)), "has no tokenizer.json"),
    ],
)
def test_what_is_no_model_is_one_line(given, line):
    with pytest.raises(BadValue, match=line):
        located(given)


# ---- the Hub's local cache


class Hub:
    """huggingface_hub, as far as it is used: one repository, in the cache or not."""

    def __init__(self, folder: Path, cached: bool = False) -> None:
        self.folder, self.cached, self.fetched = folder, cached, list[tuple[str, ...]]()

    def try_to_load_from_cache(self, name: str, file: str) -> str | None:
        assert file == "config.json"
        return str(self.folder / file) if self.cached and name == "owner/small-1.5b" else None

    def model_info(self, name: str, files_metadata: bool) -> Any:
        names = ("config.json", "model.safetensors", "tokenizer.json", "model.bin", "onnx/model.json", "README.md")
        files_there = [SimpleNamespace(rfilename=n, size=10**8) for n in names]
        return SimpleNamespace(sha="abcdef0123456789", siblings=files_there)

    def snapshot_download(self, name: str, revision: str, allow_patterns: list[str]) -> str:
        self.fetched.append((name, revision, *allow_patterns))
        return str(self.folder)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    made = Hub(tmp_path / "snapshot")
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    monkeypatch.chdir(tmp_path)
    return made


def test_a_name_of_the_hub_is_its_snapshot_in_the_cache(hub):
    hub.cached = True
    assert located("owner/small-1.5b") == str(hub.folder) and not hub.fetched


def test_nothing_is_downloaded_unless_it_is_asked_for(hub, capsys):
    with pytest.raises(BadValue, match=r"owner/small-1.5b: no such folder, .*download=True \(--download\)"):
        located("owner/small-1.5b")
    assert not hub.fetched and not any(capsys.readouterr())
    assert located("owner/small-1.5b", download=True) == str(hub.folder)
    assert hub.fetched == [
        ("owner/small-1.5b", "abcdef0123456789", "config.json", "model.safetensors", "tokenizer.json")
    ]
    assert (
        "downloading owner/small-1.5b (abcdef012345) from huggingface.co: 3 files, 0.30 GB" in capsys.readouterr().err
    )


def test_a_download_that_fails_is_one_line(hub, monkeypatch):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no network\nhere")

    monkeypatch.setattr(hub, "model_info", fail)
    with pytest.raises(BadValue, match=r"model owner/x: cannot be downloaded \(OSError: no network here\)"):
        located("owner/x", download=True)


def test_a_name_that_the_hub_refuses_is_one_line(hub, monkeypatch):
    def refuse(*_: Any) -> None:
        raise ValueError("repo_id is too long")

    monkeypatch.setattr(hub, "try_to_load_from_cache", refuse)
    with pytest.raises(BadValue, match="no such folder, and no name of the Hub"):
        located("owner/x")


def test_without_the_package_a_name_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BadValue, match=r"owner/x: no such folder; .*pip install 'selfteach\[hf\]'"):
        located("owner/x")


@pytest.mark.parametrize("name", ["tiny", "smollm2-135m", "./mine", "/tmp/x", "a/b/c", "models/x.gguf", "../x"])
def test_other_names_stay_as_they_are(name, hub):
    assert located(name) == name


def test_a_folder_of_that_name_comes_first(hub, tmp_path):
    (tmp_path / "owner" / "x").mkdir(parents=True)
    assert located("owner/x") == "owner/x" and located(Path("owner/y")) == "owner/y"


def test_the_command_line_downloads_when_asked(hub):
    assert common.model_of({}) is None
    assert common.model_of({"model": "owner/small-1.5b", "download": True}) == str(hub.folder)
    with pytest.raises(BadValue, match="name it by --model"):
        common.model_of({"download": True})
