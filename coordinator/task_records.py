"""What etcd holds of a graph of tasks: its record, how far its lanes are, and who may hold tasks.

Nothing is kept of a task that is done but its lane's number `done`: all steps up to it are. So a
graph takes as much room after a million tasks as before the first, 64 lanes in one value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias, cast, get_args

from resilient_ps.coordinator.fields import INT64_MAX, MAX_RECORD_BYTES, Fields, JsonObject
from resilient_ps.coordinator.graph import JSON_BYTES_MAX, STEPS_MAX, Graph
from resilient_ps.coordinator.keys import MAX_NAME_CHARS
from resilient_ps.coordinator.records import Record
from resilient_ps.coordinator.task_asks import Failure, failure_of
from resilient_ps.errors import BadInput

BUCKET_LANES = 64
GRAPHS_KEPT = 16  # that need not be read again

GraphState: TypeAlias = Literal["running", "done", "failed", "removed"]


@dataclass(frozen=True, slots=True)
class GraphRecord(Record):
    """A graph of tasks, and whether it runs. `job_id` is that of the job of its name.

    It becomes `done` when all its tasks are, `failed` with the first failure of a task's program,
    until somebody says that it is to go on. `removed`: nobody will do anything for it any more.
    """

    WHAT = "graph record"
    BYTES_MAX: ClassVar[int] = 2 * JSON_BYTES_MAX + MAX_RECORD_BYTES  # its quotes are escaped

    job_id: int
    graph_json: str
    state: GraphState = "running"
    failure: Failure | None = None

    @property
    def graph(self) -> Graph:
        """The graph itself. It belongs to all who ask, so nothing may be added to it."""
        return _graph(self.graph_json)

    def _fields(self) -> JsonObject:
        failure = {} if self.failure is None else self.failure.to_json()
        return {
            "job_id": self.job_id,
            "graph_json": self.graph_json,
            "state": self.state,
            "failure": failure,
        }

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        record = cls(
            job_id=fields.integer("job_id", 1, 2**32 - 1),
            graph_json=fields.text("graph_json", least=2, most=JSON_BYTES_MAX),
            state=cast(GraphState, fields.choice("state", get_args(GraphState))),
            failure=_failure(fields),
        )
        has_failed = record.state == "failed" or (record.state == "removed" and record.failure)
        if bool(has_failed) != (record.failure is not None):
            fields.fail(f"a graph that is {record.state} has failure {record.failure}")
        try:
            _ = record.graph
        except BadInput as error:
            fields.fail(str(error))
        return record


class LaneState(NamedTuple):
    """How far a lane is: all its steps up to `done` are done.

    `holder` was granted step `done` + 1, with `token`; "": nobody was. `token` grows with each
    grant. A holder that has no record any more is gone: the task may be granted to another.
    """

    done: int = 0
    token: int = 0
    holder: str = ""


@dataclass(frozen=True, slots=True)
class LanesRecord(Record):
    """64 lanes of a graph, by rank; of the last bucket, those that there are.

    They count for the job and in the cluster's incarnation that they name: otherwise they are what
    is left of a removed graph, or of the time before a rollback.
    """

    WHAT = "record of lanes"

    job_id: int
    incarnation: int
    lanes: tuple[LaneState, ...]

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        rows = fields.rows("lanes", len(LaneState._fields))
        if not 1 <= len(rows) <= BUCKET_LANES:
            fields.fail(f"it has {len(rows)} lanes, not 1 to {BUCKET_LANES}")
        for done, token, holder in rows:
            if type(done) is not int or not 0 <= done <= STEPS_MAX:
                fields.fail(f"a lane's done is {str(done)[:40]}, not 0 to {STEPS_MAX}")
            if type(token) is not int or not 0 <= token <= INT64_MAX:
                fields.fail(f"a lane's token is {str(token)[:40]}, not 0 to {INT64_MAX}")
            if not isinstance(holder, str) or len(holder) > MAX_NAME_CHARS:
                fields.fail(f"a lane's holder is {str(holder)[:40]}, not a name or empty")
            if holder and not token:
                fields.fail(f"holder {holder} was granted a task without a token")
        return cls(
            job_id=fields.integer("job_id", 1, 2**32 - 1),
            incarnation=fields.integer("incarnation", 1, INT64_MAX),
            lanes=tuple(LaneState(*row) for row in rows),
        )


@dataclass(frozen=True, slots=True)
class HolderRecord(Record):
    """A process that may be granted tasks. It lies under its lease: it is there while it lives."""

    WHAT = "record of a holder"

    host: str
    pid: int

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        return cls(host=fields.text("host", most=255), pid=fields.integer("pid", 0, INT64_MAX))


def buckets_of(graph: Graph) -> int:
    """In how many records its lanes are."""
    return -(-graph.lanes_total // BUCKET_LANES)


def _failure(fields: Fields) -> Failure | None:
    told: Mapping[str, object] = fields.object("failure")
    if not told:
        return None
    try:
        return failure_of(told)
    except BadInput as error:
        fields.fail(str(error))


@functools.lru_cache(GRAPHS_KEPT)
def _graph(text: str) -> Graph:
    return Graph.from_json(text)
