"""All commands of `resilient-ps`."""

from __future__ import annotations

import typer

from resilient_ps import __version__
from resilient_ps.cli.bench.checkpoint import checkpoint as bench_checkpoint
from resilient_ps.cli.bench.command import bench
from resilient_ps.cli.bench.consistency import consistency as bench_consistency
from resilient_ps.cli.bench.platforms.command import platforms as bench_platforms
from resilient_ps.cli.chaos import chaos
from resilient_ps.cli.checkpoint.command import checkpoint
from resilient_ps.cli.demo import demo
from resilient_ps.cli.doctor import doctor
from resilient_ps.cli.drain import unless_subcommand
from resilient_ps.cli.job import job
from resilient_ps.cli.local import local
from resilient_ps.cli.ns.command import ns
from resilient_ps.cli.options import HELP
from resilient_ps.cli.run import run
from resilient_ps.cli.servers import servers
from resilient_ps.cli.simulate import simulate
from resilient_ps.cli.status import status
from resilient_ps.cli.table import table
from resilient_ps.cli.train import train

app = typer.Typer(
    help="""resilient-ps: the parameter server that survives.

    \b
    Try it on this machine:     resilient-ps demo
    A cluster to play with:     resilient-ps local
    A cluster to work with:     resilient-ps server   (on each machine, beside etcd)
    What a cluster is doing:    resilient-ps status
    What it can go back to:     resilient-ps checkpoint ls

    Results go to standard output, logs and progress to standard error. Exit codes: 0 done, 1 a
    verdict was negative, 2 the call was wrong, 3 something could not be reached in time, 4 this
    process was superseded, 70 a bug, 130 interrupted.
    """,
    no_args_is_help=True,
    **HELP,
)
app.command(short_help="Train on real data with several processes.")(demo)
app.command(short_help="Run a cluster on this machine until Ctrl-C.")(local)
app.add_typer(servers, name="server")
app.command(short_help="Run workers of a training job.")(train)
app.command(
    short_help="Run a program of yours in several processes.",
    context_settings={"allow_interspersed_args": False},
)(run)
app.command(short_help="Show what a cluster is doing.")(status)
app.add_typer(table, name="table")
app.add_typer(job, name="job")
app.add_typer(ns, name="ns")
app.add_typer(checkpoint, name="checkpoint")
app.command(short_help="Examine the store for checkpoints.")(doctor)
benches = typer.Typer(invoke_without_command=True, **HELP)
benches.callback(short_help="Measure this machine.")(unless_subcommand(bench))
benches.command(name="checkpoint", short_help="Measure checkpoints.")(bench_checkpoint)
benches.command(name="consistency", short_help="Compare BSP, SSP and ASP with slow workers.")(
    bench_consistency
)
benches.command(name="platforms", short_help="Compare with PyTorch, Spark and scikit-learn.")(
    bench_platforms
)
app.add_typer(benches, name="bench")
app.command(short_help="Test all promises under faults, in virtual time.")(simulate)
app.add_typer(
    chaos, name="chaos", short_help="Hurt real processes, and measure what becomes of it."
)


@app.command()
def version() -> None:
    """Print the version.

    \b
    Example:
        resilient-ps version
    """
    print(__version__)
