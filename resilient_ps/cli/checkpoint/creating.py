"""`resilient-ps checkpoint create`: ask a cluster for a checkpoint, and wait for it."""

from __future__ import annotations

import os
import socket
from typing import Annotated

import typer

from resilient_ps.cli.bars import bar
from resilient_ps.cli.checkpoint.choice import clocks_text
from resilient_ps.cli.options import JsonOption, Where, on_cluster, print_json
from resilient_ps.cli.output import opened_catalogue, size_text
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.checkpoints import CutProgress, propose_cut, wait_for_cut
from resilient_ps.coordinator.records import CheckpointRecord


@on_cluster(deadline_s=120.0)
def create(
    *,
    where: Where,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it is published.")] = True,
    json: JsonOption = False,
) -> None:
    """Make a checkpoint now, while training goes on.

    The coordinator chooses the clock that it is aligned to, a little ahead of where the ranks are;
    it is reached when every rank has ended that clock. Ranks do not wait for it. While pushes
    come in, servers upload gently (see their --upload-share): a large state may need a longer
    --deadline.

    \b
    Examples:
        resilient-ps checkpoint create --cluster ctr --etcd 10.0.0.1:2379
        resilient-ps checkpoint create --deadline 600 --json | jq -r .id
    """
    by = f"pid {os.getpid()} on {socket.gethostname()}"
    with opened_catalogue(where.etcd, where.cluster, where.deadline_s) as catalogue:
        number = propose_cut(catalogue, why="asked for", by=by)
        if not wait:
            _say_asked(number, json=json)
            return
        record = waited_for(catalogue, number, where.deadline_s)
    if json:
        print_json(_as_json(record))
    else:
        print(
            f"checkpoint {record.id}: clocks {clocks_text(record.clocks)}, "
            f"{size_text(record.stored_bytes)}, {size_text(record.uploaded_bytes)} uploaded"
        )


def waited_for(catalogue: Catalogue, number: int, deadline_s: float) -> CheckpointRecord:
    """The checkpoint that came of the wish of this number; progress is shown meanwhile."""
    with bar("making a checkpoint", 1, "shards") as show:

        def on_progress(progress: CutProgress) -> None:
            show.say(progress.text)
            show.set(progress.done, max(progress.total, 1))

        return wait_for_cut(catalogue, number, deadline_s, on_progress)


def _say_asked(number: int, *, json: bool) -> None:
    if json:
        print_json({"intent": number})
    else:
        print(f"asked for a checkpoint (intent {number}): `resilient-ps checkpoint ls` shows it")


def _as_json(record: CheckpointRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "number": record.number,
        "incarnation": record.incarnation,
        "clocks": record.clocks,
        "created_s": record.created_s,
        "stored_bytes": record.stored_bytes,
        "uploaded_bytes": record.uploaded_bytes,
    }
