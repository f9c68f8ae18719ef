"""`resilient-ps job`: the training jobs of a cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from resilient_ps.cli.options import (
    HELP,
    JsonOption,
    Where,
    YesOption,
    on_cluster,
    print_json,
)
from resilient_ps.cli.output import confirm, grid, opened_catalogue, results
from resilient_ps.cli.status import jobs_grid
from resilient_ps.client.connection import connect
from resilient_ps.client.report import JobReport, inspect_cluster
from resilient_ps.consistency import BSP, parse_consistency
from resilient_ps.coordinator.keys import MAX_RANK
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import NotFound

NameArgument = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")]

job = typer.Typer(
    help="""List, show, stop and remove jobs, and take ranks out of them.

    \b
    Examples:
        resilient-ps job ls
        resilient-ps job stop nightly
        resilient-ps job leave nightly 3
    """,
    short_help="List, show, stop and remove jobs.",
    no_args_is_help=True,
    **HELP,
)


@job.command("ls")
@on_cluster(deadline_s=2.0)
def ls(
    *,
    where: Where,
    json: JsonOption = False,
) -> None:
    """List the jobs, with the clocks of their slowest and fastest ranks.

    \b
    Examples:
        resilient-ps job ls --cluster ctr
        resilient-ps job ls --json | jq -r '.jobs[].job'
    """
    jobs = _reports(where)
    if json:
        print_json({"jobs": [asdict(one) for one in jobs]})
    else:
        results().print(jobs_grid(jobs))


@job.command("show")
@on_cluster(deadline_s=2.0)
def show(
    *,
    where: Where,
    name: NameArgument,
    json: JsonOption = False,
) -> None:
    """Show the clock of every rank of a job.

    \b
    Examples:
        resilient-ps job show nightly --cluster ctr
        resilient-ps job show nightly --json | jq .clocks
    """
    jobs = {one.job: one for one in _reports(where)}
    if name not in jobs:
        raise NotFound(f"there is no job {name!r}; jobs: {', '.join(jobs) or '-'}")
    found = jobs[name]
    if json:
        print_json(asdict(found))
        return
    ahead = [(r, c, c - (found.slowest or 0)) for r, c in found.clocks.items()]
    title = f"job {name}: {found.state}, {found.consistency}, {found.live} live ranks"
    results().print(grid(title, ["rank", "clock", "ahead"], ahead, right="rank,clock,ahead"))


@job.command("stop")
@on_cluster(deadline_s=10.0)
def stop(
    *,
    where: Where,
    name: NameArgument,
    json: JsonOption = False,
) -> None:
    """Stop a job: its workers are refused from now on, other jobs may write its tables.

    \b
    Example:
        resilient-ps job stop nightly --cluster ctr
    """
    with connect(where.etcd, where.cluster, deadline_s=where.deadline_s) as client:
        client.end_job(name, "stopped")
    _done("stopped", name, json=json)


@job.command("rm")
@on_cluster(deadline_s=10.0)
def rm(
    *,
    where: Where,
    name: NameArgument,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Remove a job, so that its name can be used again. Its tables stay.

    \b
    Examples:
        resilient-ps job rm nightly --cluster ctr
        resilient-ps job rm nightly --yes
    """
    with connect(where.etcd, where.cluster, deadline_s=where.deadline_s) as client:
        state = client.catalogue.job(name).state
        confirm(f"remove job {name!r} ({state}) with the clocks of its ranks?", yes=yes)
        client.remove_job(name)
    _done("removed", name, json=json)


@job.command("leave")
@on_cluster(deadline_s=30.0)
def leave(
    *,
    where: Where,
    name: NameArgument,
    rank: Annotated[
        int, typer.Argument(metavar="RANK", min=0, max=MAX_RANK, help="The rank that leaves.")
    ],
    json: JsonOption = False,
) -> None:
    """Take a rank out of a job for good: nobody waits for it any more.

    The coordinator carries it out on all shards; a process that still runs the rank is refused.
    With BSP, what the rank pushed in its open clock is dropped. A data shard that it has in hand
    (--schedule dynamic) is given back with BSP, and refuses the leave otherwise: then the rank's
    program has to retire it (train --retire), lest samples are lost or counted twice.

    \b
    Example:
        resilient-ps job leave nightly 3 --cluster ctr
    """
    ticked: int | None
    with opened_catalogue(where.etcd, where.cluster, where.deadline_s) as catalogue:
        mode = parse_consistency(catalogue.job(name).consistency)
        if isinstance(mode, BSP) and catalogue.in_hand(name, rank) is not None:
            ticked = _leave_as_heir(where, name, rank)
        else:
            ticked = catalogue.propose("leave", name, rank).result.get("ticked")
    if json:
        print_json({"left": name, "rank": rank, "ticked": ticked})
    else:
        print(f"rank {rank} has left job {name} after clock {ticked}")


def _leave_as_heir(where: Where, name: str, rank: int) -> int:
    """Under BSP: the takeover drops the open clock, and so the data shard can be given back."""
    with connect(where.etcd, where.cluster, deadline_s=where.deadline_s) as client:
        record = client.catalogue.job(name)
        with client.worker(name, rank, record.ranks, record.consistency) as worker:
            worker.leave()
            return worker.clock - 1


def _reports(where: Where) -> tuple[JobReport, ...]:
    kv = EtcdKv(where.etcd)
    try:
        return inspect_cluster(kv, where.cluster, deadline_s=where.deadline_s).jobs
    finally:
        kv.close()


def _done(what: str, name: str, *, json: bool) -> None:
    if json:
        print_json({what: name})
    else:
        print(f"{what} job {name}")
