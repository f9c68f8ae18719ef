"""The kinds of faults on real processes: what each does, to whom, for how long, and what it needs.

`resilient-ps chaos list` prints this table; `--faults` takes names of kinds and of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilient_ps.errors import BadInput

Group: TypeAlias = Literal[
    "kill",
    "pause",
    "stop",
    "partition",
    "network",
    "store",
    "resources",
    "etcd",
    "membership",
]
Need: TypeAlias = Literal[
    "network",  # our proxy stands between all parties
    "etcd",  # real etcd, of which we started the members
    "quorum",  # three members or more
    "s3",  # an object store behind our proxy
    "store process",  # an object store that we started
    "root",
    "faketime",
]
Target: TypeAlias = Literal[
    "server", "primary", "coordinator", "worker", "etcd", "etcd leader", "store", "shard", "all"
]
"""`primary`: of a shard, named by number as `primary:3`, and looked up when the time comes."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault. `lasts_s`: shortest and longest, before it is healed; in lease times where
    `in_ttls`. `weight`: how often it is drawn, beside the others. `targets`: whom it strikes."""

    name: str
    group: Group
    text: str
    targets: tuple[Target, ...]
    lasts_s: tuple[float, float] = (2.0, 6.0)
    in_ttls: bool = False
    needs: frozenset[Need] = frozenset()
    weight: int = 2


def _kind(
    name: str,
    group: Group,
    text: str,
    *targets: Target,
    lasts_s: tuple[float, float] = (2.0, 6.0),
    in_ttls: bool = False,
    needs: Iterable[Need] = (),
    weight: int = 2,
) -> Kind:
    return Kind(name, group, text, targets, lasts_s, in_ttls, frozenset(needs), weight)


_SHORT = (0.5, 2.0)
_CHECKPOINT = (5.0, 10.0)  # so long that a checkpoint is made meanwhile

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        # -- SIGKILL; the process is started again when the fault ends
        _kind("kill-server", "kill", "SIGKILL a server, start it again", "server", weight=4),
        _kind("kill-primary", "kill", "SIGKILL the primary of a shard", "primary", weight=4),
        _kind("kill-coordinator", "kill", "SIGKILL the coordinator", "coordinator"),
        _kind("kill-worker", "kill", "SIGKILL a worker", "worker", lasts_s=_SHORT, weight=4),
        _kind("kill-etcd", "kill", "SIGKILL a member of etcd", "etcd", needs=("etcd", "quorum")),
        _kind(
            "kill-etcd-leader",
            "kill",
            "SIGKILL the leader of etcd",
            "etcd leader",
            needs=("etcd", "quorum"),
        ),
        _kind("kill-store", "kill", "SIGKILL the store", "store", needs=("store process",)),
        # -- SIGSTOP
        _kind(
            "pause-server",
            "pause",
            "SIGSTOP a server for some lease times",
            "server",
            lasts_s=(0.3, 3.0),
            in_ttls=True,
            weight=3,
        ),
        _kind(
            "pause-primary",
            "pause",
            "SIGSTOP the primary of a shard for some lease times",
            "primary",
            lasts_s=(0.3, 3.0),
            in_ttls=True,
            weight=3,
        ),
        _kind(
            "pause-coordinator",
            "pause",
            "SIGSTOP the coordinator",
            "coordinator",
            in_ttls=True,
            lasts_s=(0.5, 3.0),
        ),
        _kind("pause-worker", "pause", "SIGSTOP a worker", "worker"),
        _kind(
            "pause-etcd-leader",
            "pause",
            "SIGSTOP the leader of etcd",
            "etcd leader",
            lasts_s=(1.5, 6.0),
            needs=("etcd", "quorum"),
        ),
        _kind("pause-store", "pause", "SIGSTOP the store", "store", needs=("store process",)),
        # -- SIGTERM, as a preemption with notice
        _kind("stop-server", "stop", "SIGTERM a server, start it again", "server"),
        _kind("stop-worker", "stop", "SIGTERM a worker, start it again", "worker"),
        # -- partitions: nothing passes, connections stand
        _kind(
            "partition",
            "partition",
            "two servers do not hear each other",
            "server",
            needs=("network",),
            weight=3,
        ),
        _kind(
            "one-way",
            "partition",
            "a server does not hear another one",
            "server",
            needs=("network",),
            weight=3,
        ),
        _kind(
            "halves",
            "partition",
            "a minority of the servers is cut off from the others",
            "all",
            needs=("network",),
        ),
        _kind(
            "bridge",
            "partition",
            "two halves that hear each other through one server only",
            "all",
            needs=("network",),
        ),
        _kind(
            "isolate",
            "partition",
            "a server is cut off from everybody",
            "server",
            needs=("network",),
        ),
        _kind(
            "server-etcd",
            "partition",
            "a server is cut off from etcd",
            "server",
            needs=("network", "etcd"),
            weight=3,
        ),
        _kind(
            "server-store",
            "partition",
            "a server is cut off from the store",
            "server",
            lasts_s=_CHECKPOINT,
            needs=("network", "s3"),
        ),
        _kind(
            "worker-server",
            "partition",
            "a worker is cut off from a server",
            "worker",
            needs=("network",),
            weight=3,
        ),
        _kind(
            "etcd-member",
            "partition",
            "a member of etcd is cut off from the others",
            "etcd",
            needs=("network", "etcd", "quorum"),
        ),
        # -- bad lines
        _kind("delay", "network", "everything to a server is late", "server", needs=("network",)),
        _kind(
            "jitter",
            "network",
            "everything to a server is late by chance",
            "server",
            needs=("network",),
        ),
        _kind(
            "loss",
            "network",
            "packets to a server are lost and sent again",
            "server",
            needs=("network",),
        ),
        _kind("bandwidth", "network", "a thin line to a server", "server", needs=("network",)),
        _kind(
            "half-open",
            "network",
            "a server's connections stand, and say nothing",
            "server",
            lasts_s=_SHORT,
            needs=("network",),
        ),
        _kind(
            "reset",
            "network",
            "all connections of a server are reset, again and again",
            "server",
            lasts_s=_SHORT,
            needs=("network",),
        ),
        _kind(
            "lose-answer",
            "network",
            "exactly one answer of a server is lost",
            "server",
            lasts_s=_SHORT,
            needs=("network",),
            weight=4,
        ),
        # -- the object store
        _kind(
            "store-slow", "store", "a store at 1 MB/s", "store", lasts_s=_CHECKPOINT, needs=("s3",)
        ),
        _kind(
            "store-errors",
            "store",
            "a store that answers 500 and 503",
            "store",
            lasts_s=_CHECKPOINT,
            needs=("s3",),
        ),
        _kind(
            "store-timeouts",
            "store",
            "a store that does not answer",
            "store",
            lasts_s=_CHECKPOINT,
            needs=("s3",),
        ),
        _kind(
            "store-truncates",
            "store",
            "answers of the store break off",
            "store",
            lasts_s=_CHECKPOINT,
            needs=("s3",),
        ),
        _kind(
            "store-loses-answers",
            "store",
            "the store does it, and does not say so",
            "store",
            lasts_s=_CHECKPOINT,
            needs=("s3",),
        ),
        _kind(
            "store-stale-list",
            "store",
            "listings hide what is new",
            "store",
            lasts_s=_CHECKPOINT,
            needs=("s3",),
        ),
        _kind(
            "store-no-conditions",
            "store",
            "a store that ignores conditions of puts",
            "store",
            lasts_s=_CHECKPOINT,
            needs=("s3",),
            weight=1,
        ),
        # -- resources
        _kind(
            "disk-full", "resources", "a server can write to no file: the disk is full", "server"
        ),
        _kind("memory", "resources", "memory pressure on the machine", "all"),
        _kind("cpu", "resources", "CPU hogs on the machine", "all"),
        _kind(
            "gil",
            "resources",
            "a server holds its interpreter lock",
            "server",
            lasts_s=(0.2, 2.0),
            in_ttls=True,
        ),
        _kind(
            "loop",
            "resources",
            "a server's event loop is blocked",
            "server",
            lasts_s=(0.2, 2.0),
            in_ttls=True,
        ),
        _kind(
            "clock-jump",
            "resources",
            "the wall clock of a restarted server is wrong",
            "server",
            needs=("faketime",),
        ),
        # -- etcd
        _kind(
            "etcd-compact",
            "etcd",
            "etcd is compacted while a server is cut off",
            "server",
            lasts_s=(4.0, 8.0),  # a watch takes silence for a hang after 2.5 s
            needs=("etcd", "network"),
        ),
        _kind(
            "etcd-defrag",
            "etcd",
            "members of etcd are defragmented",
            "etcd",
            lasts_s=_SHORT,
            needs=("etcd",),
            weight=1,
        ),
        _kind(
            "etcd-no-space",
            "etcd",
            "etcd refuses writes: NOSPACE",
            "all",
            needs=("etcd",),
            weight=1,
        ),
        _kind("lease-revoke", "etcd", "a server's lease is revoked", "server", lasts_s=_SHORT),
        _kind(
            "etcd-restart",
            "etcd",
            "all members of etcd are killed, and started again",
            "all",
            lasts_s=_SHORT,
            needs=("etcd",),
            weight=1,
        ),
        # -- membership
        _kind(
            "scale-out",
            "membership",
            "one more server; it leaves in order at the end",
            "all",
            lasts_s=(6.0, 12.0),
        ),
        _kind(
            "drain",
            "membership",
            "a server is drained, and taken back",
            "server",
            lasts_s=(4.0, 8.0),
        ),
    )
}

GROUPS: tuple[str, ...] = tuple(dict.fromkeys(kind.group for kind in KINDS.values()))


def choose(names: Collection[str]) -> tuple[Kind, ...]:
    """The kinds that `--faults` names, by kind or group; none named: all.

    Raises `BadInput` for a name that is neither.
    """
    unknown = sorted(set(names) - KINDS.keys() - set(GROUPS))
    if unknown:
        raise BadInput(
            f"no fault {unknown[0]!r}: give kinds ({', '.join(KINDS)}) or groups "
            f"({', '.join(GROUPS)}); `resilient-ps chaos list` explains them"
        )
    return tuple(k for k in KINDS.values() if not names or k.name in names or k.group in names)
