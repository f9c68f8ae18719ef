"""What happened in a run, for people: faults, elections, roles, and what the processes logged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.faults import Struck
from resilient_ps.coordinator.records import Member, ShardRecord

LINES_MAX = 300
_DULL = frozenset({"registered", "exit"})


def tell(cluster: SimCluster, struck: Iterable[Struck], begin_ns: int) -> tuple[str, ...]:
    """The story's lines, in the order of time; times count from `begin_ns`."""
    told = [
        *((world_ns, 0, text) for world_ns, text in struck),
        *((world_ns, 1, text) for world_ns, text in _elections(cluster)),
        *((world_ns, 1, text) for world_ns, text in _checkpoints(cluster)),
        *((world_ns, 2, text) for world_ns, text in _logs(cluster)),
    ]
    told.sort(key=lambda line: line[:2])
    marks = ("!!", "->", "  ")
    lines = [f"{(at - begin_ns) / 1e9:9.4f} s {marks[kind]} {text}" for at, kind, text in told]
    left_out = len(lines) - LINES_MAX
    if left_out > 0:
        half = LINES_MAX // 2
        lines = [*lines[:half], f"... {left_out} lines are left out ...", *lines[-half:]]
    return tuple(lines)


def _elections(cluster: SimCluster) -> Iterator[tuple[int, str]]:
    """Every change of a shard's record."""
    before: dict[int, ShardRecord] = {}
    for world_ns, record in cluster.world.audit.records:
        old = before.get(record.shard)
        before[record.shard] = record
        where = f"shard {record.shard}, epoch {record.epoch.incarnation}.{record.epoch.counter}"
        if old is None or old.epoch != record.epoch:
            primary = _name(record.leader) if record.primary else "nobody"
            yield world_ns, f"{where}: primary {primary}, in sync {_names(record.in_sync)}"
        elif old.in_sync != record.in_sync:
            yield world_ns, f"{where}: in sync {_names(record.in_sync)}"
        elif old.desired != record.desired:
            yield world_ns, f"{where}: should be on {' '.join(record.desired)}"


def _checkpoints(cluster: SimCluster) -> Iterator[tuple[int, str]]:
    """What was published, and which incarnations there were."""
    if cluster.archive is None:
        return
    for seen in cluster.archive.configured:
        yield seen.world_ns, f"the cluster is in incarnation {seen.incarnation}"
    for each in cluster.archive.published:
        stored = cluster.archive.stored.get(each.id)
        what = f"incomplete: {each.problem}" if stored is None else f"clocks {stored.clocks}"
        yield each.world_ns, f"checkpoint {each.id}, {what}"


def _logs(cluster: SimCluster) -> Iterator[tuple[int, str]]:
    for life in cluster.lives:
        for line in life.process.log:
            if line.event in _DULL:
                continue
            fields = " ".join(f"{key}={value}" for key, value in line.fields.items())
            yield line.world_ns, f"{life.name}: {line.event} {fields}".rstrip()
    for worker in cluster.workers:
        if worker.error is not None:
            yield cluster.world.now_ns, f"{worker.process.name} has ended: {worker.error}"


def _names(members: Iterable[Member]) -> str:
    return " ".join(_name(member) for member in members)


def _name(member: Member) -> str:
    return f"{member.server}({member.process % 1000})"
