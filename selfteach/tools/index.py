"""The search index of a corpus: built once, kept in the cache under the hash of its content, rebuilt where it is broken."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tantivy

from ..core.cache import cache_folder
from ..core.task import Document

FORMAT = "1"  # change it when the words or the fields of the index change
MANIFEST = "manifest.json"
HEAP = 64 * 2**20  # bytes the index builder may hold before it writes a segment

Words = Callable[[str], list[str]]


@cache
def schema() -> Any:
    """Fields of the index: words of title and text, and the number of the document. Texts themselves stay with the task."""
    build = tantivy.SchemaBuilder()
    for name in ("title", "text"):
        build.add_text_field(name, stored=False, tokenizer_name="whitespace", index_option="freq")
    build.add_unsigned_field("number", stored=True)
    return build.build()


def opened(documents: Sequence[Document], words: Words) -> Any:
    """The index of a corpus, from the cache or built now. Where nothing can be written it is built in memory, and not kept.

    A build is written aside and renamed, so that a process which dies or loses the race leaves nothing broken behind.
    """
    name = digest(documents)
    try:
        shelf = cache_folder("search")
    except OSError:
        return build(documents, words, None)
    for _ in range(3):
        index = _stored(shelf / name)
        if index is not None:
            return index
        try:
            aside = Path(tempfile.mkdtemp(prefix=f".{name[:12]}-", dir=shelf))
        except OSError:
            break
        try:
            build(documents, words, aside)
            _seal(aside)
            if _stored(shelf / name) is None:
                shutil.rmtree(shelf / name, ignore_errors=True)  # broken, or not there
            os.rename(aside, shelf / name)
        except (OSError, ValueError):
            pass  # another process was first, or the disk is full: look again, then do without
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return build(documents, words, None)


def build(documents: Sequence[Document], words: Words, folder: Path | None) -> Any:
    """Index documents in a folder, or in memory. One thread, so that the same corpus always gives the same index."""
    index = tantivy.Index(schema(), path=None if folder is None else str(folder))
    writer = index.writer(HEAP, 1)
    for number, (title, text) in enumerate(documents):
        writer.add_document(tantivy.Document(title=" ".join(words(title)), text=" ".join(words(text)), number=number))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index


def digest(documents: Sequence[Document]) -> str:
    """A hash of the corpus, the version of the engine and the format of the index."""
    h = hashlib.blake2b(f"{FORMAT} {version('tantivy')}".encode(), digest_size=16)
    for document in documents:
        for part in document:
            data = part.encode("utf-8", "replace")
            h.update(len(data).to_bytes(8, "little"))
            h.update(data)
    return h.hexdigest()


def _stored(folder: Path) -> Any | None:
    """The index in a folder, or None where there is none or any byte of it is not what was written."""
    try:
        seal = json.loads((folder / MANIFEST).read_text())
        if any(_hash(folder / name) != want for name, want in seal.items()):
            return None
        return tantivy.Index.open(str(folder))
    except (OSError, ValueError, AttributeError):
        return None


def _seal(folder: Path) -> None:
    """Write the hash of every file of an index, last of all."""
    files = sorted(f.name for f in folder.iterdir() if f.is_file() and not f.name.endswith(".lock"))
    (folder / MANIFEST).write_text(json.dumps({name: _hash(folder / name) for name in files}))


def _hash(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
