"""A rank above 0 of a sharded learner: it carries out what rank 0 asks until that ends.

    python -m selfteach.learner.worker DEVICE SECONDS PARENT [FILE ...]

is how rank 0 starts one on its own machine (ranks.py), a placer calls `main` with these words and 0 for the parent
(cluster/rank_host.py), and under torchrun the run's own command comes to `serve`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from ..core import registry
from ..core.errors import SelfteachError
from .ranks import Ranks, join
from .sharded import ShardedLearner


def serve(ranks: Ranks) -> None:
    """Carry out orders until rank 0 ends, or what it asks fails here alone, which ends this process."""
    with contextlib.suppress(ValueError):  # not in the main thread, where Ray calls it
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; rank 0 decides
    learners: dict[int, ShardedLearner] = {}
    while True:
        try:
            name, number, gone, given = ranks.next_order()
            for other in gone:
                learners.pop(other, None)
            if name == "end":
                return
            if name == "new":
                learners[number] = ShardedLearner.of_rank(ranks, *given)
            else:
                learners[number].carry_out(name, given)
        except SelfteachError:  # every rank raised it, rank 0 too
            continue
        except EOFError:
            return
        except BaseException as error:
            ranks.failed(error)
            raise


def main(words: Sequence[str]) -> int:
    """A rank that rank 0 had started; its exit status."""
    device, seconds, parent, *files = words
    if sys.platform == "linux" and parent != "0":  # elsewhere it ends as soon as rank 0's store is gone
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it dies with rank 0, however that dies
    if parent not in ("0", str(os.getppid())):
        return 1
    for file in files:
        registry.load_file(file)
    ranks = join(device, float(seconds))
    try:
        serve(ranks)
    except BaseException:  # left in the store by `serve`, for the one line that rank 0 says
        return 1
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # without a tear-down of process groups whose other end is gone
