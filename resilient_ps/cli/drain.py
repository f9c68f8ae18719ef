"""`resilient-ps server drain`: take a server out of service without losing anything."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.cli.options import ClusterOption, EtcdOption, JsonOption, print_json
from resilient_ps.cli.output import remark
from resilient_ps.client.draining import Draining, DrainReport
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import BadInput


def unless_subcommand(command: Callable[..., None]) -> Callable[..., None]:
    """The command as the callback of a group: it runs only where no subcommand is named."""

    @functools.wraps(command)
    def run(*, context: typer.Context, **options: Any) -> None:
        if context.invoked_subcommand is None:
            command(**options)

    signature = inspect.signature(command, eval_str=True)
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [context, *signature.parameters.values()]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {"context": typer.Context, **command.__annotations__}
    return run


def drain(
    *,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the server.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Until it holds nothing, showing what is left.")
    ] = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take it back: the server gets shards again.")
    ] = False,
    cluster: ClusterOption = "default",
    etcd: EtcdOption = "127.0.0.1:2379",
    deadline: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which --wait gives up.")
    ] = 600.0,
    json: JsonOption = False,
) -> None:
    """Move everything away from a server, while training goes on; then it can be stopped.

    The server is marked, and the coordinator gives its shards to the others, one copy at a time.
    This command need not wait for that; called again, it says what is left. The mark stays, through
    restarts too, until --cancel, or until the server has been gone for the grace time. With --json
    every look is one line. Exit code 1: it is marked and still holds something (without --wait);
    3: --wait gave up.

    \b
    Examples:
        resilient-ps server drain s3 --wait && systemctl stop resilient-ps
        resilient-ps server drain s3 --json
        resilient-ps server drain s3 --cancel
    """
    if wait and cancel:
        raise BadInput("give --wait or --cancel: a drain that is cancelled has no end to wait for")
    with closing(EtcdKv(etcd)) as kv:
        draining = Draining(kv, cluster, name)
        if cancel:
            _tell(draining.cancel(), json=json)
            return
        report = draining.begin()
        if not wait:
            _tell(report, json=json)
            if report.state != "drained":
                raise typer.Exit(EXIT_NEGATIVE)
            return
        told: set[str] = set()
        for report in draining.wait(deadline):
            if report.state == "draining" and not json:
                _progress(report, told)
            elif json:
                _tell(report, json=True)
        if not json:
            _tell(report, json=False)


def _progress(report: DrainReport, told: set[str]) -> None:
    remark(f"server {report.server}: {_left(report)}")
    for hint in report.hints:
        if hint not in told:
            told.add(hint)
            remark(hint)


def _tell(report: DrainReport, *, json: bool) -> None:
    if json:
        print_json({**asdict(report), "left": report.left})
        return
    match report.state:
        case "drained" if report.alive:
            print(f"server {report.server} holds nothing any more: it can be stopped")
        case "drained":
            print(f"server {report.server} is gone, and nothing of it is left")
        case "draining":
            print(f"server {report.server} is being drained: {_left(report)}")
            for hint in report.hints:
                remark(hint)
        case _ if report.left or report.alive:
            print(f"server {report.server} is in service: {_left(report)}")
        case _:
            print(f"server {report.server} is gone, and nothing of it is left")


def _left(report: DrainReport) -> str:
    parts = [
        f"{report.left} shards left",
        f"primary of {report.primary_of}",
        f"in sync for {report.member_of}",
    ]
    if report.promised:
        parts.append(f"{report.promised} copies to be made")
    return ", ".join(parts)
