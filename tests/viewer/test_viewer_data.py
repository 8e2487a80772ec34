"""What the page is told: rollouts token by token, curves as they grow, comparisons; and what it may not reach."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.viewed import HOSTILE, LearnedTokens, group_of, step_event, write_run

from selfteach.analysis.statistics import probability_of_improvement
from selfteach.cli import main
from selfteach.core import BadValue, Episode, Ref, RolloutGroup, RolloutRequest, Sampling, Score, Task, Trajectory, Tree
from selfteach.core.errors import BadCheckpoint
from selfteach.core.tree import CallRecord
from selfteach.loop.log import RunLog
from selfteach.model.tokenizer import Tokenizer
from selfteach.viewer.curve_data import curve_page
from selfteach.viewer.export import MODULES, export_page, read_answers, table_answers, write_page
from selfteach.viewer.result_data import claim_page, kind_of, ledger_page, result_page
from selfteach.viewer.rollout_data import RolloutReader
from selfteach.viewer.run_index import ViewerData
from selfteach.viewer.server import PAGE, ViewerServer, as_json

SHIPPED = Path(__file__).parents[2] / "selfteach" / "results"


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any, letters: Tokenizer) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "one", letters)


# ---- rollouts


def test_a_row_for_each_trajectory_and_its_tokens_with_what_they_were(run: Path) -> None:
    step = RolloutReader().step(run, 2)
    rows = step.rows(0, 100)
    assert [r["reward"] for r in rows] == [1.0, 0.0, 1.0, 0.0] * 2 and rows[0]["advantage"] == 0.5
    assert rows[0]["text"] == "2 + 2 = 4" and rows[0]["task"] == "train/same" and rows[4]["task"] == "train/1"
    assert step.rows(2, 2) == rows[2:4] and step.rows(0, 1) == rows[:1]
    path = step.episode(rows[1]["episode"])["paths"][0]
    prompt, sampled = path["pieces"]
    assert "".join(prompt["text"]) == "compute: 2 + 2 =\n" and "".join(sampled["text"]) == "5"
    assert (prompt["kind"], sampled["kind"], sampled["fate"]) == ("prompt", "sampled", "learned")
    assert sampled["advantage"] == [-0.5] and sampled["version"] == [0.0] and sampled["logp"] == [-0.1]
    assert path["scores"] == [
        {"column": "reward", "value": 0.0, "parts": {"answer": 0.0}, "why": "why 1", "error": None}
    ]


def test_gap_and_staleness_of_a_token_and_what_an_older_log_lacks(
    run: Path, tmp_path: Path, letters: Tokenizer
) -> None:
    step = RolloutReader().step(run, 2)
    first, second = (step.episode(f"train/2/0/0/{i}")["paths"][0]["pieces"][1] for i in range(2))
    assert first["gap"][0] == -1e-6 and first["gap"][-1] == 2e-6 and "gap" not in second, "small, and not rounded away"
    assert first["staleness"] == [2.0] * len(first["text"]) and second["staleness"] == [2.0] and "entropy" not in first
    old = write_run(tmp_path / "old", letters, steps=1)
    file = old / "log" / "rollouts" / "000000.npz"
    with np.load(file) as data:
        arrays = {n: data[n] for n in data.files if n not in ("learned/gap", "learned/gap_rows", "learned/version")}
    np.savez(file, **arrays)
    piece = RolloutReader().step(old, 0).episode("train/0/0/0/0")["paths"][0]["pieces"][1]
    assert piece["advantage"][0] == 0.5 and not {"gap", "staleness"} & piece.keys()


def test_calls_of_tools_stand_with_their_time_and_error(tmp_path: Path, letters: Tokenizer) -> None:
    episode = tree_episode(letters)
    episode.calls = [CallRecord("search", 1, 0.25), CallRecord("search", 3, 30.0, "no answer within 30 s")]
    group = RolloutGroup(RolloutRequest(Task("t", "ask")), [episode], {}, "g")
    RunLog(tmp_path / "log").rollouts(0, [group], None)
    (tmp_path / "last").mkdir()
    letters.save(tmp_path / "last")
    found = RolloutReader().step(tmp_path, 0).episode(episode.id)
    assert found["calls"][0] == {"tool": "search", "node": 1, "seconds": 0.25, "error": ""}
    assert found["calls"][1]["error"] == "no answer within 30 s"
    asked, answered = found["paths"][0]["pieces"][1:3]
    assert asked["node"] == 1 == answered["parent"] and answered["call"]["name"] == "search"


def test_text_is_found_in_prompts_and_responses(run: Path) -> None:
    step = RolloutReader().step(run, 0)
    assert step.search("FOUR") == [2, 6] and step.search("compute:") == list(range(8)) and not step.search("nowhere")


def tree_episode(letters: Tokenizer) -> Episode:
    tree = Tree()
    root = tree.add(-1, letters.encode("ask"))
    one = tree.add(root, letters.encode("say <search>sea</search>"), action_mask=True, sampling=Sampling())
    seen = tree.add(one, letters.encode("a result"), span="information")
    last = tree.add(seen, letters.encode("the end"), action_mask=True, sampling=Sampling())
    vine = tree.add(one, letters.encode("vine"), action_mask=True, cut=3, sampling=Sampling())
    tree.mark(last, 0, 3, "aside")
    tree.notes[last] = {"visits": 3.0, "value": 0.25}
    ends = [
        Trajectory(Ref("train/0/0/0/0", last), "policy", "g"),
        Trajectory(Ref("train/0/0/0/0", vine), "policy", "g", None),
    ]
    return Episode("train/0/0/0/0", tree, ends)


def test_forks_spans_and_what_is_dropped(tmp_path: Path, letters: Tokenizer) -> None:
    episode = tree_episode(letters)
    tree, last = episode.tree, episode.trajectories[0].leaf
    group = RolloutGroup(RolloutRequest(Task("t", "ask")), [episode], {"reward": {last: Score(1.0)}}, "g")
    count = int(tree.action_mask[tree.places(last.node)].sum()) - 3  # without the span
    RunLog(tmp_path / "log").rollouts(0, [group], LearnedTokens({f"{episode.id}:{last.node}": np.arange(count)}))  # type: ignore[arg-type]
    (tmp_path / "last").mkdir()
    letters.save(tmp_path / "last")
    found = RolloutReader().step(tmp_path, 0).episode(episode.id)
    path, vine = found["paths"]
    kinds = [(p["kind"], p["span"], p.get("fate", "")) for p in path["pieces"]]
    assert kinds[1] == ("sampled", "", "learned") and kinds[2][:2] == ("context", "information")
    assert kinds[3] == ("sampled", "aside", "dropped: inside the span aside, which is context only")
    assert kinds[4] == ("sampled", "", "learned")
    given = [v for p in path["pieces"] for v in p.get("advantage", []) if v is not None]
    assert given == list(range(count)), "each advantage stands with its own token"
    assert path["pieces"][2]["call"] == {"name": "search", "arguments": "sea"}
    assert vine["dropped"] == "it is logged and never learned" and "".join(vine["pieces"][1]["text"]) == "say"
    nodes = found["tree"]
    assert [(n["parent"], n["cut"], n["of"]) for n in nodes][4] == (1, 3, nodes[1]["tokens"])
    assert nodes[3]["notes"] == {"visits": 3.0, "value": 0.25} and nodes[3]["scores"][0]["value"] == 1.0
    assert nodes[3]["credit"] == pytest.approx(np.mean(given[-(nodes[3]["tokens"] - 3) :]), rel=1e-4)


def test_advantages_that_fit_no_tokens_are_said_to_be_unknown(tmp_path: Path, letters: Tokenizer) -> None:
    (group,) = [group_of("train/0/0/0", letters, "t", "ask", ["some words"])]
    RunLog(tmp_path / "log").rollouts(0, [group], LearnedTokens({"train/0/0/0/0:1": [1.0, 2.0]}))  # type: ignore[arg-type]
    (tmp_path / "last").mkdir()
    letters.save(tmp_path / "last")
    (path,) = RolloutReader().step(tmp_path, 0).episode("train/0/0/0/0")["paths"]
    assert path["advantage"] == 1.5 and not path["mapped"] and "advantage" not in path["pieces"][1]


def test_characters_of_several_tokens_and_tokens_without_text(letters: Tokenizer, run: Path) -> None:
    step = RolloutReader().step(run, 0)
    ids = np.append(letters.encode("aé\U0001f600b"), letters.eos_token_id)
    texts = step.token_texts(ids)
    assert len(texts) == len(ids) and texts[-1].startswith("⟦") and "".join(texts[:-1]) == letters.decode(ids)


def test_before_the_first_checkpoint_tokens_are_numbers(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "young")
    shutil.rmtree(tmp_path / "young" / "last")
    reader = RolloutReader()
    found = reader.step(tmp_path / "young", 0).episode("train/0/0/0/0")
    assert "no checkpoint yet" in found["note"] and found["paths"][0]["pieces"][0]["text"][0].startswith("‹")
    shutil.copytree(run / "last", tmp_path / "young" / "last")
    assert not reader.step(tmp_path / "young", 0).episode("train/0/0/0/0")["note"], "it is there now"


def test_a_task_is_followed_over_steps_a_piece_at_a_time(run: Path) -> None:
    reader = RolloutReader()
    assert reader.follow(run, "train/same") == {
        "found": [[s, [1.0, 0.0, 1.0, 0.0]] for s in range(4)],
        "read": 3,
        "more": False,
    }
    first = reader.follow(run, "train/same", seconds=0)
    assert [s for s, _ in first["found"]] == [0] and first["more"]
    assert [s for s, _ in reader.follow(run, "train/same", first["read"])["found"]] == [1, 2, 3]


def test_a_broken_or_missing_step_is_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "broken")
    (tmp_path / "broken" / "log" / "rollouts" / "000001.npz").write_bytes(b"PK\x03\x04 not an archive")
    with pytest.raises(BadCheckpoint, match=r"000001\.npz: not a rollout file"):
        RolloutReader().step(tmp_path / "broken", 1)
    with pytest.raises(BadValue, match="no rollouts of step 9"):
        RolloutReader().step(run, 9)
    assert RolloutReader().follow(tmp_path / "broken", "train/same")["found"][1][0] == 2


# ---- curves


def test_curves_have_columns_intervals_and_what_they_mean(run: Path) -> None:
    page = curve_page(run)
    assert page["metrics"]["reward/mean"] == [[0, 1, 2, 3], [0.3, 0.31, 0.32, 0.33]] and page["stages"] == [(0, "main")]
    steps, values, low, high = page["evals"]["eval/greedy"]
    assert steps == [0, 2, 4] and values[1:] == [0.5, 0.5] and low[1] < 0.5 < high[1]
    assert page["about"]["reward/mean"][0] == "mean reward of the trajectories that have one"
    assert page["about"]["eval/greedy"][2] == "rises" and page["every"] == 1
    assert not curve_page(run, page["offset"], page["mark"])["metrics"]
    assert curve_page(run, steps=(1, 2))["metrics"]["reward/mean"][0] == [1, 2]


def test_a_long_run_is_thinned_and_says_so(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "log")
    log.file.write_text("".join(json.dumps({"event": "step", **step_event(s)}) + "\n" for s in range(9000)))
    page = curve_page(tmp_path)
    steps = page["metrics"]["reward/mean"][0]
    assert page["every"] == 3 and page["rows"] == 9000 and steps[0] == 0 and steps[-1] == 8999 and len(steps) <= 3001


# ---- results


def test_results_of_reproduce_and_the_ledger() -> None:
    pytest.importorskip("scipy", reason="intervals need selfteach[claims]")
    assert kind_of(SHIPPED / "grpo.json") == "reproduce"
    result = result_page(SHIPPED / "grpo.json")
    assert result["verdict"] == json.loads((SHIPPED / "grpo.json").read_text())["verdict"]
    arms = {a["name"]: a for a in result["arms"]}
    assert arms["self"]["improvement"] is None and 0 <= arms["reinforce"]["improvement"]["p"] <= 1
    assert arms["self"]["curves"]["sampled"][0]["low"] <= arms["self"]["curves"]["sampled"][0]["mean"]
    rows = {r["method"]: r for r in ledger_page([SHIPPED])["rows"]}
    assert rows["grpo"]["effect"] and claim_page([SHIPPED], "grpo")["title"] == result["title"]
    with pytest.raises(BadValue, match="no claim of 'x'"):
        claim_page([SHIPPED], "x")


def test_every_shipped_result_can_be_drawn() -> None:
    pytest.importorskip("scipy", reason="intervals need selfteach[claims]")
    for file in sorted(SHIPPED.glob("*.json")):
        json.dumps(result_page(file))


def test_what_is_no_result_is_not_listed(tmp_path: Path) -> None:
    for name, text in {
        "a": "{}",
        "b": '{"arms": 1, "task": 2}',
        "c": "no json",
        "d": '{"arms": {"x": 1}, "task": "t"}',
    }.items():
        (tmp_path / f"{name}.json").write_text(text)
        assert kind_of(tmp_path / f"{name}.json") == ""


def test_the_chance_to_be_better_counts_pairs() -> None:
    p, low, high = probability_of_improvement([1, 2, 3, 4.0], [0, 0, 0, 5.0])
    assert (
        p == 12 / 16
        and low < p <= high <= 1
        and probability_of_improvement([1, 2, 3, 4.0], [0, 0, 0, 5.0]) == (p, low, high)
    )
    assert probability_of_improvement([1, 1.0], [1, 1.0])[0] == 0.5


# ---- the server


@pytest.fixture
def client(run: Path) -> Any:
    pytest.importorskip("starlette", reason="the package starlette is not installed; pip install 'selfteach[view]'")
    testing = pytest.importorskip("starlette.testclient", reason="starlette's test client needs httpx")
    made = testing.TestClient(
        ViewerServer(ViewerData([run.parent]), "secret").application(), base_url="http://127.0.0.1"
    )
    return made


def test_only_the_address_with_its_token_opens_the_page(client: Any) -> None:
    for path in ("/", "/?token=wrong", "/?token=", "/static/app.js", "/api/home"):
        assert client.get(path).status_code == 403, path
    page = client.get("/?token=secret")
    cookie = page.headers["set-cookie"]
    assert page.status_code == 200 and "HttpOnly" in cookie and "SameSite=Strict" in cookie
    assert (
        client.get("/").status_code
        == client.get("/static/app.js").status_code
        == client.get("/api/home").status_code
        == 200
    )
    assert client.get("/?token=wrong").status_code == 403
    client.cookies.clear()
    client.cookies.set("selfteach_view_0", "secre")
    assert client.get("/api/home").status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "192.0.2.1"])
def test_another_host_is_refused(client: Any, host: str) -> None:
    assert client.get("/?token=secret", headers={"Host": host}).status_code == 400
    assert client.get("/?token=secret", headers={"Host": "localhost:9999"}).status_code == 200


def test_every_answer_has_a_strict_policy(client: Any) -> None:
    client.get("/?token=secret")
    for path in ("/", "/static/app.js", "/static/style.css", "/api/home", "/api/nothing", "/static/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"] and headers["x-content-type-options"] == "nosniff"


OUTSIDE = ["../one", "one/../../etc", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "runs/one\0", "", "x" * 5000, "C:\\x"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_path_leads_out(client: Any, name: str) -> None:
    client.get("/?token=secret")
    for api in ("curves", "config", "steps"):
        answer = client.get(f"/api/{api}", params={"run": name})
        assert answer.status_code == 404 and "no run is called" in answer.json()["error"]
    assert client.get("/api/result", params={"id": name}).status_code == 404
    assert client.get("/static/" + name.replace("\0", "%00")).status_code in (404, 403, 400)


@pytest.mark.parametrize("step", ["../1", "1e3", "-1", "", "9" * 30, "²", "0x1"])
def test_a_step_is_a_number(client: Any, run: Path, step: str) -> None:
    client.get("/?token=secret")
    answer = client.get("/api/rows", params={"run": f"{run.parent.name}/one", "step": step})
    assert answer.status_code == 404 and answer.json()["error"]


def test_a_link_out_of_the_folders_is_not_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copytree(run / "log", secret)
    given = tmp_path / "given"
    shutil.copytree(run, given / "one")
    shutil.rmtree(given / "one" / "log")
    (given / "one" / "log").symlink_to(secret)
    shutil.copytree(run, given / "two")
    (given / "two" / "log" / "rollouts" / "000001.npz").unlink()
    (given / "two" / "log" / "rollouts" / "000001.npz").symlink_to(secret / "rollouts" / "000001.npz")
    (given / "three").symlink_to(run)
    data = ViewerData([given])
    assert data.ids() == ["given/one", "given/two"]
    with pytest.raises(BadValue, match="leads out"):
        data.answer("curves", {"run": "given/one"})
    with pytest.raises(BadValue, match="leads out"):
        data.answer("rows", {"run": "given/two", "step": "1"})
    assert data.answer("rows", {"run": "given/two", "step": "0"})["total"] == 8


def test_two_hundred_runs_are_listed_and_kept_up(run: Path, tmp_path: Path) -> None:
    for n in range(200):
        shutil.copytree(run, tmp_path / f"run-{n:03d}")
    data = ViewerData([tmp_path])
    home = data.answer("home", {})
    for _ in range(50):
        if home["waiting"]:
            home = data.answer("home", {})
    assert len(home["runs"]) == 200 and not home["waiting"] and {r["state"] for r in home["runs"]} == {"done"}
    assert (
        home["runs"][7]["accuracy"] == 0.6 and home["runs"][7]["method"] == "grpo" and home["runs"][7]["has_rollouts"]
    )


ODD = [
    '{"event": "step", "step": "x"}',
    '{"event": "step", "step": 1e999, "reward/mean": [1]}',
    '{"event": "eval", "step": null}',
    '{"event": "final_eval", "when": [], "step": 3, "figures": 7}',
    '{"event": "step", "step": 2, "reward/mean": "\\ud800", "time/step_s": {}}',
    "[" * 5000,
]


@pytest.mark.parametrize("line", ODD)
def test_a_log_with_odd_values_hides_no_other_run(run: Path, tmp_path: Path, line: str) -> None:
    for name in ("odd", "fine"):
        shutil.copytree(run, tmp_path / name, ignore=shutil.ignore_patterns("figures.json"))
    with (tmp_path / "odd" / "log" / "events.jsonl").open("a") as f:
        f.write(line + "\n")
    data = ViewerData([tmp_path])
    runs = {r["name"]: r for r in data.answer("home", {})["runs"]}
    assert runs["fine"]["steps"] == 4 and "odd" in runs
    try:
        as_json(data.answer("curves", {"run": f"{tmp_path.name}/odd"}))
    except BadCheckpoint as error:
        assert "events.jsonl: not as a run wrote it" in str(error)


# ---- the export


def test_an_export_holds_hostile_text_as_data(tmp_path: Path, letters: Tokenizer) -> None:
    hostile = HOSTILE + " </ScRiPt><script>1</script>"
    write_run(tmp_path / "runs" / "bad", letters, responses=[hostile, "x"], prompt=hostile, method=hostile)
    about = export_page(ViewerData([tmp_path / "runs"]), tmp_path / "out.html", "all")
    text = (tmp_path / "out.html").read_text()
    assert about["rollouts"] == 16 and about["bytes"] == len(text.encode()) and not about["left_out"]
    assert text.lower().count("<script") == 3 == text.lower().count("</script"), "data, library, page"
    packed = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]  # type: ignore[index]
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    episode = data["episode?episode=train/0/0/0/0&run=runs/bad&step=0"]
    assert "".join(episode["paths"][0]["pieces"][1]["text"]) == letters.decode(letters.encode(hostile))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]  # type: ignore[index]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    outside = re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)
    assert "src=" not in outside and "href=" not in outside.replace('href="#main"', "")


def test_an_export_keeps_to_its_size_and_says_what_it_leaves(run: Path, tmp_path: Path) -> None:
    data = ViewerData([run.parent])
    ledger = len(json.dumps(data.answer("ledger", {})))
    about = export_page(data, tmp_path / "small.html", "all", most=ledger)
    assert about["rollouts"] == 0 and "did not fit" in about["left_out"]
    assert export_page(data, tmp_path / "some.html", [1, 3, 99])["rollouts"] == 16
    with pytest.raises(BadValue, match="holds no run"):
        export_page(ViewerData([tmp_path]), tmp_path / "none.html")


def test_data_and_page_are_put_together_later(run: Path, tmp_path: Path) -> None:
    about = export_page(ViewerData([run.parent]), tmp_path / "one.json.gz", [1])
    assert (tmp_path / "one.json.gz").stat().st_size == about["bytes"] and about["rollouts"] == 8
    answers = read_answers(tmp_path / "one.json.gz")
    assert not any(key.startswith(("ledger", "claim", "regime")) for key in answers), "a run's alone"
    assert write_page(answers, tmp_path / "one.html") == (tmp_path / "one.html").stat().st_size
    packed = re.search(r'id="data">(.*?)</script>', (tmp_path / "one.html").read_text(), re.DOTALL)[1]  # type: ignore[index]
    assert json.loads(gzip.decompress(base64.b64decode(packed))) == answers
    (tmp_path / "broken.json.gz").write_bytes(b"no")
    with pytest.raises(BadCheckpoint, match=r"not what selfteach view --export FILE.json.gz wrote"):
        read_answers(tmp_path / "broken.json.gz")


def test_the_regimes_have_curves_of_baseline_and_control_and_their_evidence() -> None:
    answers = table_answers("regimes")
    rows = {r["name"]: r for r in answers["regimes?"]["rows"]}
    measured = json.loads((SHIPPED / "regimes" / "ladder.json").read_text())
    gained = measured["baseline"]["after"]["greedy"] - measured["baseline"]["before"]["greedy"]
    assert rows["ladder"]["greedy"] == gained and rows["ladder"]["control"] == measured["control"]["change"]["mean"]
    ladder = answers["regime?name=ladder"]
    assert [line["label"] for line in ladder["curves"]["sampled"]] == ["grpo", "rewards shuffled"]
    assert ladder["curves"]["sampled"][0]["points"] == measured["baseline"]["curve"]["sampled"]
    assert {"what is learned", "the search, 2 seeds, at the end"} <= {t["title"] for t in ladder["tables"]}
    assert ladder["rows"][0][0] == "task" and ladder["rows"][0][1].startswith("digit_sum")
    assert set(answers["regime?name=skill"]["ways"]) == {"start, slowly", "start, quickly"}, "the best and the worst"
    with pytest.raises(BadValue, match="no regime is called 'nosuch'"):
        ViewerData([]).answer("regime", {"name": "nosuch"})


def test_the_modules_of_the_page_can_stand_in_one_script() -> None:
    names: list[str] = []
    for module in MODULES:
        text = (PAGE / module).read_text()
        names += re.findall(r"^(?:export )?(?:async )?(?:const|let|function|class) (\w+)", text, re.MULTILINE)
        names += [n for group in re.findall(r"^let (\w+(?:, \w+)+)", text, re.MULTILINE) for n in group.split(", ")[1:]]
        imported = re.findall(r'^import .* from "\./(.+)";', text, re.MULTILINE)
        assert all(MODULES.index(m) < MODULES.index(module) for m in imported), f"{module} stands before what it uses"
    assert len(names) == len(set(names)), sorted(n for n in set(names) if names.count(n) > 1)
    assert {f.name for f in PAGE.glob("*.js")} == {*MODULES, "uPlot.iife.min.js"}


def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_html() -> None:
    for file in [*(PAGE / m for m in MODULES), PAGE / "index.html", PAGE / "style.css"]:
        text = file.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), file
        links = set(re.findall(r"https?://[\w./-]+", text))
        assert links <= {"http://www.w3.org/2000/svg", "https://arxiv.org/abs/"}, file
    assert (PAGE / "uPlot.VERSION").read_text().split()[1].rstrip(",") in (PAGE / "uPlot.iife.min.js").read_text()[:99]


# ---- the command


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["{tmp}/nowhere"], "no such folder"),
        (["{run}", "--port", "70000"], "--port must be"),
        (["{run}", "--steps", "1"], "--steps goes with --export"),
        (["{run}", "--export", "{tmp}/x.html", "--steps", "1,x"], "--steps must be"),
        (["{run}", "--export", "{tmp}/x.html", "--port", "1"], "--port does not go with --export"),
        (["{run}", "--export", "{tmp}/x.html", "--megabytes", "0"], "--megabytes must be"),
        (["{run}", "--export", "{tmp}/none/x.html"], "none/x.html"),
        (["{run}", "--export", ""], "is no name of a file"),
        (["{tmp}", "--export", "{tmp}/x.html"], "holds no run"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], why: str, run: Path, tmp_path: Path, capsys: Any) -> None:
    given = [w.replace("{run}", str(run)).replace("{tmp}", str(tmp_path)) for w in words]
    assert main(["view", *given]) == 2
    out, err = capsys.readouterr()
    assert why in err and err.count("\n") == 1 and not out


def test_an_export_by_the_command(run: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["view", str(run), "--export", str(tmp_path / "a.html"), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["rollouts"] == 32 and about["runs"] == 1 and (tmp_path / "a.html").stat().st_size == about["bytes"]


def test_without_a_folder_of_runs_it_says_so(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["view"]) == 2 and "there is no folder runs here" in capsys.readouterr().err


def test_the_command_serves_the_page_at_the_address_that_it_prints(run: Path) -> None:
    pytest.importorskip("uvicorn", reason="the package uvicorn is not installed; pip install 'selfteach[view]'")
    words = [sys.executable, "-m", "selfteach.cli", "view", str(run), "--json"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as started:
        try:
            assert started.stdout is not None
            url = json.loads(started.stdout.readline())["url"]
            for _ in range(100):
                with contextlib.suppress(OSError):
                    page = urllib.request.urlopen(url, timeout=30).read().decode()
                    break
                time.sleep(0.1)
            assert "static/app.js" in page
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(url[:-3], timeout=30)
            started.send_signal(signal.SIGINT)
            assert started.wait(60) == 130
        finally:
            started.kill()
