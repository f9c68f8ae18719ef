"""`resilient-ps server`, and its subcommands."""

from __future__ import annotations

import typer

from resilient_ps.cli.drain import drain, unless_subcommand
from resilient_ps.cli.options import HELP
from resilient_ps.cli.server import server

servers = typer.Typer(invoke_without_command=True, **HELP)
servers.callback(short_help="Serve shards of a cluster.")(unless_subcommand(server))
servers.command(short_help="Move everything away from a server.")(drain)
