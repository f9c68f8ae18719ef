"""`resilient-ps status`: what a cluster is doing, and whether all of it is served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resilient_ps.cli.checkpoint_lines import checkpoint_lines
from resilient_ps.cli.exits import EXIT_UNREACHABLE
from resilient_ps.cli.options import ClusterOption, EtcdOption, JsonOption, print_json
from resilient_ps.cli.output import grid, results, size_text
from resilient_ps.client.report import (
    ClusterReport,
    JobReport,
    ServerReport,
    WorkerReport,
    inspect_cluster,
)
from resilient_ps.client.shard_report import ReplicaReport, ShardReport
from resilient_ps.coordinator.kv import Kv
from resilient_ps.coordinator.runtime.etcd import EtcdKv

SHARDS_SHOWN = 32
WORKERS_SHOWN = 32
SERVED_BY_NOBODY = ("lost", "leaderless", "unplaced")
CLEAR_SCREEN = "\x1b[H\x1b[2J"


def status(
    *,
    cluster: ClusterOption = "default",
    etcd: EtcdOption = "127.0.0.1:2379",
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks, with --watch.")
    ] = 2.0,
    deadline: Annotated[
        float, typer.Option(min=0.1, help="Seconds that etcd and each server have to answer.")
    ] = 2.0,
    shards: Annotated[
        bool, typer.Option("--shards", help="All shards and workers, also where there are many.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show servers, shards, tables, jobs, workers and the coordinator of a cluster.

    Every server is asked; one that does not answer is named. Of each shard: its primary, the
    servers that are in sync with how many log entries they lag behind, and, where it is on its way
    to others, which ones. Exit code 3: some shards have no live primary (or etcd does not answer),
    2: there is no such cluster.

    \b
    Examples:
        resilient-ps status
        resilient-ps status --etcd 10.0.0.1:2379,10.0.0.2:2379 --cluster ctr
        resilient-ps status --watch
        resilient-ps status --json | jq '.jobs[] | {job, slowest, fastest}'
        resilient-ps status --json | jq '.shards[] | select(.state != "ok")'
    """
    kv = EtcdKv(etcd)
    try:
        healthy = _look(kv, cluster, deadline, shards=shards, json=json, watch=watch)
        while watch:
            time.sleep(interval)
            healthy = _look(kv, cluster, deadline, shards=shards, json=json, watch=watch)
    except KeyboardInterrupt:
        if not watch:
            raise
        return  # that is how it ends
    finally:
        kv.close()
    if not healthy:
        raise typer.Exit(EXIT_UNREACHABLE)


def _look(
    kv: Kv, cluster: str, deadline_s: float, *, shards: bool, json: bool, watch: bool
) -> bool:
    report = inspect_cluster(kv, cluster, deadline_s=deadline_s)
    if json:
        print_json(report_json(report))
    else:
        out = results()
        if watch and out.is_terminal:
            out.file.write(CLEAR_SCREEN)
        out.print(Group(*render(report, all_shards=shards)))
    return report.healthy


def report_json(report: ClusterReport) -> dict[str, Any]:
    """The report as JSON values, with the verdict first."""
    return {"healthy": report.healthy, **asdict(report)}


def render(report: ClusterReport, *, all_shards: bool) -> Iterator[RenderableType]:
    """The report for people."""
    yield Text.assemble(
        ("cluster ", "dim"),
        (report.cluster, "bold"),
        f": {len(report.shards)} shards, {len(report.servers)} servers, "
        f"{report.replicas} replicas, "
        f"coordinator {report.coordinator or '(none elected)'}, "
        f"incarnation {report.incarnation}",
    )
    yield from _verdict(report)
    for problem in report.problems:
        yield Text(problem, style="red")
    yield _servers(report.servers)
    yield _shards(report, all_shards=all_shards)
    if report.tables:
        yield grid(
            "tables",
            ["table", "kind", "rows", "size", "shards", "written by"],
            [
                (t.table, t.kind, f"{t.rows:,}", size_text(t.bytes), t.told, t.writer)
                for t in report.tables
            ],
            right="rows,size,shards",
        )
    if report.jobs:
        yield jobs_grid(report.jobs)
    if report.checkpoints is not None:
        yield checkpoint_lines(report.checkpoints)
    if report.workers:
        yield _workers(report.workers, all_workers=all_shards)
    if report.open_intents:
        yield grid(
            "open intents",
            ["number", "kind", "job", "rank"],
            [(i.number, i.kind, i.job, i.rank) for i in report.open_intents],
            right="number,rank",
        )


def _verdict(report: ClusterReport) -> Iterator[Text]:
    by_state: dict[str, list[ShardReport]] = {}
    for shard in report.shards:
        by_state.setdefault(shard.state, []).append(shard)
    orphans = [s for state in SERVED_BY_NOBODY for s in by_state.get(state, ())]
    if orphans:
        more = f" (and {len(orphans) - 1} more)" if len(orphans) > 1 else ""
        yield Text(f"not complete: {orphans[0].trouble}{more}", style="bold red")
    else:
        yield Text("every shard has a live primary", style="green")
    if poor := by_state.get("under-replicated"):
        alone = sum(shard.copies == 1 for shard in poor)
        only = f", {alone} of them only one" if alone else ""
        yield Text(f"{len(poor)} shards have too few copies{only}", style="yellow")
    if moving := by_state.get("moving"):
        yield Text(f"{len(moving)} shards are on their way to other servers", style="dim")
    if drained := [s.server for s in report.servers if s.draining]:
        yield Text(f"being drained: {', '.join(drained)}", style="yellow")


def _servers(servers: tuple[ServerReport, ...]) -> RenderableType:
    rows = [
        (
            s.server,
            _state(s),
            s.address,
            s.zone,
            s.shards,
            s.copies,
            s.lease_s,
            s.connections,
            s.pid,
        )
        for s in servers
    ]
    columns = [
        "server",
        "state",
        "address",
        "zone",
        "primary",
        "in sync",
        "lease s",
        "peers",
        "pid",
    ]
    shown = grid("servers", columns, rows, right="primary,in sync,lease s,peers,pid")
    troubles = [Text(f"  {s.server}: {s.why}", style="red") for s in servers if s.why]
    return Group(shown, *troubles)


def _state(server: ServerReport) -> str:
    if not server.alive:
        return "gone"
    if not server.answers:
        return "silent"
    return "draining" if server.draining else "alive"


def _shards(report: ClusterReport, *, all_shards: bool) -> RenderableType:
    shards = report.shards
    if not all_shards and len(shards) > SHARDS_SHOWN:
        shards = tuple(shard for shard in shards if shard.state != "ok")[:SHARDS_SHOWN]
        if not shards:
            return Text(f"  {len(report.shards)} shards: --shards shows each", style="dim")
    rows = [
        (s.shard, s.primary, s.epoch, s.lsn, _backups(s), _coming(s), _state_text(s))
        for s in shards
    ]
    columns = ["shard", "primary", "epoch", "lsn", "backups (lag)", "to", ""]
    return grid("shards", columns, rows, right="shard,lsn")


def _backups(shard: ShardReport) -> str:
    """The other in-sync members, with what they lag behind."""
    others = [r for r in shard.replicas if r.in_sync and r.server != shard.primary]
    return ", ".join(f"{r.server} ({_lag(r)})" for r in others)


def _lag(replica: ReplicaReport) -> str:
    if replica.role == "dead" or replica.lag is None:
        return replica.role
    return str(replica.lag)


def _coming(shard: ShardReport) -> str:
    """Who is to hold it and does not yet, and who is to be primary instead."""
    learners = [r for r in shard.replicas if r.wanted and not r.in_sync]
    texts = [f"{r.server} ({_copied(r)})" for r in learners]
    wished = shard.desired[0] if shard.desired else shard.primary
    if wished != shard.primary and wished not in [r.server for r in learners]:
        texts.append(f"{wished} as primary")
    return ", ".join(texts)


def _copied(replica: ReplicaReport) -> str:
    if replica.role == "dead":
        return "dead"
    return "waits" if replica.copied_bytes is None else f"copied {size_text(replica.copied_bytes)}"


def _state_text(shard: ShardReport) -> str:
    match shard.state:
        case "ok":
            return ""
        case "lost":
            return "LOST"
        case "under-replicated":
            return f"{shard.copies} of {len(shard.desired)} copies"
        case "leaderless" | "unplaced":
            return "no live primary"
        case _:
            return shard.state


def _workers(workers: tuple[WorkerReport, ...], *, all_workers: bool) -> RenderableType:
    shown = workers if all_workers else workers[:WORKERS_SHOWN]
    table = grid(
        "workers",
        ["job", "rank", "host", "pid", "last heard"],
        [(w.job, w.rank, w.host, w.pid, f"{w.silent_s:.1f} s ago") for w in shown],
        right="rank,pid,last heard",
    )
    left = len(workers) - len(shown)
    more = [Text(f"  and {left} more: --shards shows each", style="dim")] if left else []
    return Group(table, *more)


def jobs_grid(jobs: tuple[JobReport, ...]) -> RenderableType:
    """The jobs, with the clocks of the slowest and the fastest rank."""
    return grid(
        "jobs",
        ["job", "consistency", "ranks", "live", "state", "slowest", "fastest"],
        [
            (
                job.job,
                job.consistency,
                job.ranks,
                job.live,
                job.state,
                _at(job, job.slowest),
                _at(job, job.fastest),
            )
            for job in jobs
        ],
        right="ranks,live",
    )


def _at(job: JobReport, clock: int | None) -> str | None:
    """A clock and the first rank that is in it, if it is told."""
    if clock is None:
        return None
    rank = next((rank for rank, at in job.clocks.items() if at == clock), None)
    return f"clock {clock}" if rank is None else f"clock {clock} (rank {rank})"
