"""`resilient-ps status`: what a cluster is doing, and whether all of it is served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from resilient_ps.cli.exits import EXIT_UNREACHABLE
from resilient_ps.cli.options import ClusterOption, EtcdOption, JsonOption, print_json
from resilient_ps.cli.output import grid, results, size_text
from resilient_ps.client.report import ClusterReport, JobReport, ServerReport, inspect_cluster
from resilient_ps.coordinator.kv import Kv
from resilient_ps.coordinator.runtime.etcd import EtcdKv

SHARDS_SHOWN = 32
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
        bool, typer.Option("--shards", help="All shards, also where there are many.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show servers, shards, tables, jobs and the coordinator of a cluster.

    Every server is asked; one that does not answer is named. Exit code 3: some shards have no live
    primary (or etcd does not answer), 2: there is no such cluster.

    \b
    Examples:
        resilient-ps status
        resilient-ps status --etcd 10.0.0.1:2379,10.0.0.2:2379 --cluster ctr
        resilient-ps status --watch
        resilient-ps status --json | jq '.jobs[] | {job, slowest, fastest}'
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
        f"coordinator {report.coordinator or '(none elected)'}, "
        f"incarnation {report.incarnation}",
    )
    yield _verdict(report)
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
    if report.open_intents:
        yield grid(
            "open intents",
            ["number", "kind", "job", "rank"],
            [(i.number, i.kind, i.job, i.rank) for i in report.open_intents],
            right="number,rank",
        )


def _verdict(report: ClusterReport) -> Text:
    orphans = [shard for shard in report.shards if shard.trouble]
    if not orphans:
        return Text("every shard has a live primary", style="green")
    more = f" (and {len(orphans) - 1} more)" if len(orphans) > 1 else ""
    return Text(f"not complete: {orphans[0].trouble}{more}", style="bold red")


def _servers(servers: tuple[ServerReport, ...]) -> RenderableType:
    rows = [
        (s.server, _state(s), s.address, s.zone, s.shards, s.lease_s, s.connections, s.pid)
        for s in servers
    ]
    columns = ["server", "state", "address", "zone", "shards", "lease s", "peers", "pid"]
    shown = grid("servers", columns, rows, right="shards,lease s,peers,pid")
    troubles = [Text(f"  {s.server}: {s.why}", style="red") for s in servers if s.why]
    return Group(shown, *troubles)


def _state(server: ServerReport) -> str:
    if not server.alive:
        return "gone"
    return "alive" if server.answers else "silent"


def _shards(report: ClusterReport, *, all_shards: bool) -> RenderableType:
    shards = report.shards
    if not all_shards and len(shards) > SHARDS_SHOWN:
        shards = tuple(shard for shard in shards if shard.trouble)
        if not shards:
            return Text(f"  {len(report.shards)} shards: --shards shows each", style="dim")
    rows = [(s.shard, s.primary, s.epoch, s.lsn, s.trouble and "no live primary") for s in shards]
    return grid("shards", ["shard", "primary", "epoch", "lsn", ""], rows, right="shard,lsn")


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
