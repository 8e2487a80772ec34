"""The pages of a corpus: a file, or a folder, of JSONL, Parquet, text and Markdown, in whatever state these are.

What cannot be read, of a file or as a whole, is left out and counted, never guessed at and never fatal: only a corpus
without a single page is.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ..core.disk import content_hash
from ..core.errors import BadValue, describe
from ..core.extras import optional

TEXTS = (".txt", ".md", ".markdown")
ROWS = (".jsonl", ".ndjson", ".jsonl.gz", ".parquet")
SUFFIXES = (*ROWS, *TEXTS)
LINE = 1 << 26  # bytes of a line, or of a text file, at most
BATCH = 1024  # rows of a Parquet file that are in memory at once
IDS = ("id", "_id", "docid", "doc_id", "pid")
BODIES = ("text", "content", "body", "passage")
TITLE = 300  # characters of a first line that is a title
# what reading a broken file raises: the disk, gzip (three kinds), and pyarrow, of which all errors are of these kinds
BROKEN = (OSError, EOFError, zlib.error, ValueError, NotImplementedError, MemoryError, KeyError, TypeError, IndexError)
BOMS = (  # UTF-32 first: its mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


class Page(NamedTuple):
    """A document of a corpus: its id, its title ("" where it has none) and its text."""

    id: str
    title: str
    text: str


class Found(NamedTuple):
    """One record of a corpus: its page, or what is wrong with it; and how many of the corpus's bytes were read so far.

    note  what was unusual, though it was read
    """

    page: Page | None
    problem: str
    where: str
    read: int
    note: str = ""


def corpus_files(path: str | Path) -> list[Path]:
    """The files of a corpus in order. Raises BadValue where there are none."""
    try:
        return _files(path, Path(path).expanduser())
    except (OSError, RuntimeError) as error:  # no home folder
        raise BadValue(f"corpus {path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


def _files(path: str | Path, given: Path) -> list[Path]:
    if given.is_file():
        if not given.name.lower().endswith(SUFFIXES):
            raise BadValue(f"corpus {path}: is read from {', '.join(SUFFIXES)}, or from a folder of these")
        return [given]
    if not given.is_dir():
        raise BadValue(f"corpus {path}: no such file or folder")
    files = sorted(f for f in given.rglob("*") if f.is_file() and f.name.lower().endswith(SUFFIXES))
    files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(given).parts)]
    if not files:
        raise BadValue(f"corpus {path}: the folder holds no file of {', '.join(SUFFIXES)}")
    return files


def corpus_hash(path: str | Path) -> str:
    """A hash of a corpus's content: the bytes of its files, and the names of those in a folder, which are ids.

    A file that cannot be read has none of its own. Raises BadValue where that is so of all.
    """
    files, root, wrong = corpus_files(path), Path(path).expanduser(), list[OSError]()

    def of_file(file: Path) -> str:
        try:
            return content_hash(file)
        except OSError as error:
            wrong.append(error)
            return ""

    named = [("" if f == root else f.relative_to(root).as_posix(), of_file(f)) for f in files]
    if len(wrong) == len(files):
        raise BadValue(f"corpus {wrong[0].filename or path}: cannot be read ({wrong[0].strerror or wrong[0]})")
    kind = "".join(f.suffix for f in files[:1])  # the same bytes under another suffix are read otherwise
    return hashlib.blake2b(json.dumps([kind, named]).encode(), digest_size=12).hexdigest()


def corpus_bytes(path: str | Path) -> int:
    """The size of a corpus's files."""
    return sum(map(_size, corpus_files(path)))


def _size(file: Path) -> int:
    with suppress(OSError):
        return file.stat().st_size
    return 0


def records(path: str | Path) -> Iterator[Found]:
    """Every record of a corpus in order, readable or not; of a file that is broken those before the place, and that."""
    root, read = Path(path).expanduser(), 0
    for file in corpus_files(path):
        name = file.name if file == root else file.relative_to(root).as_posix()
        prefix, last = "" if file == root else f"{name}:", name
        try:
            for found in _of_file(file, name, prefix, read):
                last = f"{name} after {found.where.removeprefix(f'{name}, ')}"
                yield found
        except BadValue:  # a package that is missing
            raise
        except BROKEN as error:
            yield Found(None, "broken file", f"{last}: {describe(error, 120)}", read + _size(file))
        read += _size(file)


def _of_file(file: Path, name: str, prefix: str, read: int) -> Iterator[Found]:
    """The records of a file. Raises one of BROKEN, whatever came before."""
    if name.lower().endswith(TEXTS):
        yield _text_file(file, name, read)
    elif name.lower().endswith(".parquet"):
        yield from _parquet(file, name, prefix, read)
    else:
        yield from _lines(file, name, prefix, read)


def _text_file(file: Path, name: str, read: int) -> Found:
    size = file.stat().st_size
    if size > LINE:
        return Found(None, f"a text file above {LINE >> 20} MiB", name, read + size)
    text, note = decoded(file.read_bytes())
    heading = next((line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("# ")), "")
    title = (heading if name.lower().endswith((".md", ".markdown")) else "")[:TITLE] or Path(name).stem
    page = Page(valid_text(name), valid_text(title), text)
    return Found(page if text.strip() else None, "" if text.strip() else "empty", name, read + size, note)


def _lines(file: Path, name: str, prefix: str, read: int) -> Iterator[Found]:
    with file.open("rb") as raw, gzip.open(raw) if name.lower().endswith(".gz") else nullcontext(raw) as opened:
        stream = cast("IO[bytes]", opened)
        head = stream.read(4)
        stream.seek(0)
        encoding = next((e for mark, e in BOMS if head.startswith(mark)), "")
        wide = encoding in ("utf-16", "utf-32")
        for number, line in enumerate(_wide(stream, encoding) if wide else _raw(stream), 1):
            at, where = read + raw.tell(), f"{name}, line {number}"
            if line is None:
                yield Found(None, f"a line above {LINE >> 20} MiB", where, at)
                continue
            text, note = (line, f"read as {encoding}") if isinstance(line, str) else decoded(line)
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                yield Found(None, "no JSON", where, at)
                continue
            yield _record(row, f"{prefix}{number}", where, at, note)


def _raw(stream: IO[bytes]) -> Iterator[bytes | None]:
    """The lines of a stream; None for one that is too long, of which the rest is passed over."""
    while line := stream.readline(LINE + 1):
        if len(line) <= LINE:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(LINE + 1)
        yield None


def _wide(stream: IO[bytes], encoding: str) -> Iterator[str]:
    """The lines of a stream of two or four bytes a character."""
    yield from codecs.getreader(encoding)(stream, "replace")


def _parquet(file: Path, name: str, prefix: str, read: int) -> Iterator[Found]:
    parquet = optional("pyarrow.parquet", "data", f"corpus {name}")
    size, number = file.stat().st_size, 0
    with parquet.ParquetFile(file) as opened:
        total = max(1, opened.metadata.num_rows)
        for batch in opened.iter_batches(batch_size=BATCH):
            for row in batch.to_pylist():
                number += 1
                yield _record(row, f"{prefix}{number}", f"{name}, row {number}", read + size * number // total, "")


def _record(row: Any, number: str, where: str, read: int, note: str) -> Found:
    """The page of a row: `contents` = title and text, or `title` beside `text`; the number where it has no id."""
    if not isinstance(row, Mapping):
        return Found(None, "no object with columns", where, read)
    columns = cast("Mapping[str, Any]", row)
    id = next((str(columns[n]) for n in IDS if columns.get(n) not in (None, "")), number)
    title, contents = columns.get("title"), columns.get("contents")
    if isinstance(contents, str):
        own, text = title_and_text(contents)
        title = title if isinstance(title, str) and title else own
    else:
        text = next((columns[n] for n in BODIES if isinstance(columns.get(n), str)), None)
        if text is None:
            return Found(None, f"no column contents or {BODIES[0]}", where, read)
    if not text.strip() and not str(title or "").strip():
        return Found(None, "empty", where, read)
    return Found(
        Page(valid_text(id), valid_text(str(title or "")), valid_text(text or str(title))), "", where, read, note
    )


def title_and_text(contents: str) -> tuple[str, str]:
    r"""(title, text) of Wikipedia dumps' usual `contents`: the title, in quotes, on a line of its own.

    >>> title_and_text('"Lyon"\nLyon is a city.'), title_and_text("Lyon is a city.")
    (('Lyon', 'Lyon is a city.'), ('', 'Lyon is a city.'))
    """
    first, end, rest = contents.partition("\n")
    if not end or not rest.strip() or len(first) > TITLE:
        return "", contents
    return first.strip().strip('"').strip(), rest


def decoded(data: bytes) -> tuple[str, str]:
    r"""(text, what was unusual) of bytes in UTF-8, another Unicode with its mark, or else Windows-1252.

    >>> decoded("é".encode()), decoded("é".encode("cp1252"))
    (('é', ''), ('é', 'read as Windows-1252'))
    """
    encoding = next((e for mark, e in BOMS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding), "" if encoding.startswith("utf-8") else f"read as {encoding}"
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace"), "read as Windows-1252"


def valid_text(text: str) -> str:
    """A text that UTF-8 can hold: lone surrogates, which JSON may spell, become question marks."""
    return text.encode("utf-8", "replace").decode()
