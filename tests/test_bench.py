"""The benchmark command: what the work needs, by hand; contestants that are missing, fail or die; figures, tables and
arguments.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from selfteach.bench import report, roofline, step, systems
from selfteach.bench.interleaved import HERE, Contestant, Measured, best, run_interleaved, summaries
from selfteach.bench.llama_file import written
from selfteach.bench.own import learn as own_learn
from selfteach.bench.own import plain
from selfteach.bench.own import rollout as own_rollout
from selfteach.bench.workloads import SHAPES, Options, folder_of, lengths, prompts, sequences
from selfteach.cli import main
from selfteach.core.errors import BadValue, UnknownName
from selfteach.model.transformer import Config

SMALL = Config(vocab=10, width=4, layers=2, heads=2, kv_heads=1, head_dim=2, hidden=8)
PEER = '''
"""A peer for tests."""
import time
NEEDS = {needs}
def prepare(work):
    {prepare}
    def run(given):
        {run}
        return {{"seconds": 2.0 if work["variant"] == "slow" else 1.0, "tokens": 10 * given["round"]}}
    return {{"dtype": "float32", "threads": work["threads"]}}, run
'''


@pytest.fixture
def peer(tmp_path):
    """A folder of peers with one file: what it needs, and a line of its prepare and its run."""

    def make(needs: str = "()", prepare: str = "pass", run: str = "pass", variant: str = "") -> Contestant:
        folder = tmp_path / f"p{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "other.py").write_text(PEER.format(needs=needs, prepare=prepare, run=run))
        return Contestant("other", variant, str(folder / "other.py"), "pip install other")

    return make


# ---- what the work needs


def test_products_and_attention_by_hand():
    # a layer: q 4x4, k 4x2, v 4x2, o 4x4 = 48, and the MLP 3 x 4 x 8 = 96: 144; two layers: 288
    assert roofline.body(SMALL) == 288
    # tokens at positions 2 and 3 see 3 and 4 keys; scores and values are 2 FLOPs each per key and channel: 4 x 2 layers
    # x 2 heads x 2 = 32 a key
    assert roofline.attention(SMALL, 2, 4) == 32 * (3 + 4)


def test_a_rollout_by_hand():
    # 2 sequences of 3 + 2 tokens. Rows: 2 x 3 of the prompts and 2 x 1 (the last token drawn is not read) = 8; heads 2
    # x 2 of 10 x 4.
    need = roofline.rollout(SMALL, 2, 3, 2, "bfloat16")
    assert need.tokens == 4
    assert need.flops == 2 * (8 * 288 + 4 * 40) + 2 * 32 * (1 + 2 + 3 + 4)
    # bytes: weights (288 + 40) x 2 in each of 2 passes; a cache entry is 2 x 2 layers x 1 head x 2 x 2 bytes = 16;
    # 8 are written, and in the second pass each sequence reads its prompt (3) and the token before (1)
    assert need.bytes == 2 * 656 + 16 * (8 + 2 * 3 + 2 * 1)
    assert need.resident == 656 + 16 * 8


def test_siblings_share_a_prompt():
    # as above, but the prompt's 3 rows are computed once and read once for both
    need = roofline.rollout(SMALL, 2, 3, 2, "bfloat16", siblings=2)
    assert need.flops == 2 * (5 * 288 + 4 * 40) + 32 * (1 + 2 + 3) + 2 * 32 * 4
    assert need.bytes == 2 * 656 + 16 * (5 + 3 + 2)


def test_learning_by_hand():
    # a prompt of 3 with branches of 2 and 1: rows 3 + 1 + 0 (a branch's last token is not read), heads 3, tokens
    # computed 6
    need = roofline.learn(SMALL, [(3, [2, 1])])
    assert need.tokens == 6
    assert need.flops == 3 * (2 * (4 * 288 + 3 * 40) + 32 * (1 + 2 + 3) + 32 * 4)
    assert need.bytes == 28 * (
        288 + 40
    )  # AdamW: 4 bytes x (weight, gradient, two moments read; weight, two moments written)


def test_the_limit_is_the_slower_of_products_and_traffic():
    need = roofline.Need(flops=600.0, bytes=80.0, tokens=10)
    by_products = need.figures(rate=100.0, bandwidth=40.0)  # 6 s against 2 s
    assert by_products["tokens_per_second"] == pytest.approx(10 / 6) and by_products["bound_by"] == "products"
    by_traffic = need.figures(rate=600.0, bandwidth=40.0)  # 1 s against 2 s
    assert by_traffic["tokens_per_second"] == pytest.approx(5) and by_traffic["bound_by"] == "traffic"
    assert (
        by_traffic["products_alone"] == pytest.approx(10)
        and by_traffic["flops_per_token"] == 60
        and by_traffic["bytes_per_token"] == 8
    )


def test_bandwidth_is_that_of_the_size_gone_over():
    assert [roofline.read_name(n) for n in (1, 4 * 2**20, 4 * 2**20 + 1, 2**40)] == [
        "read/4MB",
        "read/4MB",
        "read/8MB",
        "read/512MB",
    ]
    need = {"float32": roofline.Need(100.0, 10.0, 1, 5 * 2**20)}
    found = roofline.bounds(need, {"float32": 50.0, "read/8MB": 10.0})
    assert found["float32"]["tokens_per_second"] == pytest.approx(0.5)


def test_a_plain_model_needs_what_its_parameters_say():
    c = SHAPES["smollm2-135m"]
    norms = c.width * (2 * c.layers + 1)
    assert roofline.body(c) + c.vocab * c.width + norms == 134_515_008  # the size that its authors give


# ---- contestants


def test_rounds_alternate_and_the_first_does_not_count(peer):
    fast, slow = peer(), peer(variant="slow")
    found = run_interleaved([fast, slow], {"kind": "x"}, lambda n: {"round": n}, repeats=2, threads=3)
    assert [[r["tokens"] for r in s.rounds] for s in found] == [[10, 20], [10, 20]]
    assert found[0].about == {"dtype": "float32", "threads": 3} and found[0].rounds[0]["rss"] > 2**20
    rows = summaries(found, {"float32": {"tokens_per_second": 60.0}})
    assert rows[0]["tokens_per_second"] == {"median": 15.0, "low": 10.0, "high": 20.0}
    assert rows[0]["share_of_limit"] == 0.25 and rows[1]["share_of_limit"] == 0.125


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"needs": "('no_such_package',)"}, "no_such_package not installed"),
        ({"prepare": "raise ValueError('wrong weights')"}, "ValueError: wrong weights"),
        ({"run": "raise ValueError('no room')"}, "ValueError: no room"),
        (
            {"run": "import sys; print('on its way', file=sys.stderr); import os; os._exit(3)"},
            "its process ended (3): on its way",
        ),
        ({"run": "raise SystemExit(1)"}, "SystemExit: 1"),
    ],
)
def test_one_that_is_missing_or_fails_is_a_line_and_the_others_go_on(peer, how, said):
    found = run_interleaved([peer(**how), peer()], {}, lambda n: {"round": n}, repeats=1, threads=1)
    bad, good = summaries(found)
    assert (bad.get("missing") or bad["error"]) == said and "tokens_per_second" not in bad
    assert good["tokens_per_second"]["median"] == 10
    _, lines = report.table({"title": "t", "limits": {}, "contestants": [bad, good]})
    assert lines == [f"other: {said}; pip install other" if "needs" in how else f"other: failed: {said}"]


def test_an_interpreter_that_is_none_is_a_line(peer, tmp_path):
    found = run_interleaved([replace(peer(), python=str(tmp_path / "python"))], {}, lambda n: {}, repeats=1, threads=1)
    assert "cannot be run" in found[0].error


def test_what_a_library_prints_does_not_reach_the_pipe(peer):
    found = run_interleaved(
        [peer(prepare="import os; print('hello'); os.write(1, b'world')")],
        {},
        lambda n: {"round": n},
        repeats=1,
        threads=1,
    )
    assert found[0].rounds


def test_ratios_are_of_our_best_precision_round_by_round():
    def ran(name: str, variant: str, *rates: float) -> Measured:
        return Measured(Contestant(name, variant, ""), rounds=[{"tokens": r, "seconds": 1.0, "rss": 1} for r in rates])

    all_ = [ran("selfteach", "float32", 5, 5, 5), ran("selfteach", "bfloat16", 6, 12, 9), ran("torch", "", 3, 3, 9)]
    assert best(all_) is all_[1]
    assert summaries(all_)[2]["ours_over_it"] == {"median": 2.0, "low": 1.0, "high": 4.0}
    assert summaries(all_)[1]["ours_over_it"]["high"] == 1.0


def test_peers_know_nothing_of_the_library():
    for file in [HERE / "worker.py", *(HERE / "peers").glob("*.py")]:
        assert (
            "from ..." not in file.read_text()
            and "import selfteach" not in file.read_text()
            and "from selfteach" not in file.read_text()
        )


# ---- who and what


def test_peers_are_those_of_the_kind_unless_named():
    o = Options("rollout", pythons={"vllm": "/env/python"})
    made = systems.peers(replace(o, against=("torch", "vllm:compiled")), Path())
    assert [(e.title, e.python) for e in made] == [
        ("torch:float32", sys.executable),
        ("torch:bfloat16", sys.executable),
        ("vllm:compiled", "/env/python"),
    ]
    assert {e.name for e in systems.peers(Options("step"), Path())} == {"trl"}
    with pytest.raises(UnknownName, match="did you mean vllm"):
        systems.peers(replace(o, against=("vlm",)), Path())
    with pytest.raises(BadValue, match="trl does not do this"):
        systems.peers(replace(o, against=("trl",)), Path())
    with pytest.raises(BadValue, match="no variant 'fast'; there are eager, compiled"):
        systems.peers(replace(o, against=("vllm:fast",)), Path())


def test_lengths_are_geometric_with_a_mean_of_a_third():
    drawn = np.array(lengths(20_000, 300))
    assert drawn.min() == 1 and drawn.max() == 300
    assert drawn.mean() == pytest.approx(100 * (1 - (1 - 0.01) ** 300), rel=0.03)  # a geometric of mean 100, cut at 300
    assert prompts(9, 2, 3, 1) == prompts(9, 2, 3, 1) != prompts(9, 2, 3, 2)


def test_memory_is_flat_where_nothing_is_added():
    assert step.flatness([9.0] * 3 + [5.0] * 97)["bytes_per_step"] == 0
    grown = step.flatness([float(n) for n in range(100)])
    assert grown["bytes_per_step"] == pytest.approx(80 / 85, rel=0.01)  # medians 14.5 and 94.5


# ---- our side


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model's folder of the tiny kind, smaller still."""
    SHAPES["test"] = Config(vocab=264, width=32, layers=1, heads=2, kv_heads=1, head_dim=16, hidden=48, max_length=512)
    yield folder_of("test", tmp_path_factory.mktemp("bench"))[0]
    del SHAPES["test"]


def test_llama_cpp_is_given_the_same_weights(small, tmp_path):
    from selfteach.model import files, gguf

    file = written(small, "f32", tmp_path)
    assert written(small, "f32", tmp_path) == file
    back = gguf._tensors(file, *gguf.read_gguf(file))
    ours = files.load_model(small).names()
    assert back.keys() == ours.keys() and all(torch.equal(back[n], ours[n]) for n in ours)


def test_a_model_that_llama_cpp_cannot_hold_is_a_line(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (entry,) = systems.peers(Options("rollout", against=("llamacpp",), aside=tmp_path), small)
    assert "package gguf" in entry.more["why"]


def test_parts_apart_share_no_prompt_and_give_the_same_gradient(small):
    data = sequences(264, 2, 3, 12, 5)
    work = {
        "folder": str(small),
        "variant": "float32",
        "sequences": data,
        "vocab": 264,
        "tokens": 54,
        "apart": True,
        "threads": 1,
    }
    about, run = own_learn.prepare(work)
    assert 0 < about["gradient_gap"] < 1e-5
    parts = own_learn.apart(own_learn.batch_of(work))
    assert [len(p.start) - 1 for p in parts] == [2, 2, 2]
    assert sum(len(p.place) for p in parts) == 6 * 5
    assert run({})["tokens"] == 54


def test_the_engine_draws_what_was_asked(small):
    work = {
        "folder": str(small),
        "variant": "float32",
        "threads": 1,
        "slots": 2,
        "length": 300,
        "width": 2,
        "new": 6,
        "turns": 10,
    }
    given = {"prompts": prompts(264, 4, 8), "lengths": [1, 6, 2, 3], "round": 0, "seen": prompts(264, 10, 3, "seen")}
    side = own_rollout.Side(work)
    assert side.fixed(given)["tokens"] == 24
    assert side.uneven(given)["tokens"] == side.batches(given)["tokens"] == 12
    turns = own_rollout.Side(work).turns({**given, "prompts": given["prompts"][:2]})
    assert turns["computed_over_needed"] == 1.0 and turns["tokens"] == 2 * 10 * 6  # nothing is computed twice
    assert side.forks({"prompts": prompts(264, 1, 64, "trunk")})["prefilled_per_fork"] == 1.0


def test_the_plain_loop_draws_evenly_where_all_logits_are_equal(small):
    from selfteach.model import files

    model = files.load_model(small)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    drawn = plain.decode(model, torch.tensor(prompts(264, 3, 4)), 200, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn.flatten(), minlength=264)
    assert (
        drawn.shape == (3, 200) and counts.max() < 15 and (counts > 0).sum() > 200
    )  # equal logits: all ids, about 2.3 times each


# ---- the command


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["bench", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_json_holds_every_contestant_and_what_the_limit_is_made_of(capsys, small):
    code, out, _ = run(
        capsys,
        "rollout",
        "--model",
        str(small),
        "--only",
        "fixed",
        "--width",
        "2",
        "--repeats",
        "1",
        "--threads",
        "1",
        "--ours",
        "float32",
        "--against",
        "none",
        "--json",
    )
    found = json.loads(out)
    assert code == 0 and found["threads"] == 1 and found["machine"]["processor"]
    (work,) = found["works"]
    assert work["title"] == "2 x 64 tokens after 32"
    limit = work["limits"]["float32"]
    assert limit["tokens_per_second"] <= min(limit["products_alone"], limit["traffic_alone"]) * 1.001
    (ours,) = work["contestants"]
    assert ours["name"] == "selfteach" and ours["ours_over_it"]["median"] == 1
    assert ours["tokens_per_second"]["median"] > 0 and ours["share_of_limit"] > 0
    table, lines = report.table(work)
    assert (
        len(table.rows) == 1
        and len(table.rows[0]) == len(table.columns)
        and any("MFLOP a token" in text for text in lines)
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["roll"], "did you mean rollout"),
        ([], "KIND"),
        (["learn", "--repeats", "0"], "--repeats must be 1 or more"),
        (["learn", "--width", "0"], "--width must be 1 or more"),
        (["learn", "--long"], "--long belongs to bench step"),
        (["learn", "--only", "turns"], "no part of bench learn (--only) is called 'turns'"),
        (["rollout", "--ours", "fp16"], "no precision (--ours) is called 'fp16'"),
        (["rollout", "--python", "vllm"], "is not PEER=PATH"),
        (["rollout", "--python", "vllm=/nowhere"], "/nowhere is no file"),
        (["rollout", "--model", "nothing"], "no such shape or folder"),
        (["step", "--against", "vllm"], "vllm does not do this"),
    ],
)
def test_mistakes_are_one_line(capsys, words, said):
    code, out, err = run(capsys, *words)
    assert code == 2 and not out and said in err.splitlines()[-1]
