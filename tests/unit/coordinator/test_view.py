"""The view of a cluster: records, kept up to date, and what happens to unreadable ones."""

from __future__ import annotations

from resilient_ps.coordinator.keys import ClusterKeys, Located
from resilient_ps.coordinator.kv import Compare, Event, KeyValue, WatchBatch
from resilient_ps.coordinator.records import (
    ClusterConfig,
    DrainRecord,
    IntentRecord,
    JobRecord,
    Member,
    RingRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.coordinator.ring import RingMember
from resilient_ps.coordinator.task_records import GraphRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.ids import Epoch

KEYS = ClusterKeys("c")
CONFIG = ClusterConfig("0123456789abcdef", 1, 2, 1, 1, 1, 64, "s1")
JOB = JobRecord(1, "j", "bsp", 2, "running")


def server(name: str, process: int = 7) -> ServerRecord:
    return ServerRecord(name, process, "127.0.0.1", 7000, "", "", 1.0, 5, "0.1", 1, "host")


def shard(number: int) -> ShardRecord:
    return ShardRecord(number, Epoch(1, 1), "s1", 7, (Member("s1", 7),), ("s1",), 1, "n")


def intent(number: int, state: str) -> IntentRecord:
    return IntentRecord(number, "join", "j", 3, 0, state)  # type: ignore[arg-type]


def item(key: bytes, value: bytes, revision: int = 1) -> KeyValue:
    return KeyValue(key, value, 1, revision, 1)


def put(key: bytes, value: bytes) -> Event:
    return Event("put", item(key, value))


def loaded() -> ClusterView:
    view = ClusterView(KEYS)
    items = [
        item(KEYS.config, CONFIG.to_bytes()),
        item(KEYS.server("s2"), server("s2").to_bytes()),
        item(KEYS.server("s1"), server("s1").to_bytes()),
        item(KEYS.shard(1), shard(1).to_bytes()),
        item(KEYS.shard(0), shard(0).to_bytes()),
        item(KEYS.job("j"), JOB.to_bytes()),
    ]
    view.load(items, 9)
    return view


def test_an_empty_view_knows_nothing() -> None:
    view = ClusterView(KEYS)
    assert (view.config, view.servers, view.shards, view.open_intents) == (None, [], [], [])
    assert view.revision == 0


def test_records_come_in_the_order_of_their_keys() -> None:
    view = loaded()
    assert view.config == CONFIG
    assert [record.server for record in view.servers] == ["s1", "s2"]
    assert [record.shard for record in view.shards] == [0, 1]
    assert view.job("j") == JOB
    assert view.job("other") is None
    assert view.revision == 9


def test_changes_replace_and_remove() -> None:
    view = loaded()
    gone = Event("delete", item(KEYS.server("s1"), b""))
    view.apply(WatchBatch(10, (put(KEYS.server("s2"), server("s2", 8).to_bytes()), gone)))
    assert [(record.server, record.process) for record in view.servers] == [("s2", 8)]
    assert KEYS.server("s1") not in view.items
    assert view.revision == 10


def test_a_full_read_removes_what_it_does_not_have() -> None:
    view = loaded()
    view.load([item(KEYS.config, CONFIG.to_bytes())], 12)
    assert view.config == CONFIG
    assert (view.servers, view.shards, view.job("j")) == ([], [], None)


def test_open_intents_come_in_the_order_of_their_numbers() -> None:
    view = loaded()
    events = tuple(
        put(KEYS.intent(number), intent(number, state).to_bytes())
        for number, state in [(12, "open"), (2, "open"), (1, "done"), (3, "aborted")]
    )
    view.apply(WatchBatch(10, events))
    assert [record.number for record in view.open_intents] == [2, 12]
    done = put(KEYS.intent(12), intent(12, "done").to_bytes())
    view.apply(WatchBatch(11, (done,)))
    assert [record.number for record in view.open_intents] == [2]


def test_the_ring_and_drains_are_known() -> None:
    view = loaded()
    assert (view.ring, view.drains) == (None, [])
    ring = RingRecord(3, (RingMember("s1"), RingMember("s2", 2.0, "z")))
    events = (
        put(KEYS.ring, ring.to_bytes()),
        put(KEYS.drain("s2"), DrainRecord("s2", "a test").to_bytes()),
        put(KEYS.drain("s1"), DrainRecord("s1", "a test").to_bytes()),
    )
    view.apply(WatchBatch(10, events))
    assert view.ring == ring
    assert view.drains == ["s1", "s2"]
    assert view.processes == {"s1": 7, "s2": 7}


def test_the_layout_grows_with_what_decides_where_shards_are_to_be() -> None:
    view = loaded()
    before = view.layout
    view.apply(WatchBatch(10, (put(KEYS.job("j"), JOB.to_bytes()),)))
    view.apply(WatchBatch(11, (put(KEYS.leader(0), b"{}"),)))
    assert view.layout == before
    for revision, event in enumerate(
        [
            put(KEYS.shard(0), shard(0).to_bytes()),
            put(KEYS.drain("s2"), DrainRecord("s2", "").to_bytes()),
            Event("delete", item(KEYS.drain("s2"), b"")),
            Event("delete", item(KEYS.server("s2"), b"")),
        ]
    ):
        before = view.layout
        view.apply(WatchBatch(12 + revision, (event,)))
        assert view.layout > before


def test_a_guard_holds_while_the_key_is_as_it_was_seen() -> None:
    view = loaded()
    view.apply(WatchBatch(17, (Event("put", item(KEYS.shard(0), shard(0).to_bytes(), 17)),)))
    assert view.as_seen(KEYS.shard(0)) == Compare(KEYS.shard(0), "mod", "=", 17)
    assert view.as_seen(KEYS.ring) == Compare(KEYS.ring, "create", "=", 0)


def test_an_unreadable_value_is_reported_once_and_leaves_what_was_known() -> None:
    view = loaded()
    view.apply(WatchBatch(10, (put(KEYS.server("s1"), b"\xff{"), put(KEYS.shard(0), b"{}"))))
    assert len(view.problems) == 2
    assert KEYS.server("s1").decode() in view.problems[0]
    assert [record.server for record in view.servers] == ["s1", "s2"]
    view.problems.clear()
    view.apply(WatchBatch(11, (put(KEYS.config, CONFIG.to_bytes()),)))
    assert view.problems == []


def test_keys_of_later_versions_are_kept_and_not_read() -> None:
    view = loaded()
    view.apply(WatchBatch(10, (put(KEYS.prefix + b"new/thing", b"\x00"),)))
    assert view.problems == []
    assert KEYS.prefix + b"new/thing" in view.items


def test_it_knows_which_shards_have_changed_since() -> None:
    view = loaded()
    assert sorted(view.changed_since(0)) == [0, 1]
    before = view.changes
    assert view.changed_since(before) == []
    view.apply(WatchBatch(10, (put(KEYS.leader(1), b"s1"), put(KEYS.job("j"), JOB.to_bytes()))))
    assert view.changed_since(before) == [1]
    between = view.changes
    view.apply(WatchBatch(11, (put(KEYS.shard(0), shard(0).to_bytes()),)))
    assert view.changed_since(between) == [0]
    view.apply(WatchBatch(12, (Event("delete", item(KEYS.leader(1), b"")),)))
    assert sorted(view.changed_since(before)) == [0, 1]
    assert view.changed_since(view.changes) == []


def test_changes_of_task_graphs_are_noted_and_only_the_graph_itself_is_read() -> None:
    view = loaded()
    graph = GraphRecord(1, '{"name":"g","steps":1,"namespaces":{"a":{}}}')
    events = (
        put(KEYS.graph("g"), graph.to_bytes()),
        put(KEYS.lanes("g", 2), b"not read here"),
        put(KEYS.holder("g", "box-17"), b"{}"),
        put(KEYS.config, CONFIG.to_bytes()),
    )
    view.task_changes.clear()
    view.apply(WatchBatch(10, events))
    assert view.graph("g") == graph
    assert view.graphs == ["g"]
    noted = {Located("graph", "g"), Located("lanes", "g", 2), Located("holder", "g", -1, "box-17")}
    assert view.task_changes == noted
    assert view.problems == []
    view.task_changes.clear()
    view.apply(WatchBatch(11, (Event("delete", item(KEYS.holder("g", "box-17"), b"")),)))
    assert view.task_changes == {Located("holder", "g", -1, "box-17")}
    view.load([], 12)
    assert view.task_changes == {*noted, Located("job", "j")}
    assert view.graphs == []
