"""`resilient-ps checkpoint ls`: which checkpoints there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resilient_ps.cli.checkpoint.choice import age_text, clocks_text, opened
from resilient_ps.cli.options import JsonOption, Where, on_cluster, print_json
from resilient_ps.cli.output import grid, opened_catalogue, results, size_text
from resilient_ps.cli.storing import Store, with_store
from resilient_ps.client.checkpoints import checkpoint_records
from resilient_ps.client.stored import Listed
from resilient_ps.coordinator.records import CheckpointRecord
from resilient_ps.errors import NotFound
from resilient_ps.storage.names import CheckpointId

COLUMNS = ("checkpoint", "clocks", "age", "size", "uploaded", "state")
DAMAGED = ("damaged", "incomplete")


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint, as etcd or the store tells of it."""

    id: CheckpointId
    clocks: dict[str, int]
    created_s: int | None
    stored_bytes: int | None
    uploaded_bytes: int | None
    state: str
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "incarnation": self.id.incarnation,
            "number": self.id.number,
            "clocks": self.clocks,
            "created_s": self.created_s,
            "stored_bytes": self.stored_bytes,
            "uploaded_bytes": self.uploaded_bytes,
            "state": self.state,
            "why": self.why,
        }

    def cells(self) -> tuple[object, ...]:
        sizes = (self.stored_bytes, self.uploaded_bytes)
        return (
            self.id,
            clocks_text(self.clocks),
            None if self.created_s is None else age_text(self.created_s),
            *(None if size is None else size_text(size) for size in sizes),
            f"{self.state}: {self.why}" if self.why else self.state,
        )


@on_cluster(deadline_s=5.0)
@with_store()
def ls(
    *,
    where: Where,
    store: Store,
    json: JsonOption = False,
) -> None:
    """List the checkpoints of a cluster, the newest first.

    With --store the store itself is looked into, and no etcd is needed: "complete" then means that
    the manifest is there and can be read (`checkpoint verify` reads the rest). Without it, etcd is
    asked what has been published. `size` is what a checkpoint takes in the store, `uploaded` what
    was written for it: the rest it shares with earlier ones.

    \b
    Examples:
        resilient-ps checkpoint ls --cluster ctr --etcd 10.0.0.1:2379
        resilient-ps checkpoint ls --cluster ctr --store s3://backups/training
        resilient-ps checkpoint ls --json | jq -r '.checkpoints[0].id'
    """
    if store:
        with opened(store, where.cluster) as stored:
            rows = [_of_store(listed) for listed in stored.listed()]
            if not rows and not stored.is_known():
                raise NotFound(f"no checkpoints: {stored.nothing()}")
        nothing = f"none of cluster {where.cluster!r} is complete or left"
    else:
        with opened_catalogue(where.etcd, where.cluster, where.deadline_s) as catalogue:
            catalogue.incarnation()  # there is such a cluster
            rows = [_of_etcd(record) for record in checkpoint_records(catalogue)]
        nothing = "none has been published"
    if json:
        told = [row.as_json() for row in rows]
        print_json({"cluster": where.cluster, "checkpoints": told})
    elif not rows:
        print(f"no checkpoints: {nothing}")
    else:
        cells = [row.cells() for row in rows]
        title = f"checkpoints of cluster {where.cluster}"
        results().print(grid(title, COLUMNS, cells, right="age,size,uploaded"))


def _of_store(listed: Listed) -> Row:
    manifest = listed.manifest
    if manifest is None:
        return Row(listed.id, {}, None, None, None, listed.state, listed.why)
    totals = manifest.totals
    return Row(
        listed.id,
        dict(manifest.clocks),
        manifest.created_s,
        totals.stored_bytes,
        totals.uploaded_bytes,
        listed.state,
    )


def _of_etcd(record: CheckpointRecord) -> Row:
    return Row(
        CheckpointId.parse(record.id),
        dict(record.clocks),
        record.created_s,
        record.stored_bytes,
        record.uploaded_bytes,
        record.state,
        record.why,
    )
