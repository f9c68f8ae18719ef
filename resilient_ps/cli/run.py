"""`resilient-ps run`: a program of the user's in several processes, on a cluster."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from resilient_ps.checkpoints.standby import Standby
from resilient_ps.cli.local import cluster_for
from resilient_ps.cli.options import ClusterOption, EtcdOption, JsonOption, print_json
from resilient_ps.cli.programs import MAX_PROCESSES, Programs
from resilient_ps.cli.storing import with_standby
from resilient_ps.client.connection import CLUSTER_VARIABLE, ETCD_VARIABLE
from resilient_ps.errors import NotFound


@with_standby()
def run(
    *,
    program: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="A .py file or a command; its arguments.")
    ],
    processes: Annotated[
        int, typer.Option("--processes", min=1, max=MAX_PROCESSES, help="How many to start.")
    ] = 2,
    servers: Annotated[
        int,
        typer.Option("--servers", min=0, max=64, help="Run so many servers here meanwhile."),
    ] = 0,
    standby: Standby,
    cluster: ClusterOption = "default",
    etcd: EtcdOption = "127.0.0.1:2379",
    json: JsonOption = False,
) -> None:
    """Run a program in several processes: holders of a graph's tasks, or ranks of a job.

    Each finds the cluster and its number in the environment, where connect() and client.worker()
    look: RESILIENT_PS_ETCD, RESILIENT_PS_CLUSTER, RESILIENT_PS_RANK and RESILIENT_PS_RANKS. What
    they print is shown as it comes. A process that is killed is started again, up to 3 times; one
    that ends with an error ends all. Options stand before PROGRAM.

    \b
    Examples:
        resilient-ps run --processes 3 --servers 2 examples/wavefront.py
        resilient-ps run --processes 8 --cluster ctr my_train.py --epochs 5
        resilient-ps run --processes 4 ./my_program
    """
    command = _command(program)
    begun_s = time.monotonic()
    with cluster_for(servers, cluster, etcd, standby) as endpoints:
        where = {ETCD_VARIABLE: endpoints, CLUSTER_VARIABLE: cluster}
        with (
            tempfile.TemporaryDirectory(prefix="resilient-ps-run-") as folder,
            Programs(command, processes, where, Path(folder)) as started,
        ):
            started.run()
    if json:
        seconds = round(time.monotonic() - begun_s, 3)
        print_json({"processes": processes, "restarts": started.restarts, "seconds": seconds})


def _command(program: Sequence[str]) -> list[str]:
    """With the full path of what is to be run. Raises `NotFound`."""
    name, *arguments = program
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise NotFound(f"there is no file {name}: name the program to run")
        return [sys.executable, str(Path(name).resolve()), *arguments]
    found = shutil.which(name)
    if found is None:
        raise NotFound(f"there is no command {name}: name a .py file, or a command on the PATH")
    return [str(Path(found).resolve()), *arguments]
