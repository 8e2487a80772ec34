"""The pages of a corpus on disk, cut into passages: what engines rank, and what is read.

    texts.bin     the passages' texts end to end, so that those of a page are its text
    heads.bin     of each page its id and its title
    passages.bin  i64 [P, 2]: where a passage ends in texts.bin, and its page
    pages.bin     i64 [N, 5]: a page's first passage, where its id and its title end in heads.bin, hashes of both
    state.json    how much of these files is whole, how far the corpus was read, and what was left out

Written in pieces of some thousand pages: a process that is killed leaves the last piece out, and the next goes on.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.disk import disk_errors, write_whole
from ..core.errors import BadValue
from .corpus_files import Page, corpus_bytes, records

FORMAT = "2"  # change it when passages are cut otherwise, or a file's form changes
PASSAGE = 1000  # characters of a passage at most; 100 words, the usual passage of Wikipedia, are some 600
COLUMNS = 5  # of pages.bin
PIECE = 4096  # records that are written at once
FILES = ("texts.bin", "heads.bin", "passages.bin", "pages.bin")
STATE = "state.json"
DUPLICATE = "of an id that was there already"
ENDS = (re.compile(r"\n\s*\n"), re.compile(r"(?<=[.!?。！？])\s|\n"), re.compile(r"\s"))

Progress = Callable[[str, int, int], None]  # (what is done, done, of how much)


class Passage(NamedTuple):
    """A piece of a page. number: its own; page: that of its page."""

    number: int
    page: int
    id: str
    title: str
    text: str


def split(text: str, longest: int = PASSAGE) -> list[str]:
    """A text in pieces of at most `longest` characters that are it again end to end: cut between paragraphs where one
    ends in the second half of a piece, else between sentences, else between words, else anywhere.
    """
    out, at = list[str](), 0
    while len(text) - at > longest:
        window = text[at : at + longest]
        ends = (max((m.end() for m in pattern.finditer(window)), default=0) for pattern in ENDS)
        cut = next((end for end in ends if end > longest // 2), longest)
        out.append(window[:cut])
        at += cut
    return [*out, text[at:]]


def id_hash(id: str) -> int:
    """A signed 64-bit hash of an id or a title."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little", signed=True)


class PageStore:
    """The pages and passages in a folder that `build_pages` made; read where they lie.

    Raises BadValue where a file is not as long as it should be.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.state = folder, read_state(folder)
        if self.state is None or not self.state["done"]:
            raise BadValue(f"{folder}: holds no whole corpus")
        self.about: dict[str, Any] = self.state["about"]
        self.texts, self.heads = (_mapped(folder / name) for name in FILES[:2])
        self._passages = _array(folder / FILES[2], 2)
        self._pages = _array(folder / FILES[3], COLUMNS)

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def n_pages(self) -> int:
        """Number of pages."""
        return len(self._pages)

    def passage(self, number: int) -> Passage:
        """A passage by its number."""
        page = int(self._passages[number, 1])
        start = int(self._passages[number - 1, 0]) if number else 0
        text = bytes(self.texts[start : int(self._passages[number, 0])]).decode()
        return Passage(number, page, *self.head(page), text)

    def passages(self, first: int = 0) -> Iterator[Passage]:
        """All passages from one on."""
        return (self.passage(n) for n in range(first, len(self)))

    def head(self, page: int) -> tuple[str, str]:
        """(id, title) of a page."""
        start = int(self._pages[page - 1, 2]) if page else 0
        middle, end = int(self._pages[page, 1]), int(self._pages[page, 2])
        return bytes(self.heads[start:middle]).decode(), bytes(self.heads[middle:end]).decode()

    def page(self, page: int) -> Page:
        """A page, whole."""
        first = int(self._pages[page, 0])
        last = int(self._pages[page + 1, 0]) if page + 1 < self.n_pages else len(self)
        start = int(self._passages[first - 1, 0]) if first else 0
        return Page(*self.head(page), bytes(self.texts[start : int(self._passages[last - 1, 0])]).decode())

    def find(self, name: str) -> int | None:
        """The page of an id, or else the first of a title, whatever its case; None where there is none."""
        for column, wanted in ((3, name), (4, plain_title(name))):
            hashes, order = self._sorted[column]
            hashed = id_hash(wanted)
            place = int(np.searchsorted(hashes, hashed))
            while place < len(hashes) and hashes[place] == hashed:
                page = int(order[place])
                id, title = self.head(page)
                if wanted == (id if column == 3 else plain_title(title)):
                    return page
                place += 1
        return None

    @cached_property
    def _sorted(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The columns of hashes -> i64[N], i64[N]: the hashes in order, and their pages."""
        orders = {column: np.argsort(self._pages[:, column], kind="stable") for column in (3, 4)}
        return {column: (self._pages[:, column][order], order) for column, order in orders.items()}


def plain_title(title: str) -> str:
    """A title as it is looked for."""
    return title.casefold().strip()


def read_state(folder: Path) -> dict[str, Any] | None:
    """What state.json says; None where it is not there, or files are shorter than it says."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        sizes = [(folder / name).stat().st_size for name in FILES]
        short = any(size < wanted for size, wanted in zip(sizes, state["sizes"], strict=True))
        return None if short or not {"records", "read", "about", "done"} <= state.keys() else state
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def build_pages(path: str | Path, folder: Path, progress: Progress) -> PageStore:
    """Write the pages of a corpus into a folder, from where an earlier process was stopped.

    Raises BadValue for a corpus without a single page, SelfteachError for a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = read_state(folder) or {"records": 0, "read": 0, "sizes": [0] * 4, "about": {}, "done": False}
    if state["done"]:
        return PageStore(folder)
    writer, total = _Writer(folder, state), corpus_bytes(path)
    with disk_errors(folder):
        try:
            rest = islice(records(path), state["records"], None)
            while piece := list(islice(rest, PIECE)):
                for found in piece:
                    writer.add(found.page, found.problem, found.where)
                    if found.note:
                        writer.count(found.note, found.where)
                writer.commit(len(piece), piece[-1].read)
                progress("reading the corpus", piece[-1].read, total)
            if not writer.pages:
                raise BadValue(f"corpus {path}: holds no page that can be read{_odd(writer.about, 'left out')}")
            writer.commit(0, total, done=True)
        finally:
            writer.close()
    return PageStore(folder)


class _Writer:
    """Appends pages to the files of a store, which it first cuts back to what is whole."""

    def __init__(self, folder: Path, state: dict[str, Any]) -> None:
        self.folder, self.state, self.about = folder, state, state["about"]
        self.left_out = Counter[str](self.about.get("left out", {}))
        self.notes = Counter[str](self.about.get("notes", {}))
        self.first: dict[str, str] = self.about.get("first", {})
        self.files = [(folder / name).open("ab") for name in FILES]
        for file, size in zip(self.files, state["sizes"], strict=True):
            file.truncate(size)
        self.texts, self.heads, passages, pages = state["sizes"]
        self.passages, self.pages = passages // 16, pages // (8 * COLUMNS)
        hashes = _array(folder / FILES[3], COLUMNS)[:, 3] if pages else np.zeros(0, np.int64)
        self.seen, self.new = np.sort(hashes), dict[int, None]()

    def count(self, what: str, where: str, left_out: bool = False) -> None:
        """Count something unusual, and keep where it first was."""
        (self.left_out if left_out else self.notes)[what] += 1
        self.first.setdefault(what, where)

    def add(self, page: Page | None, problem: str, where: str) -> None:
        """Append a page, or count what is wrong with a record."""
        if page is None:
            self.count(problem, where, left_out=True)
            return
        hashed = id_hash(page.id)
        place = int(np.searchsorted(self.seen, hashed))
        if hashed in self.new or (place < len(self.seen) and self.seen[place] == hashed):
            self.count(DUPLICATE, where, left_out=True)
            return
        self.new[hashed] = None
        first = self.passages
        for piece in split(page.text):
            self.texts += self.files[0].write(piece.encode())
            self.files[2].write(np.array([self.texts, self.pages], np.int64).tobytes())
            self.passages += 1
        id_end = self.heads + self.files[1].write(page.id.encode())
        self.heads = id_end + self.files[1].write(page.title.encode())
        row = [first, id_end, self.heads, hashed, id_hash(plain_title(page.title))]
        self.files[3].write(np.array(row, np.int64).tobytes())
        self.pages += 1

    def commit(self, n_records: int, read: int, done: bool = False) -> None:
        """Make what was written so far durable."""
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())
        fresh = np.sort(np.fromiter(self.new, np.int64, len(self.new)))
        self.seen, self.new = np.insert(self.seen, np.searchsorted(self.seen, fresh), fresh), {}
        self.about.update(
            {"pages": self.pages, "passages": self.passages}
            | {"left out": dict(self.left_out), "notes": dict(self.notes), "first": self.first}
        )
        self.state["records"] += n_records
        self.state |= {
            "read": read,
            "sizes": [self.texts, self.heads, 16 * self.passages, 8 * COLUMNS * self.pages],
            "done": done,
        }
        write_whole(self.folder / STATE, json.dumps(self.state))

    def close(self) -> None:
        """Close the files."""
        for file in self.files:
            file.close()


def _mapped(file: Path) -> Any:
    """The bytes of a file, mapped into memory."""
    with file.open("rb") as f:
        return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if file.stat().st_size else b""


def _array(file: Path, columns: int) -> Any:
    """i64 [N, columns]: the rows of a file, mapped into memory."""
    return np.memmap(file, np.int64, "r").reshape(-1, columns)


def described(about: dict[str, Any]) -> str:
    """What a corpus holds and what was left out of it, in a line."""
    line = f"{about['pages']:,} pages in {about['passages']:,} passages"
    return line + _odd(about, "left out") + _odd(about, "notes")


def _odd(about: dict[str, Any], kind: str) -> str:
    """What was counted as `left out`, or in `notes`, with the place where each was first; empty where nothing was."""
    head = "left out: " if kind == "left out" else ""
    return "".join(f"; {head}{n} {what} (first {about['first'][what]})" for what, n in about.get(kind, {}).items())
