"""A run from Python: what it shows of its folder, sampling its policy, going on, carrying it away."""

from __future__ import annotations

import asyncio
import builtins
import json
import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import STEPS, run_config_of, same_run
from support.short_run import short_job

import selfteach
from selfteach import Run, Steering, api, evaluation, training
from selfteach.api import rollouts, tables
from selfteach.core import BadValue, SelfteachError, UnknownName, registry
from selfteach.loop.log import read_events
from selfteach.loop.metrics import FIGURES, METRICS, meaning_of
from selfteach.model import files
from selfteach.training import carry_out


@pytest.fixture(scope="module")
def finished(mini_folder, tmp_path_factory) -> Run:
    """Twelve steps on the bandit, with samples in its evaluations."""
    config = run_config_of(mini_folder, eval_samples=2)
    return api.train(config, tmp_path_factory.mktemp("finished") / "run", progress=False)


@pytest.fixture
def copied(finished, tmp_path) -> Run:
    """The same run in a folder of its own, as it is read from there."""
    shutil.copytree(finished.folder, tmp_path / "run", symlinks=True)
    return selfteach.load(tmp_path / "run")


# ---- metrics and evaluations


def test_metrics_are_a_table_of_steps_by_the_names_of_the_log(finished):
    table = finished.metrics
    logged = [e for e in read_events(finished.folder / "log") if e["event"] == "step"]
    assert len(table) == STEPS and table["step"] == list(range(STEPS))
    assert table["reward/mean"] == [e["reward/mean"] for e in logged]
    assert table[-1] == table.rows[STEPS - 1] and [row["step"] for row in table[2:4]] == [2, 3]
    assert table.to_dict()["tokens/total"][-1] == logged[-1]["tokens/total"]
    assert not {"event", "first", "steps"} & set(table.columns)
    with pytest.raises(UnknownName, match="did you mean reward/mean"):
        table["reward/men"]


def test_every_metric_and_figure_of_a_run_has_a_meaning(finished):
    assert not [name for name in finished.metrics.columns if name != "step" and meaning_of(name) is None]
    assert not [n for e in finished.evaluations.values() for n in e.figures if meaning_of(n, FIGURES) is None]
    assert meaning_of("no_metric") is None and all(m.meaning for m in (*METRICS.values(), *FIGURES.values()))


def test_a_table_shows_its_ends_and_no_markup_of_a_name():
    table = tables.MetricsTable({"step": n, "<b>reward": n / 7, "odd": None} for n in range(50))
    text, markup = repr(table), table._repr_html_()
    assert "..." in text and "50 steps" in text and text.count("\n") < 25
    assert "&lt;b&gt;reward" in markup and "<b>" not in markup and markup.count("<tr>") == 22


def test_a_table_without_pandas_says_so_and_with_it_is_a_frame(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadValue, match=r"pandas is not installed.*to_dict"):
        finished.metrics.to_pandas()

    class Frame:
        def __init__(self, rows: Any, columns: Any) -> None:
            self.rows, self.columns = rows, columns

        def set_index(self, name: str) -> tuple[Any, str]:
            return self, name

    monkeypatch.setitem(sys.modules, "pandas", type("pandas", (), {"DataFrame": Frame}))
    frame, index = finished.metrics.to_pandas()
    assert index == "step" and len(frame.rows) == STEPS and frame.columns == finished.metrics.columns


def test_evaluations_have_intervals_over_questions(finished):
    found = finished.evaluations
    assert list(found) == [0, 2, 4, 6, 8, 10, 12]
    first, middle = found[0], found[4]
    assert first.greedy and first.greedy.questions == 2 and first.sampled and first.sampled.samples == 1
    assert middle.greedy and middle.greedy.questions == 2 and middle.sampled and middle.sampled.samples == 2
    assert middle.greedy.value == middle.figures["greedy"] and middle.greedy.low <= middle.greedy.value
    assert first.figures == finished.figures["before"] | {k: None for k, v in first.figures.items() if v is None}
    assert "questions" in repr(found) and "<table>" in found._repr_html_()


def test_wilson_s_interval_by_hand():
    """p = 0, n = 10: (0, z^2 / (n + z^2)) with z = 1.96, 3.8415 / 13.8415 = 0.2775."""
    low, high = tables.wilson(0.0, 10)
    assert low == 0 and high == pytest.approx(0.2775, abs=1e-4)
    assert tables.wilson(1.0, 10) == pytest.approx((1 - 0.2775, 1.0), abs=1e-4)


def test_a_plot_is_a_figure_of_its_own(finished, tmp_path):
    figure = finished.plot()
    figure.savefig(tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000 and figure._repr_png_().startswith(b"\x89PNG")
    assert "Reward and accuracy" in [axis.get_title(loc="left") for axis in figure.axes]
    assert "held-out accuracy, sampled" in [t.get_text() for t in figure.axes[0].get_legend().get_texts()]


def test_a_plot_without_matplotlib_says_what_to_install(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BadValue, match=r"pip install 'selfteach\[plot\]'"):
        finished.plot()


# ---- rollouts


def test_rollouts_say_who_wrote_what_and_what_became_of_it(finished):
    shown = finished.rollouts(step=3)
    assert len(shown) == 16 and len({r.group for r in shown}) == 4
    one = shown[0]
    (path,) = one.paths
    assert [p.by for p in path.pieces] == ["prompt", "policy"] and path.pieces[0].text.startswith("say")
    assert one.text == path.pieces[1].text and one.reward == path.scores[0].value
    assert path.tokens > 0 and path.loss_stream == "main" and not path.dropped
    groups = {r.group: [x.advantage for x in shown if x.group == r.group] for r in shown}
    assert all(abs(np.mean(a)) < 1e-5 for a in groups.values() if None not in a)  # centred in each group
    assert f"reward {one.reward:.4g}" in str(one) and "advantage" in str(one) and one.id in repr(one)
    assert finished.rollouts(step=-1)[0].id == finished.rollouts(step=STEPS - 1)[0].id


@pytest.mark.parametrize("step", [12, -13, 99])
def test_a_step_that_was_not_logged_is_named(finished, step):
    with pytest.raises(BadValue, match=r"no rollouts of step .*it has steps 0 to 11"):
        finished.rollouts(step=step)


def path_record(**change: Any) -> rollouts.PathRecord:
    given: dict[str, Any] = {
        "role": "policy",
        "loss_stream": "main",
        "status": "stop",
        "pieces": (rollouts.Piece("prompt", "2 + 3"), rollouts.Piece("policy", "<b>5\x1b[2J", "think")),
        "scores": (rollouts.ScoreRecord("reward", 0.5, {"right": 1.0}, "because <i>", None),),
        "advantage": 0.25,
        "tokens": 4,
        "dropped": "",
    }
    return rollouts.PathRecord(**(given | change))


def rollout(**change: Any) -> rollouts.Rollout:
    return rollouts.Rollout("e", "g", "t", "2 + 3", None, "done", "", {}, (path_record(**change),))


def test_a_rollout_as_text_and_as_html_lets_nothing_through(capsys):
    text, markup = str(rollout()), rollout()._repr_html_()
    assert "policy [think]" in text and "\\x1b[2J" in text and "\x1b" not in text
    assert "score: reward 0.5 (right 1); because <i>" in text and "advantage 0.25, 4 tokens learned" in text
    assert "&lt;b&gt;5" in markup and "<b>5" not in markup and "because &lt;i&gt;" in markup and "\x1b" not in markup
    rollout().show()
    assert capsys.readouterr().out == text + "\n"
    assert "dropped: no advantage" in str(rollout(dropped="no advantage"))


def test_what_was_not_learned_says_why(mini_folder, tmp_path):
    """Rewards that are all alike: a filter drops each group, and the archive keeps its name as the reason."""
    method = registry.methods.get("dapo")(groups=2, rollouts=2)
    config = run_config_of(mini_folder, method, steps=1, max_unscored=1.0)
    selfteach.train(config, tmp_path / "run", progress=False)
    found = [p for r in selfteach.load(tmp_path / "run").rollouts(0) for p in r.paths]
    assert found and all((p.dropped and p.advantage is None) or p.advantage for p in found)
    assert any("drop" in p.dropped or "informative" in p.dropped or "advantage" in p.dropped for p in found)


@pytest.mark.parametrize(
    ("change", "score", "why"),
    [
        ({"learn": None}, 1.0, "never learned"),
        ({"learn": "main", "status": "error"}, None, "its program failed"),
        ({"learn": "main"}, None, "it has no reward"),
        ({"learn": "main"}, 1.0, "no composer took it"),
    ],
)
def test_why_no_example_was_made(change, score, why):
    from selfteach.core.task import Ref
    from selfteach.core.tree import Trajectory

    t = Trajectory(Ref("e", 0), "policy", "k", change["learn"])
    e = {"status": change.get("status", "done"), "why": "it raised"}
    assert why in rollouts.why_not_learned(e, t, [rollouts.ScoreRecord("reward", score, {})])


# ---- the policy


def test_generate_gives_texts_with_their_tokens(finished):
    policy = finished.policy
    texts = policy.generate("2 + 3 =", n=4, max_tokens=6, seed=1)
    assert len(texts) == 4 and all(isinstance(t, str) for t in texts)
    for text in texts:
        assert len(text.tokens) == len(text.logprobs) <= 6 and text.status in ("stop", "length")
        assert text == policy.tokenizer.decode(text.tokens) and (text.logprobs <= 0).all()
    assert policy.generate("2 + 3 =", n=4, max_tokens=6, seed=1) == texts  # the same seed
    assert policy.generate("2 + 3 =", n=4, max_tokens=6) != policy.generate("2 + 3 =", n=4, max_tokens=6)
    many = policy.generate(["2 + 3 =", [{"role": "user", "content": "say"}]], n=2, max_tokens=3, seed=1)
    assert [len(one) for one in many] == [2, 2]
    assert many[0] == policy.generate("2 + 3 =", n=2, max_tokens=3, seed=1)
    again = pickle.loads(pickle.dumps(texts[0]))
    assert again == texts[0] and again.status == texts[0].status and (again.tokens == texts[0].tokens).all()


def test_generate_samples_the_checkpoint_s_own_distribution(finished):
    """The log-probabilities are those of the model on disk after the same prompt, at its temperature."""
    text = finished.policy.generate("ab", temperature=0.7, max_tokens=5, seed=3)[0]
    model, tokenizer = files.load(finished.folder / "last")
    prompt = tokenizer.render("ab")
    ids = torch.tensor(np.concatenate([prompt, text.tokens]))[None].long()
    from selfteach.model.attention import causal_attention

    with torch.no_grad():
        logits = model.logits(model(ids, causal_attention))[0, len(prompt) - 1 : -1] / 0.7
    expected = logits.log_softmax(-1).gather(1, torch.tensor(text.tokens).long()[:, None])[:, 0]
    np.testing.assert_allclose(text.logprobs, expected.numpy(), atol=1e-4)


def test_a_direction_of_hidden_states_is_read_and_added(finished):
    policy = finished.policy
    one, other = (policy.residuals("2 + 3 =", text) for text in (" 5", " 2 + 3 = 5"))
    assert one.shape == other.shape == (policy.model.model.config.layers, policy.model.model.config.width)
    given = {"max_tokens": 8, "seed": 1}
    plain = policy.generate("2 + 3 =", **given)
    assert policy.generate("2 + 3 =", steering=Steering(0, 0 * one[0]), **given) == plain
    assert policy.generate("2 + 3 =", steering=Steering(0, 40 * (one - other)[0]), **given) != plain
    with pytest.raises(BadValue, match="residuals: the text is empty"):
        policy.residuals("2 + 3 =", "")


def test_a_policy_is_kept_until_it_is_closed(finished):
    policy = finished.policy
    policy.generate("a", max_tokens=1)
    engine = policy._engine
    assert engine is not None and finished.policy is policy and policy._loaded() is engine
    with policy:
        policy.generate("a", max_tokens=1)
        assert policy._engine is engine
    assert policy._engine is None and policy.generate("a", max_tokens=1)


def test_generate_works_inside_an_event_loop(finished):
    plain = finished.policy.generate("ab", n=2, max_tokens=4, seed=5)

    async def inside() -> Any:
        return finished.policy.generate("ab", n=2, max_tokens=4, seed=5)

    assert asyncio.run(inside()) == plain


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"prompts": "a" * 500}, "prompt 0 has 500 tokens, and the context has"),
        ({"prompts": ["a", ""]}, "prompt 1 is empty"),
        ({"prompts": 3}, "text, messages or a list of these, not int"),
        ({"prompts": "a", "n": 0}, "n must be at least 1"),
        ({"prompts": "a", "temperature": -1.0}, "temperature must be at least 0"),
        ({"prompts": ["a", 3]}, "prompt: "),
    ],
)
def test_what_cannot_be_generated_is_one_line(finished, given, line):
    with pytest.raises(BadValue, match=line):
        finished.policy.generate(**given)


def test_a_saved_policy_is_a_model_that_a_run_starts_from(finished, tmp_path):
    saved = finished.save(tmp_path / "saved")
    assert finished.policy.generate("ab", max_tokens=4, seed=2) == finished.policy.generate("ab", max_tokens=4, seed=2)
    model, _ = files.load(saved)
    trained, _ = files.load(finished.folder / "last")
    own = trained.named_tensors()
    assert all(torch.equal(t, own[n]) for n, t in model.named_tensors().items())
    with pytest.raises(BadValue, match="not empty"):
        finished.save(saved)
    assert carry_out(run_config_of(saved, steps=1), tmp_path / "next").done


# ---- load and resume


def test_a_loaded_run_is_the_same_run(finished, copied):
    assert copied.done and copied.figures == json.loads((finished.folder / "figures.json").read_text())
    assert list(copied.metrics) == list(finished.metrics) and copied.steps_done == STEPS
    assert "done after 12 steps" in repr(copied) and "greedy" in repr(copied)
    greedy = [api.evaluate(run) for run in (finished, copied.folder)]
    assert greedy[0]["greedy"] == greedy[1]["greedy"] == finished.figures["after"]["greedy"]


@pytest.mark.parametrize("lora_rank", [None, 4])
@pytest.mark.parametrize(("method", "group"), [("rest_mcts", "vm"), ("s3", "generator")])
def test_what_a_run_is_measured_with_besides_its_policy_is_as_it_left_it(
    method, group, lora_rank, small_start, tmp_path, monkeypatch
):
    """A value model that it trained, and a generator that stays what the policy was at first."""
    job, found = short_job(method, small_start), list[dict[str, Any]]()

    async def note(session, *_):
        found.append({g: session.loop.learner.weights(g) for g in ("policy", group)})
        return {}

    monkeypatch.setattr(evaluation, "final_eval", note)
    monkeypatch.setattr(training, "final_eval", note)
    run = api.train(replace(job, settings=replace(job.settings, lora_rank=lora_rank)), tmp_path / "run", progress=False)
    api.evaluate(run)
    left, measured = (groups_as_arrays(weights) for weights in found[-2:])
    assert left.keys() == measured.keys()
    assert all(np.array_equal(left[name], measured[name]) for name in left)
    assert any(not np.array_equal(left[n], left[n.replace("policy", group, 1)]) for n in left if "head" not in n)


def groups_as_arrays(weights: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of several groups, by `group.tensor`."""
    return {f"{g}.{n}": np.array(t) for g, tensors in weights.items() for n, t in tensors.items()}


@pytest.mark.parametrize("make", [selfteach.load, selfteach.resume])
def test_a_folder_without_a_run_is_one_line(make, tmp_path, mini_folder):
    with pytest.raises(BadValue, match="holds no run"):
        make(tmp_path)
    with pytest.raises(SelfteachError, match=r"holds no run|config.json"):
        make(mini_folder)  # a model has a config.json too


def test_resuming_a_finished_run_with_the_same_steps_changes_nothing(copied):
    def contents() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(copied.folder.rglob("*")) if p.is_file()}

    before = contents()
    for again in (copied.resume(progress=False), copied.resume(steps=STEPS, progress=False)):
        assert again.done and again.figures == copied.figures
    assert contents() == before


def test_more_steps_go_on_as_if_the_run_had_been_longer(copied, mini_folder, tmp_path):
    longer = copied.resume(steps=STEPS + 4, progress=False)
    assert longer.done and len(longer.metrics) == STEPS + 4 and longer.figures["steps"] == STEPS + 4
    assert list(longer.evaluations)[-4:] == [10, 12, 14, 16]  # that at the end of the shorter run is kept
    whole = api.train(run_config_of(mini_folder, eval_samples=2, steps=STEPS + 4), tmp_path / "whole", progress=False)
    assert files.load_weights(longer.folder / "last", files.load(whole.folder / "last")[0]).keys()
    a, b = (files.load(run.folder / "last")[0].named_tensors() for run in (longer, whole))
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert copied.metrics["step"] == list(range(STEPS + 4))  # an object of before sees the folder as it is
    assert copied.policy.folder.name == f"{STEPS + 4:06d}"


def test_fewer_steps_than_done_are_refused(copied):
    with pytest.raises(BadValue, match=r"steps=3, and .* has 12 behind it"):
        copied.resume(steps=3)
    assert selfteach.load(copied.folder).done


def test_a_run_without_a_checkpoint_says_what_to_do(copied):
    shutil.rmtree(copied.folder / "checkpoints")
    (copied.folder / "last").unlink()
    (copied.folder / "figures.json").unlink()
    run = selfteach.load(copied.folder)
    assert not run.done and run.steps_done == 0 and "not finished" in repr(run)
    for ask in (lambda: run.policy.generate("a"), lambda: run.save("x"), lambda: run.rollouts(0)):
        with pytest.raises(BadValue, match="has no checkpoint yet"):
            ask()


def test_looking_at_a_run_runs_none_of_its_code(copied, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr(registry, "load_file", refuse)
    monkeypatch.setattr(builtins, "exec", refuse)
    run = selfteach.load(copied.folder)
    assert run.metrics and run.evaluations and run.rollouts(0) and run.policy.generate("a", max_tokens=1)


def test_a_copy_without_links_knows_its_steps(copied):
    newest = (copied.folder / "last").resolve()
    (copied.folder / "last").unlink()
    shutil.copytree(newest, copied.folder / "last")
    assert copied.steps_done == STEPS
    (copied.folder / "last" / "state.json").write_text("[]")
    with pytest.raises(SelfteachError, match=r"state\.json: broken"):
        _ = copied.steps_done


def test_a_run_that_was_stopped_goes_on(mini_folder, tmp_path):
    config = run_config_of(mini_folder)

    class Enough(Exception):
        pass

    def die(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 5:
            raise Enough

    with pytest.raises(Enough):
        api.train(config, tmp_path / "cut", die, progress=False)
    run = selfteach.load(Path(tmp_path / "cut"))
    assert not run.done and run.steps_done == 5 and run.figures["before"]
    assert run.resume(progress=False).done
    api.train(config, tmp_path / "whole", progress=False)
    same_run(tmp_path / "cut", tmp_path / "whole")
    with pytest.raises(SelfteachError):
        api.train(config, tmp_path / "whole", progress=False)
