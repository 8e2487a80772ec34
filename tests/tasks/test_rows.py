"""A user's own rows: read in every form, split, checked before any work, learned from, and found again."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfteach import RunSettings, api, methods
from selfteach.cli import main
from selfteach.configuration import RunConfig, plan, run_config_of, task_source
from selfteach.core import BadValue, Task, TaskSource
from selfteach.loop.assemble import with_chat_prompts
from selfteach.tasks import row_files
from selfteach.tasks.rows import held_out

PYARROW = "needs the extra selfteach[data]"
TALK = [{"role": "user", "content": "2 + 2?"}]
SAID = {"role": "assistant", "content": "4"}
REWARDS = """
def yes(completions, level, **kwargs):
    return [float("yes" in c) for c in completions]

def brief(text):
    return 1.0 / (1 + len(text))

def short(completions, **kwargs):
    return [1.0]

def hard(completions, difficulty, **kwargs):
    return [0.0 for c in completions]
"""


def some_rows(n: int = 40) -> list[dict[str, Any]]:
    return [{"prompt": f"question {i}?", "answer": str(i % 5), "level": i % 3} for i in range(n)]


def words_to_say(n: int = 60) -> list[dict[str, Any]]:
    """Demonstrations that say yes as often as no."""
    return [{"prompt": f"say {i}: ", "completion": f"<answer> {'yes' if i % 2 else 'no'}</answer>", "level": i % 3}
            for i in range(n)]  # fmt: skip


def write(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def source_of(train: Any = None, test: Any = None, **options: Any) -> TaskSource:
    return task_source(
        "rows",
        plan("sft" if options.pop("sft", False) else "grpo", train=train, test=test, task_options=options).task_options,
    )


def drawn(source: TaskSource, n: int) -> list[Task]:
    return [source.train(i) for i in range(n)]


# ---- forms of rows


def test_every_kind_of_file_and_of_rows_gives_the_same_tasks(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow", reason=PYARROW), pytest.importorskip("pyarrow.parquet")
    pandas = pytest.importorskip("pandas")
    rows = some_rows()
    table = pyarrow.Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "d.parquet")
    (tmp_path / "d.json").write_text(json.dumps(rows))
    given = [write(tmp_path / "d.jsonl", rows), tmp_path / "d.parquet", str(tmp_path / "d.json"), rows, table]
    found = [source_of(one) for one in [*given, pandas.DataFrame(rows)]]
    want = [(t.prompt, t.answer, t.tags["level"]) for t in drawn(found[0], 36)]
    assert all([(t.prompt, t.answer, t.tags["level"]) for t in drawn(s, 36)] == want for s in found)
    pandas.DataFrame(rows).to_csv(tmp_path / "d.csv", index=False)
    assert [(t.prompt, t.answer) for t in drawn(source_of(tmp_path / "d.csv"), 36)] == [w[:2] for w in want]


def test_a_dataset_of_hugging_face_is_told_by_what_it_can() -> None:
    class Dataset(list):  # what rows need of one
        def cast_column(self) -> None: ...
        def to_dict(self) -> dict[str, Any]:
            raise AssertionError("columns, not rows")

    assert len(source_of(Dataset(some_rows())).test) == 4
    with pytest.raises(BadValue, match="is a mapping of train, test; give one of them"):
        source_of({"train": some_rows(), "test": []})
    with pytest.raises(BadValue, match=r"not generator; of what is streamed give list\(...\)"):
        source_of(r for r in some_rows())


def test_values_that_json_lacks_are_written_or_refused(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{i}", "answer": np.int64(i), "x": np.array([1.5, 2]), "nan": float("nan")} for i in range(4)]
    tags = source_of(rows).train(0).tags
    assert tags["x"] == [1.5, 2.0] and tags["nan"] is None
    with pytest.raises(BadValue, match="train rows, row 1: holds a bytes"):
        source_of([{"prompt": "q", "picture": b"x"}])


CALLED = [
    {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "3"},
    {"role": "assistant", "content": "It is 3."},
]
FORMS: list[tuple[dict[str, Any], Any, Any, tuple[Any, ...]]] = [
    ({"prompt": "q", "answer": 4}, "q", 4, ()),
    ({"messages": TALK, "answer": ["4", "four"]}, TALK, ["4", "four"], ()),
    ({"messages": [*TALK, SAID]}, TALK, None, ("4",)),
    ({"prompt": "q", "completion": "c"}, "q", None, ("c",)),
    ({"prompt": TALK, "completion": [SAID]}, TALK, None, ("4",)),
    ({"prompt": "q", "chosen": "a", "rejected": "b"}, "q", None, ("a", "b")),
    ({"chosen": [*TALK, SAID], "rejected": [*TALK, {**SAID, "content": "5"}]}, TALK, None, ("4", "5")),
    ({"prompt": "q", "chosen": [SAID], "rejected": [{**SAID, "content": "5"}]}, "q", None, ("4", "5")),
    ({"prompt": "q", "completion": CALLED}, "q", None,
     ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call><tool_response>3</tool_response>It is 3.',)),
    (
        {"data_source": "gsm8k", "prompt": TALK, "ability": "math", "extra_info": {"index": 1},
         "reward_model": {"style": "rule", "ground_truth": "4"}},
        TALK, "4", (),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "prompt", "answer", "data"), FORMS, ids=lambda v: "-".join(v) if isinstance(v, dict) else ""
)
def test_the_forms_of_rows(row: dict[str, Any], prompt: Any, answer: Any, data: tuple[Any, ...]) -> None:
    task = source_of(test=[row], sft=True).test[0]
    assert (task.prompt, task.answer, task.data) == (prompt, answer, data)
    assert task.tags["prompt"] == prompt and all(task.tags[k] == v for k, v in row.items())


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt", "data"),
    [
        # what TRL's extract_prompt finds, cut at the beginning of a word
        ("The sky is blue.", "The sky is black.", "The sky is ", ("blue.", "black.")),
        # hh-rlhf: both answers may begin with the same words
        ("\n\nHuman: Hi\n\nAssistant: I am well.", "\n\nHuman: Hi\n\nAssistant: I am ill.",
         "\n\nHuman: Hi\n\nAssistant:", (" I am well.", " I am ill.")),
    ],
)  # fmt: skip
def test_a_pair_may_have_its_prompt_within(chosen: str, rejected: str, prompt: str, data: tuple[str, str]) -> None:
    task = source_of(test=[{"chosen": chosen, "rejected": rejected}], sft=True).test[0]
    assert task.prompt == prompt and task.data == data


PAIR = {"prompt": "q", "chosen": "a", "rejected": "b"}


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({**PAIR, "rejected": None}, "row 2: has no rejected beside its chosen"),
        ({"prompt": "q", "rejected": "b"}, "row 2: has no chosen beside its rejected"),
        ({**PAIR, "chosen": " "}, "row 2: its chosen is empty"),
        ({**PAIR, "rejected": ""}, "row 2: its rejected is empty"),
        ({**PAIR, "rejected": 3}, "row 2: its rejected is a int, not text or messages"),
        ({"chosen": "a", "rejected": "b"}, "row 2: has a preference pair as text, no column prompt, and nothing that"),
        ({"chosen": [*TALK, SAID], "rejected": [{"role": "user", "content": "x"}, SAID]}, "row 2: its chosen and"),
    ],
)
def test_a_malformed_pair_is_refused_with_its_row(row: dict[str, Any], line: str) -> None:
    with pytest.raises(BadValue, match=line):
        source_of([PAIR, row], sft=True)


def test_pairs_of_one_answer_are_left_out_and_said() -> None:
    rows = [{**PAIR, "prompt": f"q{i}", "rejected": "a" if i % 3 == 0 else "b"} for i in range(30)]
    source = source_of(rows, sft=True)
    assert source.pairs is not None and source.about["pairs left out, their answers are the same"] == 10
    assert all(source.pairs(i).data == ("a", "b") for i in range(60))
    assert source.about["preference pairs"] == len({source.pairs(i).id for i in range(60)}) <= 20


@pytest.mark.parametrize(
    "column,answers,words",
    [
        ("golden_answers", [["Lyon", "city of Lyon"], ["the Po"], ["1998"]], True),
        ("answer", ["Lyon", "yes", "the 1990s"], True),
        ("answer", ["7", "1,200", "Lyon"], False),  # most are numbers
        ("answer", ["so 2 + 2 = 4\n#### 4"] * 3, False),
        ("answer", ["print(x); y = 2"] * 3, False),
        ("answer", ["A", "B", "C"], False),  # letters of options
    ],
)
def test_answers_in_words_are_those_of_question_answering_sets(column: str, answers: list[Any], words: bool) -> None:
    rows = [{"question": f"q{n}?", column: answer} for n, answer in enumerate(answers)]
    assert source_of(test=rows).defaults["words"] is words
    others = [{"prompt": row["question"], column: row[column]} for row in rows]  # no set of questions, unless it lists
    assert source_of(test=others).defaults["words"] is (words and column == "golden_answers")


def test_columns_are_named_by_options() -> None:
    rows = [{"asked": f"q{i}", "result": i, "worked": f"w{i}"} for i in range(9)]
    source = source_of(rows, prompt="asked", answer="result", completion="worked")
    task = source.train(0)
    assert task.prompt == f"q{task.answer}" and task.data == (f"w{task.answer}",) and source.demos is not None
    with pytest.raises(
        BadValue, match=r"row 1: has no column prompt, messages or question; its columns are asked, result, worked"
    ):
        source_of(rows)


def test_messages_are_text_for_a_model_without_a_template(letters: Any) -> None:
    talk = [{"role": "system", "content": "Be brief."}, *TALK]
    source = source_of(test=[{"prompt": TALK, "answer": "4"}, {"prompt": talk, "answer": "4"}])
    assert [t.prompt for t in with_chat_prompts(source, letters).test] == [
        "2 + 2?",
        "system: Be brief.\nuser: 2 + 2?\nassistant: ",
    ]


# ---- the split


def test_the_split_is_fixed_and_by_what_a_prompt_says(tmp_path: Path) -> None:
    rows = some_rows(100)
    source, again = source_of(rows), source_of(rows[::-1])
    assert {t.prompt for t in source.test} == {t.prompt for t in again.test} and len(source.test) == 10
    more = source_of([*rows, *({"prompt": f"new {i}", "answer": "1"} for i in range(5))])
    assert len({t.prompt for t in more.test} & {t.prompt for t in source.test}) >= 8
    other = source_of(rows, seed=1)
    assert {t.prompt for t in other.test} != {t.prompt for t in source.test}
    assert not {t.prompt for t in source.test} & {t.prompt for t in drawn(source, 300)}
    assert len({t.prompt for t in drawn(source, 90)}) == 90  # each once in a pass
    assert len(source_of(rows, test_share=0.5, n_test=7).test) == 7
    assert source.about["test"] == "0.1 of the prompts, by a hash of what they say (seed 0)"


def test_rows_of_one_prompt_are_on_one_side() -> None:
    prompts = np.repeat(np.arange(10, dtype=np.uint64), 3)
    out = held_out(prompts, 0.3, 0, 9)
    assert out.sum() == 9 and all(len(set(out[prompts == p].tolist())) == 1 for p in range(10))
    assert held_out(np.arange(2, dtype=np.uint64), 1.0, 0, 9).sum() == 1
    assert held_out(np.arange(90, dtype=np.uint64), 0.5, 0, 9).sum() == 9


def test_overlap_is_dropped_from_training_and_duplicates_are_counted() -> None:
    rows = some_rows(10)
    source = source_of([*rows, rows[0]], rows[:3])
    assert source.about["training rows dropped, their prompt is in the test"] == 4
    assert source.about["training rows"] == 7 and source.about["duplicates in train"] == 1
    assert not {t.prompt for t in source.test} & {t.prompt for t in drawn(source, 20)}
    with pytest.raises(BadValue, match="every training prompt is in the test rows too"):
        source_of(rows, rows)


def test_prompts_longer_than_the_context_are_counted_and_dropped() -> None:
    rows = [*some_rows(20), {"prompt": "word " * 300, "answer": "1"}]
    source = source_of(rows, some_rows(30)[20:])
    assert source.within is not None
    short = source.within(400, lambda prompt: len(str(prompt)))
    assert short.about["training rows dropped, longer than the context"] == 1 and short.about["training rows"] == 20
    assert all(len(short.train(i).prompt) < 400 for i in range(40))
    with pytest.raises(BadValue, match="no training row has a prompt of at most 2 tokens"):
        source.within(2, lambda prompt: len(str(prompt)))


def test_an_edit_that_the_first_demonstrations_do_not_show_makes_another_warm_start() -> None:
    rows = words_to_say()
    assert (
        source_of(rows, sft=True).content != source_of([*rows[:-1], {**rows[-1], "completion": "x"}], sft=True).content
    )


# ---- bad input, from the shell


BAD: list[tuple[str, str, str]] = [
    ('{"prompt": "a"}\n{"prompt": \n', "", "d.jsonl, line 2: not JSON"),
    ('{"prompt": "a"}\n[1]\n', "", "d.jsonl, line 2: is a list, not an object"),
    ("", "", "d.jsonl: holds no rows"),
    ('{"asked": "a"}\n', "", "d.jsonl, row 1: has no column prompt, messages or question; its columns are asked"),
    ('{"prompt": "a", "answer": 1}\n{"answer": 1}\n', "", "d.jsonl, row 2: has no column prompt, messages or question"),
    ('{"prompt": " "}\n', "", "row 1: its prompt is empty"),
    ('{"prompt": 7}\n', "", "row 1: its prompt is a int, not text or messages"),
    ('{"prompt": [{"role": "user"}]}\n', "", "message 1 of its prompt is no {'role': ..., 'content': ...}"),
    ('{"prompt": "a", "answer": 1}\n', "", "d.jsonl: has one prompt, and a test needs another"),
    ("GOOD", "--data nowhere.jsonl", "train: nowhere.jsonl: no such file"),
    ("GOOD", "--data d.txt", "rows are read from .jsonl, .ndjson, .json, .csv, .parquet, not .txt"),
    ("GOOD", "--data d.jsonl --task chain_sum", "--data: holds the rows, so --task chain_sum cannot go with it"),
    ("GOOD", "--data d.jsonl --set promt=x", "no option of task rows is called 'promt'; did you mean prompt"),
    (
        "GOOD",
        "--data d.jsonl --test-data d.jsonl --test-share 0.2",
        "test_share: is of training rows without test rows",
    ),
    ("GOOD", "--data d.jsonl --reward r.py:nothing", "r.py: defines no nothing; its functions are"),
    ("GOOD", "--data d.jsonl --reward r.py", "reward 'r.py': is no FILE.py:NAME"),
    ("GOOD", "--data d.jsonl --reward r.py:yes=much", "the weight 'much' is no number"),
    (
        "GOOD",
        "--data d.jsonl --reward r.py:hard",
        "names the column difficulty, and the rows have prompt, answer, level",
    ),
    ("GOOD", "--data d.jsonl --reward r.py:short", "returned 1 values for 2 completions"),
    ("GOOD", "--data d.jsonl --top-p 0.9", "top_p: method grpo computes logp again for what was sampled"),
    ("GOOD", "--data d.jsonl --temperature 0", "temperature: 0 is greedy"),
    ("NO ANSWERS", "", "its rows have no answers, and method grpo is rewarded for them; give a reward"),
    ("PAIRS", "", "of preference pairs `dpo` learns, and sft of the chosen ones"),
]


@pytest.mark.parametrize(("text", "words", "message"), BAD, ids=[b[2][:40] for b in BAD])
def test_bad_input_is_one_line_before_any_work(
    text: str,
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.py").write_text(REWARDS)
    (tmp_path / "d.txt").write_text("x")
    good = {"GOOD": some_rows(), "NO ANSWERS": [{"prompt": f"q{i}"} for i in range(5)],
            "PAIRS": [{"prompt": f"q{i}", "chosen": "a", "rejected": "b"} for i in range(5)]}  # fmt: skip
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(r) + "\n" for r in good[text]) if text in good else text)
    code = main(["train", "grpo", "--model", "tiny-s", "--warm-steps", "0", *(words or "--data d.jsonl").split()])
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("selfteach")]
    assert code == 2 and len(errors) == 1 and message in errors[0], captured.err
    assert "Traceback" not in captured.err and not captured.out
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_broken_files_of_other_kinds_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.csv").write_text("prompt,answer\nwhat, is this,4\n")
    (tmp_path / "d.json").write_text('{"prompt": "a"}')
    with pytest.raises(BadValue, match=r"d.csv, line 2: has more values than the 2 columns"):
        source_of(tmp_path / "d.csv")
    with pytest.raises(BadValue, match=r"d.json: is one dict, not a list of rows"):
        source_of(tmp_path / "d.json")
    monkeypatch.setattr(row_files, "WHOLE", 10)
    with pytest.raises(BadValue, match=r"is read up to 0.0 GB; write it as JSONL or Parquet"):
        source_of(write(tmp_path / "e.json", some_rows()))


def test_a_broken_parquet_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason=PYARROW)
    (tmp_path / "d.parquet").write_text("no")
    with pytest.raises(BadValue, match=r"d.parquet: not a Parquet file that can be read"):
        source_of(tmp_path / "d.parquet")


def test_rows_are_read_line_by_line(tmp_path: Path) -> None:
    """Of an indexed file nothing is held but the places of its lines."""
    rows = row_files.IndexedRows(write(tmp_path / "d.jsonl", some_rows(50)), "d.jsonl", lambda i, row, line: None)
    assert len(rows) == 50 and rows[49]["prompt"] == "question 49?" and len(list(rows)) == 50
    held = {k: v for k, v in vars(rows).items() if isinstance(v, np.ndarray)}
    assert sum(a.nbytes for a in held.values()) == 8 * (51 + 50)


# ---- settings and sampling


def test_settings_are_those_that_a_run_settings_was_made_with() -> None:
    made = plan("grpo", train=some_rows(), settings=RunSettings(lr=3e-5, steps=7)).settings
    assert (made.lr, made.steps) == (3e-5, 7) and RunSettings(lr=1.0).given == ("lr",)
    assert plan("grpo", "chain_sum", settings=RunSettings(steps=7)).settings.lr == 1e-4  # the task's suggestion
    with pytest.raises(BadValue, match="settings: a RunSettings or a dict of settings, not int"):
        plan("grpo", train=some_rows(), settings=3)  # type: ignore[arg-type]


def test_temperature_is_that_of_methods_which_do_not_state_their_own() -> None:
    assert plan("grpo", "chain_sum", temperature=0.8).method.stage.sampling.temperature == 0.8
    assert plan("ttrl", "chain_sum", temperature=0.7).method.args == {"temperature": 0.7}
    for name in ("rlsc", "sft"):
        with pytest.raises(BadValue, match="leave temperature out"):
            plan(getattr(methods, name)(), "chain_sum", temperature=0.8)


def test_a_reward_takes_the_place_of_exact_match_or_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine_r.py").write_text(REWARDS)
    made = plan("ssrl", "factworld", reward=f"{tmp_path}/mine_r.py:brief")
    assert "function_reward(function='mine_r.py:brief')" in str(made.method) and made.reward is not None
    with pytest.raises(BadValue, match="method spo: has no reward exact_match"):
        plan("spo", "preference", reward=f"{tmp_path}/mine_r.py:brief")
    assert RunConfig.from_json(made.to_json()) == made


# ---- runs


SMALL = {"steps": 8, "warm_steps": 60, "warm_batch": 16, "eval_every": 4, "eval_tasks": 6, "threads": 1, "lr": 3e-3,
         "final_eval_tasks": 6, "final_eval_k": 0, "seed": 0, "max_tokens": 8}  # fmt: skip


def trained(tmp_path: Path, out: str, **change: Any) -> api.Run:
    file = write(tmp_path / "d.jsonl", words_to_say())
    (tmp_path / "rows_r.py").write_text(REWARDS)
    given = {"train": file, "reward": f"{tmp_path}/rows_r.py:yes", "model": "tiny-s", "settings": SMALL, **change}
    return api.train(methods.grpo(groups=6, rollouts=8), tmp_path / out, **given)


def test_a_file_and_a_reward_of_trl_are_learned_and_measured_by_that_reward(tmp_path: Path) -> None:
    """The warm start says yes as often as no; the reward pays for yes. What is held out is measured by it."""
    run = trained(tmp_path, "run")
    before, after = run.figures["before"], run.figures["after"]
    assert run.done and 0.1 < before["reward"] < 0.9 and after["reward"] > 0.95, (before, after)
    assert "accuracy" not in after and "greedy" not in after and not after["unscored"]
    names = {p.relative_to(run.folder).as_posix() for p in run.folder.rglob("*") if p.parent.name in ("data", "use")}
    assert "use/rows_r.py" in names and len(names) == 2
    # Moved, and its file and reward gone: it is still whole.
    other = tmp_path / "elsewhere" / "run"
    shutil.copytree(run.folder, other, symlinks=True)
    shutil.rmtree(run.folder)
    (tmp_path / "d.jsonl").unlink()
    (tmp_path / "rows_r.py").unlink()
    assert run_config_of(other).task == "rows"
    figures = api.evaluate(other, api.EvalConfig(tasks=4, k=0, decoder_samples=2))
    assert figures["reward"] > 0.9


def test_rows_in_memory_and_a_stopped_run_go_on_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stop(Exception):
        pass

    def stop(event: Any) -> None:
        if event["event"] == "step" and event["step"] == 2:
            raise Stop

    change = {"train": words_to_say(), "observer": stop, "settings": {**SMALL, "steps": 4, "checkpoint_every": 1}}
    with pytest.raises(Stop):
        trained(tmp_path, "run", **change)
    kept = list((tmp_path / "run" / "data").iterdir())
    assert len(kept) == 1 and json.loads((tmp_path / "run" / "config.json").read_text())["task_options"]["train"] == ""
    shutil.rmtree(row_files.cache_folder("rows"))
    assert api.resume(tmp_path / "run").done
    other = write(tmp_path / "other.jsonl", some_rows(3))
    words = ["--test-data", str(other), "--reward", f"{tmp_path}/rows_r.py:brief", "--tasks", "2", "--k", "0", "--json"]
    assert main(["eval", str(tmp_path / "run"), *words]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert 0 < figures["reward"] <= 1 and "accuracy" in figures  # of these rows, which have answers
    edited = kept[0].read_text().replace("say 1:", "say one:")
    kept[0].write_text(edited)
    with pytest.raises(BadValue, match="put the rows of that time at"):
        run_config_of(tmp_path / "run")


def test_accuracy_is_beside_the_reward_where_there_are_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "both_r.py").write_text(REWARDS)
    file = write(tmp_path / "d.jsonl", some_rows())
    words = ["--data", str(file), "--reward", f"{tmp_path}/both_r.py:yes=0.8", f"{tmp_path}/both_r.py:brief=0.2",
             "--model", "tiny-s", "--tasks", "2", "--k", "0", "--max-tokens", "4"]  # fmt: skip
    assert main(["eval", "grpo", *words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert {"reward", "reward_greedy", "accuracy", "greedy"} <= figures.keys()
    assert main(["eval", "grpo", *words]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"reward, greedy +reward, sampled +greedy % +sampled %", shown)


def test_a_fresh_model_without_demonstrations_is_said_to_know_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Any] = []
    nothing = {"steps": 0, "threads": 1, "final_eval_tasks": 0, "final_eval_pass_at_k_tasks": 0, "final_eval_k": 0}
    settings = {**nothing, "final_eval_decoder_samples": 0}
    given: dict[str, Any] = {"model": "tiny-s", "settings": settings, "observer": events.append}
    api.train(methods.grpo(), tmp_path / "run", train=some_rows(), **given)
    assert ["knows nothing" in e["text"] for e in events if e["event"] == "note"] == [True]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadValue, match="does not fit a context"):
        api.train(
            methods.grpo(), train=some_rows(), **{**given, "settings": {**settings, "context": 8, "max_tokens": 9}}
        )
    assert not list((tmp_path / "runs").iterdir())


def test_sft_learns_rows_without_answers(tmp_path: Path) -> None:
    rows = [{"messages": [*TALK, SAID]}, {"messages": [{"role": "user", "content": "3?"}, SAID]}]
    settings = {**SMALL, "steps": 1, "warm_steps": 0}
    run = api.train(methods.sft(batch=4), tmp_path / "run", train=rows, model="tiny-s", settings=settings)
    assert run.done and "accuracy" not in run.figures["after"] and run.figures["after"]["length"] > 0


def test_the_page_of_the_task_shows_its_options_and_with_a_file_its_first_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tasks", "rows"]) == 0
    assert "test_share=0.1" in (shown := capsys.readouterr().out) and "--data FILE" in shown
    assert main(["tasks", "rows", "--set", f"train={write(tmp_path / 'd.jsonl', words_to_say())}"]) == 0
    assert "training rows: 54" in (shown := capsys.readouterr().out) and "a demonstration" in shown
