"""Settings and hyper-parameters: every name sets what it says or is refused, and one definition serves all."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from selfteach import configuration
from selfteach.commands import train
from selfteach.commands.common import plan_arguments
from selfteach.configuration import RunConfig, plan, task_source
from selfteach.core import BadValue, UnknownName, method, registry
from selfteach.core.settings import setting, settings
from selfteach.learner import LearnerSettings as LearnerSettings
from selfteach.loop.settings import (
    SETTING_GROUPS,
    SETTING_NAMES,
    RunSettings,
    group_settings,
    option_name,
    split_settings,
)
from selfteach.methods import m2po

ADAPTERS = {"lora_rank": 4, "lora_alpha": 9.0, "lora_targets": ("q_proj",), "lora_dropout": 0.25, "lora_rslora": True}


def another(kind: Any, value: Any) -> Any:
    """A value of a setting's kind that is not its default."""
    if get_origin(kind) is Literal:
        return next(choice for choice in get_args(kind) if choice != value)
    if isinstance(value, bool):
        return not value
    if value == ():
        return ("one", "two")
    if value is None and str in get_args(kind):
        return "cpu"
    return (
        7 if value is None else "cpu" if isinstance(value, str) else (0.5, 0.75) if value == (0.9, 0.95) else value + 1
    )


def others() -> dict[str, Any]:
    """Every setting by its flat name with another value than its default; but for `adapter`, which excludes lora_...,
    and `cluster_file`, which sets others.
    """
    out: dict[str, Any] = {}
    for prefix, cls in SETTING_GROUPS.values():
        kinds = get_type_hints(cls)
        for f in fields(cls):
            if f.name not in ADAPTERS and f.name not in ("adapter", "cluster_file"):
                out[prefix + f.name] = another(kinds[f.name], f.default)
    return out | ADAPTERS | {"threads": 3}  # one thread is what the tests have


def flat(run_config: RunConfig) -> dict[str, Any]:
    return {
        prefix + k: v for g, (prefix, _) in SETTING_GROUPS.items() for k, v in asdict(getattr(run_config, g)).items()
    }


SOURCE = task_source("chain_sum", {})
ENTRIES = dict(registry.methods.items())
SHARED = [
    (name, word) for name, entry in ENTRIES.items() for word in sorted(entry.hyper_parameters.keys() & SETTING_NAMES)
]


@pytest.fixture(autouse=True)
def one_source(monkeypatch: pytest.MonkeyPatch):
    """The task is the same in every plan here, and is built once."""
    monkeypatch.setattr(configuration, "task_source", lambda task, hyper_parameters: SOURCE)


def test_every_setting_sets_itself_and_nothing_else():
    base = flat(plan("grpo", "chain_sum"))
    wanted = others()
    assert all(base[name] != value for name, value in wanted.items())
    assert flat(plan("grpo", "chain_sum", settings=wanted)) == {**base, **wanted}
    assert flat(plan("grpo", "chain_sum", **wanted)) == {**base, **wanted}
    for name, value in others().items():
        if name != "lr" and name not in ADAPTERS:
            assert flat(plan("grpo", "chain_sum", settings={name: value})) == {**base, name: value}


@pytest.mark.parametrize("name", ENTRIES)
def test_every_hyper_parameter_sets_itself_and_nothing_else(name: str):
    entry = ENTRIES[name]
    args = {word: p.default for word, p in entry.hyper_parameters.items()}
    bare = {word: value for word, value in args.items() if word not in SETTING_NAMES}
    base = flat(plan(name, "chain_sum"))
    run_config = plan(name, "chain_sum", **bare)
    assert run_config.method.args == bare and flat(run_config) == base
    run_config = plan(name, "chain_sum", args=args)
    assert run_config.method.args == args and flat(run_config) == base
    # the command line, with every option that is not shared, then with every one by its long name
    own = [w for word in bare for w in (option_name(word), "x")]
    run = [w for word in SETTING_NAMES if word not in args for w in (option_name(word), "x")]
    parser = train.parser(entry).untyped()
    got = split_settings(entry, *_words(parser.read([*own, *run]), entry))
    assert set(got[0]) == set(bare) and set(got[1]) == set(SETTING_NAMES) - set(args)
    long = [w for word in args for w in (option_name(word, "method"), "x")]
    long += [w for word in SETTING_NAMES for w in (option_name(word, "run"), "x")]
    got = split_settings(entry, *_words(parser.read(long), entry))
    assert set(got[0]) == set(args) and set(got[1]) == set(SETTING_NAMES)


def _words(given: Any, entry: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    words = plan_arguments(vars(given), entry)
    return {k: v for k, v in words.items() if k not in ("args", "settings")}, words["args"], words["settings"]


def test_some_names_are_shared():
    assert {("m2po", "budget"), ("ttrl", "keep"), ("guide", "steps")} <= set(SHARED)


@pytest.mark.parametrize(("name", "word"), SHARED)
def test_a_name_that_both_have_is_refused_with_both_meanings(name: str, word: str):
    entry = ENTRIES[name]
    for value in (1, 0.04):
        with pytest.raises(
            BadValue, match=rf"^{word}: both a hyper-parameter of {name} and a setting of the run"
        ) as bad:
            plan(name, "chain_sum", **{word: value})
        assert f"args={{'{word}': ...}} or settings={{'{word}': ...}}" in str(bad.value)
    value = others()[word]
    run_config = plan(name, "chain_sum", settings={word: value})
    assert run_config.method.args == {} and flat(run_config)[word] == value
    default = entry.hyper_parameters[word].default
    run_config = plan(name, "chain_sum", args={word: default}, settings={word: value})
    assert run_config.method.args == {word: default} and flat(run_config)[word] == value


def test_a_method_as_a_value_leaves_the_names_to_the_run():
    run_config = plan(m2po(budget=0.5), "chain_sum", settings={"budget": 1000})
    assert run_config.method.args == {"budget": 0.5} and run_config.settings.budget == 1000
    assert plan(m2po, "chain_sum", low=0.5).method.args == {"low": 0.5}
    with pytest.raises(BadValue, match="has its hyper-parameters already"):
        plan(m2po(), "chain_sum", args={"budget": 0.5})
    with pytest.raises(UnknownName, match="no setting is called 'low'"):
        plan(m2po(), "chain_sum", low=0.5)


def test_names_that_nobody_has_and_names_given_twice_are_refused():
    with pytest.raises(
        UnknownName, match="no setting or hyper-parameter of grpo is called 'rollout'; did you mean rollouts"
    ):
        plan("grpo", "chain_sum", rollout=3)
    with pytest.raises(UnknownName, match="no setting is called 'clip'"):
        plan("grpo", "chain_sum", settings={"clip": 3})
    with pytest.raises(UnknownName, match="no hyper-parameter of grpo is called 'lr'"):
        plan("grpo", "chain_sum", args={"lr": 3})
    with pytest.raises(UnknownName, match="no setting is called 'rollouts'"):
        plan("grpo", "chain_sum").override(rollouts=3)
    with pytest.raises(BadValue, match="lr: given twice"):
        plan("grpo", "chain_sum", settings={"lr": 1e-3}, lr=1e-4)
    with pytest.raises(BadValue, match="'task' is an argument of every run"):
        method("objective")(lambda task="x": None)  # type: ignore[arg-type,return-value]


def test_a_learner_setting_is_an_option_of_a_run_by_its_definition_alone():
    assert {f.name for f in fields(LearnerSettings)} <= SETTING_NAMES.keys()
    text = train.parser().format_help()
    assert all(option_name(name) in text for name in SETTING_NAMES)


@settings
class Example:
    """An example."""

    rate: float = setting(0.5, "how fast", above=0)
    kind: Literal["a", "b"] = setting("a", "which")
    count: int | None = setting(None, "how many", least=2)


def test_a_field_brings_its_help_and_its_checks():
    assert (
        Example.__doc__ == "An example.\n\nrate   how fast (default: 0.5)\nkind   which (default: a)\ncount  how many"
    )
    for given, words in (
        ({"rate": 0.0}, "rate: must be above 0, not 0.0"),
        ({"rate": float("nan")}, "rate: must be a finite number, not nan"),
        ({"kind": "c"}, "kind: must be one of a, b, not 'c'"),
        ({"count": 1}, "count: must be at least 2, not 1"),
    ):
        with pytest.raises(BadValue, match=words):
            Example(**given)
    assert Example(count=2).count == 2


def test_flat_names_are_grouped():
    assert group_settings({"lr": 1.0, "warm_lr": 2.0, "final_eval_k": 3}) == {
        "settings": {"lr": 1.0},
        "warm": {"lr": 2.0},
        "final_eval": {"k": 3},
    }
    with pytest.raises(UnknownName, match="did you mean warm_lr"):
        group_settings({"warmlr": 1.0})


def test_settings_without_adapters():
    assert RunSettings(lr=1e-4, **ADAPTERS).full() == RunSettings(lr=1e-4)


@pytest.mark.parametrize("name", [f.name for f in fields(RunSettings)])
def test_no_setting_takes_a_value_of_another_kind_or_one_that_is_not_finite(name: str):
    nonsense = [object(), b"x", lambda: 0, float("nan"), float("inf"), -float("inf"), complex(1)]
    for value in nonsense:
        with pytest.raises(BadValue, match=f"^{name}: must be "):
            RunSettings(**{name: value})
    default = getattr(RunSettings(), name)
    if isinstance(default, int) and not isinstance(default, bool):
        for value in (True, 1.5, "3"):
            with pytest.raises(BadValue, match=f"^{name}: must be "):
                RunSettings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("lr", float("inf"), "lr: must be a finite number, not inf"),
        ("grad_clip", float("nan"), "grad_clip: must be a finite number, not nan"),
        ("threads", 100_000, "threads: must be at most 1024, not 100000"),
        ("adam_betas", (0.9, 1.0), "adam_betas: must be at most 0.999999, not 1.0"),
        ("adam_betas", (0.9,), "adam_betas: must be a tuple of finite numbers, not (0.9,)"),
        ("checkpoint_every", 0, "checkpoint_every: must be at least 1, not 0"),
        ("keep", -1, "keep: must be at least 1, not -1"),
        ("budget", 0, "budget: must be at least 1, not 0"),
        ("decay", "step", "decay: must be one of constant, linear, cosine, not 'step'"),
    ],
)
def test_a_setting_out_of_range_says_what_it_must_be(name: str, value: Any, says: str):
    with pytest.raises(BadValue) as caught:
        RunSettings(**{name: value})
    assert str(caught.value) == says
