"""Folders of a process, which nobody else removes while it lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from selfteach.core.disk import OwnFolder

HOLDER = """
import sys, time
from pathlib import Path
from selfteach.core.disk import OwnFolder
own = OwnFolder("mine-", local=Path(sys.argv[1]))
(own.path / "weights").write_bytes(b"x" * 100)
print(own.path, flush=True)
time.sleep(60)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_a_live_one_has_is_not(tmp_path: Path) -> None:
    other = tmp_path / "mine-of-another-program"
    other.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        first = OwnFolder("mine-", local=tmp_path)
        assert held.is_dir() and (held / "weights").is_file(), "it is in use"
        os.kill(holder.pid, signal.SIGKILL)
    assert held.is_dir()
    second = OwnFolder("mine-", local=tmp_path)
    assert not held.exists() and first.path.is_dir() and second.path.is_dir() and other.is_dir()


def test_it_goes_when_it_is_closed_or_collected_and_a_shared_place_is_not_cleaned(tmp_path: Path) -> None:
    own = OwnFolder("mine-", local=tmp_path)
    own.close()
    assert not own.path.exists()
    path = OwnFolder("mine-", local=tmp_path).path
    assert not path.exists()
    left = tmp_path / "mine-left"  # as another machine would leave it, whose locks may not be seen here
    left.mkdir()
    (left / ".owned").touch()
    assert OwnFolder("mine-", tmp_path) and left.is_dir()
    assert OwnFolder("mine-", local=tmp_path) and not left.exists()
