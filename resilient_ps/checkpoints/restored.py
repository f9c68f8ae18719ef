"""The records of a restore: what it begins with, and the checkpoints that were looked at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from resilient_ps.checkpoints.choosing import Candidate, Chosen, Skipped
from resilient_ps.coordinator.records import CheckpointRecord, RestoreRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.storage.names import CheckpointId, checkpoints_prefix

WHY_CHARS = 1_000
SKIPPED_SHOWN = 3


def restore_record(incarnation: int, chosen: Chosen | None, why: str, at_s: int) -> RestoreRecord:
    """What incarnation `incarnation` begins with; None: the initial state."""
    if chosen is None:
        return RestoreRecord(incarnation, "", "", 0, "", {}, why[:WHY_CHARS], at_s)
    manifest = chosen.manifest
    numbers = {job.name: job.number for job in manifest.jobs}
    clocks = {str(numbers[n]): at for n, at in sorted(manifest.clocks.items()) if n in numbers}
    return RestoreRecord(
        incarnation=incarnation,
        checkpoint=str(manifest.id),
        manifest=chosen.name,
        nbytes=chosen.nbytes,
        sha256=chosen.sha256,
        clocks=clocks,
        why=why[:WHY_CHARS],
        at_s=at_s,
    )


def checkpoint_record(chosen: Chosen) -> CheckpointRecord:
    """The record of a checkpoint whose manifest was found in the store."""
    manifest = chosen.manifest
    return CheckpointRecord(
        number=manifest.id.number,
        id=str(manifest.id),
        incarnation=manifest.id.incarnation,
        manifest=chosen.name,
        nbytes=chosen.nbytes,
        sha256=chosen.sha256,
        clocks=dict(manifest.clocks),
        created_s=manifest.created_s,
        stored_bytes=manifest.totals.stored_bytes,
        uploaded_bytes=manifest.totals.uploaded_bytes,
    )


def candidates(records: Sequence[CheckpointRecord], but: Collection[str] = ()) -> list[Candidate]:
    """The good ones, except those whose ids are given."""
    return [
        Candidate(CheckpointId.parse(record.id), record.manifest, record.nbytes, record.sha256)
        for record in records
        if record.state == "good" and record.id not in but
    ]


def is_past(view: ClusterView, id: CheckpointId) -> bool:
    """Does this checkpoint of the cluster lie behind its present state? Not if the cluster has gone
    back to an earlier one since: then it is of a future that has been given up."""
    config, restore = view.config, view.restore
    if config is None or restore is None or id.incarnation >= config.incarnation:
        return True
    if not restore.manifest.startswith(checkpoints_prefix(view.keys.cluster)):
        return False  # it began anew, or with another cluster's
    return id <= CheckpointId.parse(restore.checkpoint)


def past(view: ClusterView) -> list[CheckpointRecord]:
    """The records of those that do."""
    return [each for each in view.checkpoints if is_past(view, CheckpointId.parse(each.id))]


def beginning(view: ClusterView) -> list[Candidate]:
    """What the present incarnation began with."""
    restore = view.restore
    if restore is None or not restore.checkpoint:
        return []
    id = CheckpointId.parse(restore.checkpoint)
    return [Candidate(id, restore.manifest, restore.nbytes, restore.sha256)]


def marked(
    records: Sequence[CheckpointRecord], skipped: Sequence[Skipped]
) -> list[CheckpointRecord]:
    """The records that are to say that their checkpoints are damaged."""
    whys = {str(each.id): each.why for each in skipped if each.damaged}
    return [
        replace(record, state="damaged", why=whys[record.id][:WHY_CHARS])
        for record in records
        if record.state == "good" and record.id in whys
    ]


def with_skipped(why: str, skipped: Sequence[Skipped]) -> str:
    """The reason of a restore, with those that were newer and no good."""
    shown = [f"skipped {each.id}: {each.why}" for each in skipped[:SKIPPED_SHOWN]]
    if len(skipped) > SKIPPED_SHOWN:
        shown.append(f"and {len(skipped) - SKIPPED_SHOWN} more")
    return "; ".join([why, *shown])[:WHY_CHARS]
