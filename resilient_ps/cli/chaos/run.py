"""`resilient-ps chaos run`: a cluster of its own is hurt, and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from resilient_ps.chaos.live.run_plan import RunPlan
from resilient_ps.chaos.live.workload import MODES
from resilient_ps.cli.chaos.files import Files
from resilient_ps.cli.chaos.options import (
    ALL,
    AUTO,
    duration_of,
    names_of,
    script_of,
    seeds_of,
    store_of,
    workloads_of,
)
from resilient_ps.cli.chaos.performing import Wanted, perform
from resilient_ps.cli.options import ReplicasOption, ServersOption
from resilient_ps.cli.unsafe import ScenarioOption, UnsafeOption, disabled
from resilient_ps.coordinator.runtime.processes import MAX_MEMBERS
from resilient_ps.errors import BadInput

OF_SCENARIOS = frozenset({"scenario", "unsafe_disable", "json", "report", "keep"})

JsonFileOption = Annotated[
    str,
    typer.Option(
        "--json", metavar="FILE", help="Write the result as JSON; -: to standard output, alone."
    ),
]
ReportOption = Annotated[
    str, typer.Option("--report", metavar="FILE.html", help="Write a report for a browser.")
]
KeepOption = Annotated[
    Path | None,
    typer.Option(
        "--keep", metavar="FOLDER", help="Keep all logs there; by default beside the report."
    ),
]


def run(
    *,
    context: typer.Context,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="What all chance is drawn from.")
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", metavar="A..B", help="Several runs, one after the other.")
    ] = "",
    duration: Annotated[
        str, typer.Option("--duration", help="How long faults happen: 60s, 5m, 1h.")
    ] = "60s",
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            metavar="KIND,GROUP,...",
            help="Kinds and groups of faults, as `chaos list` shows them; default: all.",
        ),
    ] = "",
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            metavar="NAME,...",
            help=f"{', '.join(MODES)}; several or `{ALL}`: seeds take them in turn.",
        ),
    ] = ALL,
    script: Annotated[
        str,
        typer.Option(
            "--script",
            metavar="'FILE.py ARGS'",
            help="A training program of yours instead; --workers processes run it.",
        ),
    ] = "",
    servers: ServersOption = 4,
    workers: Annotated[
        int, typer.Option("--workers", min=1, max=64, help="Worker processes to start.")
    ] = 4,
    replicas: ReplicasOption = 2,
    etcd: Annotated[
        int,
        typer.Option(
            "--etcd",
            min=0,
            max=MAX_MEMBERS,
            help="Members of etcd; 0: the embedded coordination process.",
        ),
    ] = 3,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            metavar="STORE",
            help="For checkpoints: seaweedfs (started for the run), folder (a temporary one), the "
            "path of a folder, s3://BUCKET/PREFIX, none; auto: seaweedfs if it is installed.",
        ),
    ] = AUTO,
    consistency: Annotated[
        str,
        typer.Option("--consistency", help="bsp, ssp:STALENESS or asp; default: the workload's."),
    ] = "",
    lease_ttl: Annotated[
        int, typer.Option("--lease-ttl", min=1, max=60, help="Of the servers, seconds.")
    ] = 2,
    liveness: Annotated[
        bool,
        typer.Option(
            "--liveness",
            help="Faults that are never healed: a server that does not hear the others, a dead "
            "one, a dead member of etcd. Everything must go on within TTL + 10 s.",
        ),
    ] = False,
    scenario: ScenarioOption = "",
    unsafe_disable: UnsafeOption = [],  # noqa: B006 (typer copies it)
    json: JsonFileOption = "",
    report: ReportOption = "",
    keep: KeepOption = None,
) -> None:
    """Start a cluster of its own, hurt it while a workload runs, and judge what becomes of it.

    etcd, an object store, servers and workers are real processes on loopback ports, with a proxy
    between all of them. The seed decides what faults strike whom and when; several are active at
    once. They are healed at the end, the cluster comes to rest, and then everything is checked:
    that no acknowledged push is lost or applied twice, that nobody saw time go back, the
    consistency's bounds, that replicas are identical, and more. Nothing is left behind.

    With {seed} in the names of --json and --report there is a file for each seed.

    Exit codes: 0 all promises held, 1 one was broken, 2 it could not be decided or run.

    \b
    Examples:
        resilient-ps chaos run
        resilient-ps chaos run --seeds 1..20 --report chaos.html
        resilient-ps chaos run --seed 7 --faults kill,pause --workload one-hot --duration 5m
        resilient-ps chaos run --script "my_train.py --epochs 3" --workers 2 --report mine.html
        resilient-ps chaos run --liveness --faults partition
        resilient-ps chaos run --servers 3 --workers 2 --etcd 1 --store none --json -
        resilient-ps chaos run --scenario sync-ack
        RESILIENT_PS_ALLOW_UNSAFE=1 resilient-ps chaos run --unsafe-disable sync-ack
    """
    unsafe = disabled(unsafe_disable)
    if scenario or unsafe:
        refuse_other_options(context)
        wanted = scenes_of(scenario, unsafe)
        perform(wanted, Files(json, report, keep, several=len(wanted) > 1))
        return
    numbers = seeds_of(seed, seeds)
    names = workloads_of(workload, script)
    plan = RunPlan(
        duration_s=duration_of(duration),
        faults=names_of(faults),
        script=script_of(script),
        servers=servers,
        workers=workers,
        replicas=replicas,
        etcd=etcd,
        store=store_of(store),
        consistency=consistency,
        liveness=liveness,
        lease_ttl_s=lease_ttl,
    )
    wanted = [
        Wanted(plan.of(seed=number, workload=names[number % len(names)])) for number in numbers
    ]
    perform(wanted, Files(json, report, keep, several=len(numbers) > 1))


def refuse_other_options(context: typer.Context) -> None:
    """A scenario is fixed, its cluster too: what would have no effect is refused."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and name not in OF_SCENARIOS:
            raise BadInput(
                f"{parameter.opts[0]} beside --scenario or --unsafe-disable: a scenario has a "
                f"cluster and faults of its own; leave {parameter.opts[0]} away"
            )


def scenes_of(scenario: str, unsafe: tuple[str, ...]) -> list[Wanted]:
    """One scenario; or those of all protections that are to be switched off, without them."""
    if scenario:
        return [Wanted(RunPlan(scenario=scenario, unsafe_disable=unsafe))]
    return [
        Wanted(RunPlan(seed=number, scenario=name, unsafe_disable=(name,)))
        for number, name in enumerate(unsafe, 1)
    ]
