"""An attempt at a checkpoint, as far as a coordinator has followed it; its record in the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilient_ps.checkpoints.images import Failure, Images
from resilient_ps.checkpoints.publishing import Published, Publishing
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.fields import JsonObject
from resilient_ps.coordinator.records import CheckpointRecord

STEP_NS = 50_000_000  # how often to look while there is something under way
SLOW_STEP_NS = 500_000_000

Stage: TypeAlias = Literal["telling", "imaging", "publishing", "recording", "aborting", "closing"]


@dataclass(slots=True)
class Attempt:
    """The open attempt. What is None is not known, or has not come to that yet."""

    number: int
    plan: CutPlan
    begun_ns: int
    stage: Stage = "telling"
    images: Images | None = None
    jobs: dict[bytes, bytes] | None = None  # and tables, as in etcd after the cut was reached
    reading_jobs: bool = False
    publishing: Publishing | None = None
    published: Published | None = None
    failure: Failure | None = None
    look_ref: int = 0  # is there a manifest already, of a coordinator before us?

    def look_again_ns(self, now_ns: int) -> int:
        """When time may bring it forward; what shards and servers answer does so by itself."""
        if self.stage == "telling":
            return now_ns + SLOW_STEP_NS  # only to see that it does not take for ever
        if self.stage == "imaging" and self.images is not None and not self.images.done:
            return max(now_ns + STEP_NS, self.images.next_ns)
        return now_ns + STEP_NS

    def status(self, shards: int, now_ns: int) -> JsonObject:
        """For people."""
        waits_for = "" if self.images is None else self.images.waits_for()
        if self.publishing is not None:
            waits_for = self.publishing.trouble
        return {
            "number": self.number,
            "checkpoint": self.plan.id,
            "attempt": self.plan.attempt,
            "clocks": self.plan.clocks,
            "stage": self.stage,
            "since_s": round((now_ns - self.begun_ns) / 1e9, 3),
            "waits_for": waits_for,
            "done": 0 if self.images is None else len(self.images.indexes),
            "total": shards,
        }


def record_of(published: Published, name: str) -> CheckpointRecord:
    """What etcd keeps of a checkpoint."""
    manifest = published.manifest
    return CheckpointRecord(
        number=manifest.id.number,
        id=str(manifest.id),
        incarnation=manifest.id.incarnation,
        manifest=name,
        nbytes=published.nbytes,
        sha256=published.sha256,
        clocks=dict(manifest.clocks),
        created_s=manifest.created_s,
        stored_bytes=manifest.totals.stored_bytes,
        uploaded_bytes=manifest.totals.uploaded_bytes,
    )
