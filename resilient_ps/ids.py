"""Names of things that travel: epochs, positions in a log, the identity of a worker.

Plain tuples, ordered as the protocol orders them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

DrawBits: TypeAlias = Callable[[int], int]
"""A source of randomness: how many bits to draw -> a non-negative integer of that many bits."""


class Epoch(NamedTuple):
    """An epoch of a shard's leadership: (cluster incarnation, counter). It only grows."""

    incarnation: int
    counter: int


class Position(NamedTuple):
    """How far a replica of a shard has come: the epoch it serves in and its applied lsn."""

    epoch: Epoch
    lsn: int


NO_EPOCH = Epoch(0, 0)
NOWHERE = Position(NO_EPOCH, 0)


class WorkerId(NamedTuple):
    """A worker process: its job, its rank there, and which incarnation of the rank it is.

    The incarnation is the rank's fencing token: a number drawn from a counter in etcd by each
    process that takes the rank.
    """

    job: int
    rank: int
    incarnation: int


class PushId(NamedTuple):
    """What a push or a tick says of its place: clock, number in the clock, predecessor here.

    `n` counts the pushes of one worker and clock over all shards, from 1. `prev` is the last `n`
    that this incarnation sent to *this* shard in this clock (0: none).
    """

    clock: int
    n: int
    prev: int


READER = WorkerId(0, 0, 0)
"""The identity of a client that is no worker: it may read."""
