"""Single commands without all the others: for what is started many times on a machine.

Loading every command takes a second of processor time more than a server or a worker needs.
"""

from __future__ import annotations

import typer

from resilient_ps.cli.options import HELP


def alone(name: str) -> typer.Typer | None:
    """An application that knows only this command; None for those that are not worth it."""
    app = typer.Typer(**HELP)
    app.callback()(_group)  # else the one command would be the application itself
    match name:
        case "server":
            from resilient_ps.cli.servers import servers

            app.add_typer(servers, name=name)
        case "train":
            from resilient_ps.cli.train import train

            app.command()(train)
        case _:
            return None
    return app


def _group() -> None:
    """resilient-ps: the parameter server that survives."""
