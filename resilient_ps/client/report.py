"""What a cluster is doing, as plain values: the answer of `resilient-ps status`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resilient_ps.client.checkpoint_report import CheckpointReport, checkpoint_report
from resilient_ps.client.inspect import ServerProbe, ask_all, no_such_cluster
from resilient_ps.client.shard_report import ShardReport, shard_reports
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Kv
from resilient_ps.coordinator.records import (
    ClusterConfig,
    IntentRecord,
    JobRecord,
    ServerRecord,
    TableRecord,
)
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import ResilientPsError
from resilient_ps.routing import address_of
from resilient_ps.tables.spec import SparseSpec, TableSpec, spec_from_json

WORKERS = json.dumps({"workers": {}})
CHECKPOINTS = json.dumps({"checkpoints": {}})


@dataclass(frozen=True, slots=True)
class ServerReport:
    """`alive`: registered in etcd under a lease. `answers`: it told us its status (else `why`).

    `shards`: how many it is the primary of; `copies`: how many it is in sync for, these included.
    `entries`: log entries of the former so far. `draining`: it is to hold nothing any more.
    """

    server: str
    alive: bool
    answers: bool
    why: str = ""
    address: str = ""
    zone: str = ""
    weight: float = 1.0
    pid: int | None = None
    version: str = ""
    shards: int = 0
    copies: int = 0
    draining: bool = False
    lease_s: float | None = None
    connections: int | None = None
    entries: int | None = None
    kernels: str | None = None


@dataclass(frozen=True, slots=True)
class TableReport:
    """`rows` (dense: values) and `bytes` are those of the `told` shards that answered.

    `counted`: the rows and bytes that count for quotas.
    """

    table: str
    kind: str
    spec: str
    rows: int
    bytes: int
    told: int
    writer: str | None = None
    counted: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class JobReport:
    """`clocks`: per rank that is live, the clock that it is in (the lowest that a shard knows).

    Where there are very many, the first of the `live` ranks.
    """

    job: str
    consistency: str
    ranks: int
    state: str
    live: int
    clocks: dict[int, int]
    slowest: int | None
    fastest: int | None


@dataclass(frozen=True, slots=True)
class IntentReport:
    """What the coordinator has not carried out yet; `job` is "" where it concerns all."""

    number: int
    kind: str
    job: str
    rank: int


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker process, as the coordinator has heard of it, `silent_s` seconds ago."""

    job: str
    rank: int
    incarnation: int
    host: str
    pid: int
    silent_s: float


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """All of it. `workers`: who told the present coordinator that they live."""

    cluster: str
    cluster_id: str
    incarnation: int
    created_by: str
    initial_servers: int
    replicas: int
    min_in_sync: int
    ring_version: int | None
    coordinator: str | None
    servers: tuple[ServerReport, ...]
    shards: tuple[ShardReport, ...]
    tables: tuple[TableReport, ...]
    jobs: tuple[JobReport, ...]
    workers: tuple[WorkerReport, ...]
    open_intents: tuple[IntentReport, ...]
    problems: tuple[str, ...] = ()
    checkpoints: CheckpointReport | None = None

    @property
    def healthy(self) -> bool:
        """Does every shard have a live primary?"""
        return not any(shard.trouble for shard in self.shards)


def inspect_cluster(kv: Kv, cluster: str, *, deadline_s: float = 2.0) -> ClusterReport:
    """Read etcd and ask every server; a server that does not answer in time is reported so.

    Raises `NotFound` when there is no such cluster, `Unavailable` when etcd does not answer.
    """
    keys = ClusterKeys(cluster)
    result = kv.read(keys.prefix, prefix=True, deadline_s=deadline_s)
    view = ClusterView(keys)
    view.load(result.items, result.revision)
    if view.config is None:
        raise no_such_cluster(kv, keys)
    probes = [ServerProbe(cluster, server.server, address_of(server)) for server in view.servers]
    told = ask_all(probes, deadline_s)
    coordinator = _coordinator(view)
    workers = _ask_coordinator(probes, coordinator, told, deadline_s, WORKERS)
    checkpoints = _ask_coordinator(probes, coordinator, told, deadline_s, CHECKPOINTS)
    for probe in probes:
        probe.close()
    return _report(view, view.config, told, workers, checkpoints)


def _ask_coordinator(
    probes: Sequence[ServerProbe],
    coordinator: str | None,
    told: Mapping[str, Any],
    deadline_s: float,
    what: str,
) -> Mapping[str, Any]:
    """What only the coordinator knows; nothing where it does not answer."""
    for probe in probes:
        if probe.server == coordinator and isinstance(told.get(probe.server), dict):
            try:
                return probe.ask(deadline_s, what)
            except ResilientPsError:
                return {}
    return {}


def _report(
    view: ClusterView,
    config: ClusterConfig,
    told: Mapping[str, Any],
    workers: Mapping[str, Any],
    checkpoints: Mapping[str, Any],
) -> ClusterReport:
    shards = shard_reports(view, config.shards, told)
    answers = [status for _, status in sorted(told.items()) if isinstance(status, dict)]
    jobs = _jobs(view)
    return ClusterReport(
        cluster=view.keys.cluster,
        cluster_id=config.cluster_id,
        incarnation=config.incarnation,
        created_by=config.created_by,
        initial_servers=config.initial_servers,
        replicas=config.replicas,
        min_in_sync=config.min_in_sync,
        ring_version=None if view.ring is None else view.ring.version,
        coordinator=_coordinator(view),
        servers=tuple(_servers(view, told, shards)),
        shards=tuple(shards),
        tables=_tables(view, answers, {job.job_id: job.name for job in jobs}),
        jobs=tuple(_job(job, answers) for job in jobs),
        workers=tuple(_worker(worker) for worker in workers.get("workers", ())),
        open_intents=tuple(_intent(intent) for intent in view.open_intents),
        problems=(*view.problems, *_left_out(told, workers)),
        checkpoints=checkpoint_report(view, checkpoints),
    )


def _left_out(told: Mapping[str, Any], workers: Mapping[str, Any]) -> Iterator[str]:
    """What did not fit into a server's answer."""
    for server, status in sorted(told.items()):
        for what in ("tables", "jobs"):
            count = status.get(f"{what}_left_out", 0) if isinstance(status, dict) else 0
            if count:
                yield f"server {server} holds {count} more {what} than it can tell of at once"
    if count := workers.get("workers_left_out", 0):
        yield f"the coordinator has heard of {count} more workers than it can tell of at once"


def _coordinator(view: ClusterView) -> str | None:
    item = view.items.get(view.keys.coordinator_leader)
    return None if item is None else str(json.loads(item.value)["server"])


def _servers(
    view: ClusterView, told: Mapping[str, Any], shards: Sequence[ShardReport]
) -> Iterator[ServerReport]:
    led: dict[str, list[ShardReport]] = {}
    held: dict[str, int] = {}
    for shard in shards:
        led.setdefault(shard.primary, []).append(shard)
        for server in shard.in_sync:
            held[server] = held.get(server, 0) + 1
    for record in view.servers:
        yield _server(view, record, told.get(record.server), led, held)
    on_ring = () if view.ring is None else view.ring.members
    for name in sorted({*held, *(m.server for m in on_ring)} - set(view.processes)):
        yield ServerReport(
            name,
            alive=False,
            answers=False,
            why="its lease has ended",
            shards=len(led.get(name, ())),
            copies=held.get(name, 0),
            draining=name in view.drains,
        )


def _server(
    view: ClusterView,
    record: ServerRecord,
    told: Any,
    led: Mapping[str, Sequence[ShardReport]],
    held: Mapping[str, int],
) -> ServerReport:
    answers = isinstance(told, dict)
    mine = led.get(record.server, ())
    return ServerReport(
        server=record.server,
        alive=True,
        answers=answers,
        why="" if answers else str(told),
        address=f"{record.host}:{record.port}",
        zone=record.zone,
        weight=record.weight,
        pid=record.pid,
        version=record.version,
        shards=len(mine),
        copies=held.get(record.server, 0),
        draining=record.server in view.drains,
        lease_s=told.get("lease_s") if answers else None,
        connections=told.get("connections") if answers else None,
        entries=sum([shard.lsn or 0 for shard in mine]) if answers else None,
        kernels=told.get("kernels") if answers else None,
    )


def _tables(
    view: ClusterView, answers: Sequence[Mapping[str, Any]], jobs: Mapping[int, str]
) -> tuple[TableReport, ...]:
    reports = []
    for key in sorted(view.items):
        located = view.keys.locate(key)
        if located is not None and located.kind == "table":
            record = TableRecord.from_bytes(view.items[key].value, key)
            reports.append(_table(spec_from_json(record.spec_json), answers, jobs))
    return tuple(reports)


def _table(
    spec: TableSpec, answers: Sequence[Mapping[str, Any]], jobs: Mapping[int, str]
) -> TableReport:
    parts = [t for told in answers for t in told["tables"] if t["table"] == spec.name]
    writers = {int(part["writer"]) for part in parts} - {0}
    return TableReport(
        table=spec.name,
        kind="sparse" if isinstance(spec, SparseSpec) else "dense",
        spec=spec.describe(),
        rows=sum(int(part["rows"]) for part in parts),
        bytes=sum(int(part["bytes"]) for part in parts),
        told=sum(int(part["shards"]) for part in parts),
        writer=", ".join(jobs[number] for number in sorted(writers) if number in jobs) or None,
        counted=(
            sum(int(p["counted"][0]) for p in parts),
            sum(int(p["counted"][1]) for p in parts),
        ),
    )


def _jobs(view: ClusterView) -> list[JobRecord]:
    found = [(key, view.keys.locate(key)) for key in sorted(view.items)]
    return [
        JobRecord.from_bytes(view.items[key].value, key)
        for key, located in found
        if located is not None and located.kind == "job"
    ]


def _job(record: JobRecord, answers: Sequence[Mapping[str, Any]]) -> JobReport:
    parts = [job for told in answers for job in told["jobs"] if job["job"] == record.name]
    ticked: dict[int, int] = {}
    for part in parts:
        for rank, clock in part["ticked"].items():
            ticked[int(rank)] = min(int(clock), ticked.get(int(rank), int(clock)))
    clocks = {rank: clock + 1 for rank, clock in sorted(ticked.items())}
    live = max((int(part["live"]) for part in parts), default=0)
    slowest = [int(part["slowest"]) + 1 for part in parts if live > len(clocks)]
    return JobReport(
        job=record.name,
        consistency=record.consistency,
        ranks=record.ranks,
        state=record.state,
        live=live,
        clocks=clocks,
        slowest=min([*clocks.values(), *slowest], default=None),
        fastest=max(clocks.values(), default=None),
    )


def _intent(record: IntentRecord) -> IntentReport:
    return IntentReport(record.number, record.kind, record.job, record.rank)


def _worker(told: Mapping[str, Any]) -> WorkerReport:
    return WorkerReport(
        job=str(told["job"]),
        rank=int(told["rank"]),
        incarnation=int(told["incarnation"]),
        host=str(told["host"]),
        pid=int(told["pid"]),
        silent_s=float(told["silent_s"]),
    )
