"""A corpus in any state becomes pages and passages: broken records are left out and counted, a cut build goes on."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfteach.core import BadValue
from selfteach.core.disk import content_hash
from selfteach.retrieval import corpus_files, page_store
from selfteach.retrieval.corpus_files import corpus_hash, records
from selfteach.retrieval.engine import corpus_folder, no_progress, open_engine
from selfteach.retrieval.page_store import PASSAGE, build_pages, described, split

pytest.importorskip("tantivy")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))


def write(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return file


def pages(path: Path) -> list[tuple[str, str, str]]:
    return [tuple(found.page) for found in records(path) if found.page]  # type: ignore[misc]


def test_wikipedia_s_usual_form_and_others(tmp_path: Path) -> None:
    file = write(
        tmp_path / "wiki.jsonl",
        [
            {"id": "0", "contents": '"Lyon"\nLyon is a city.\nIt is old.'},
            {"_id": 7, "title": "Peru", "text": "Lima is its capital."},
            {"text": "without id"},
            {"title": "only a title", "text": ""},
        ],
    )
    assert pages(file) == [
        ("0", "Lyon", "Lyon is a city.\nIt is old."),
        ("7", "Peru", "Lima is its capital."),
        ("3", "", "without id"),
        ("4", "only a title", "only a title"),
    ]
    zipped = tmp_path / "wiki.jsonl.gz"
    zipped.write_bytes(gzip.compress(file.read_bytes()))
    assert pages(zipped) == pages(file)


def test_a_folder_of_texts_markdown_and_rows(tmp_path: Path) -> None:
    (folder := tmp_path / "notes" / "deep").mkdir(parents=True)
    (folder / "b.md").write_text("intro\n# The heading\ntext")
    (folder / "a.txt").write_text("plain")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder.parent / ".git").mkdir()
    (folder.parent / ".git" / "c.txt").write_text("hidden")
    write(folder.parent / "rows.jsonl", [{"text": "one"}, {"id": "x", "text": "two"}])
    assert [p[:2] for p in pages(folder.parent)] == [
        ("deep/a.txt", "a"), ("deep/b.md", "The heading"), ("rows.jsonl:1", ""), ("x", ""),
    ]  # fmt: skip


def test_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"id": str(i), "contents": f'"T{i}"\ntext {i}'} for i in range(3000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "w.parquet")
    assert pages(tmp_path / "w.parquet") == [(str(i), f"T{i}", f"text {i}") for i in range(3000)]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(BadValue, match=r"no page that can be read; left out: 1 broken file \(first bad.parquet: Arrow"):
        open_engine(tmp_path / "bad.parquet")


def test_a_broken_file_ends_itself_and_not_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (folder := tmp_path / "mixed").mkdir()
    rows = [{"id": f"p{i}", "text": f"parquet {i}"} for i in range(9)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "a.parquet")
    (folder / "a.parquet").write_bytes((folder / "a.parquet").read_bytes()[:-20])
    draw = np.random.default_rng(0)  # text that zips badly, so that a cut file has whole lines before the cut
    many = [{"id": f"z{i}", "text": draw.bytes(4000).hex()} for i in range(100)]
    data = gzip.compress("".join(json.dumps(r) + "\n" for r in many).encode())
    (folder / "b.jsonl.gz").write_bytes(data[: len(data) // 2])
    (folder / "c.jsonl.gz").write_bytes(b"no gzip")
    write(folder / "d.jsonl", [{"id": "d", "text": "whole"}])
    (folder / "e.txt").write_text("locked")
    hashed = corpus_hash(folder)

    opened = Path.read_bytes

    def locked(file: Path) -> bytes:
        if file.suffix == ".txt":
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file)

    monkeypatch.setattr(Path, "read_bytes", locked)
    found = list(records(folder))
    kept = [f.page.id for f in found if f.page]
    assert kept[-1] == "d" and kept[:-1] == [f"z{i}" for i in range(len(kept) - 1)] and 30 < len(kept) < 60
    cut = len(kept) - 1
    broken = [f.where for f in found if not f.page]
    assert {f.problem for f in found if not f.page} == {"broken file"}
    assert [where.partition(": ")[0] for where in broken] == [
        "a.parquet", f"b.jsonl.gz after line {cut}", "c.jsonl.gz", "e.txt",
    ]  # fmt: skip
    assert "EOFError: Compressed file ended" in broken[1] and "BadGzipFile" in broken[2]
    line = described(open_engine(folder).store.about)
    assert line.startswith(f"{cut + 1} pages in ") and "left out: 4 broken file (first a.parquet: Arrow" in line

    def unread(file: Path) -> str:
        if file.name in names:
            raise PermissionError(13, "Permission denied", str(file))
        return content_hash(file)

    names = ["e.txt"]
    monkeypatch.setattr(corpus_files, "content_hash", unread)
    assert corpus_hash(folder) not in (hashed, "")
    names = ["a.parquet", "b.jsonl.gz", "c.jsonl.gz", "d.jsonl", "e.txt"]
    with pytest.raises(BadValue, match=r"corpus .*a.parquet: cannot be read \(Permission denied\)"):
        corpus_hash(folder)


def test_a_package_that_is_missing_is_no_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d.jsonl", [{"text": "whole"}])
    (tmp_path / "e.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BadValue, match=r"the package pyarrow.* is not installed"):
        list(records(tmp_path))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Zürich".encode(), "Zürich"),
        ("Zürich".encode("cp1252"), "Zürich"),
        ("Zürich".encode("utf-16"), "Zürich"),
        (b"\xef\xbb\xbf" + "Zürich".encode(), "Zürich"),
        ("東京".encode("utf-32"), "東京"),
        (b"a\x00b\x81", "a\x00b\ufffd"),
    ],
)
def test_other_encodings_are_read(tmp_path: Path, data: bytes, text: str) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    assert pages(tmp_path / "a.txt")[0][2] == text
    if "\x00" not in text:
        line = json.dumps({"id": "1", "text": text}, ensure_ascii=False)
        encoding = "utf-16" if data[:2] == b"\xff\xfe" else "cp1252" if data == b"Z\xfcrich" else "utf-8"
        (tmp_path / "a.jsonl").write_bytes((line + "\n" + line.replace('"1"', '"2"')).encode(encoding))
        assert [p[2] for p in pages(tmp_path / "a.jsonl")] == [text, text]


def test_what_is_wrong_is_left_out_counted_and_named(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"id": "1", "text": "first"},
        "{broken",
        '["a list"]',
        {"id": "2", "text": "  "},
        {"id": "1", "text": "again"},
        {"id": "3"},
        "",
        {"id": "4", "text": "half \ud800 a character"},
        "[" * 100_000,
        {"id": "5", "text": "last"},
    ]
    engine = open_engine(write(tmp_path / "c.jsonl", rows))
    assert engine.store.about["left out"] == {
        "no JSON": 2, "no object with columns": 1, "empty": 1, page_store.DUPLICATE: 1, "no column contents or text": 1,
    }  # fmt: skip
    line = described(engine.store.about)
    assert line.startswith("3 pages in 3 passages; left out: 2 no JSON (first c.jsonl, line 2)")
    assert [h.text for h in engine.search("first again last character", 9).hits].count("again") == 0
    assert engine.read("1", 0, 9) == ("1", "", "first", 5)


def test_a_corpus_of_nothing_is_refused_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=r"no page that can be read; left out: 2 no JSON \(first c.jsonl, line 1\)"):
        open_engine(write(tmp_path / "c.jsonl", ["<html>", "</html>"]))
    with pytest.raises(BadValue, match="no such file or folder"):
        corpus_hash(tmp_path / "none.jsonl")
    (tmp_path / "x.pdf").write_text("x")
    with pytest.raises(BadValue, match=r"is read from .jsonl"):
        corpus_hash(tmp_path / "x.pdf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadValue, match="the folder holds no file of"):
        corpus_hash(tmp_path / "empty")


@pytest.mark.parametrize(
    "text", ["", "x" * 5000, "word " * 900, "A sentence. " * 500, "para\n\n" * 700, "東京。" * 900, "é\n" * 2001]
)
def test_passages_are_the_text_again(text: str) -> None:
    pieces = split(text)
    assert "".join(pieces) == text and max(map(len, pieces)) <= PASSAGE
    assert len(pieces) <= 1 + 2 * len(text) // PASSAGE


def test_passages_end_where_sentences_do() -> None:
    assert all(p.endswith((". ", ".")) for p in split("A short sentence here. " * 300))


def test_a_million_characters_are_passages_and_are_read_in_pieces(tmp_path: Path) -> None:
    text = "".join(f"sentence {i} of many. " for i in range(50_000))
    engine = open_engine(write(tmp_path / "c.jsonl", [{"id": "long", "title": "Long", "text": text}]))
    (hit,) = engine.search("sentence 31337", 1).hits
    assert "sentence 31337 of many" in hit.text and len(hit.text) <= PASSAGE
    read = [engine.read("LONG", at, 100_000) for at in range(0, len(text) + 1, 100_000)]
    assert "".join(r.text for r in read if r) == text and all(r and r.length == len(text) for r in read)


def test_the_hash_is_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        (tmp_path / folder / "x.txt").write_text("same")
    assert corpus_hash(tmp_path / "a") == corpus_hash(tmp_path / "b")
    (tmp_path / "b" / "y.txt").write_text("more")
    changed = corpus_hash(tmp_path / "b")
    (tmp_path / "b" / "y.txt").rename(tmp_path / "b" / "z.txt")
    assert len({corpus_hash(tmp_path / "a"), changed, corpus_hash(tmp_path / "b")}) == 3


ROWS = [
    {"id": str(i), "title": f"Town {i}", "text": f"Town {i} lies on river {i % 7}. " * (1 + i % 90)} for i in range(300)
]


class Killed(BaseException):
    pass


def test_reading_that_was_cut_off_goes_on_and_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_store, "PIECE", 16)
    file = write(tmp_path / "c.jsonl", ROWS[:150] + ["{cut", ROWS[3]] + ROWS[150:])  # type: ignore[operator]
    whole = build_pages(file, tmp_path / "whole", no_progress)
    seen: list[int] = []

    def until(what: str, done: int, total: int) -> None:
        seen.append(done)
        if len(seen) in (3, 4, 9):
            raise Killed

    for _ in range(3):
        with pytest.raises(Killed):
            build_pages(file, tmp_path / "cut", until)
        for name in page_store.FILES:  # a last piece that was half written
            with (tmp_path / "cut" / name).open("ab") as f:
                f.write(b"rubbish")
    cut = build_pages(file, tmp_path / "cut", until)
    assert seen == sorted(seen) and cut.about == whole.about and cut.about["left out"] == {
        "no JSON": 1, page_store.DUPLICATE: 1
    }  # fmt: skip
    assert list(cut.passages()) == list(whole.passages()) and len(list(whole.passages())) == len(whole) > 300


@pytest.mark.parametrize("name", [*page_store.FILES, page_store.STATE])
def test_a_store_whose_file_was_cut_is_made_again(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / "c.jsonl", ROWS)
    before = open_engine(file).search("river 3", 5)
    broken = corpus_folder(corpus_hash(file)) / name
    data = broken.read_bytes()
    broken.unlink()
    broken.write_bytes(data[: len(data) // 2])
    assert open_engine(file).search("river 3", 5) == before


def test_a_cached_corpus_needs_its_file_no_more_and_an_edited_one_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", ROWS)
    content = corpus_hash(file)
    before = open_engine(file).search("town 5", 2)
    file.unlink()
    assert open_engine(file, content=content).search("town 5", 2) == before
    write(file, ROWS[:5])
    with pytest.raises(BadValue, match="was edited since"):
        open_engine(file, content="0" * 24)
    file.unlink()
    with pytest.raises(BadValue, match="is not there any more"):
        open_engine(file, content="0" * 24)
