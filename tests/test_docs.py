"""What the documents say is so."""

from __future__ import annotations

import re
from pathlib import Path

from selfteach import api
from selfteach.core import registry

ROOT = Path(__file__).parents[1]


def test_the_readme_s_own_method_task_and_reward_work(tmp_path):
    code = re.search(r"```python\n# mine\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code is not None
    file = tmp_path / "mine.py"
    file.write_text(code.group(1))
    registry.load_file(file)
    source = api.task_source("parity", {})
    asked = {source.train(i).prompt for i in range(5000)}
    assert len(asked) == 800 and not asked & {t.prompt for t in source.test}
    run_config = api.plan(
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
