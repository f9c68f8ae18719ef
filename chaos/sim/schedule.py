"""What goes wrong in a run, and when: a list of faults.

A fault is independent of all others, so that a schedule can be shortened: what it strikes is named
by its role (`coordinator`, `primary:2`, `backup:2`, `shard:2`, `rank:1`) or its name, and looked up
when its time comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

FaultKind: TypeAlias = Literal[
    "crash",  # a server is killed, and started again after the duration
    "crash worker",  # a rank's process is killed, and taken over after the duration
    "supersede",  # a rank is taken over while its process is paused for the duration
    "pause",
    "pause mid-step",
    "partition",  # between two hosts, both ways
    "one-way",  # from the first host to the second
    "isolate",  # a host is cut off from all others and from etcd
    "refuse",  # connections between two hosts break, and new ones are refused, though both live
    "slow",  # between two hosts
    "cut",  # connections break, again and again
    "long steps",  # a server takes long between a step and its effects
    "etcd down",
    "etcd leader",  # a new leader: nobody is answered for the duration, then leases are whole again
    "etcd loses answers",
    "etcd lags",  # watch events are late
    "etcd compacts",  # while a server is cut off from etcd for the duration
    "stop",  # SIGTERM; started again after the duration
    "join",  # one more server
    "drain",  # a server is asked to hold nothing any more
]

StoreFaultKind: TypeAlias = Literal[
    "crash shard",  # all processes that hold a shard are killed, and started again
    "crash all",  # all servers are killed, and started again
    "lose etcd",  # the same, and etcd is empty then
    "roll back",  # an operator has the newest checkpoint restored
    "store down",
    "store loses answers",
    "store slow",
    "store damage",  # an object of the newest checkpoint is lost, cut short, or has another bit
]
"""Only where there is an object store."""

AnyKind: TypeAlias = FaultKind | StoreFaultKind

MS_PER_S = 1_000


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at_ms` of the run, for `duration_ms`. `how`: a number for what is left to chance."""

    at_ms: int
    kind: AnyKind
    target: tuple[str, ...] = ()
    duration_ms: int = 0
    how: int = 0

    def __str__(self) -> str:
        target = f" {' -> '.join(self.target)}" if self.target else ""
        return f"{self.at_ms / MS_PER_S:7.3f} s  {self.kind}{target}, {self.duration_ms} ms"


Schedule: TypeAlias = tuple[Fault, ...]
