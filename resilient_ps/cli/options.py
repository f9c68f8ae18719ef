"""Options that several commands share, and how help looks."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from resilient_ps.coordinator.placement import MAX_REPLICAS

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


class Scheduling(StrEnum):
    """Which rank reads which part of the data, or which tasks the training consists of."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    ROTATION = "rotation"
    PIPELINE = "pipeline"


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
ReplicasOption = Annotated[
    int,
    typer.Option(
        "--replicas",
        min=1,
        max=MAX_REPLICAS,
        help="Servers that hold each shard, as far as there are so many; fixed for ever.",
    ),
]
MinInSyncOption = Annotated[
    int,
    typer.Option(
        "--min-in-sync",
        min=1,
        max=MAX_REPLICAS,
        help="Servers that must hold a write before it is acknowledged; with fewer, writes wait.",
    ),
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


@dataclass(frozen=True, slots=True)
class Where:
    """The cluster that a command is about, and how long a call to it may take."""

    etcd: str
    cluster: str
    deadline_s: float


def grouped(
    parameter: str, make: Callable[..., object], options: Mapping[str, tuple[Any, object]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command with a parameter of this name: several options make its value.

    `options`: by name, the annotation and the default; `make` takes them by these names.
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            value = make(**{name: given.pop(name) for name in options})
            command(**{parameter: value}, **given)

        parameters = []
        for each in inspect.signature(command, eval_str=True).parameters.values():
            if each.name == parameter:  # here they stand in its help, too
                parameters += [_option(name, *option) for name, option in options.items()]
            else:
                parameters.append(each)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return wrap


def on_cluster(deadline_s: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command with a parameter `where`: it becomes --cluster, --etcd and --deadline."""

    def make(cluster: str, etcd: str, deadline: float) -> Where:
        return Where(etcd, cluster, deadline)

    options = {
        "cluster": (ClusterOption, "default"),
        "etcd": (EtcdOption, "127.0.0.1:2379"),
        "deadline": (DeadlineOption, deadline_s),
    }
    return grouped("where", make, options)


def _option(name: str, kind: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def print_json(value: Any) -> None:
    """The one JSON object of a command with --json."""
    sys.stdout.write(json.dumps(value, sort_keys=False) + "\n")
    sys.stdout.flush()
