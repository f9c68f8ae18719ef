"""`resilient-ps chaos attach`: a cluster that the user runs is hurt, within limits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

import typer

from resilient_ps.chaos.faults.attaching import ENDING, HEALED_BY_US
from resilient_ps.chaos.live.attachment import AttachPlan
from resilient_ps.chaos.live.attachment import attach as attach_to
from resilient_ps.chaos.live.ending import versions
from resilient_ps.chaos.result import Counts, RunResult
from resilient_ps.cli.chaos.files import Files
from resilient_ps.cli.chaos.options import duration_of, names_of
from resilient_ps.cli.chaos.performing import exit_code
from resilient_ps.cli.chaos.run import JsonFileOption, ReportOption
from resilient_ps.cli.chaos.telling import print_run
from resilient_ps.cli.chaos.view import View
from resilient_ps.cli.options import ClusterOption, EtcdOption
from resilient_ps.cli.output import remark
from resilient_ps.errors import BadInput, RetryLater


def attach(
    *,
    etcd: EtcdOption = "127.0.0.1:2379",
    cluster: ClusterOption = "default",
    allow: Annotated[
        str,
        typer.Option(
            "--allow",
            metavar="KIND,GROUP,...",
            help=f"Kinds of faults that may be brought about; default: {','.join(HEALED_BY_US)}.",
        ),
    ] = "",
    on: Annotated[
        str,
        typer.Option(
            "--on",
            metavar="NAME,...",
            help="Strike these servers (by name) and workers (w0, w1, ... by rank) only; default: "
            "all on this machine.",
        ),
    ] = "",
    job: Annotated[
        str, typer.Option("--job", help="Whose ranks are the workers, if there are several jobs.")
    ] = "",
    worker_pid: Annotated[
        list[str] | None,
        typer.Option(
            "--worker-pid",
            metavar="RANK=PID",
            help="The process of a rank, where its heartbeats do not tell; several times.",
        ),
    ] = None,
    duration: Annotated[
        str, typer.Option("--duration", help="No fault is begun any more then: 60s, 5m, 1h.")
    ] = "60s",
    every: Annotated[
        float, typer.Option("--every", min=0.0, help="Seconds of rest between two faults.")
    ] = 5.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="What all chance is drawn from.")] = 1,
    max_outage_s: Annotated[
        float,
        typer.Option(
            "--max-outage-s",
            min=0.0,
            help="Steady: no shard is silent for longer; 0: the servers' lease time and 3 s.",
        ),
    ] = 0.0,
    min_pushes_per_s: Annotated[
        float,
        typer.Option(
            "--min-pushes-per-s",
            min=0.0,
            help="Steady: all shards together log at least so many writes of yours a second.",
        ),
    ] = 0.0,
    json: JsonFileOption = "",
    report: ReportOption = "",
) -> None:
    """Hurt a running cluster of yours, one fault at a time, as long as it stays steady.

    Run it on a machine with servers or workers: struck are only processes on this machine that
    belong to the cluster, and nothing but what is allowed happens to them. Servers are found by
    their records in etcd, workers by their heartbeats. A probe pushes to each shard 20 times a
    second (table and job `availability-probe`, removed at the end). When the steady state is left,
    what is under way is healed at once, and the run is over: violated. It has to be steady before,
    or nothing is done.

    By default only what is healed by this command is allowed. What ends a process
    (kill-server, stop-worker, ...) has to be named; a supervisor, or you, has to start it again.
    A server that holds the last copy of a shard is never ended. Faults of the network are not
    possible here, because nothing stands between your processes: `resilient-ps chaos run` has them.
    Checkpoints that are made meanwhile know the probe's job: after a restore of one, remove it
    (`resilient-ps job rm availability-probe`).

    Exit codes: 0 all promises held, 1 one was broken or the steady state was left, 2 it could not
    be decided or run.

    \b
    Examples:
        resilient-ps chaos attach --cluster ctr
        resilient-ps chaos attach --cluster ctr --allow pause,kill-worker,drain --duration 10m
        resilient-ps chaos attach --cluster ctr --allow kill-server --on s2 --max-outage-s 8
        resilient-ps chaos attach --min-pushes-per-s 100 --report attached.html
    """
    plan = AttachPlan(
        etcd=etcd,
        cluster=cluster,
        allow=names_of(allow),
        on=names_of(on),
        job=job,
        worker_pids=_worker_pids(worker_pid or []),
        duration_s=duration_of(duration),
        every_s=every,
        seed=seed,
        outage_most_s=max_outage_s,
        pushes_least_per_s=min_pushes_per_s,
    )
    files = Files(json=json, report=report)
    kinds = plan.kinds()
    files.check()
    remark(f"allowed on cluster {cluster!r}: {', '.join(kind.name for kind in kinds)}")
    if ending := [kind.name for kind in kinds if kind.name in ENDING]:
        remark(f"not started again by this command: what {', '.join(ending)} ends")
    result = files.write(replace(_attach(plan), logs={}))
    if files.wants_lines:
        print_run(result)
        if report:
            print(f"\nreport: {report}")
    if code := exit_code([result]):
        raise typer.Exit(code)


def _attach(plan: AttachPlan) -> RunResult:
    view = View(f"cluster {plan.cluster}")
    try:
        with view.shown():
            return attach_to(plan, view)
    except RetryLater as error:
        return _not_run(plan, error)


def _not_run(plan: AttachPlan, error: RetryLater) -> RunResult:
    """Nothing was done, so nothing can be judged."""
    return RunResult(
        seed=plan.seed,
        command=plan.command(),
        workload="attached",
        verdict="unknown",
        why=str(error),
        judged=(),
        faults=(),
        samples=(),
        reigns=(),
        outages=(),
        recovery=(),
        counts=Counts(),
        settings=plan.settings(),
        versions=versions(),
        logs={},
        began="",
        seconds=0.0,
    )


def _worker_pids(texts: list[str]) -> tuple[tuple[int, int], ...]:
    found: dict[int, int] = {}
    for text in texts:
        words = re.fullmatch(r"(\d{1,5})=(\d{1,10})", text.strip())
        if words is None or int(words[2]) <= 1:
            raise BadInput(f"--worker-pid {text}: give RANK=PID, such as 0=4711")
        found[int(words[1])] = int(words[2])
    return tuple(sorted(found.items()))
