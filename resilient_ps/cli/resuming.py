"""Where a training continues that was broken off, and the checkpoint at the end of one."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Literal

from resilient_ps.cli.checkpoint.creating import waited_for
from resilient_ps.cli.output import remark, shout, size_text
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.checkpoints import propose_cut
from resilient_ps.coordinator.records import CheckpointRecord, RestoreRecord
from resilient_ps.errors import DeadlineExceeded, NotFound, ResilientPsError

POLL_S = 0.1
REGISTERED_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Resume:
    """What is asked for: `required`: it is an error if there is nothing to continue."""

    required: bool


def announce(
    catalogue: Catalogue, job: str, resume: Resume
) -> Literal["resumes", "begins", "done"]:
    """Say loudly from where the job continues. Raises `NotFound` where it does not and must."""
    record = restored(catalogue)
    jobs = {each.name: each for each in catalogue.jobs()}
    if job not in jobs:
        why = _why_nothing(record, job, list(jobs))
        if resume.required:
            raise NotFound(f"{why}; leave --resume out, or use --resume-if-any, to begin anew")
        remark(f"{why}: job {job} begins at its first clock")
        return "begins"
    if jobs[job].state == "done":
        remark(f"job {job} is done: there is nothing to resume")
        return "done"
    if record is not None and record.checkpoint:
        shout(
            f"RESUMING job {job} on a cluster that was restored from checkpoint {record.checkpoint}"
            f" ({record.why}): each rank continues behind its last tick in it"
        )
    else:
        shout(f"RESUMING job {job} on a cluster that has not been restored: it has run on")
    return "resumes"


def restored(catalogue: Catalogue) -> RestoreRecord | None:
    """What the cluster began with, once its tables and jobs are registered again."""
    key = catalogue.keys.restore
    until_s = time.monotonic() + REGISTERED_DEADLINE_S
    while True:
        items = catalogue.kv.read(key, deadline_s=REGISTERED_DEADLINE_S).items
        record = RestoreRecord.from_bytes(items[0].value, key) if items else None
        if record is None or record.registered or not record.checkpoint:
            return record
        if time.monotonic() > until_s:
            raise DeadlineExceeded(
                f"the coordinator has not registered the tables and jobs of checkpoint "
                f"{record.checkpoint} within {REGISTERED_DEADLINE_S:g} s: `resilient-ps status` "
                "tells whether there is one"
            )
        time.sleep(POLL_S)


def final_checkpoint(catalogue: Catalogue, deadline_s: float) -> CheckpointRecord | None:
    """One with the end of the training. None, and a warning, where none can be made: what was
    trained is in the cluster all the same."""
    by = f"the end of a training, pid {os.getpid()} on {socket.gethostname()}"
    try:
        number = propose_cut(catalogue, why="end of a job", by=by)
        record = waited_for(catalogue, number, deadline_s)
    except ResilientPsError as error:
        shout(f"NO CHECKPOINT at the end of the training: {error}")
        return None
    remark(f"checkpoint {record.id} at the end of the training: {size_text(record.stored_bytes)}")
    return record


def _why_nothing(record: RestoreRecord | None, job: str, jobs: list[str]) -> str:
    if record is None or not record.checkpoint:
        return f"nothing to resume: this cluster began without a checkpoint, and has no job {job!r}"
    names = ", ".join(jobs) or "-"
    return f"nothing to resume: checkpoint {record.checkpoint} has no job {job!r}; jobs: {names}"
