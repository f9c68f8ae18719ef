"""Options that several commands share, and how help looks."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

HELP: dict[str, Any] = {
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": None,  # boxes around options leave too little room in 80 columns
    "pretty_exceptions_enable": False,
}


class Coordination(StrEnum):
    """Which coordination process a cluster on this machine gets."""

    AUTO = "auto"
    ETCD = "etcd"
    EMBEDDED = "embedded"


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
    float, typer.Option("--deadline", min=0.1, help="Seconds after which a call gives up.")
]
LogFormatOption = Annotated[
    str, typer.Option("--log-format", help="text, json, or auto: text on a terminal.")
]
LogLevelOption = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
ServersOption = Annotated[
    int, typer.Option("--servers", min=1, max=64, help="Server processes to start.")
]
CoordinationOption = Annotated[
    Coordination,
    typer.Option(
        "--coordination", help="A real etcd, the embedded process, or etcd where it is installed."
    ),
]
ConsistencyOption = Annotated[
    str, typer.Option("--consistency", help="bsp, bsp:mean, ssp:STALENESS or asp.")
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        help="libsvm, csv, tsv, criteo, npz, parquet, or auto: by the name of the file.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def print_json(value: Any) -> None:
    """The one JSON object of a command with --json."""
    sys.stdout.write(json.dumps(value, sort_keys=False) + "\n")
    sys.stdout.flush()
