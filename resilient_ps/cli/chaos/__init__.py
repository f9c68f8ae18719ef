"""`resilient-ps chaos`: faults on real processes, and what becomes of a cluster meanwhile."""

from __future__ import annotations

import typer

from resilient_ps.cli.chaos.attach import attach
from resilient_ps.cli.chaos.bench import bench
from resilient_ps.cli.chaos.list import list_kinds
from resilient_ps.cli.chaos.replay import replay
from resilient_ps.cli.chaos.run import run
from resilient_ps.cli.options import HELP

chaos = typer.Typer(
    help="""Faults on real processes, and a verdict.

    \b
    Does what it promises hold?        resilient-ps chaos run
    ... for a program of mine?         resilient-ps chaos run --script my_train.py
    Does a cluster of mine hold it?    resilient-ps chaos attach
    What can be done to it?            resilient-ps chaos list
    The same once more:                resilient-ps chaos replay report.html
    How fast does it recover?          resilient-ps chaos bench

    \b
    Example:
        resilient-ps chaos run --report chaos.html
    """,
    no_args_is_help=True,
    **HELP,
)
chaos.command(short_help="Hurt a cluster of its own, and judge what becomes of it.")(run)
chaos.command(short_help="Hurt a running cluster of yours, within limits.")(attach)
chaos.command(name="list", short_help="Show the kinds of faults.")(list_kinds)
chaos.command(short_help="Make the run of a report again.")(replay)
chaos.command(short_help="Measure how long faults keep shards away.")(bench)
