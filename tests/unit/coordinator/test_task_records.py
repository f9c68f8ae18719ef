"""Records of task graphs: those of the largest graph fit into etcd; holders are read strictly."""

from __future__ import annotations

import pytest

from resilient_ps.coordinator.graph import JSON_BYTES_MAX, LANES_MAX, NAMESPACES_MAX, Graph
from resilient_ps.coordinator.keys import MAX_BUCKET, MAX_NAME_CHARS
from resilient_ps.coordinator.kv import MAX_TXN_BYTES
from resilient_ps.coordinator.task_records import (
    BUCKET_LANES,
    GraphRecord,
    HolderRecord,
    LanesRecord,
    LaneState,
    buckets_of,
)
from resilient_ps.errors import BadInput

KEY = b"/resilient-ps/c/graphs/g"


def test_a_graph_of_the_largest_size_can_be_written_and_read() -> None:
    graph = Graph("g", 1)
    graph.add("a")
    for number in range(NAMESPACES_MAX - 1):
        graph.add(f"{'x' * 190}{number}")
    for lag in range(1, 500):
        graph.after("a", "a", lag)
    text = graph.to_json()
    assert JSON_BYTES_MAX * 3 / 4 < len(text) <= JSON_BYTES_MAX
    raw = GraphRecord(1, text).to_bytes()
    assert len(raw) < MAX_TXN_BYTES / 2
    assert GraphRecord.from_bytes(raw, KEY).graph.to_json() == text


def test_a_graphs_record_that_is_too_long_is_refused() -> None:
    with pytest.raises(BadInput, match="at most 589824 are allowed"):
        GraphRecord.from_bytes(b" " * 600_000, KEY)


def test_many_full_buckets_fit_into_one_transaction() -> None:
    lane = LaneState(1_000_000, 2**63 - 1, "h" * MAX_NAME_CHARS)
    raw = LanesRecord(2**32 - 1, 2**63 - 1, (lane,) * BUCKET_LANES).to_bytes()
    assert 100 * len(raw) < MAX_TXN_BYTES


def test_all_lanes_of_the_largest_graph_have_a_bucket() -> None:
    graph = Graph("g", 1)
    graph.add("a", LANES_MAX)
    assert buckets_of(graph) == MAX_BUCKET + 1
    graph = Graph("g", 1)
    graph.add("a", BUCKET_LANES + 1)
    assert buckets_of(graph) == 2


def test_a_holders_record_survives_the_round_trip_and_is_read_strictly() -> None:
    holder = HolderRecord("box", 17)
    assert HolderRecord.from_bytes(holder.to_bytes(), KEY) == holder
    for raw in (b"", b"{}", b'{"host":"box","pid":-1}', b'{"host":"box","pid":1,"more":1}'):
        with pytest.raises(BadInput, match="not a valid record of a holder"):
            HolderRecord.from_bytes(raw, KEY)
