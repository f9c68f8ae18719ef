"""`resilient-ps chaos bench`: how long faults keep shards away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from resilient_ps.chaos.live.outages import Row
from resilient_ps.chaos.live.recovery import Findings, Plan, measure
from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.local import load_kernels, running
from resilient_ps.cli.options import JsonOption, ReplicasOption, ServersOption, print_json
from resilient_ps.cli.output import grid, remark, results
from resilient_ps.cli.progress import Watcher
from resilient_ps.client.connection import wait_for_cluster
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import MAX_MEMBERS, find_etcd
from resilient_ps.errors import BadInput
from resilient_ps.runtime.local import LocalCluster

FAULTS_MOST = 10_000
PLACED_DEADLINE_S = 60.0
COLUMNS = ("fault", "number", "median", "p99", "longest", "others", "bar", "")


def _faults(option: str, what: str) -> Any:
    return typer.Option(option, min=0, max=FAULTS_MOST, help=what)


def bench(
    *,
    kills: Annotated[int, _faults("--kills", "How often to kill -9 a primary.")] = 30,
    stops: Annotated[int, _faults("--stops", "How often to stop one in order.")] = 10,
    etcd_kills: Annotated[int, _faults("--etcd-kills", "How often to kill etcd's leader.")] = 5,
    pauses: Annotated[int, _faults("--pauses", "How often to SIGSTOP a primary for 3 TTL.")] = 3,
    servers: ServersOption = 3,
    replicas: ReplicasOption = 2,
    lease_ttl: Annotated[int, typer.Option(min=1, max=60, help="Of the servers, seconds.")] = 2,
    etcd: Annotated[
        int,
        typer.Option(
            min=0, max=MAX_MEMBERS, help="Members of etcd; 0: the embedded coordination process."
        ),
    ] = 3,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Processes that push.")] = 2,
    json: JsonOption = False,
) -> None:
    """Hurt a cluster of its own under load, and measure until each shard acknowledges again.

    It starts etcd, servers and workers on loopback ports; one more writer per shard notes when it
    is answered. After each fault the cluster is brought back to full strength. In the table, times
    are from the fault to the first acknowledged push on the last of the shards concerned; `others`
    is the longest on any other shard. In the end all pushes are counted: none may be lost or
    applied twice.

    Exit codes: 0 all bars were reached, 1 one was not, or a push was lost or applied twice.

    \b
    Examples:
        resilient-ps chaos bench
        resilient-ps chaos bench --kills 100 --stops 0 --etcd-kills 0 --pauses 0
        resilient-ps chaos bench --lease-ttl 5 --json > recovery.json
        resilient-ps chaos bench --etcd 0 --etcd-kills 0      # without etcd
    """
    plan = Plan(
        kills=kills,
        stops=stops,
        etcd_kills=etcd_kills,
        pauses=pauses,
        servers=servers,
        replicas=replicas,
        lease_ttl_s=lease_ttl,
        etcd=etcd,
        workers=workers,
    )
    plan.check()
    if etcd and find_etcd() is None:
        raise BadInput(
            "no `etcd` on the PATH: install it (on Debian: apt-get install etcd-server), or use "
            "the embedded coordination process with --etcd 0 --etcd-kills 0"
        )
    begun_s = time.monotonic()
    load_kernels(Watcher())
    with running(plan.cluster()) as processes:
        _wait_placed(processes)
        with _progress(plan.faults) as (say, done):
            findings = measure(plan, processes, say, done)
    if json:
        print_json(_as_json(plan, findings, time.monotonic() - begun_s))
    else:
        _print(findings)
    if not findings.holds:
        raise typer.Exit(EXIT_NEGATIVE)


def _wait_placed(processes: LocalCluster) -> None:
    kv = EtcdKv(processes.endpoints)
    try:
        wait_for_cluster(kv, processes.cluster, PLACED_DEADLINE_S)
    finally:
        kv.close()


@contextmanager
def _progress(total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A line per fault; on a terminal a bar too."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield remark, lambda: None
        return
    columns = (
        TextColumn("faults"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("faults", total=total)
        yield (lambda text: progress.console.print(text)), (lambda: progress.advance(bar))


def _as_json(plan: Plan, findings: Findings, seconds: float) -> dict[str, Any]:
    return {
        "servers": plan.servers,
        "replicas": plan.replicas,
        "lease_ttl_s": plan.lease_ttl_s,
        "etcd_members": plan.etcd,
        "workers": plan.workers,
        "kinds": [row.as_json() for row in findings.rows.values()],
        "pushes": findings.pushes,
        "miscounted": findings.miscounted,
        "holds": findings.holds,
        "seconds": round(seconds, 1),
    }


def _print(findings: Findings) -> None:
    rows = [_cells(row) for row in findings.rows.values() if row.outages_s]
    right = "number,median,p99,longest,others"
    results().print(grid("recovery times", COLUMNS, rows, right=right))
    if findings.miscounted:
        for line in findings.miscounted:
            print(f"LOST OR TWICE: {line}")
    else:
        print(f"{findings.pushes} pushes of the load: each applied exactly once")


def _cells(row: Row) -> list[str]:
    told = row.as_json()
    times = [f"{told[name]:.2f} s" for name in ("median_s", "p99_s", "longest_s")]
    others = f"{told['others_longest_s']:.2f} s"
    verdict = "reached" if row.holds else f"MISSED ({row.wrongs} {row.bar.wrongs})"
    if not row.holds and not row.wrongs:
        verdict = "MISSED"
    return [row.kind, str(told["faults"]), *times, others, told["bar"], verdict]
