"""What the documents say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from selfteach import api
from selfteach.cli import main
from selfteach.commands import arguments
from selfteach.configuration import plan, task_source
from selfteach.core import registry

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
    monkeypatch.chdir(tmp_path)
    read = arguments.Parser.read

    def only_read(self, *args, **more):
        read(self, *args, **more)
        raise StopIteration(line)  # parsed: nothing is to run

    monkeypatch.setattr(arguments.Parser, "read", only_read)
    for known in (registry.methods, registry.tasks, registry.blocks):  # the README's own may be there already
        own = ("brief_grpo", "parity", "brief")
        monkeypatch.setattr(known, "_entries", {k: v for k, v in known.items() if k not in own})
    for words in line.split(" / "):  # `methods / tasks / models`
        with pytest.raises(StopIteration):
            main(words.split())
    assert not capsys.readouterr().err
