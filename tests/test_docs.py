"""What the documents say is so."""

from __future__ import annotations

import ast
import asyncio
import inspect
import linecache
import math
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.agents import played
from support.servers import serving

from selfteach import api
from selfteach.api import start
from selfteach.cli import main
from selfteach.commands import arguments
from selfteach.configuration import plan, run_config_of, task_source
from selfteach.core import RolloutRequest, registry
from selfteach.core.scoring import score
from selfteach.loop.log import read_events
from selfteach.methods import search_r1
from selfteach.rollout.search import search_agent, search_turns
from selfteach.serving import loading

ROOT = Path(__file__).parents[1]


def test_the_readme_s_own_method_task_and_reward_work(tmp_path):
    code = re.search(r"```python\n# mine\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    file = tmp_path / "mine.py"
    file.write_text(code.group(1))
    registry.load_file(file)
    source = task_source("parity", {})
    asked = {source.train(i).prompt for i in range(5000)}
    assert len(asked) == 800 and not asked & {t.prompt for t in source.test}
    run_config = plan(
        "brief_grpo",
        "parity",
        model="tiny-s",
        steps=1,
        warm_steps=2,
        eval_every=0,
        final_eval_tasks=4,
        final_eval_pass_at_k_tasks=0,
        final_eval_k=0,
        max_unscored=1.0,
    )
    run = api.train(run_config, tmp_path / "run")
    assert run.done and (run.model / "model.safetensors").is_file()


def test_the_readme_shows_ssrl_as_it_is():
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    source = (ROOT / "selfteach/methods/ssrl.py").read_text() + (ROOT / "selfteach/rollout/search.py").read_text()
    lines = {" ".join(line.split()) for line in source.splitlines()}
    for code in shown[:2]:
        for line in code.splitlines():
            if "@method" not in line and "async def" not in line:  # shortened there
                assert " ".join(line.split()) in lines, line


PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/programs.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("code", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_of_the_page_on_programs_play(code, tmp_path):
    (file := tmp_path / code.split()[1]).write_text(code)
    registry.load_file(file)
    name = re.findall(r"def (grpo_\w+)", code)[0]
    run_config = plan(
        name,
        "chain_sum",
        {"terms": (2, 2), "style": "terse", "n_test": 4},
        model="tiny-s",
        steps=1,
        warm_steps=2,
        max_tokens=8,
        threads=1,
        eval_every=0,
        final_eval_tasks=0,
        final_eval_k=0,
        max_unscored=1.0,
        use=[str(file)],
    )
    run = api.train(run_config, tmp_path / "run")
    (step,) = [e for e in read_events(run.folder / "log") if e["event"] == "step"]
    assert run.done and step["tokens/sampled"] > 0 and step.get("rollout/failed", 0) == 0


SEARCH = (ROOT / "docs/search.md").read_text()
(MY_SEARCH,) = re.findall(r"```python\n(# my_search\.py\n.*?)```", SEARCH, re.DOTALL)


def test_a_search_method_of_one_s_own_differs_as_the_page_says_and_plays(tmp_path, tags, monkeypatch):
    for known in (registry.methods, registry.blocks):  # what it registers is forgotten after it
        monkeypatch.setattr(known, "_entries", dict(known.items()))
    (file := tmp_path / "my_search.py").write_text(MY_SEARCH)
    registry.load_file(file)
    made = registry.methods.get("mine")(share=0.4)
    assert [row for row, _, _ in made.diff(search_r1())] == ["program.main", "reward.0"]
    assert plan("mine", "atlas", model="tiny-s", use=[str(file)]).task == "atlas"
    source = task_source("atlas", {"hops": (2,)})
    task = source.train(0)
    first, second = task.tags["chain"]
    found = {"one": first, "two": "nothing found."}
    replies = ["<search>one</search>", " so far.</reflect>", "<search>two</search>", " no more.</reflect>"]
    answer = f"<answer> {task.answer if isinstance(task.answer, str) else task.answer[0]}</answer>"
    stage = made.stages[0]
    request = RolloutRequest(task, key="t")
    context, group = played(stage.programs["main"], [*replies, answer], tags, found.__getitem__, request)
    (trajectory,) = group.episodes[0].trajectories
    told = context.whole_text(trajectory.leaf)
    assert first in told and second not in told
    assert f"{first}</information><reflect> so far.</reflect><search>two</search>" in told and told.endswith(answer)
    scores = asyncio.run(score(stage.reward[0], [group], context))["reward"]
    assert scores[trajectory.leaf].value == pytest.approx(0.6 * 1 + 0.4 * 0.5)  # right, by one fact of two


def test_the_parts_of_a_search_agent_are_used_where_the_page_says():
    section = SEARCH.partition("## A method of your own")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    parts = {row[0].strip("| `"): re.findall(r"`(\w+)`", row[2]) for row in rows}
    for part, names in parts.items():
        assert names, part
        for name in names:
            source = inspect.getsource(inspect.getmodule(registry.methods.get(name).build))
            assert re.search(rf"\b{part}\b", source), f"{name} has no {part}"
    taken = {*search_agent().hyper_parameters, *inspect.signature(search_turns).parameters}
    assert taken - {"request", "rollout"} <= {*parts}


def plan_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `train` plan what it is given with few questions, short answers and a short warm start."""
    plan_ = start.plan

    def planned(*words: Any, **given: Any) -> Any:
        config = plan_(*words, **given).override(
            eval_every=0, final_eval_tasks=2, final_eval_k=0, final_eval_decoder_samples=1, max_tokens=4, threads=1
        )
        return config.override(warm_steps=min(config.warm.steps, 2))

    monkeypatch.setattr(start, "plan", planned)


OWN_DATA = {
    f"{page}-{n}": code
    for page in ("data", "from_trl", "from_verl", "tools", "search")
    for n, code in enumerate(re.findall(r"```python\n(.*?)```", (ROOT / f"docs/{page}.md").read_text(), re.DOTALL))
    if code != MY_SEARCH
}


@pytest.mark.parametrize("code", OWN_DATA.values(), ids=OWN_DATA)
def test_the_snippets_on_own_data_run(code, tmp_path, monkeypatch):
    """As they stand, but for the size: a tiny model, a step of few answers, no evaluation of many samples."""
    monkeypatch.chdir(tmp_path)
    small = code.replace('"path/or/name"', '"tiny-s"').replace('model="tiny"', 'model="tiny-s"')
    small = re.sub(r"steps\b(\W+)\d+", r"steps\g<1>1", small).replace('"max_tokens": 64', '"max_tokens": 8')
    small = re.sub(r"rollouts=8|groups=(4|8)", lambda m: m[0].split("=")[0] + "=2", small).replace(", 3000)", ", 90)")
    assert small != code and "steps" in small
    plan_small(monkeypatch)
    space = {"__name__": "__main__"}
    cell = str(tmp_path / "cell")
    linecache.cache[cell] = (len(small), None, small.splitlines(True), cell)
    exec(compile(small, cell, "exec"), space)
    run = space["run"]
    rewarded = run_config_of(run.folder).reward is not None
    assert run.done and math.isfinite(run.figures["after"]["reward" if rewarded else "accuracy"])
    assert rewarded or "tools=[" in code or "corpus=" in code
    assert list((run.folder / "data").iterdir()) and ("corpus=" in code or list((run.folder / "use").iterdir()))


def test_the_page_on_python_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    """As it stands, but for the size: a smaller model, steps of few answers, 2 of them for 40, and 3 for 80."""
    pytest.importorskip("transformers")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    plan_small(monkeypatch)
    page = (ROOT / "docs/python.md").read_text()
    space: dict[str, Any] = {"__name__": "__main__"}
    sizes = {"steps=40": "steps=2", "steps=80": "steps=3", "step=3": "step=1", "rollouts=8": "groups=2, rollouts=2"}
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        for large, small in {**sizes, 'model="tiny"': 'model="tiny-s"', " eval_samples=4": ""}.items():
            code = code.replace(large, small)
        made = compile(code, f"snippet {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(made, space)
        if made.co_flags & inspect.CO_COROUTINE:
            asyncio.run(waiting)
    assert space["run"].done and space["same"].steps_done == 3 and space["step"].run.steps_done == 2
    assert (tmp_path / "curves.png").is_file() and (tmp_path / "folder" / "model.safetensors").is_file()
    assert "greedy" in capsys.readouterr().out


def test_the_snippets_on_monitoring_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan_small(monkeypatch)
    page = (ROOT / "docs/monitoring.md").read_text()
    sizes = {"steps=40": "steps=2", "rollouts=8": "groups=2, rollouts=2", 'model="tiny"': 'model="tiny-s"'}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        for large, small in sizes.items():
            code = code.replace(large, small)
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, "snippet", "exec"), space)
        assert space["run"].done and len((space["run"].folder / "completions.jsonl").read_text().splitlines()) == 8
    assert "grpo on chain_sum 0\n" in capsys.readouterr().out


def documented_commands() -> list[str]:
    """Every `selfteach ...` line of the documents: indented, or in backticks with an option; comments left out."""
    files = [
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
    found: dict[str, None] = {}
    for text in (file.read_text() for file in sorted(files)):
        for line in re.findall(r"^ +(?:\.venv/bin/)?selfteach (.*)$", text, re.MULTILINE):
            found[re.split(r"\s+#|\s+>", line)[0]] = None
        found |= dict.fromkeys(re.findall(r"`selfteach ([^`]+ --[^`]+)`", text))
    return [" ".join(words.split()) for words in found]


@pytest.mark.parametrize("line", documented_commands())
def test_a_documented_command_can_be_parsed(line, tmp_path, monkeypatch, capsys):
    code = re.search(r"```python\n# mine\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "mine.py").write_text(code[1])
    for program in (*PROGRAMS, MY_SEARCH):
        (tmp_path / program.split()[1]).write_text(program)
    monkeypatch.chdir(tmp_path)
    read = arguments.Parser.read

    def only_read(self, *args, **more):
        read(self, *args, **more)
        raise StopIteration(line)  # parsed: nothing is to run

    monkeypatch.setattr(arguments.Parser, "read", only_read)
    for known in (registry.methods, registry.tasks, registry.blocks):  # the README's own may be there already
        own = ("brief_grpo", "parity", "brief", *re.findall(r"def (\w+)\(", "".join(PROGRAMS) + MY_SEARCH))
        monkeypatch.setattr(known, "_entries", {k: v for k, v in known.items() if k not in own})
    for words in line.split(" / "):  # `methods / tasks / models`
        with pytest.raises(StopIteration):
            main(shlex.split(words))
    assert not capsys.readouterr().err


SERVING = re.findall(r"```python\n(.*?)```", (ROOT / "docs/serving.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("code", SERVING, ids=range(len(SERVING)))
def test_the_snippets_on_serving_run(code, mini_folder, capsys):
    """As they stand, against a server of a small model."""
    pytest.importorskip("openai", reason="the package openai is not installed")
    with loading.load(str(mini_folder), threads=1) as model, serving(model) as url:
        exec(code.replace("http://127.0.0.1:8000", url), {"__name__": "__main__"})
    assert capsys.readouterr().out
