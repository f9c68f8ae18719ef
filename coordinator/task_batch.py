"""Changes of one graph of tasks that are written together, and who waits for that."""

from __future__ import annotations

from dataclasses import dataclass, field

from resilient_ps.coordinator.task_asks import Failure, Granted
from resilient_ps.coordinator.task_records import GraphRecord, LanesRecord, LaneState
from resilient_ps.coordinator.waiters import Waiter

ENTRIES_MAX = 96  # buckets and holders that a batch compares; some guards come on top
PER_QUESTION = 4  # at most: the buckets of what is reported and granted, the new holder and the old


@dataclass(slots=True)
class Batch:
    """Changes of one graph that are to be written together. `resets`: buckets that begin anew.

    `reported`: who is answered when it is written. `gone`: holders whose tasks are granted to
    others. `reopens`: the graph is not done after all.
    """

    graph: str
    before: dict[int, LaneState] = field(default_factory=dict)  # by rank
    buckets: dict[int, None] = field(default_factory=dict)
    resets: dict[int, LanesRecord] = field(default_factory=dict)
    reported: list[Waiter] = field(default_factory=list)
    granted: list[tuple[Waiter, Granted]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    failure: Failure | None = None
    finishes: bool = False
    reopens: bool = False
    records: dict[int, LanesRecord] = field(default_factory=dict)  # what is written, by bucket, and
    record: GraphRecord | None = None  # the graph's, if that changes

    @property
    def has_room(self) -> bool:
        """For one more question?"""
        taken = len(self.buckets) + len(self.granted) + len(self.gone)
        return taken + PER_QUESTION <= ENTRIES_MAX

    @property
    def empty(self) -> bool:
        """Is there nothing to be written?"""
        return not (self.buckets or self.resets or self.finishes or self.reopens)
