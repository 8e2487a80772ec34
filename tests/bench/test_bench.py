"""The benchmark command: costs by hand; systems that are missing, fail or die; summaries, tables and arguments."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from selfteach.bench import report, roofline, step, systems
from selfteach.bench.interleaved import HERE, System, SystemResult, best, run_interleaved, summaries
from selfteach.bench.llama_file import write_gguf
from selfteach.bench.own import learn as own_learn
from selfteach.bench.own import rollout as own_rollout
from selfteach.bench.own import step as own_step
from selfteach.bench.own import torch_loop
from selfteach.bench.workloads import SHAPES, Options, lengths, model_folder, prompts, sequences
from selfteach.cli import main
from selfteach.core.errors import BadValue, UnknownName
from selfteach.model.transformer import Config

SMALL = Config(vocab=10, width=4, layers=2, heads=2, kv_heads=1, head_dim=2, hidden=8)
PEER = '''
"""A peer for tests."""
import time
NEEDS = {needs}
def prepare(workload):
    {prepare}
    def run(inputs):
        {run}
        return {{"seconds": 2.0 if workload["variant"] == "slow" else 1.0, "tokens": 10 * inputs["round"]}}
    return {{"dtype": "float32", "threads": workload["threads"]}}, run
'''


@pytest.fixture
def peer(tmp_path):
    """A folder of peers with one file: what it needs, and a line of its prepare and its run."""

    def make(needs: str = "()", prepare: str = "pass", run: str = "pass", variant: str = "") -> System:
        folder = tmp_path / f"p{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "other.py").write_text(PEER.format(needs=needs, prepare=prepare, run=run))
        return System("other", variant, str(folder / "other.py"), "pip install other")

    return make


# ---- costs and limits


def test_matmuls_and_attention_by_hand():
    # a layer: q 4x4, k 4x2, v 4x2, o 4x4 = 48, and the MLP 3 x 4 x 8 = 96: 144; two layers: 288
    assert roofline.body(SMALL) == 288
    # tokens at positions 2 and 3 see 3 and 4 keys; scores and values are 2 FLOPs each per key and channel: 4 x 2 layers
    # x 2 heads x 2 = 32 a key
    assert roofline.attention(SMALL, 2, 4) == 32 * (3 + 4)


def test_a_rollout_by_hand():
    # 2 sequences of 3 + 2 tokens. Rows: 2 x 3 of the prompts and 2 x 1 (the last sampled token is no input) = 8; heads
    # 2 x 2 of 10 x 4.
    cost = roofline.rollout(SMALL, 2, 3, 2, "bfloat16")
    assert cost.tokens == 4
    assert cost.flops == 2 * (8 * 288 + 4 * 40) + 2 * 32 * (1 + 2 + 3 + 4)
    # bytes: weights (288 + 40) x 2 in each of 2 passes; a cache entry is 2 x 2 layers x 1 head x 2 x 2 bytes = 16;
    # 8 are written, and in the second pass each sequence reads its prompt (3) and the token before (1)
    assert cost.bytes == 2 * 656 + 16 * (8 + 2 * 3 + 2 * 1)
    assert cost.resident == 656 + 16 * 8


def test_siblings_share_a_prompt():
    # as above, but the prompt's 3 rows are computed once and read once for both
    cost = roofline.rollout(SMALL, 2, 3, 2, "bfloat16", group_size=2)
    assert cost.flops == 2 * (5 * 288 + 4 * 40) + 32 * (1 + 2 + 3) + 2 * 32 * 4
    assert cost.bytes == 2 * 656 + 16 * (5 + 3 + 2)


def test_learning_by_hand():
    # a prompt of 3 with branches of 2 and 1: rows 3 + 1 + 0 (a branch's last token is not read), heads 3, tokens
    # computed 6
    cost = roofline.learn(SMALL, [(3, [2, 1])])
    assert cost.tokens == 6
    assert cost.flops == 3 * (2 * (4 * 288 + 3 * 40) + 32 * (1 + 2 + 3) + 32 * 4)
    assert cost.bytes == 28 * (
        288 + 40
    )  # AdamW: 4 bytes x (weight, gradient, two moments read; weight, two moments written)


def test_the_limit_is_the_slower_of_compute_and_memory():
    cost = roofline.Cost(flops=600.0, bytes=80.0, tokens=10)
    by_compute = cost.limit(rate=100.0, bandwidth=40.0)  # 6 s against 2 s
    assert by_compute["tokens_per_second"] == pytest.approx(10 / 6) and by_compute["bound_by"] == "compute"
    by_memory = cost.limit(rate=600.0, bandwidth=40.0)  # 1 s against 2 s
    assert by_memory["tokens_per_second"] == pytest.approx(5) and by_memory["bound_by"] == "memory"
    assert (
        by_memory["compute_alone"] == pytest.approx(10)
        and by_memory["flops_per_token"] == 60
        and by_memory["bytes_per_token"] == 8
    )


def test_bandwidth_is_that_of_the_working_set():
    assert [roofline.bandwidth_name(n) for n in (1, 4 * 2**20, 4 * 2**20 + 1, 2**40)] == [
        "read/4MB",
        "read/4MB",
        "read/8MB",
        "read/512MB",
    ]
    cost = {"float32": roofline.Cost(100.0, 10.0, 1, 5 * 2**20)}
    found = roofline.limits_of(cost, {"float32": 50.0, "read/8MB": 10.0})
    assert found["float32"]["tokens_per_second"] == pytest.approx(0.5)


def test_the_weights_of_a_known_model():
    c = SHAPES["smollm2-135m"]
    norms = c.width * (2 * c.layers + 1)
    assert roofline.body(c) + c.vocab * c.width + norms == 134_515_008  # the size that its authors give


# ---- running systems


def test_rounds_alternate_and_the_first_does_not_count(peer):
    fast, slow = peer(), peer(variant="slow")
    found = run_interleaved([fast, slow], {"kind": "x"}, lambda n: {"round": n}, repeats=2, threads=3)
    assert [[r["tokens"] for r in s.rounds] for s in found] == [[10, 20], [10, 20]]
    assert found[0].info == {"dtype": "float32", "threads": 3} and found[0].rounds[0]["rss"] > 2**20
    rows = summaries(found, {"float32": {"tokens_per_second": 60.0}})
    assert rows[0]["tokens_per_second"] == {"median": 15.0, "low": 10.0, "high": 20.0}
    assert rows[0]["share_of_limit"] == 0.25 and rows[1]["share_of_limit"] == 0.125


@pytest.mark.parametrize(
    ("how", "message"),
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
def test_one_that_is_missing_or_fails_is_reported_and_the_others_go_on(peer, how, message):
    found = run_interleaved([peer(**how), peer()], {}, lambda n: {"round": n}, repeats=1, threads=1)
    bad, good = summaries(found)
    assert (bad.get("missing") or bad["error"]) == message and "tokens_per_second" not in bad
    assert good["tokens_per_second"]["median"] == 10
    _, lines = report.workload_table({"title": "t", "limits": {}, "systems": [bad, good]})
    assert lines == [f"other: {message}; pip install other" if "needs" in how else f"other: failed: {message}"]


def test_an_interpreter_that_cannot_run_is_an_error(peer, tmp_path):
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


def test_speedups_are_of_the_fastest_precision_round_by_round():
    def ran(name: str, variant: str, *rates: float) -> SystemResult:
        return SystemResult(System(name, variant, ""), rounds=[{"tokens": r, "seconds": 1.0, "rss": 1} for r in rates])

    all_ = [ran("selfteach", "float32", 5, 5, 5), ran("selfteach", "bfloat16", 6, 12, 9), ran("torch", "", 3, 3, 9)]
    assert best(all_) is all_[1]
    assert summaries(all_)[2]["speedup"] == {"median": 2.0, "low": 1.0, "high": 4.0}
    assert summaries(all_)[1]["speedup"]["high"] == 1.0


def test_peers_know_nothing_of_the_library():
    for file in [HERE / "worker.py", *(HERE / "peers").glob("*.py")]:
        assert (
            "from ..." not in file.read_text()
            and "import selfteach" not in file.read_text()
            and "from selfteach" not in file.read_text()
        )


# ---- systems and workloads


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
    sampled = np.array(lengths(20_000, 300))
    assert sampled.min() == 1 and sampled.max() == 300
    assert sampled.mean() == pytest.approx(
        100 * (1 - (1 - 0.01) ** 300), rel=0.03
    )  # a geometric of mean 100, cut at 300
    assert prompts(9, 2, 3, 1) == prompts(9, 2, 3, 1) != prompts(9, 2, 3, 2)


def test_memory_is_flat_where_nothing_is_added():
    assert step.memory_growth([9.0] * 3 + [5.0] * 97)["bytes_per_step"] == 0
    grown = step.memory_growth([float(n) for n in range(100)])
    assert grown["bytes_per_step"] == pytest.approx(80 / 85, rel=0.01)  # medians 14.5 and 94.5


# ---- our bench


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model's folder of the tiny kind, smaller still."""
    SHAPES["test"] = Config(vocab=264, width=32, layers=1, heads=2, kv_heads=1, head_dim=16, hidden=48, max_length=512)
    yield model_folder("test", tmp_path_factory.mktemp("bench"))[0]
    del SHAPES["test"]


def test_llama_cpp_is_inputs_the_same_weights(small, tmp_path):
    from selfteach.model import files, gguf

    file = write_gguf(small, "f32", tmp_path)
    assert write_gguf(small, "f32", tmp_path) == file
    back = gguf._tensors(file, *gguf.read_gguf(file))
    ours = files.load_model(small).named_tensors()
    assert back.keys() == ours.keys() and all(torch.equal(back[n], ours[n]) for n in ours)


def test_a_model_that_llama_cpp_cannot_load_is_an_error(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (entry,) = systems.peers(Options("rollout", against=("llamacpp",), scratch=tmp_path), small)
    assert "package gguf" in entry.extra["error"]


def test_separate_prompts_are_not_shared_and_give_the_same_gradient(small):
    data = sequences(264, 2, 3, 12, 5)
    workload = {
        "folder": str(small),
        "variant": "float32",
        "sequences": data,
        "vocab": 264,
        "tokens": 54,
        "separate": True,
        "threads": 1,
    }
    info, run = own_learn.prepare(workload)
    assert 0 < info["gradient_error"] < 1e-5
    parts = own_learn.separate_prompts(own_learn.batch_of(workload))
    assert [len(p.start) - 1 for p in parts] == [2, 2, 2]
    assert sum(len(p.place) for p in parts) == 6 * 5
    assert run({})["tokens"] == 54


def test_the_engine_samples_the_tokens_asked_for(small):
    workload = {
        "folder": str(small),
        "variant": "float32",
        "threads": 1,
        "slots": 2,
        "length": 300,
        "width": 2,
        "new": 6,
        "turns": 10,
    }
    inputs = {
        "prompts": prompts(264, 4, 8),
        "lengths": [1, 6, 2, 3],
        "round": 0,
        "observations": prompts(264, 10, 3, "observations"),
    }
    bench = own_rollout.EngineBench(workload)
    assert bench.fixed(inputs)["tokens"] == 24
    assert bench.uneven(inputs)["tokens"] == bench.static_batches(inputs)["tokens"] == 12
    turns = own_rollout.EngineBench(workload).turns({**inputs, "prompts": inputs["prompts"][:2]})
    assert turns["computed_over_needed"] == 1.0 and turns["tokens"] == 2 * 10 * 6  # nothing is computed twice
    assert bench.forks({"prompts": prompts(264, 1, 64, "prefix")})["prefilled_per_fork"] == 1.0


def test_a_training_step_is_timed_by_phase_and_moves_the_weights(small):
    workload = {
        **step.config_of(Options("step"), small, count=2, rollouts=3, new=5, prompt=8),
        "variant": "float32",
        "threads": 1,
        "texts": step.digits(4, 8),
    }
    info, run = own_step.prepare(workload)
    figures = [run({}) for _ in range(2)]
    assert info == {"dtype": "float32"} and all(f["tokens"] == 2 * 3 * 5 for f in figures)
    phases = ("generation", "log-probabilities", "backward", "adamw", "rest")
    assert all(f[f"seconds/{p}"] > 0 for f in figures for p in phases)
    assert sum(figures[1][f"seconds/{p}"] for p in phases) == pytest.approx(figures[1]["seconds"])


def test_the_torch_loop_samples_evenly_where_all_logits_are_equal(small):
    from selfteach.model import files

    model = files.load_model(small)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    sampled = torch_loop.decode(model, torch.tensor(prompts(264, 3, 4)), 200, torch.Generator().manual_seed(0))
    counts = torch.bincount(sampled.flatten(), minlength=264)
    assert (
        sampled.shape == (3, 200) and counts.max() < 15 and (counts > 0).sum() > 200
    )  # equal logits: all ids, about 2.3 times each


# ---- the command


def run(capsys, *words: str) -> tuple[int, str, str]:
    code = main(["bench", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


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
        "--precision",
        "float32",
        "--against",
        "none",
        "--json",
    )
    found = json.loads(out)
    assert code == 0 and found["threads"] == 1 and found["machine"]["processor"]
    (workload,) = found["workloads"]
    assert workload["title"] == "2 x 64 tokens after 32"
    limit = workload["limits"]["float32"]
    assert limit["tokens_per_second"] <= min(limit["compute_alone"], limit["memory_alone"]) * 1.001
    (ours,) = workload["systems"]
    assert ours["name"] == "selfteach" and ours["speedup"]["median"] == 1
    assert ours["tokens_per_second"]["median"] > 0 and ours["share_of_limit"] > 0
    table, lines = report.workload_table(workload)
    assert (
        len(table.rows) == 1
        and len(table.rows[0]) == len(table.columns)
        and any("MFLOP a token" in text for text in lines)
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["roll"], "did you mean rollout"),
        ([], "KIND"),
        (["learn", "--repeats", "0"], "--repeats must be 1 or more"),
        (["learn", "--width", "0"], "--width must be 1 or more"),
        (["learn", "--long"], "--long belongs to bench step"),
        (["learn", "--only", "turns"], "no workload of bench learn (--only) is called 'turns'"),
        (["rollout", "--precision", "fp16"], "no precision (--precision) is called 'fp16'"),
        (["rollout", "--python", "vllm"], "is not PEER=PATH"),
        (["rollout", "--python", "vllm=/nowhere"], "/nowhere is not a file"),
        (["rollout", "--model", "nothing"], "no such shape or folder"),
        (["step", "--against", "vllm"], "vllm does not do this"),
    ],
)
def test_mistakes_are_one_line(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert code == 2 and not out and message in err.splitlines()[-1]
