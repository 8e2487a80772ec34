"""BM25 (tantivy, embedded): the index of a corpus, built once, cached by content, rebuilt where it is broken."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..core.cache import cache_folder
from ..core.errors import SelfteachError
from ..core.extras import optional
from ..core.task import Document

FORMAT = "1"  # change it when the words or the fields of the index change
MANIFEST = "manifest.json"
HEAP = 64 * 2**20  # bytes the index builder may hold before it writes a segment
COMMIT = 50_000  # documents after which a long build is made durable
HASHED = 1 << 30  # bytes of an index up to which its files are hashed each time it is opened; of larger ones the size
LONGEST = 4000  # characters of a query that are read
TERMS = 64  # different words of a query that are searched for
EXTRA_HITS = 32  # hits fetched beyond those wanted, so that ties at the edge are broken by document number

# Scripts written without spaces are cut into characters; everything else into runs of letters and digits.
_SINGLE = "぀-ヿ㐀-鿿豈-﫿"
_WORD = re.compile(rf"[{_SINGLE}]|[^\W{_SINGLE}]+")
_ACCENTS = re.compile("[̀-ͯ]")


def tantivy() -> Any:
    """The module of the search engine. Raises BadValue where it is not installed."""
    return optional("tantivy", "search", "tool search")


def words(text: str) -> list[str]:
    """The terms of a text in the index: lower case, without accents, at most 40 characters each."""
    folded = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold())))
    return [w[:40] for w in _WORD.findall(folded)]


@cache
def schema() -> Any:
    """Fields of the index: words of title and text, and the number of the document. Texts stay where they are."""
    builder = tantivy().SchemaBuilder()
    for name in ("title", "text"):
        builder.add_text_field(name, stored=False, tokenizer_name="whitespace", index_option="freq")
    builder.add_unsigned_field("number", stored=True)
    return builder.build()


def rank(searcher: Any, text: str, top: int, title: float, count: int) -> list[int]:
    """Numbers of the `top` documents of `count`, best first; equal scores in the order of the corpus.

    title  weight of a match in the title; empty where no word of the query occurs
    """
    return [number for number, _ in scored(searcher, text, top, title, count)]


def scored(searcher: Any, text: str, top: int, title: float, count: int) -> list[tuple[int, float]]:
    """(number, score) of the documents of `rank`."""
    terms = list(dict.fromkeys(words(text[:LONGEST])))[:TERMS]
    if not terms or not count:
        return []
    should, query = tantivy().Occur.Should, tantivy().Query
    clauses = [(should, query.term_query(schema(), "text", t)) for t in terms]
    if title:
        clauses += [(should, query.boost_query(query.term_query(schema(), "title", t), title)) for t in terms]
    hits = searcher.search(query.boolean_query(clauses), limit=min(top + EXTRA_HITS, count), count=False).hits
    numbered = sorted((-score, searcher.doc(address)["number"][0]) for score, address in hits)
    return [(number, -score) for score, number in numbered[:top]]


def load_or_build(documents: Sequence[Document]) -> Any:
    """The index of a corpus in memory, from the cache or built now; in memory where nothing can be written.

    A build is written to a temporary folder and renamed, so that a process which dies or loses the race leaves nothing
    broken behind. Raises BadValue where the package tantivy is not installed.
    """
    tantivy()
    name = corpus_hash(documents)
    try:
        cache_dir = cache_folder("search")
    except SelfteachError:
        return build(documents, None)
    for _ in range(3):
        index = load(cache_dir / name)
        if index is not None:
            return index
        try:
            temporary = Path(tempfile.mkdtemp(prefix=f".{name[:12]}-", dir=cache_dir))
        except OSError:
            break
        try:
            build(documents, temporary)
            _write_manifest(temporary)
            if load(cache_dir / name) is None:
                shutil.rmtree(cache_dir / name, ignore_errors=True)  # broken, or not there
            os.rename(temporary, cache_dir / name)
        except (OSError, ValueError):
            pass  # another process was first, or the disk is full: look again, then do without
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return build(documents, None)


def build(documents: Iterable[Document], folder: Path | None) -> Any:
    """Index documents in a folder, or in memory. One thread, so that the same corpus always gives the same index."""
    index = tantivy().Index(schema(), path=None if folder is None else str(folder))
    writer = index.writer(HEAP, 1)
    for number, document in enumerate(documents):
        _add(writer, number, document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index


def build_long(
    documents: Callable[[int], Iterable[Document]], count: int, folder: Path, progress: Callable[[int], object]
) -> None:
    """Index `count` documents in a folder that is made as the last thing, going on where an earlier process stopped.

    documents(n): those from the n-th on. progress is called with how many are indexed.
    """
    part = folder.with_name(f"{folder.name}.part")
    index = _unfinished(part, count)
    done = index.searcher().num_docs
    writer = index.writer(HEAP, 1)
    for number, document in enumerate(documents(done), done):
        _add(writer, number, document)
        if (number + 1) % COMMIT == 0:
            writer.commit()
            progress(number + 1)
    writer.commit()
    writer.wait_merging_threads()
    progress(count)
    _write_manifest(part)
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(part, folder)


def _add(writer: Any, number: int, document: Document) -> None:
    title, text = document
    writer.add_document(tantivy().Document(title=" ".join(words(title)), text=" ".join(words(text)), number=number))


def _unfinished(part: Path, count: int) -> Any:
    """The index that a process left behind, where it can be opened; else a new one."""
    try:
        if part.is_dir():
            index = tantivy().Index.open(str(part))
            if index.searcher().num_docs <= count:  # what was committed is whole, and in order
                return index
    except (OSError, ValueError, AttributeError):
        pass
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return tantivy().Index(schema(), path=str(part))


def corpus_hash(documents: Sequence[Document]) -> str:
    """A hash of the corpus, the version of the engine and the format of the index."""
    h = hashlib.blake2b(f"{FORMAT} {version('tantivy')}".encode(), digest_size=16)
    for document in documents:
        for part in document:
            data = part.encode("utf-8", "replace")
            h.update(len(data).to_bytes(8, "little"))
            h.update(data)
    return h.hexdigest()


def load(folder: Path) -> Any | None:
    """The index in a folder; None where there is none or a file is not as the manifest says."""
    try:
        hashes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if any(_content(folder / name) != expected for name, expected in hashes.items()):
            return None
        return tantivy().Index.open(str(folder))
    except (OSError, ValueError, AttributeError):
        return None


def _write_manifest(folder: Path) -> None:
    """Write the hash of every file of an index, after all of them."""
    files = sorted(f.name for f in folder.iterdir() if f.is_file() and not f.name.endswith(".lock"))
    (folder / MANIFEST).write_text(json.dumps({name: _content(folder / name) for name in files}), encoding="utf-8")


def _content(file: Path) -> str:
    """A hash of a file's bytes; of a large one, which would have to be read whole at every start, its size."""
    size = file.stat().st_size
    return f"{size} bytes" if size > HASHED else hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
