"""`resilient-ps checkpoint`: all of its commands."""

from __future__ import annotations

import typer

from resilient_ps.cli.checkpoint.comparing import diff
from resilient_ps.cli.checkpoint.creating import create
from resilient_ps.cli.checkpoint.files import export, load
from resilient_ps.cli.checkpoint.gc import gc
from resilient_ps.cli.checkpoint.listing import ls
from resilient_ps.cli.checkpoint.restoring import restore
from resilient_ps.cli.checkpoint.showing import show
from resilient_ps.cli.checkpoint.verifying import verify
from resilient_ps.cli.options import HELP

checkpoint = typer.Typer(
    help="""Make, look at, compare, restore, export and import checkpoints.

    `create` and `restore` need the cluster (--etcd). The others read the store alone (--store).

    \b
    Examples:
        resilient-ps checkpoint create --cluster ctr
        resilient-ps checkpoint ls --cluster ctr --store s3://backups/training
        resilient-ps checkpoint verify --cluster ctr --store s3://backups/training
        resilient-ps checkpoint restore clock:500 --cluster ctr
        resilient-ps checkpoint export --cluster ctr --store s3://b/c --out model
    """,
    short_help="Make, look at, restore, export and import checkpoints.",
    no_args_is_help=True,
    **HELP,
)
checkpoint.command("create")(create)
checkpoint.command("ls")(ls)
checkpoint.command("show")(show)
checkpoint.command("verify")(verify)
checkpoint.command("diff")(diff)
checkpoint.command("restore")(restore)
checkpoint.command("export")(export)
checkpoint.command("import")(load)
checkpoint.command("gc")(gc)
