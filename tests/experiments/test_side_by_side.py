"""The methods of a family side by side: who is compared, on what, what is kept of it, and a real run of two."""

from __future__ import annotations

import json
from typing import Any

import pytest

from selfteach import experiments, run_cache
from selfteach.analysis import side_by_side as page
from selfteach.cli import main
from selfteach.core import BadValue, UnknownName
from selfteach.experiments import runs as runs_module
from selfteach.experiments.side_by_side import FAMILIES, lineup, members

TWO = ("ssrl", "search_r1")
SMALL = {"entities": 60, "n_test": 8, "hops": (1,)}


@pytest.fixture
def pretended(monkeypatch):
    """A function of method and seed stands for training; `broken` names a method whose runs fail."""
    broken: list[str] = []

    def run_once(run_config, store, observer=None, key=None):
        name, seed = run_config.method.name, run_config.settings.seed
        if name in broken:
            raise BadValue("it broke")
        folder = store / run_cache.run_key(run_config)
        folder.mkdir(parents=True)
        level = {"ssrl": 0.5, "search_r1": 0.7}[name]
        after: dict[str, Any] = {"accuracy": level + seed / 1000, "f1": 0.75, "calls": 1.5, "length": 40.0}
        if name == "ssrl":  # its own program asks nobody; its decoder does
            after |= {"calls": 0.0, "accuracy+search": 0.8, "calls+search": 1.0, "accuracy+self": 0.1}
        told = {
            "before": {"accuracy": 0.1},
            "after": after | {"search/needless": 0.5},
            "seconds": {"all": 2.0, "training": 1.5},
            "steps": 4,
            "tokens": run_config.settings.budget,
        }
        (folder / "figures.json").write_text(json.dumps(told), encoding="utf-8")
        return folder

    monkeypatch.setattr(runs_module, "run_once", run_once)
    return broken


def test_published_methods_of_the_family_are_compared_and_others_have_their_reason():
    names = members("search")
    assert {"ssrl", "search_r1", "cts_llm", "ssp", "asearcher", "behavior_priming"} <= {*names}
    assert not {"ssrl_variant", "answer_only", "grpo"} & {*names}
    found = lineup("search", ("ssrl", "reseek", "router_r1", "cts_llm"), tokens=5000)
    assert list(found.arms) == ["ssrl", "reseek"]
    assert found.apart["router_r1"].startswith("It chooses among experts of other knowledge and price")
    assert found.apart["cts_llm"].startswith("It leads a conversation through a graph")
    ssrl, reseek = (arm.run_config for arm in found.arms.values())
    assert reseek.task_options["says"] == "judge" and ssrl.task_options["says"] == ""
    assert {**reseek.task_options, "says": ""} == ssrl.task_options
    assert ssrl.settings.budget == reseek.settings.budget == 5000
    assert ssrl.method.args["groups"] == reseek.method.args["groups"] == 16


def test_a_family_may_be_some_methods_on_a_real_model():
    found = lineup("search_smollm2")
    assert list(found.arms) == members("search_smollm2") == ["ssrl", "zerosearch", "ikea", "search_r1"]
    assert {arm.run_config.model for arm in found.arms.values()} == {"smollm2-135m"} and not found.apart


@pytest.mark.parametrize("given", [{"family": "searching"}, {"family": "search", "methods": ("grpo",)}])
def test_names_that_are_none_are_refused(given):
    with pytest.raises(UnknownName):
        lineup(**given)


def test_what_is_kept_and_shown_and_what_goes_on(tmp_path, pretended):
    def measure(seeds, **more):
        more = {"store": tmp_path / "runs", "task_options": SMALL, **more}
        return experiments.side_by_side("search", TWO, seeds, 900, tmp_path, 200, said.append, **more)

    said = list[dict[str, Any]]()
    pretended.append("ssrl")
    first = measure(1)
    assert list(first["methods"]) == ["search_r1"] and first["apart"] == {"ssrl": "seed 200 failed: it broke"}
    assert [e["text"] for e in said if e["event"] == "note"] == ["ssrl, seed 200 failed: it broke"]  # when it fails
    assert [t.title for t in page.tables(first)] == [
        "search: mean (lowest to highest of its seeds)",
        "not in the table",
    ]
    pretended.clear()
    (two,) = page.tables(measure(2))  # of which an interval would say nothing
    assert two.rows[2][1:3] == ["10.0 (10.0 to 10.0)", "70.0 (70.0 to 70.1)"] and two.rows[2][-1] == "2"
    result = measure(3)
    assert json.loads((tmp_path / "search.json").read_text(encoding="utf-8")) == result and not result["apart"]
    assert [*result["methods"]["ssrl"]["seeds"]] == ["200", "201", "202"]
    kept = result["methods"]["ssrl"]["seeds"]["201"]
    assert kept["tokens"] == 900 and "accuracy+self" not in kept["after"]
    rows = page.rows_of(result)
    # 0.9 = 0.7 + 0.2, the mean seed being 201; 0.8 by the decoder; 0.701 by its own program
    assert [r.name for r in rows] == ["search_r1", "ssrl with search", "ssrl"]
    assert [round(r.mean("accuracy"), 3) for r in rows] == [0.901, 0.8, 0.701]
    # 70.1 +- 4.303 * 0.1 / sqrt(3) points
    low, high = rows[2].measures["accuracy"]["interval"]
    assert (round(low, 5), round(high, 5)) == (0.69852, 0.70348)
    assert rows[1].mean("search/needless") is None and rows[0].mean("search/needless") == 0.5
    (table,) = page.tables(result)
    assert table.rows[2][:3] == ["ssrl", "10.0 [10.0, 10.0]", "70.1 [69.9, 70.3]"] and table.rows[2][-1] == "3"
    # seed by seed each is 20 points below, whatever the seed adds to both
    assert table.columns[3] == "over search_r1, points" and table.rows[2][3] == "-20.0 [-20.0, -20.0]"
    assert table.rows[0][3] == "-"  # itself
    assert measure(3, hours=0.0) == result  # all is cached, so no run has to begin
    assert measure(3, hours=0.0, store=tmp_path / "elsewhere") == result  # where nothing is cached, the result knows


def test_a_reason_in_words_is_given_for_what_is_found_to_be_apart_alone(monkeypatch):
    """The words stand in for what is found; without them that is said, and a method that has a place keeps it."""
    kind = FAMILIES["search"]
    assert lineup("search", tuple(kind.apart), tokens=5000).apart == kind.apart
    monkeypatch.setitem(FAMILIES, "search", kind._replace(apart={"search_r1": "no place"}))
    found = lineup("search", ("search_r1", *kind.apart), tokens=5000)
    assert [*found.arms] == ["search_r1"] and found.apart["hier_search"] == (
        "its agent asks experts, a tool that this task has not"
    )
    assert "'environment'" in found.apart["cts_llm"]


def test_the_page_is_made_of_the_result(tmp_path, pretended, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra selfteach[plot]")
    run = {"store": tmp_path / "runs", "task_options": SMALL}
    experiments.side_by_side("search", (*TWO, "hier_search"), 2, 900, tmp_path, **run)
    file = tmp_path / "docs" / "search_methods.md"
    assert main(["side-by-side", "search", "--out", str(tmp_path), "--page", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert (
        "| [ssrl](https://arxiv.org/abs/2508.10874) with search |" in text
        and "![accuracy and searches of each method](search_methods.png)" in text
    )
    assert "| hier_search | Its planner divides a question between two agents, each with a source that" in text
    assert "Not measured yet: [adasearch](https://arxiv.org/abs/" in text and "[hier_search]" not in text
    assert "from a warm start of its own demonstrations of the same questions; then" in text
    assert (tmp_path / "docs" / "search_methods.png").stat().st_size > 10_000
    found = page.read_result(tmp_path, "search")
    assert "| needless | missed |" in text and "needless are searches for what memory answers" in text
    page.write_page("search", {}, {**found, "model": "smollm2-135m"}, file)
    real = file.read_text(encoding="utf-8")
    assert "from the model as it is, which two examples" in real
    assert found["methods"]["search_r1"]["seeds"]["200"]["after"]["search/needless"] == 0.5
    assert "needless" not in real and "missed" not in real and "EM is exact match. Differences" in real


@pytest.mark.parametrize(
    "words,why",
    [
        ("searching", "family that is compared"),
        ("search --seed 1", "give --seeds N"),
        ("search --steps 5", "give --tokens N"),
        ("search --seeds 0", "seeds must be 1 or more"),
        ("search --page x.md --seeds 2", "leave --seeds out"),
        ("searching --page x.md", "searching"),
        ("search --page x.md --out bad", "is no result of side-by-side search"),
        ("search --methods grpo", "grpo"),
        ("search --set hop=2", "hop"),
    ],
)
def test_mistakes_are_one_line(words, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "search.json").write_text('{"family": "search"}', encoding="utf-8")
    assert main(["side-by-side", *words.split()]) == 2
    assert why in capsys.readouterr().err


def test_a_page_of_nothing_names_every_method(tmp_path, capsys):
    file = tmp_path / "search.md"
    assert main(["side-by-side", "search", "--out", str(tmp_path), "--page", str(file)]) == 0
    text = file.read_text(encoding="utf-8")
    assert all(f"[{name}]" in text for name in members("search")) and "![" not in text


def test_two_methods_run_for_a_few_tokens(tmp_path, small_start, capsys):
    model = small_start("factworld", {"entities": 60, "relations": 4, "hops": (1, 2), "n_test": 8})
    settings = {"warm_steps": 0, "warm_practice_steps": 0, "final_eval_tasks": 3, "max_tokens": 6}
    words = ["side-by-side", "search", "--methods", *TWO, "--seeds", "1", "--first-seed", "0", "--tokens", "1"]
    words += ["--jobs", "1", "--out", str(tmp_path), "--model", str(model)]
    words += ["--set", "entities=60", "n_test=8", "hops=1"]
    words += [w for k, v in settings.items() for w in (f"--{k.replace('_', '-')}", str(v))]
    assert main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [*result["methods"]] == [*TWO] and not result["failed"] and result["model"] == str(model)
    for method in result["methods"].values():
        (run,) = method["seeds"].values()
        assert run["tokens"] > 0 and {"accuracy", "f1", "calls", "length"} <= run["after"].keys()
