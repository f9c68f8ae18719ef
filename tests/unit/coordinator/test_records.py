"""Records in etcd: strict, bounded, and the same after a round trip."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.coordinator.fields import MAX_RECORD_BYTES
from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    ClusterConfig,
    DrainRecord,
    IntentRecord,
    JobRecord,
    Member,
    Record,
    RestoreRecord,
    RingRecord,
    ServerRecord,
    ShardRecord,
    TableRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.coordinator.ring import RingMember
from resilient_ps.coordinator.task_asks import Failure
from resilient_ps.coordinator.task_records import GraphRecord, LanesRecord, LaneState
from resilient_ps.errors import BadInput
from resilient_ps.ids import Epoch

KEY = b"/resilient-ps/prod/some/key"
UINT64 = st.integers(1, 2**64 - 1)
INT64 = st.integers(1, 2**63 - 1)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)

CONFIG = ClusterConfig("0123abcd", 1, 12, 3, 1, 1, 64, "a test")
SERVER = ServerRecord(
    "s1", 2**64 - 1, "127.0.0.1", 7000, "/run/x.sock", "z", 1.5, 7, "0.1.0", 42, "box"
)
MEMBERS = (Member("s1", 9), Member("s2", 2**64 - 1))
SHARD = ShardRecord(3, Epoch(1, 5), "s1", 9, MEMBERS, ("s3", "s1"), 4, "n0nce")
RING = RingRecord(2, (RingMember("s1", 2.0, "rack-3"), RingMember("s2")))
DRAIN = DrainRecord("s2", "somebody on box")
NAMESPACE = NamespaceRecord(1_000_000, 1 << 40, 3, (7, 9))
TABLE = TableRecord(1, '{"dim":16}')
JOB = JobRecord(1, "train", "ssp:3", 4, "running", 12.5)
INTENT = IntentRecord(1, "join", "train", 4, 2, "open", {"clock": 17})
DIGEST = "0123456789abcdef" * 4
MANIFEST = "prod/checkpoints/1-17-3fa9c2d1/manifest.json"
CHECKPOINT = CheckpointRecord(
    17, "1-17-3fa9c2d1", 1, MANIFEST, 4711, DIGEST, {"train": 90}, 1_800_000_000, 1 << 30, 1 << 20
)
RESTORE = RestoreRecord(
    2, "1-17-3fa9c2d1", MANIFEST, 4711, DIGEST, {"1": 90}, "shard 3 was lost", 1_800_000_100
)
CUT = IntentRecord(18, "cut", "", 0, 0, "open", {}, {"why": "time"})
GRAPH = GraphRecord(
    3, '{"name":"ctr","steps":9,"namespaces":{"a":{}}}', "failed", Failure("a", 0, 4, "log of 0")
)
LANES = LanesRecord(3, 1, (LaneState(4, 7, "box-17"), LaneState()))
EXAMPLES: list[Record] = [CONFIG, SERVER, SHARD, RING, DRAIN, TABLE, JOB, INTENT, NAMESPACE]
EXAMPLES += [CHECKPOINT, RESTORE, GRAPH, LANES]
NULLABLE = {"evict_after_s", "rows_max", "bytes_max"}
OPTIONAL = {"details"}  # fields that values of earlier versions do not have
each_record = pytest.mark.parametrize("record", EXAMPLES, ids=lambda r: type(r).__name__)


@st.composite
def shard_records(draw: st.DrawFn) -> ShardRecord:
    servers = draw(st.lists(NAMES, unique=True, max_size=6))
    members = tuple(Member(server, draw(UINT64)) for server in servers)
    leader = draw(st.sampled_from([Member("", 0), *members]))
    return ShardRecord(
        shard=draw(st.integers(0, 1023)),
        epoch=Epoch(draw(INT64), draw(INT64)),
        primary=leader.server,
        primary_process=leader.process,
        in_sync=members,
        desired=tuple(draw(st.lists(NAMES, unique=True, max_size=6))),
        ring_version=draw(INT64),
        nonce=draw(NAMES),
    )


@st.composite
def ring_records(draw: st.DrawFn) -> RingRecord:
    servers = draw(st.lists(NAMES, unique=True, max_size=6))
    weights = st.floats(0.001, 1000)
    members = tuple(RingMember(server, draw(weights), draw(TEXTS)) for server in servers)
    return RingRecord(draw(INT64), members)


RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        ClusterConfig,
        cluster_id=st.from_regex(r"[0-9a-f]{8,64}", fullmatch=True),
        incarnation=INT64,
        shards=st.integers(1, 1024),
        initial_servers=st.integers(1, 1024),
        replicas=st.integers(1, 16),
        min_in_sync=st.integers(1, 16),
        vnodes=st.integers(1, 1024),
        created_by=TEXTS,
    ),
    st.builds(
        ServerRecord,
        server=NAMES,
        process=UINT64,
        host=NAMES,
        port=st.integers(1, 65_535),
        unix_path=TEXTS,
        zone=TEXTS,
        weight=st.floats(0.001, 1000),
        lease=INT64,
        version=NAMES,
        pid=INT64,
        hostname=NAMES,
    ),
    shard_records(),
    ring_records(),
    st.builds(DrainRecord, server=NAMES, asked_by=TEXTS),
    st.builds(
        JobRecord,
        job_id=st.integers(1, 2**32 - 1),
        name=NAMES,
        consistency=st.sampled_from(["bsp", "ssp:3", "asp"]),
        ranks=st.integers(1, 65_536),
        state=st.sampled_from(["running", "stopped", "done"]),
        evict_after_s=st.none() | st.floats(3, 1000),
    ),
    st.builds(
        TableRecord, table_id=st.integers(1, 2**32 - 1), spec_json=TEXTS.map(lambda t: t + "{}")
    ),
    st.builds(
        IntentRecord,
        number=st.integers(1, 10**12 - 1),
        kind=st.sampled_from(["join", "leave"]),
        job=NAMES,
        rank=st.integers(0, 65_535),
        incarnation=INT64,
        state=st.sampled_from(["open", "done", "aborted"]),
        result=st.dictionaries(NAMES, st.integers() | TEXTS | st.lists(st.booleans()), max_size=4),
    ),
    st.builds(
        IntentRecord,
        number=st.integers(1, 10**12 - 1),
        kind=st.sampled_from(["cut", "rollback"]),
        job=st.just(""),
        rank=st.just(0),
        incarnation=st.just(0),
        state=st.sampled_from(["open", "done", "aborted"]),
        details=st.dictionaries(NAMES, st.integers() | TEXTS | st.lists(st.booleans()), max_size=4),
    ),
    st.builds(
        CheckpointRecord,
        number=st.integers(1, 10**12 - 1),
        id=NAMES,
        incarnation=INT64,
        manifest=NAMES,
        nbytes=INT64,
        sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
        clocks=st.dictionaries(NAMES, INT64, max_size=4),
        created_s=INT64,
        stored_bytes=INT64,
        uploaded_bytes=INT64,
        state=st.sampled_from(["good", "damaged", "deleting"]),
        why=TEXTS,
    ),
)


def refused(raw: bytes, kind: type[Record]) -> str:
    with pytest.raises(BadInput) as caught:
        kind.from_bytes(raw, KEY)
    return str(caught.value)


def changed(record: Record, **fields: Any) -> bytes:
    return json.dumps({**json.loads(record.to_bytes()), **fields}).encode()


@given(RECORDS)
def test_a_record_survives_the_round_trip(record: Record) -> None:
    raw = record.to_bytes()
    assert type(record).from_bytes(raw, KEY) == record
    assert type(record).from_bytes(raw, KEY).to_bytes() == raw


@each_record
def test_every_kind_survives_the_round_trip(record: Record) -> None:
    assert type(record).from_bytes(record.to_bytes(), KEY) == record


@each_record
def test_every_truncation_is_refused_naming_the_key(record: Record) -> None:
    raw = record.to_bytes()
    for end in range(len(raw)):
        assert KEY.decode() in refused(raw[:end], type(record))


@each_record
def test_a_record_of_another_kind_is_refused(record: Record) -> None:
    for kind in {type(other) for other in EXAMPLES} - {type(record)}:
        assert "missing" in refused(record.to_bytes(), kind)


@each_record
def test_a_missing_and_an_unknown_field_are_refused_by_name(record: Record) -> None:
    fields = json.loads(record.to_bytes())
    for name in fields.keys() - OPTIONAL:
        rest = {k: v for k, v in fields.items() if k != name}
        assert f"field {name} is missing" in refused(json.dumps(rest).encode(), type(record))
    assert "unknown field 'surprise'" in refused(changed(record, surprise=1), type(record))


@each_record
def test_a_field_of_another_type_is_refused_by_name(record: Record) -> None:
    for name, value in json.loads(record.to_bytes()).items():
        for wrong in (None, True, -1, 2**70, 0.5, [1], {"a": 1}, "", "x" * 40_000):
            if type(wrong) is type(value) or (name == "weight" and wrong == 0.5):
                continue
            if isinstance(value, list | dict) and isinstance(wrong, list | dict):
                continue
            if name in NULLABLE and wrong is None:
                continue
            assert name in refused(changed(record, **{name: wrong}), type(record))


def test_an_intent_of_a_version_without_details_is_read() -> None:
    fields = json.loads(INTENT.to_bytes())
    del fields["details"]
    assert IntentRecord.from_bytes(json.dumps(fields).encode(), KEY) == INTENT


def test_a_cut_is_of_no_job_and_a_join_is_of_one() -> None:
    assert IntentRecord.from_bytes(CUT.to_bytes(), KEY) == CUT
    assert "job is 'train'" in refused(changed(CUT, job="train"), IntentRecord)
    assert "rank is 1" in refused(changed(CUT, rank=1), IntentRecord)
    assert "job is ''" in refused(changed(INTENT, job=""), IntentRecord)


def test_a_restore_of_nothing_has_no_manifest_and_no_digest() -> None:
    nothing = RestoreRecord(2, "", "", 0, "", {}, "there was no checkpoint", 0, registered=True)
    assert RestoreRecord.from_bytes(nothing.to_bytes(), KEY) == nothing
    assert "sha256 is" in refused(changed(nothing, sha256=DIGEST), RestoreRecord)
    assert "manifest is ''" in refused(changed(RESTORE, manifest=""), RestoreRecord)


@given(st.binary(max_size=200))
def test_garbage_is_refused(raw: bytes) -> None:
    for record in EXAMPLES:
        refused(raw, type(record))


@given(st.recursive(st.none() | st.booleans() | st.floats() | TEXTS, st.lists))
def test_foreign_json_is_refused(value: object) -> None:
    for record in EXAMPLES:
        refused(json.dumps(value).encode(), type(record))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"[" * 60_000, "nested deeper than 16"),
        (b'{"a":' * 10_000, "nested deeper than 16"),
        (b'{"table_id":' + b"9" * 50_000 + b"}", "digits"),
        (b'{"table_id":1,"table_id":2}', "given twice"),
        (b'{"table_id":NaN}', "NaN is no number"),
        (b'{"table_id":1e999}', "too large"),
        (b'{"table_id":[1e999]}', "too large"),
        (b" " * (MAX_RECORD_BYTES + 1), "at most 65536"),
        (b"\xff\xfe", "utf-8"),
        (b'"a string"', "not an object"),
        (b"", "Expecting value"),
        (rb'{"table_id":1,"spec_json":"\ud800 "}', "not Unicode"),
    ],
)
def test_hostile_values_are_refused_shortly(raw: bytes, says: str) -> None:
    message = refused(raw, TableRecord)
    assert says in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("record", "fields", "says"),
    [
        (CONFIG, {"shards": 1025}, "shards is 1025, not a whole number from 1 to 1024"),
        (CONFIG, {"shards": 0}, "shards is 0"),
        (CONFIG, {"cluster_id": "not hex!"}, "not lower-case hexadecimal"),
        (SERVER, {"port": 65_536}, "port is 65536"),
        (SERVER, {"weight": 0}, "weight is 0, not a number from 0.001 to 1000"),
        (SERVER, {"process": 0}, "process is 0"),
        (SHARD, {"primary": "s9"}, "primary 's9' is not in in_sync"),
        (SHARD, {"primary": ""}, "both be given, or neither"),
        (SHARD, {"primary_process": 8}, "primary 's1' is not in in_sync"),
        (SHARD, {"in_sync": [["s1", 9], ["s1", 8]]}, "names a server twice"),
        (SHARD, {"in_sync": ["s1"]}, "not pairs of a server and a process"),
        (SHARD, {"in_sync": [["s1", True]]}, "not pairs of a server and a process"),
        (SHARD, {"in_sync": [["s1", 0]]}, "names process 0"),
        (SHARD, {"in_sync": [[f"s{i}", 9] for i in range(1025)]}, "at most 1024"),
        (SHARD, {"desired": ["s1", "s1"]}, "names something twice"),
        (RING, {"version": 0}, "version is 0"),
        (RING, {"members": [["s1", 1.0, ""], ["s1", 2.0, ""]]}, "names a server twice"),
        (RING, {"members": [["s1", 0.0, ""]]}, "has weight 0.0, not 0.001 to 1000"),
        (RING, {"members": [["s1", True, ""]]}, "not triples of a server, a weight and a zone"),
        (RING, {"members": [["s1", 1.0]]}, "not triples of a server, a weight and a zone"),
        (JOB, {"evict_after_s": 2.5}, "evict_after_s is 2.5, not a number from 3 to"),
        (SHARD, {"epoch": [1]}, "not two whole numbers"),
        (SHARD, {"epoch": [1, -1]}, "not two whole numbers"),
        (SHARD, {"epoch": [1, True]}, "not two whole numbers"),
        (JOB, {"state": "asleep"}, "state is 'asleep', not one of running, stopped, done"),
        (JOB, {"state": "paused"}, "state is 'paused', not one of running, stopped, done"),
        (INTENT, {"kind": "explode"}, "not one of join, leave, cut, rollback"),
        (INTENT, {"number": 0}, "number is 0"),
        (CHECKPOINT, {"sha256": "F" * 64}, "not a sha256 in lower-case hexadecimal"),
        (CHECKPOINT, {"clocks": {"train": -1}}, "clocks says -1 for 'train', which is no clock"),
        (CHECKPOINT, {"clocks": {"train": True}}, "clocks says True for 'train'"),
        (CHECKPOINT, {"clocks": {str(i): 1 for i in range(1025)}}, "at most 1024"),
        (CHECKPOINT, {"state": "lost"}, "not one of good, damaged, deleting"),
        (RESTORE, {"incarnation": 0}, "incarnation is 0"),
        (GRAPH, {"graph_json": "{}"}, "name is missing"),
        (GRAPH, {"graph_json": GRAPH.graph_json.replace('"a"', '"/"')}, "cannot name a namespace"),
        (GRAPH, {"state": "running"}, "a graph that is running has failure Failure("),
        (GRAPH, {"failure": {}}, "a graph that is failed has failure None"),
        (GRAPH, {"failure": {"namespace": "a", "n": 0, "step": 0}}, "failure: step is 0"),
        (LANES, {"lanes": []}, "it has 0 lanes, not 1 to 64"),
        (LANES, {"lanes": [[0, 0, ""]] * 65}, "it has 65 lanes"),
        (LANES, {"lanes": [[0, 0]]}, "not 3 values"),
        (LANES, {"lanes": [[-1, 0, ""]]}, "a lane's done is -1"),
        (LANES, {"lanes": [[1, True, ""]]}, "a lane's token is True"),
        (LANES, {"lanes": [[1, 1, 7]]}, "a lane's holder is 7"),
        (LANES, {"lanes": [[1, 0, "h"]]}, "holder h was granted a task without a token"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_the_fault_and_the_remedy(
    record: Record, fields: dict[str, Any], says: str
) -> None:
    message = refused(changed(record, **fields), type(record))
    assert says in message
    assert "run the version that wrote it" in message


@pytest.mark.parametrize(
    "record",
    [
        ClusterConfig("0123abcd", 1, 2000, 3, 1, 1, 64, ""),
        ShardRecord(3, Epoch(1, 5), "s9", 9, MEMBERS, (), 4, ""),
        RingRecord(1, tuple(RingMember(f"{i:099d}") for i in range(1024))),
        TableRecord(1, "x" * 33_000),
        IntentRecord(1, "join", "j", 0, 0, "open", {"x": float("nan")}),
        IntentRecord(1, "join", "j", 0, 0, "open", {"x": b"bytes"}),
        IntentRecord(1, "join", "j", 0, 0, "open", {"x": "y" * MAX_RECORD_BYTES}),
    ],
)
def test_what_could_not_be_read_cannot_be_written(record: Record) -> None:
    with pytest.raises(BadInput):
        record.to_bytes()


@given(st.integers(0, 2**63 - 1))
def test_a_counter_survives_the_round_trip(last: int) -> None:
    assert read_counter(counter_bytes(last), KEY) == last


def test_a_counter_that_does_not_exist_gave_nothing_yet() -> None:
    assert read_counter(None, KEY) == 0
    with pytest.raises(BadInput, match="not a valid counter"):
        read_counter(b"7", KEY)
