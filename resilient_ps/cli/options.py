"""Options that several commands share."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

ClusterOption = Annotated[
    str, typer.Option("--cluster", envvar="RESILIENT_PS_CLUSTER", help="Name of the cluster.")
]
EtcdOption = Annotated[
    str,
    typer.Option(
        "--etcd", envvar="RESILIENT_PS_ETCD", help="Endpoints of etcd: HOST:PORT[,HOST:PORT...]."
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output.")
]
DeadlineOption = Annotated[
    float, typer.Option("--deadline", help="Seconds after which a call gives up.")
]
LogFormatOption = Annotated[
    str, typer.Option("--log-format", help="text, json, or auto: text on a terminal.")
]
LogLevelOption = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


def print_json(value: Any) -> None:
    """The one JSON object of a command with --json."""
    sys.stdout.write(json.dumps(value, sort_keys=False) + "\n")
    sys.stdout.flush()
