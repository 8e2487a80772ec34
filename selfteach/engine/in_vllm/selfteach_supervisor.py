"""Runs a command in this process's group until it ends or stdin is closed: `supervisor.py COMMAND ...`.

selfteach holds the other end of stdin. However it ends, the pipe is closed, and the whole group is ended: vLLM's engine
and workers too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

GRACE = 10.0  # seconds between asking the group to end and killing it


def main() -> int:
    """Run the command; its exit status."""
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        end(child)

    threading.Thread(target=watch, daemon=True).start()
    code = child.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # what it left behind
    return code if code >= 0 else 128 - code


def end_with_parent() -> None:
    """In the command: be asked to end where this process is killed, as Ray kills the children of its workers."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def end(child: subprocess.Popen[bytes]) -> None:
    """End the group, this process last."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.killpg(0, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
