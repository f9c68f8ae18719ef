"""What is damaged is named, all of it; what has changed is counted, whatever the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from resilient_ps.client.comparing import Side, TableChange, compare
from resilient_ps.client.importing import Wanted, open_table
from resilient_ps.client.stored import StoredCheckpoints, clusters
from resilient_ps.client.verifying import bytes_of, verify
from resilient_ps.client.warm_start import Origin, WarmStart
from resilient_ps.storage.blobs import BlobGot, Blobs, DeleteBlobs, GetBlob, PutBlob
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import CheckpointId
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.tables.optimisers import Adagrad

KEYS = np.arange(1_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredCheckpoints]:
    with StoredCheckpoints(open_store(str(tmp_path / "store")), "ctr") as stored:
        yield stored


@pytest.fixture
def make(tmp_path: Path, stored: StoredCheckpoints) -> Callable[..., Manifest]:
    numbers = iter(range(1, 100))

    def make(shards: int, tables: dict[str, dict[str, np.ndarray]]) -> Manifest:
        number = next(numbers)
        origin = Origin("ctr", CheckpointId.of(1, number, number), 7, number, "test")
        start = WarmStart(stored.blobs, origin, shards)
        for name, arrays in tables.items():
            path = tmp_path / f"{number}.npz"
            np.savez(path, **arrays)  # type: ignore[arg-type]
            start.add(open_table(path, Wanted(name, Adagrad(lr=0.1))))
        return start.finish()

    return make


def sparse(values: np.ndarray, keys: np.ndarray = KEYS) -> dict[str, np.ndarray]:
    return {"keys": keys, "values": values.astype(np.float32)}


def content(blobs: Blobs, name: str) -> bytes:
    got = blobs.do(GetBlob(name))
    assert isinstance(got, BlobGot)
    return got.data


def test_a_whole_checkpoint_is_good_and_everything_was_read(
    stored: StoredCheckpoints, make: Callable[..., Manifest]
) -> None:
    manifest = make(4, {"w": sparse(np.ones((1_000, 2))), "d": {"values": np.ones((50, 3), "f4")}})
    told: list[int] = []
    verdict = verify(stored, manifest, told.append)
    assert (verdict.good, verdict.damages) == (True, [])
    assert verdict.objects == len(manifest.objects) + 4
    assert verdict.nbytes == bytes_of(manifest) == sum(told)


def test_every_damage_is_named_and_the_rest_is_read(
    stored: StoredCheckpoints, make: Callable[..., Manifest]
) -> None:
    manifest = make(6, {"w": sparse(np.ones((1_000, 2)))})
    blobs, names = stored.blobs, [each.name for each in manifest.objects]
    raw = bytearray(content(blobs, names[0]))
    raw[-1] ^= 1
    blobs.do(PutBlob(names[0], bytes(raw)))
    blobs.do(PutBlob(names[1], content(blobs, names[1])[:-1]))
    blobs.do(DeleteBlobs((names[2],)))
    index = manifest.indexes[5].name
    blobs.do(PutBlob(index, content(blobs, index).replace(b'"rows"', b'"ROWS"')))
    verdict = verify(stored, manifest)
    assert len(verdict.damages) == 4
    for name, says in zip(
        (index, *names[:3]), ("differs", "differs", "bytes", "is missing"), strict=True
    ):
        (why,) = [damage for damage in verdict.damages if name in damage]
        assert says in why
    assert verdict.objects == 5 + len(names) - 3


@pytest.mark.parametrize("shards", [3, 4, 7])
def test_rows_are_compared_by_key_whatever_the_shards(
    stored: StoredCheckpoints, make: Callable[..., Manifest], shards: int
) -> None:
    before = np.ones((1_000, 2))
    after = before.copy()
    after[:40, 1] = 3.5
    dense = {"values": np.arange(60, dtype=np.float32).reshape(20, 3)}
    other = {"values": dense["values"] + np.eye(20, 3, dtype=np.float32)}
    old = make(4, {"w": sparse(before), "d": dense, "gone": dense})
    kept = KEYS[:-5]
    new = make(
        shards,
        {
            "w": sparse(
                np.concatenate([after[:-5], np.zeros((7, 2))]),
                np.concatenate([kept, np.arange(1, 8, dtype=np.uint64)]),
            ),
            "d": other,
            "new": dense,
        },
    )
    changes = {c.table: c for c in compare(Side.of(stored, old), Side.of(stored, new))}
    assert changes["w"] == TableChange("w", 1_000, 1_002, 7, 5, 40, 0, 2.5)
    assert changes["d"] == TableChange("d", 20, 20, 0, 0, 3, 0, 1.0)
    assert changes["gone"] == TableChange("gone", 20, 0, removed=20)
    assert changes["new"] == TableChange("new", 0, 20, added=20)
    same = list(compare(Side.of(stored, new), Side.of(stored, new)))
    assert not any(change.differs for change in same)


def test_state_that_has_changed_alone_is_told_apart(
    stored: StoredCheckpoints, make: Callable[..., Manifest]
) -> None:
    values = np.ones((1_000, 1))
    old = make(2, {"w": {**sparse(values), "accumulator": np.zeros((1_000, 1), np.float32)}})
    moved = np.zeros((1_000, 1), np.float32)
    moved[:9] = 1
    new = make(2, {"w": {**sparse(values), "accumulator": moved}})
    (change,) = compare(Side.of(stored, old), Side.of(stored, new))
    assert (change.changed, change.state_only, change.largest) == (9, 9, 0.0)


def test_tables_of_other_specifications_are_shown_and_not_compared(
    stored: StoredCheckpoints, make: Callable[..., Manifest]
) -> None:
    old = make(2, {"w": sparse(np.ones((1_000, 1)))})
    new = make(2, {"w": sparse(np.ones((1_000, 2)))})
    (change,) = compare(Side.of(stored, old), Side.of(stored, new))
    assert change.differs
    assert change.specs is not None
    assert ["dim 1" in change.specs[0], "dim 2" in change.specs[1]] == [True, True]


def test_a_store_tells_whose_checkpoints_it_has(
    stored: StoredCheckpoints, make: Callable[..., Manifest]
) -> None:
    assert clusters(stored.blobs) == []
    make(1, {"w": sparse(np.ones((1_000, 1)))})
    stored.blobs.do(PutBlob("ctr-2/markers/00000001", b""))
    stored.blobs.do(PutBlob("ctr0/markers/00000003", b""))
    assert clusters(stored.blobs) == ["ctr", "ctr-2", "ctr0"]
    assert StoredCheckpoints(stored.blobs, "ctr0").incarnation() == 3
    assert stored.incarnation() == 0
