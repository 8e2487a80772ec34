"""Building kernels: what a library is kept under, where, and what happens without a compiler."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from selfteach.kernels import build, matmul_bf16
from selfteach.kernels.build import compiler_flags, load_library, private_folder, source_texts


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTEACH_CACHE", str(tmp_path / "cache"))


def answer(folder: Path, number: int = 7) -> Path:
    """A source that answers with a number from its header."""
    folder.mkdir(exist_ok=True)
    (folder / "number.h").write_text(f"#pragma once\nconst int number = {number};\n")
    source = folder / "answer.cpp"
    source.write_text('#include "number.h"\n#include <cmath>\nextern "C" int answer() { return number; }\n')
    return source


def built(source: Path) -> ctypes.CDLL:
    lib = load_library.__wrapped__(source)
    if isinstance(lib, str):
        pytest.skip(lib)
    return lib


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "kernels").iterdir())


def test_the_texts_of_a_source_are_those_of_its_headers_too(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text('#include "b.h"\n#include <vector>\nint f();\n')
    (tmp_path / "b.h").write_text('#  include "c.h"\n')
    (tmp_path / "c.h").write_text("int g();\n")
    assert source_texts(tmp_path / "a.cpp")[1:] == ['#  include "c.h"\n', "int g();\n"]
    assert any("exp_" in t for t in source_texts(matmul_bf16.SOURCE)[1:])


def test_a_library_is_built_once_and_anew_where_a_header_or_a_flag_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = answer(tmp_path / "src")
    assert built(source).answer() == 7
    first = kept(tmp_path)
    assert built(source).answer() == 7 and kept(tmp_path) == first
    assert built(answer(tmp_path / "src", 8)).answer() == 8 and len(kept(tmp_path)) == 2
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-DANOTHER"))
    assert built(source).answer() == 8 and len(kept(tmp_path)) == 3
    monkeypatch.setattr(build, "_target", lambda compiler, flags: "another processor")
    assert built(source).answer() == 8 and len(kept(tmp_path)) == 4


def test_the_folder_is_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = private_folder("kernels")
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)  # as another program may have made it
    assert stat.S_IMODE(private_folder("kernels").stat().st_mode) == 0o700


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = answer(tmp_path / "src")
    private_folder("kernels")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    why = load_library.__wrapped__(source)
    assert isinstance(why, str) and "belongs to another user; set SELFTEACH_CACHE" in why
    assert kept(tmp_path) == []


def emptied(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(b"")


def cut_short(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def one_bit_flipped(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def planted(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.unlink()
    file.write_bytes(b"somebody else's")
    real = Path.lstat

    def of_somebody_else(path: Path) -> os.stat_result:
        status = real(path)
        if path != file or status.st_size != len(b"somebody else's"):
            return status
        return os.stat_result((*status[:4], os.geteuid() + 1, *status[5:]))

    monkeypatch.setattr(Path, "lstat", of_somebody_else)


def owned_by_another(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root may give a file away")
    os.chown(file, 12345, -1)


def writable_by_all(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.chmod(0o777)


def linked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = file.with_name("other")
    file.rename(other)
    file.symlink_to(other)


def linked_hard(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(file, file.with_name("other"))


def a_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.unlink()
    (file / "in it").mkdir(parents=True)


@pytest.mark.parametrize(
    "spoil",
    [emptied, cut_short, one_bit_flipped, planted, owned_by_another, writable_by_all, linked, linked_hard, a_folder],
)
def test_a_library_that_is_broken_or_foreign_is_never_loaded_but_built_anew(
    spoil: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = answer(tmp_path / "src")
    built(source)
    (file,) = kept(tmp_path)
    good = file.stem.split("-")
    file.unlink()  # the one that was loaded stays as it is, in memory
    built(source)
    spoil(file, monkeypatch)
    loaded: list[Path] = []
    load = ctypes.CDLL

    def watch(path: str) -> ctypes.CDLL:
        status = Path(path).lstat()
        assert stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
        assert not status.st_mode & 0o022 and Path(path).read_bytes()[:4] == b"\x7fELF"
        loaded.append(Path(path))
        return load(path)

    monkeypatch.setattr(ctypes, "CDLL", watch)
    assert built(source).answer() == 7 and len(loaded) == 1
    assert loaded[0].stem.split("-")[:2] == good[:2] and not list((tmp_path / "cache" / "kernels").glob(".*"))


def test_the_compiler_may_be_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = answer(tmp_path / "src")
    built(source)
    monkeypatch.setenv("CXX", "env c++")
    assert built(source).answer() == 7
    assert len(kept(tmp_path)) == 2
    monkeypatch.setenv("CXX", "'")
    assert "CXX is no command" in str(load_library.__wrapped__(source))


def test_what_computes_is_known_by_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = answer(tmp_path / "src")
    built(source)
    assert build.used["answer.cpp"] in kept(tmp_path)[0].name
    monkeypatch.setenv("SELFTEACH_NATIVE", "0")
    load_library.__wrapped__(source)
    assert build.used["answer.cpp"] == "torch: SELFTEACH_NATIVE is 0"


def test_what_does_not_compile_is_reported_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = answer(tmp_path / "src")
    built(source)
    source.write_text("int f() { return nothing; }\n")
    why = load_library.__wrapped__(source)
    assert isinstance(why, str) and "did not build answer.cpp" in why and "\n" not in why and "nothing" in why
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    assert "no-such-compiler" in str(load_library.__wrapped__(source))
    monkeypatch.setenv("SELFTEACH_NATIVE", "0")
    assert load_library.__wrapped__(source) == "SELFTEACH_NATIVE is 0"


def test_openmp_is_asked_for_by_sources_that_use_it_and_arm_macs_name_their_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SELFTEACH_ISA", raising=False)
    monkeypatch.setattr(build.platform, "system", lambda: "Linux")
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    assert "-fopenmp" not in compiler_flags(["int f();"]) and "-march=native" in compiler_flags(["int f();"])
    assert "-fopenmp" in compiler_flags(["int f();", "#pragma omp parallel\n"])
    monkeypatch.setattr(build.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(build.platform, "machine", lambda: "arm64")
    assert "-mcpu=native" in compiler_flags([""]) and "-march=native" not in compiler_flags([""])
