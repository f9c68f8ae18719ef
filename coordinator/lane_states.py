"""The lanes of a graph as etcd has them: bucket by bucket, with the revision of each.

What the coordinator has written itself counts at once; what the watch brings later is no news then.
"""

from __future__ import annotations

from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.kv import Compare, KeyValue, unchanged
from resilient_ps.coordinator.task_records import BUCKET_LANES, LanesRecord, LaneState, buckets_of
from resilient_ps.errors import BadInput


class LaneStates:
    """`states` by rank. `stale`: buckets that do not count, or are not there, to be written anew.

    `job_id` and `incarnation`: whose lanes count, and in which life of the cluster.
    """

    def __init__(self, graph: Graph, job_id: int, incarnation: int) -> None:
        self.states = [LaneState()] * graph.lanes_total
        self.stale: dict[int, None] = dict.fromkeys(range(buckets_of(graph)))
        self.troubles: dict[int, str] = {}  # buckets that cannot be read, and why
        self.incarnation = incarnation
        self._job_id = job_id
        self._revisions = [0] * buckets_of(graph)

    def see(self, bucket: int, item: KeyValue | None, view_revision: int) -> bool:
        """What the watch says of a bucket's key. Has it changed anything that is known?"""
        if not 0 <= bucket < len(self._revisions):
            return False  # nobody reads it
        known = self._revisions[bucket]
        if known > (view_revision if item is None else item.mod_revision - 1):
            return False
        self._revisions[bucket] = 0 if item is None else item.mod_revision
        self.troubles.pop(bucket, None)
        before = self.states[self.ranks(bucket).start : self.ranks(bucket).stop]
        was_stale = bucket in self.stale
        self.stale[bucket] = None
        if item is not None:
            try:
                self._read(bucket, LanesRecord.from_bytes(item.value, item.key))
            except BadInput as error:
                self.troubles[bucket] = str(error)
        after = self.states[self.ranks(bucket).start : self.ranks(bucket).stop]
        return before != after or was_stale != (bucket in self.stale)

    def ranks(self, bucket: int) -> range:
        """Which lanes are in a bucket."""
        return range(bucket * BUCKET_LANES, min((bucket + 1) * BUCKET_LANES, len(self.states)))

    def reset(self, bucket: int, done: int) -> LanesRecord:
        """The record with which a stale bucket begins anew, all lanes at `done`.

        Tokens go on: of what was granted before, nothing is valid any more.
        """
        lanes = tuple(
            LaneState(done, state.token + 1 if state.token else 0)
            for state in (self.states[rank] for rank in self.ranks(bucket))
        )
        return LanesRecord(self._job_id, self.incarnation, lanes)

    def record(self, bucket: int) -> LanesRecord:
        """The record of a bucket, with what was changed in `states`."""
        ranks = self.ranks(bucket)
        lanes = tuple(self.states[ranks.start : ranks.stop])
        return LanesRecord(self._job_id, self.incarnation, lanes)

    def guard(self, bucket: int, key: bytes) -> Compare:
        """Holds while the bucket's key is as it is known here."""
        return unchanged(key, self._revisions[bucket])

    def written(self, bucket: int, record: LanesRecord, revision: int) -> None:
        """Our transaction has written this."""
        self._revisions[bucket] = revision
        self._take(bucket, record)

    def _read(self, bucket: int, record: LanesRecord) -> None:
        if record.job_id != self._job_id:
            return
        if len(record.lanes) != len(self.ranks(bucket)):
            raise BadInput(
                f"bucket {bucket} of the lanes of job {self._job_id} has {len(record.lanes)} of "
                f"them, not {len(self.ranks(bucket))}: its graph is another one. Remove the graph"
            )
        self._take(bucket, record)

    def _take(self, bucket: int, record: LanesRecord) -> None:
        ranks = self.ranks(bucket)
        self.states[ranks.start : ranks.stop] = record.lanes
        if record.incarnation == self.incarnation:
            self.stale.pop(bucket, None)
