"""Admission of rollouts: the number of groups that may be requested under a bound on staleness."""

from __future__ import annotations


def admit(staleness: int, version: int, batch: int, accepted: int, running: int) -> int:
    """The number of groups that may start now, so that none is learned from more than `staleness` versions after it
    began.

    That holds if groups are learned from in the order in which they began; in order of completion a slow one can be of
    any age.

        (staleness + version + 1) * batch - accepted - running        (Fu et al. 2025, AReaL, eq. 3)

    version: updates delivered so far. accepted: groups taken in over the whole run; running: under way. With staleness
    0 each version admits one batch, which is synchronous training.

    >>> admit(0, version=3, batch=16, accepted=48, running=0)
    16
    >>> admit(0, version=3, batch=16, accepted=48, running=16)
    0
    >>> admit(2, version=3, batch=16, accepted=48, running=16)
    32
    """
    return max(0, (staleness + version + 1) * batch - accepted - running)
