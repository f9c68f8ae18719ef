"""How far a graph of tasks is, as plain values, from what etcd holds of it; live, too."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, Kv, Put, Reset, Txn, WatchBatch, unchanged
from resilient_ps.coordinator.records import ClusterConfig
from resilient_ps.coordinator.task_asks import Failure
from resilient_ps.coordinator.task_records import (
    BUCKET_LANES,
    GraphRecord,
    LanesRecord,
    LaneState,
    buckets_of,
)
from resilient_ps.errors import BadInput, NotFound, RetryLater, Unavailable
from resilient_ps.namespaces import covers

CHANGE_TRIES = 20


@dataclass(frozen=True, slots=True)
class NamespaceProgress:
    """`done` of `tasks` tasks; the slowest lane has done `least` steps, the fastest `most`.

    `held`: how many of its lanes a living process works on.
    """

    namespace: str
    lanes: int
    done: int
    tasks: int
    least: int
    most: int
    held: int


@dataclass(frozen=True, slots=True)
class GraphReport:
    """`holders`: processes that may be granted tasks. `failure`: for people; "" if there is none.

    `failed`: the namespace whose task failed.
    """

    graph: str
    state: str
    steps: int
    done: int
    tasks: int
    holders: int
    namespaces: tuple[NamespaceProgress, ...]
    failure: str = ""
    failed: str = ""

    @property
    def over(self) -> bool:
        """Will nothing happen any more by itself?"""
        return self.state != "running"


def graph_report(keys: ClusterKeys, items: Mapping[bytes, KeyValue], name: str) -> GraphReport:
    """Of what lies in etcd. Raises `NotFound`."""
    record = _record(keys, items, name)
    graph = record.graph
    lanes = _lanes(keys, items, name, record)
    prefix = keys.holders(name)
    holders = {key.removeprefix(prefix).decode() for key in items if key.startswith(prefix)}
    spaces = []
    for space in graph.namespaces:
        states = [lanes[rank] for rank in space.ranks]
        done = [state.done for state in states]
        held = sum(state.holder in holders for state in states)
        spaces.append(
            NamespaceProgress(
                space.name, space.width, sum(done), space.width * graph.steps, min(done),
                max(done), held,
            )
        )  # fmt: skip
    return GraphReport(
        name,
        record.state,
        graph.steps,
        sum(space.done for space in spaces),
        graph.tasks_total,
        len(holders),
        tuple(spaces),
        failure_text(record.failure),
        "" if record.failure is None else record.failure.namespace,
    )


def failure_text(failure: Failure | None) -> str:
    """For people; "" where nothing failed."""
    if failure is None:
        return ""
    return f"step {failure.step} of {failure.namespace}/{failure.n}: {failure.why}"


def graph_of(keys: ClusterKeys, items: Mapping[bytes, KeyValue], name: str) -> Graph:
    """The graph itself. Raises `NotFound`."""
    return _record(keys, items, name).graph


def graph_names(keys: ClusterKeys, items: Mapping[bytes, KeyValue]) -> list[str]:
    """All graphs of tasks, by name."""
    located = (keys.locate(key) for key in items if key.startswith(keys.graphs))
    return sorted(at.name for at in located if at is not None and at.kind == "graph")


def _record(keys: ClusterKeys, items: Mapping[bytes, KeyValue], name: str) -> GraphRecord:
    key = keys.graph(name)
    if key not in items:
        names = ", ".join(graph_names(keys, items)) or "-"
        raise NotFound(f"there is no graph {name!r} of tasks; graphs: {names}")
    return GraphRecord.from_bytes(items[key].value, key)


def _lanes(
    keys: ClusterKeys, items: Mapping[bytes, KeyValue], name: str, record: GraphRecord
) -> list[LaneState]:
    """By rank; those of another job, or of before a rollback, do not count."""
    total = record.graph.lanes_total
    config = items.get(keys.config)
    incarnation = (
        0 if config is None else ClusterConfig.from_bytes(config.value, keys.config).incarnation
    )
    lanes = [LaneState()] * total
    for bucket in range(buckets_of(record.graph)):
        item = items.get(keys.lanes(name, bucket))
        if item is None:
            continue
        held = LanesRecord.from_bytes(item.value, item.key)
        if (held.job_id, held.incarnation) == (record.job_id, incarnation):
            first = bucket * BUCKET_LANES
            lanes[first : first + len(held.lanes)] = held.lanes
    return lanes[:total]


# -- live


@contextmanager
def watched(
    kv: Kv, keys: ClusterKeys, name: str, deadline_s: float
) -> Iterator[Iterator[GraphReport]]:
    """A graph's reports: one at once, and one after each change, until it is over.

    Changes that come together make one report. The iteration raises `NotFound` when the graph's
    record goes away.
    """
    events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    items: dict[bytes, KeyValue] = {}
    _read(kv, keys, name, deadline_s)  # there is one
    with ExitStack() as stack:
        for prefix in (keys.config, keys.graph(name)):
            result = kv.read(prefix, prefix=True, deadline_s=deadline_s)
            items.update((item.key, item) for item in result.items)
            on_event = partial(_put, events, items, prefix)
            stack.callback(kv.watch(prefix, result.revision + 1, on_event).close)
        yield _reports(keys, items, name, events)


def _put(
    events: queue.SimpleQueue[Callable[[], None]],
    items: dict[bytes, KeyValue],
    prefix: bytes,
    change: WatchBatch | Reset,
) -> None:
    """On the watch's thread: it is taken in by who looks at the items."""
    events.put(partial(_apply, items, prefix, change))


def _reports(
    keys: ClusterKeys,
    items: dict[bytes, KeyValue],
    name: str,
    events: queue.SimpleQueue[Callable[[], None]],
) -> Iterator[GraphReport]:
    last: GraphReport | None = None
    while True:
        report = graph_report(keys, items, name)
        if report != last:
            yield report
        last = report
        if report.over:
            return
        events.get()()
        while not events.empty():
            events.get()()


def _apply(items: dict[bytes, KeyValue], prefix: bytes, change: WatchBatch | Reset) -> None:
    if isinstance(change, Reset):
        for key in [key for key in items if key.startswith(prefix)]:
            del items[key]
        items.update((item.key, item) for item in change.items)
        return
    for event in change.events:
        if event.kind == "put":
            items[event.item.key] = event.item
        else:
            items.pop(event.item.key, None)


# -- changes


def graphs_in(keys: ClusterKeys, items: Mapping[bytes, KeyValue], path: str) -> list[str]:
    """The graphs that have a namespace of this name, or one that lies in it."""
    found = []
    for name in graph_names(keys, items):
        spaces = graph_of(keys, items, name).namespaces
        if any(space.name == path or covers(path, space.name) for space in spaces):
            found.append(name)
    return found


def mark_removed(kv: Kv, keys: ClusterKeys, name: str, deadline_s: float) -> bool:
    """Let nobody wait for this graph any more. False: it was over already, or is gone."""
    return _change(kv, keys, name, deadline_s, {"running", "failed"}, "removed")


def retry(kv: Kv, keys: ClusterKeys, name: str, deadline_s: float) -> str:
    """Let a failed graph go on with the task that failed; gives what had failed.

    Raises `NotFound` for no graph, and `BadInput` for one that has not failed.
    """
    record = _read(kv, keys, name, deadline_s)[1]
    if not _change(kv, keys, name, deadline_s, {"failed"}, "running"):
        now = _read(kv, keys, name, deadline_s)[1]
        raise BadInput(
            f"graph {name!r} has not failed: it is {now.state}. Watch it with "
            f"`resilient-ps ns watch {name}`"
        )
    return failure_text(record.failure)


def _change(
    kv: Kv, keys: ClusterKeys, name: str, deadline_s: float, before: set[str], after: str
) -> bool:
    lost: RetryLater | None = None
    for _ in range(CHANGE_TRIES):
        item, record = _read(kv, keys, name, deadline_s)
        if record.state not in before:
            return lost is not None and record.state == after  # our own, whose answer was lost
        failure = record.failure if after == "removed" else None
        changed = replace(record, state=after, failure=failure)  # type: ignore[arg-type]
        guard = unchanged(item.key, item.mod_revision)
        try:
            txn = Txn((guard,), (Put(item.key, changed.to_bytes()),))
            if kv.txn(txn, deadline_s=deadline_s).succeeded:
                return True
        except RetryLater as error:
            lost = error
    raise lost or Unavailable(f"graph {name!r} is changed again and again: try again")


def _read(kv: Kv, keys: ClusterKeys, name: str, deadline_s: float) -> tuple[KeyValue, GraphRecord]:
    items = {item.key: item for item in kv.read(keys.graph(name), deadline_s=deadline_s).items}
    if keys.graph(name) not in items:
        known = kv.read(keys.graphs, prefix=True, deadline_s=deadline_s).items
        items = {item.key: item for item in known}
    record = _record(keys, items, name)
    return items[keys.graph(name)], record
