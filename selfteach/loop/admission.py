"""Asynchrony is a number: how many groups may be asked for, given how stale their samples may be."""

from __future__ import annotations


def admit(staleness: int, version: int, batch: int, accepted: int, running: int) -> int:
    """Groups that may start now, so that none is learned from more than `staleness` versions after it began.

    That holds if they are learned from in the order they began; taken as they come in, one that dawdles can be of any
    age.

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
