"""Manifests and indexes: read as written; anything else is refused, with the object and field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.errors import BadInput
from resilient_ps.storage import manifest as manifests
from resilient_ps.storage import shard_index
from resilient_ps.storage.documents import Damaged, ForeignFormat
from resilient_ps.storage.manifest import (
    ChunkPlace,
    JobEntry,
    JobState,
    Manifest,
    NamespaceEntry,
    ObjectInfo,
    RankState,
    RingEntry,
    ShardIndex,
    TableEntry,
    TableState,
    Totals,
)
from resilient_ps.storage.names import CheckpointId

SHA = "0123456789abcdef" * 4
XXH = "0123456789abcdef" * 2
MANIFEST = Manifest(
    id=CheckpointId.of(1, 17, "3fa9c2d1"),
    cluster="prod",
    created_s=1_790_000_000,
    written_by="s1, resilient-ps 0.1.0",
    replicas=2,
    clocks={"train": 100, "eval": 0},
    base="1-12-00000000",
    tables=(TableEntry("model/w", 1, '{"layout":"sparse"}'),),
    jobs=(
        JobEntry("train", 1, 2, "ssp:3", "running", 30.0, {"files": ["a"]}),
        JobEntry("eval", 2, 1, "asp", "done"),
    ),
    ring=(RingEntry("s1", 1.0, "zone-a"), RingEntry("s2", 0.5, "")),
    indexes=(ObjectInfo("i/0", 10, SHA), ObjectInfo("i/1", 12, SHA)),
    objects=(ObjectInfo("o/0", 10, SHA),),
    totals=Totals(100, 50, 20, 30),
    namespaces=(NamespaceEntry("model", 1_000, None), NamespaceEntry("model/a", None, 0)),
)
INDEX = ShardIndex(
    shard=1,
    shards=2,
    cut=17,
    tables=(TableState(1, '{"layout":"sparse"}', 0.1, 1, 10), TableState(2, "{}", 0.0, 0, 0)),
    jobs=(JobState(1, "{}", 0, (RankState(0, 100, True, 1, b"\x00cursor"),)),),
    objects=(ObjectInfo("o/0", 100, SHA),),
    chunks=(
        ChunkPlace(1, "rows", 0, 10, 0, 0, 0, 60, 80, XXH),
        ChunkPlace(1, "delta", 0, 3, 1, 0, 60, 40, 40, XXH),
    ),
)
DOCUMENTS: list[Any] = [(MANIFEST, Manifest), (INDEX, ShardIndex)]


@pytest.mark.parametrize(("document", "kind"), DOCUMENTS)
def test_a_document_is_read_as_it_was_written(document: Any, kind: Any) -> None:
    raw = document.to_json()
    assert kind.from_json(raw, "x") == document
    assert kind.from_json(raw, "x").to_json() == raw


@pytest.mark.parametrize(("document", "kind"), DOCUMENTS)
def test_people_can_read_a_document(document: Any, kind: Any) -> None:
    lines = document.to_json().decode().splitlines()
    assert max(map(len, lines)) < 300
    assert lines[1].strip().startswith('"format": "resilient-ps ')
    assert lines[2].strip() == '"version": 1,'


@pytest.mark.parametrize(("document", "kind"), DOCUMENTS)
def test_a_newer_format_is_refused_with_what_to_do(document: Any, kind: Any) -> None:
    raw = document.to_json().replace(b'"version": 1', b'"version": 3, "new field": 1')
    with pytest.raises(ForeignFormat) as refused:
        kind.from_json(raw, "some/object")
    assert "some/object" in str(refused.value)
    assert "newer version (format 3), this one reads up to 1: upgrade" in str(refused.value)


@pytest.mark.parametrize("raw", [b"{}", b"[]", b'{"format": "zarr", "version": 1}', b"7"])
def test_what_another_program_wrote_is_called_foreign(raw: bytes) -> None:
    for _, kind in DOCUMENTS:
        with pytest.raises(ForeignFormat, match=r"object n: it is not a resilient-ps"):
            kind.from_json(raw, "n")


@pytest.mark.parametrize(("document", "kind"), DOCUMENTS)
def test_an_index_is_no_manifest_and_the_other_way_round(document: Any, kind: Any) -> None:
    other = ShardIndex if kind is Manifest else Manifest
    with pytest.raises(ForeignFormat):
        other.from_json(document.to_json(), "n")


@pytest.mark.parametrize(("document", "kind"), DOCUMENTS)
def test_every_missing_unknown_or_foreign_field_is_named(document: Any, kind: Any) -> None:
    fields = json.loads(document.to_json())
    for name in fields.keys() - {"format", "version", "namespaces"}:
        without = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(Damaged, match=rf"object n: .*{name}.*use another checkpoint"):
            kind.from_json(json.dumps(without).encode(), "n")
        with pytest.raises(Damaged, match=rf"object n: .*{name}"):
            kind.from_json(json.dumps({**fields, name: True}).encode(), "n")
    with pytest.raises(Damaged, match="unknown field later"):
        kind.from_json(json.dumps({**fields, "later": 1}).encode(), "n")


@pytest.mark.parametrize(("document", "kind"), DOCUMENTS)
@given(data=st.data())
def test_a_document_with_flipped_bits_is_read_or_refused(
    document: Any, kind: Any, data: Any
) -> None:
    raw = bytearray(document.to_json())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        kind.from_json(bytes(raw), "n").to_json()
        fault = "object n"
    except BadInput as error:
        fault = str(error)
    assert fault.startswith("object n")


@pytest.mark.parametrize(("document", "kind"), DOCUMENTS)
def test_a_document_that_was_cut_off_is_refused(document: Any, kind: Any) -> None:
    raw = document.to_json()
    for length in range(0, len(raw) - 2, 7):
        with pytest.raises(Damaged, match="object n: it is no JSON"):
            kind.from_json(raw[:length], "n")


def test_a_document_that_is_too_long_is_not_even_parsed() -> None:
    blank = b" " * (manifests.MANIFEST_BYTES_MAX + 1)
    with pytest.raises(Damaged, match="at most"):
        Manifest.from_json(blank, "n")
    with pytest.raises(Damaged, match="at most"):
        ShardIndex.from_json(blank, "n")


@pytest.mark.parametrize(
    "raw", [b"[" * 100_000, b'{"a": ' * 50_000, b'{"format": NaN}', b'{"a": 1, "a": 2}', b"\xff"]
)
def test_hostile_json_is_refused(raw: bytes) -> None:
    with pytest.raises(BadInput):
        Manifest.from_json(raw, "n")


def _index_with(**changes: Any) -> bytes:
    return replace(INDEX, **changes).to_json()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"shard": 2}, "shard 2 of 2"),
        ({"tables": ()}, "belongs to table 1"),
        ({"objects": ()}, "object 0 of 0"),
        ({"objects": (ObjectInfo("o/0", 99, SHA),)}, "ends behind o/0"),
        ({"tables": (TableState(1, "{}", 0.1, 1, 9),)}, "table 1 has 9 rows, a chunk ends at 10"),
        ({"chunks": (ChunkPlace(1, "rows", 3, 3, 0, 0, 0, 1, 1, XXH),)}, "from 3 to 3"),
        ({"chunks": (ChunkPlace(1, "rows", 0, 3, 0, 0, 0, 1, 1, "x" * 32),)}, "XXH3-128"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(changes: Any, fault: str) -> None:
    with pytest.raises(Damaged, match=fault):
        ShardIndex.from_json(_index_with(**changes), "n")


def test_a_manifest_without_the_index_of_a_shard_is_refused() -> None:
    raw = MANIFEST.to_json().replace(b'"shards": 2', b'"shards": 3')
    with pytest.raises(Damaged, match="3 shards, but the indexes of 2"):
        Manifest.from_json(raw, "n")


def test_a_manifest_whose_id_is_another_is_refused() -> None:
    raw = MANIFEST.to_json().replace(b'"id": "1-17-', b'"id": "1-18-')
    with pytest.raises(Damaged, match="its id is not made of"):
        Manifest.from_json(raw, "n")


def test_an_index_that_would_be_too_long_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_index, "INDEX_BYTES_MAX", 100)
    with pytest.raises(BadInput, match="use more shards"):
        INDEX.to_json()
