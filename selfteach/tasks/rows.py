"""A task of a user's own rows: prompts with answers, verl's rows, demonstrations, preference pairs."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import numpy as np

from ..core.answers import gold_answers, in_words
from ..core.errors import BadValue, unknown
from ..core.random_keys import generator, key
from ..core.registry import task
from ..core.tagged_text import messages_as_text
from ..core.task import Task, TaskSource
from .chat_prompts import STYLES, messages
from .options import check_at_least, check_share
from .question_sampler import THINKING
from .row_files import IndexedRows, RowReference, as_jsonl, find, reference
from .row_reader import PROMPTS, QUESTION, RowReader

NAME = "rows"
SIDES = ("train", "test")
PAIRS = "preference pairs"  # a figure of the data
MANY = 12  # values of a column at most by which figures are shown apart
BY = ("category", "data_source")
TEMPLATE = 256  # tokens at most that a chat template puts around a prompt
SHOWN = 2000  # rows that a tokenizer of a fresh model is trained on


class RowTasks(Sequence[Task]):
    """Some rows of a file as tasks, each read when it is asked for."""

    def __init__(self, rows: IndexedRows, reader: RowReader, kept: np.ndarray, kind: str, sizes: np.ndarray) -> None:
        self.rows, self.reader, self.kept, self.kind, self.sizes = rows, reader, kept, kind, sizes

    def __len__(self) -> int:
        return len(self.kept)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return self.only(self.kept[index])
        number = int(self.kept[index])
        row = self.rows[number]
        item = self.reader.read(number, row)
        data = tuple(t for t in (item.completion, item.rejected) if t is not None)
        tags = {**row, "prompt": item.prompt} | ({} if item.answer is None else {"answer": item.answer})
        return Task(f"{self.kind}/{number + 1}", item.prompt, item.answer, data, tags)

    def only(self, kept: np.ndarray) -> RowTasks:
        """Those of these rows. kept: i64[n], their indices in the file."""
        return RowTasks(self.rows, self.reader, kept, self.kind, self.sizes)

    def within(self, longest: int, count: Callable[[Any], int]) -> RowTasks:
        """Those whose prompts have at most `longest` tokens, as `count` counts them where bytes alone do not say it."""
        fits = self.sizes[self.kept] <= longest
        fits[~fits] = [count(self[int(i)].prompt) <= longest for i in np.flatnonzero(~fits)]
        return self.only(self.kept[fits])

    def shuffled(self, i: int, seed: int) -> Task:
        """The i-th task of endless passes over the rows, each in an order of its own."""
        epoch, place = divmod(i, len(self))
        return self[int(self._order(epoch, seed)[place])]

    def _order(self, epoch: int, seed: int) -> np.ndarray:
        if self._drawn is None or self._drawn[0] != (epoch, seed):
            self._drawn = (epoch, seed), generator(seed, "rows", self.kind, epoch).permutation(len(self))
        return self._drawn[1]

    _drawn: tuple[tuple[int, int], np.ndarray] | None = None


class RowSet:
    """The rows of a file, checked: hashes of prompts and of whole rows, columns, which rows have what."""

    def __init__(self, file: Path, name: str, reader: RowReader) -> None:
        self.reader, self.columns = reader, dict[str, None]()
        self.answers = self.completions = self.ties = self.worded = self.several = 0
        prompts, whole, sizes = array("Q"), array("Q"), array("q")  # 24 bytes a row, however large the file
        self.values: dict[str, set[str]] = {name: set() for name in BY}
        self._demonstrated, self._paired = array("q"), array("q")

        def check(index: int, row: Mapping[str, Any], line: bytes) -> None:
            item = reader.read(index, row)
            self.columns.update(dict.fromkeys(row))
            self.answers += item.answer is not None
            self.several += isinstance(item.answer, list)
            self.worded += any(map(in_words, gold_answers(Task("", "", item.answer))))
            self.completions += item.completion is not None
            if item.rejected is not None and item.rejected == item.completion:
                self.ties += 1
            elif item.rejected is not None:
                self._paired.append(index)
            if item.completion is not None:
                self._demonstrated.append(index)
            said = _encoded(item.prompt)
            prompts.append(_hash(said))
            sizes.append(len(said) + TEMPLATE)
            whole.append(_hash(line.strip()))
            for by, seen in self.values.items():
                if len(seen) <= MANY:
                    seen.add(str(row.get(by)))

        self.rows = IndexedRows(file, name, check)
        self.prompts, self.sizes = np.array(prompts, np.uint64), np.array(sizes, np.int64)
        self.duplicates = len(whole) - len(np.unique(np.array(whole, np.uint64)))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def asks(self) -> bool:
        """Whether prompts are the questions of a question-answering set."""
        named = self.reader.prompt or next((n for n in PROMPTS if n in self.columns), "")
        return named == QUESTION

    @property
    def in_words(self) -> bool:
        """Whether most answers are names or phrases, of a question-answering set: rows of questions, or of several
        answers that are accepted.
        """
        return (self.asks or 2 * self.several > len(self)) and 2 * self.worded > len(self)

    @cached_property
    def demonstrated(self) -> np.ndarray:
        """i64[n]: the rows that have a completion."""
        return np.array(self._demonstrated, np.int64)

    @cached_property
    def paired(self) -> np.ndarray:
        """i64[n]: the rows that are preference pairs, of two different answers."""
        return np.array(self._paired, np.int64)


def _encoded(prompt: Any) -> bytes:
    """A prompt as bytes: of its tokens there are at most as many, but for those of a chat template."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def _hash(said: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(said, digest_size=8).digest())


def held_out(prompts: np.ndarray, share: float, seed: int, most: int) -> np.ndarray:
    """bool[N]: the rows that are kept for the test, at least one prompt, `most` at most, and never all.

    A prompt's place in the order is a hash of what it says and of the seed, so it stays where it was when rows are
    added, and rows of one prompt are never on both sides. prompts: u64[N].
    """
    distinct = np.unique(prompts)
    count = min(max(1, round(share * len(distinct))), len(distinct) - 1, most)
    return np.isin(prompts, distinct[np.argsort(_places(distinct, seed), kind="stable")[:count]])


def _places(prompts: np.ndarray, seed: int) -> np.ndarray:
    """u64[N]: another hash of each prompt's hash, for each seed (the finaliser of SplitMix64)."""
    x = prompts.astype(np.uint64) ^ np.uint64(key(seed, "rows", "held out"))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class RowSource:
    """Tasks of rows: which are learned from, which are kept for the test, and how they are said."""

    train: RowTasks | None
    test: RowTasks
    demonstrations: RowTasks | None
    pairs: RowTasks | None
    columns: tuple[str, ...]
    answered: bool
    content: str
    seed: int
    about: Mapping[str, Any]
    by: str
    ask: str = ""
    words: bool = False

    def source(self) -> TaskSource:
        """The task source."""
        train, demos, pairs = self.train, self.demonstrations, self.pairs

        def no_rows(i: int) -> Task:
            raise BadValue("task rows: has test rows alone, so nothing can be learned from it; give train rows too")

        completions = [d.data[0] for d in demos[:SHOWN]] if demos else []
        limit = {"max_tokens": min(256, max(16, 8 + max(len(c.encode()) for c in completions)))} if completions else {}
        return TaskSource(
            NAME,
            no_rows if train is None else lambda i: train.shuffled(i, self.seed),
            self.test,
            demos=None if demos is None else lambda i: demos.shuffled(i, self.seed),
            pairs=None if pairs is None else lambda i: pairs.shuffled(i, self.seed),
            words=self._words,
            tags=tuple(t for t in THINKING if any(t in c for c in completions)),
            defaults={"lr": 1e-4, "by": self.by, "words": self.words, **limit}
            | ({} if self.answered else {"judge": None}),
            about=self.about,
            columns=self.columns,
            content=self.content,
            within=self.within,
            chat=partial(messages, style=self.ask) if self.ask else None,
        )

    def within(self, longest: int, count: Callable[[Any], int]) -> TaskSource:
        """The source without the rows whose prompts have more than `longest` tokens, as `count` counts them.

        Raises BadValue where no row is left.
        """
        parts: dict[str, RowTasks | None] = {n: getattr(self, n) for n in ("train", "test", "demonstrations", "pairs")}
        room = 0 if not self.ask else count(messages(Task("", ""), self.ask))  # of the instruction
        kept = {name: p and p.within(longest - room, count) for name, p in parts.items()}
        dropped = {n: len(p) - len(kept[n] or ()) for n, p in parts.items() if p and len(p) > len(kept[n] or ())}
        if not dropped:
            return self.source()
        if any(name in dropped and not kept[name] for name in ("train", "test")):
            raise BadValue(
                f"task rows: no {'test' if kept['train'] else 'training'} row has a prompt of at most {longest} tokens,"
                " so that an answer fits the context; ask for a longer --context, or shorter --max-tokens"
            )
        sides = {"train": "training", "test": "test"}
        said = {f"{sides[n]} rows dropped, longer than the context": c for n, c in dropped.items() if n in sides}
        left = {f"{word} rows": len(kept[n] or ()) for n, word in sides.items()}
        kept |= {name: kept[name] or None for name in ("demonstrations", "pairs")}
        return replace(self, **kept, about={**self.about, **left, **said}).source()

    def _words(self) -> Iterator[str]:
        shown = [p[: SHOWN // 2] for p in (self.train, self.test) if p is not None]
        for part in (*shown, *([self.demonstrations[:SHOWN]] if self.demonstrations else [])):
            for one in part:
                prompt = one.prompt if isinstance(one.prompt, str) else messages_as_text(one.prompt)
                yield prompt + "".join(map(str, one.data[:1]))
                if one.answer is not None:
                    yield f" {one.answer}"


@task
def rows(
    train: str = "",
    test: str = "",
    train_hash: str = "",
    test_hash: str = "",
    test_share: float = 0.1,
    n_test: int = 2000,
    prompt: str = "",
    answer: str = "",
    completion: str = "",
    ask: str = "",
    seed: int = 0,
) -> TaskSource:
    """Rows of your own, from a JSONL, JSON, CSV or Parquet file: prompts, answers, completions, any further columns.

    train       the file of training rows
    test        the file of test rows, of which none is trained on; without one a share of the training rows is kept
    train_hash  of the training rows' bytes, by which a run finds them again; filled in
    test_hash   of the test rows' bytes; filled in
    test_share  share of the training rows' prompts that is kept for the test, where there is no file of test rows
    n_test      test rows at most
    prompt      the column of the prompt, text or messages (default: prompt, messages or question, the first there is)
    answer      the column of the reference answer (default: golden_answers, answer, verl's ground_truth)
    completion  the column of a demonstration's completion (default: completion)
    ask         how a column `question` is put to a model with a chat template: engine (an instruction to search in
                tags), instruct (to search its own memory, SSRL's), search, answer (few-shot examples); "": as it is
                (default: as the method searches)
    seed        of the split and of the order of the rows
    """
    options = dict(locals())
    if ask and ask not in STYLES:
        raise unknown("prompt style (option ask of rows)", ask, STYLES)
    check_share(NAME, "test_share", test_share)
    check_at_least(NAME, "n_test", n_test, 1)
    if not train and not train_hash and not test and not test_hash:
        raise BadValue(
            "task rows: has no rows; give --data FILE, --set train=FILE, or in Python train=rows (docs/data.md)"
        )
    sets = {side: _row_set(options, side) for side in ("train", "test") if options[side] or options[f"{side}_hash"]}
    learned, tested = sets.get("train"), sets.get("test")
    about = dict[str, Any]()
    train_rows = np.arange(len(learned)) if learned else np.zeros(0, int)
    if learned is not None and tested is None:
        if len(np.unique(learned.prompts)) < 2:
            raise BadValue(
                f"{learned.rows.name}: has one prompt, and a test needs another; give test rows (--test-data)"
            )
        out = held_out(learned.prompts, test_share, seed, n_test)
        test_rows, train_rows, tested = np.flatnonzero(out), np.flatnonzero(~out), learned
        split = f"{test_share:g} of the prompts, by a hash of what they say (seed {seed})"
    else:
        assert tested is not None
        test_rows, split = np.arange(len(tested)), "a file of its own"
        both = np.isin(learned.prompts, tested.prompts) if learned is not None else np.zeros(0, bool)
        if both.any():
            about["training rows dropped, their prompt is in the test"] = int(both.sum())
            train_rows = np.flatnonzero(~both)
            if not len(train_rows):
                raise BadValue("task rows: every training prompt is in the test rows too; give other test rows")
    if len(test_rows) > n_test:
        places = _places(tested.prompts[test_rows], seed)
        test_rows = np.sort(test_rows[np.argsort(places, kind="stable")[:n_test]])
    duplicates = {side: s.duplicates for side, s in sets.items() if s.duplicates}
    numbers = {"training rows": len(train_rows), "test rows": len(test_rows)}
    about = {**numbers, "test": split, **about} | {f"duplicates in {n}": c for n, c in duplicates.items()}
    first = learned or tested
    answered = all(s.answers == len(s) for s in sets.values())
    if not answered and any(s.answers for s in sets.values()):
        about["rows without an answer, so accuracy is not measured"] = sum(len(s) - s.answers for s in sets.values())
    demonstrated = np.intersect1d(train_rows, learned.demonstrated) if learned is not None else train_rows
    if len(demonstrated):
        about["demonstrations"] = len(demonstrated)
    paired = np.intersect1d(train_rows, learned.paired) if learned is not None else train_rows
    if len(paired):
        about[PAIRS] = len(paired)
    if ties := sum(s.ties for s in sets.values()):
        about["pairs left out, their answers are the same"] = ties

    def part(kept: np.ndarray, kind: str) -> RowTasks | None:
        return RowTasks(learned.rows, learned.reader, kept, kind, learned.sizes) if learned and len(kept) else None

    by = next((n for n in BY if all(1 < len(s.values[n]) <= MANY for s in sets.values())), "")
    return RowSource(
        RowTasks(learned.rows, learned.reader, train_rows, "train", learned.sizes) if learned is not None else None,
        RowTasks(tested.rows, tested.reader, test_rows, "test", tested.sizes),
        part(demonstrated, "demo"),
        part(paired, "pair"),
        tuple({**first.columns, "prompt": None, **({"answer": None} if first.answers else {})}),
        answered,
        json.dumps([options[n] for n in ("train_hash", "test_hash", "prompt", "answer", "completion")]),
        seed,
        about,
        by,
        ask if first.asks else "",
        tested.in_words,
    ).source()


def _row_set(options: Mapping[str, Any], side: str) -> RowSet:
    path, hash = str(options[side]), str(options[f"{side}_hash"])
    file = Path(path) if path else find(RowReference("", hash), None, side)
    if not file.is_file():
        raise BadValue(f"task rows: {side}={path}: no such file")
    name = f"{side} rows" if hash and file.name.startswith(hash) else file.name
    reader = RowReader(name, *(str(options[n]) for n in ("prompt", "answer", "completion")))
    return RowSet(as_jsonl(file, name), name, reader)


def with_hashes(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with absolute paths, and the hash of each file's bytes. Raises BadValue for a file that is"
    " missing.
    """
    out = dict(options)
    for side in SIDES:
        if out.get(side) and not out.get(f"{side}_hash"):
            out[side], out[f"{side}_hash"] = reference(out[side], side)
    return out


def references(options: Mapping[str, Any]) -> dict[str, RowReference]:
    """`train` and `test` -> the rows that the options name."""
    found = {s: RowReference(str(options.get(s, "")), str(options.get(f"{s}_hash", ""))) for s in SIDES}
    return {side: at for side, at in found.items() if at.hash}


def located(options: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """The options with each file's path as it is found now: in a run's folder, where it was, or in the cache."""
    return {**options, **{side: str(find(at, folder, side)) for side, at in references(options).items()}}
