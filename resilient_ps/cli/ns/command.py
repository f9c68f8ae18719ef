"""`resilient-ps ns`: all of its commands."""

from __future__ import annotations

import typer

from resilient_ps.cli.ns.plotting import plot
from resilient_ps.cli.ns.removing import rm
from resilient_ps.cli.ns.retrying import retry
from resilient_ps.cli.ns.setting import set_quota
from resilient_ps.cli.ns.showing import show, tree
from resilient_ps.cli.ns.watching import watch
from resilient_ps.cli.options import HELP

ns = typer.Typer(
    help="""Look at namespaces and their quotas, and at graphs of tasks.

    `tree`, `show`, `set` and `rm` are about namespaces (ctr/emb), the others about the graphs of
    tasks between them.

    \b
    Examples:
        resilient-ps ns tree --cluster ctr
        resilient-ps ns set ctr/emb --rows-max 10000000
        resilient-ps ns watch nightly
        resilient-ps ns plot nightly --out nightly.svg
    """,
    short_help="Look at namespaces, quotas, and graphs of tasks.",
    no_args_is_help=True,
    **HELP,
)
ns.command("tree")(tree)
ns.command("show")(show)
ns.command("set")(set_quota)
ns.command("rm")(rm)
ns.command("watch")(watch)
ns.command("plot")(plot)
ns.command("retry")(retry)
