"""The search index of a corpus: built once, cached under the hash of its content, rebuilt where it is broken."""

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

from ..core.cache import cache_folder
from ..core.errors import SelfteachError
from ..core.extras import optional
from ..core.task import Document

FORMAT = "1"  # change it when the words or the fields of the index change
MANIFEST = "manifest.json"
HEAP = 64 * 2**20  # bytes the index builder may hold before it writes a segment

Words = Callable[[str], list[str]]


def tantivy() -> Any:
    """The module of the search engine. Raises BadValue where it is not installed."""
    return optional("tantivy", "search", "tool search")


@cache
def schema() -> Any:
    """Fields of the index: words of title and text, and the number of the document. Texts stay with the task."""
    builder = tantivy().SchemaBuilder()
    for name in ("title", "text"):
        builder.add_text_field(name, stored=False, tokenizer_name="whitespace", index_option="freq")
    builder.add_unsigned_field("number", stored=True)
    return builder.build()


def load_or_build(documents: Sequence[Document], words: Words) -> Any:
    """The index of a corpus, from the cache or built now; in memory where nothing can be written.

    A build is written to a temporary folder and renamed, so that a process which dies or loses the race leaves nothing
    broken behind. Raises BadValue where the package tantivy is not installed.
    """
    tantivy()
    name = corpus_hash(documents)
    try:
        cache_dir = cache_folder("search")
    except SelfteachError:
        return build(documents, words, None)
    for _ in range(3):
        index = _load(cache_dir / name)
        if index is not None:
            return index
        try:
            temporary = Path(tempfile.mkdtemp(prefix=f".{name[:12]}-", dir=cache_dir))
        except OSError:
            break
        try:
            build(documents, words, temporary)
            _write_manifest(temporary)
            if _load(cache_dir / name) is None:
                shutil.rmtree(cache_dir / name, ignore_errors=True)  # broken, or not there
            os.rename(temporary, cache_dir / name)
        except (OSError, ValueError):
            pass  # another process was first, or the disk is full: look again, then do without
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return build(documents, words, None)


def build(documents: Sequence[Document], words: Words, folder: Path | None) -> Any:
    """Index documents in a folder, or in memory. One thread, so that the same corpus always gives the same index."""
    index = tantivy().Index(schema(), path=None if folder is None else str(folder))
    writer = index.writer(HEAP, 1)
    document = tantivy().Document
    for number, (title, text) in enumerate(documents):
        writer.add_document(document(title=" ".join(words(title)), text=" ".join(words(text)), number=number))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index


def corpus_hash(documents: Sequence[Document]) -> str:
    """A hash of the corpus, the version of the engine and the format of the index."""
    h = hashlib.blake2b(f"{FORMAT} {version('tantivy')}".encode(), digest_size=16)
    for document in documents:
        for part in document:
            data = part.encode("utf-8", "replace")
            h.update(len(data).to_bytes(8, "little"))
            h.update(data)
    return h.hexdigest()


def _load(folder: Path) -> Any | None:
    """The index in a folder; None where there is none or a file is not as the manifest's hash says."""
    try:
        hashes = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if any(_hash(folder / name) != expected for name, expected in hashes.items()):
            return None
        return tantivy().Index.open(str(folder))
    except (OSError, ValueError, AttributeError):
        return None


def _write_manifest(folder: Path) -> None:
    """Write the hash of every file of an index, after all of them."""
    files = sorted(f.name for f in folder.iterdir() if f.is_file() and not f.name.endswith(".lock"))
    (folder / MANIFEST).write_text(json.dumps({name: _hash(folder / name) for name in files}), encoding="utf-8")


def _hash(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
