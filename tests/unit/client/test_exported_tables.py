"""Tables of a checkpoint as files, and files as a checkpoint: nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resilient_ps.client.content import read_part, state_names, tables_of
from resilient_ps.client.exporting import FORMATS, FileFormat, export_tables, file_name
from resilient_ps.client.importing import Wanted, open_table
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.client.warm_start import Origin, WarmStart
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.storage.blobs import DeleteBlobs, GetBlob, PutBlob
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import CheckpointId
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.tables.dense import DenseLayout, DenseShard
from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Optimiser, Sum
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.spec import DenseSpec, SparseSpec

RANDOM = np.random.default_rng(5)
OPTIMISERS = (
    Sum(),
    SGD(0.1),
    Momentum(0.1),
    Adagrad(0.1, initial_accumulator=2.0),
    Adam(),
    FTRL(1),
)


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredCheckpoints]:
    with StoredCheckpoints(open_store(str(tmp_path / "store")), "ctr") as stored:
        yield stored


def origin(number: int) -> Origin:
    return Origin("ctr", CheckpointId.of(1, number, number), 7, 1000 + number, "test")


def write(stored: StoredCheckpoints, files: list[Path], number: int, shards: int) -> Manifest:
    start = WarmStart(stored.blobs, origin(number), shards)
    for path in files:
        start.add(open_table(path, Wanted()))
    return start.finish()


def plain(folder: Path, name: str, **arrays: np.ndarray) -> Path:
    path = folder / f"{name}.npz"
    np.savez(path, **arrays)
    return path


def digests(stored: StoredCheckpoints, manifest: Manifest) -> dict[str, str]:
    """Of all that is in each table: equal contents, equal digests, whatever the shards."""
    found = {}
    indexes = stored.indexes(manifest)
    for table in tables_of(manifest, indexes):
        spec = table.spec
        parts = [read_part(stored.blobs, index, table) for index in indexes]
        if isinstance(spec, SparseSpec):
            whole = SparseShard(spec)
            for part in parts:
                assert part.keys is not None
                steps = [] if part.steps is None else [part.steps[:, None]]
                rows = np.concatenate([part.values, *part.state.values(), *steps], axis=1)
                whole.load(part.keys, rows)
            found[spec.name] = whole.digest()
        else:
            parts.sort(key=lambda part: part.at)
            arrays = [np.concatenate([part.values for part in parts])]
            for name in parts[0].state:
                arrays.append(np.concatenate([part.state[name] for part in parts]))
            if parts[0].steps is not None:
                arrays.append(np.concatenate([p.steps for p in parts if p.steps is not None]))
            found[spec.name] = str([array.tobytes() for array in arrays])
    return found


@pytest.fixture
def trained(tmp_path: Path, stored: StoredCheckpoints) -> Manifest:
    """A checkpoint with a sparse and a dense table of every optimiser, which were trained."""
    start = WarmStart(stored.blobs, origin(1), 3)
    for optimiser in OPTIMISERS:
        start.add(open_table(trained_sparse(tmp_path, optimiser), Wanted()))
        start.add(open_table(trained_dense(tmp_path, optimiser), Wanted()))
    return start.finish()


def metadata(spec: SparseSpec | DenseSpec) -> np.ndarray:
    return np.array(
        f'{{"format": "resilient-ps table", "version": 1, "spec": {spec.to_json()}, "lr": 0.25}}'
    )


def trained_sparse(folder: Path, optimiser: Optimiser) -> Path:
    spec = SparseSpec(f"s/{optimiser.name}", 3, "float64", optimiser)
    shard = SparseShard(spec)
    for _ in range(3):
        keys = RANDOM.integers(0, 2**64, 500, dtype=np.uint64)
        shard.push(keys, RANDOM.normal(size=(500, 3)))
    keys, values, state = shard.export()
    names = list(state_names(optimiser))
    arrays = {name: state[:, 3 * i : 3 * i + 3] for i, name in enumerate(names)}
    if optimiser.counts_steps:
        arrays["steps"] = state[:, -1]
    return plain(folder, f"s-{optimiser.name}", resilient_ps=metadata(spec), keys=keys,
                 values=values, **arrays)  # fmt: skip


def trained_dense(folder: Path, optimiser: Optimiser) -> Path:
    spec = DenseSpec(f"d/{optimiser.name}", (40_000, 4), "float32", optimiser)
    layout = DenseLayout(spec, 1)
    shard = DenseShard(spec, layout, 0)
    shard.push(shard.blocks, RANDOM.normal(size=spec.elements).astype(np.float32))
    shard.push(shard.blocks[:2], np.ones(2 * layout.elements_per_block, np.float32))
    planes = shard.capture(0, len(shard))
    size = spec.elements
    cut = planes[: size * (1 + optimiser.slots)].reshape(-1, *spec.shape)
    arrays = dict(zip(state_names(optimiser), cut[1:], strict=True))
    if optimiser.counts_steps:
        per_block = layout.elements_per_block // 4
        arrays["steps"] = np.repeat(planes[cut.size :], per_block)[: spec.shape[0]]
    return plain(folder, f"d-{optimiser.name}", resilient_ps=metadata(spec), values=cut[0],
                 **arrays)  # fmt: skip


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shards", [1, 8])
def test_what_is_exported_and_imported_is_the_same(
    tmp_path: Path, stored: StoredCheckpoints, trained: Manifest, format: FileFormat, shards: int
) -> None:
    done = export_tables(stored, trained, tmp_path / "out", format)
    assert [each.table for each in done] == sorted(digests(stored, trained))
    assert all(each.path.is_file() for each in done)
    assert [p for p in (tmp_path / "out").rglob("*") if p.name.endswith(".partial")] == []
    again = write(stored, [each.path for each in done], 2, shards)
    assert again.shards == shards
    assert digests(stored, again) == digests(stored, trained)
    assert {t.lr for t in tables_of(again, stored.indexes(again))} == {0.25}


def test_parquet_is_plain_columns(tmp_path: Path, stored: StoredCheckpoints) -> None:
    keys = np.array([5, 2**63 + 1], np.uint64)
    path = plain(tmp_path, "w", keys=keys, values=np.array([[1.0], [2.0]], np.float32))
    start = WarmStart(stored.blobs, origin(1), 2)
    start.add(open_table(path, Wanted("w", Adagrad(0.1))))
    (done,) = export_tables(stored, start.finish(), tmp_path, "parquet")
    table = pq.read_table(done.path).to_pydict()
    rows = sorted(zip(table["key"], table["value"], table["accumulator"], strict=True))
    assert rows == [(5, 1.0, 0.0), (2**63 + 1, 2.0, 0.0)]
    (bare,) = export_tables(stored, stored.manifest(origin(1).id), tmp_path / "bare", "parquet",
                            with_state=False)  # fmt: skip
    assert pq.read_schema(bare.path).names == ["key", "value"]


def test_a_file_of_another_program_makes_a_warm_start(
    tmp_path: Path, stored: StoredCheckpoints
) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"key": [3, 1, 2], "value": [0.5, -2.0, 0.0]}), path)
    optimiser = FTRL(alpha=0.5, beta=1.0, l1=0.1, l2=2.0)
    start = WarmStart(stored.blobs, origin(1), 4)
    start.add(open_table(path, Wanted("weights", optimiser)))
    manifest = start.finish()
    indexes = stored.indexes(manifest)
    (table,) = tables_of(manifest, indexes)
    assert (table.rows, table.lr, table.spec.name) == (3, 0.5, "weights")
    parts = [read_part(stored.blobs, index, table) for index in indexes]
    found = {int(k): float(v) for p in parts if p.keys is not None
             for k, v in zip(p.keys, p.values[:, 0], strict=True)}  # fmt: skip
    assert found == {3: 0.5, 1: -2.0, 2: 0.0}
    # FTRL's weights follow from its state: a step with no gradient must leave them
    for part in parts:
        assert part.keys is not None
        shard = SparseShard(SparseSpec("weights", 1, "float64", optimiser))
        shard.load(part.keys, np.concatenate([part.values, *part.state.values()], axis=1))
        shard.push(part.keys, np.zeros((len(part), 1)))
        np.testing.assert_allclose(shard.pull(part.keys), part.values)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"values": np.ones((2, 1)), "keys": np.array([4, 4])}, "key 4 is there more than once"),
        ({"values": np.ones((2, 1)), "keys": np.array([-1, 4])}, "whole numbers from 0"),
        ({"values": np.ones((2, 1)), "keys": np.array([4])}, "different lengths"),
        ({"weights": np.ones(3)}, "no array 'values'; arrays: weights"),
        ({"values": np.array(["a"])}, "dtype"),
    ],
)
def test_what_cannot_be_a_table_is_refused(
    tmp_path: Path, stored: StoredCheckpoints, arrays: dict[str, np.ndarray], says: str
) -> None:
    start = WarmStart(stored.blobs, origin(1), 1)
    with pytest.raises(BadInput, match=says):
        start.add(open_table(plain(tmp_path, "bad", **arrays), Wanted("t")))
    start.abandon()
    assert stored.ids() == []


def test_no_array_of_objects_is_ever_loaded(tmp_path: Path) -> None:
    path = plain(tmp_path, "objects", values=np.array([{}], dtype=object))
    with pytest.raises(BadInput, match="plain arrays"):
        open_table(path, Wanted("t"))


def test_a_name_cannot_lead_out_of_the_folder() -> None:
    assert file_name("../../x", "npz") == Path("%2E%2E/%2E%2E/x.npz")
    assert file_name("a/b.c", "parquet") == Path("a/b.c.parquet")


def test_a_table_that_is_not_there_is_named_with_those_that_are(
    tmp_path: Path, stored: StoredCheckpoints, trained: Manifest
) -> None:
    with pytest.raises(NotFound, match="no table 'x' in it; tables: d/adagrad"):
        export_tables(stored, trained, tmp_path, "npz", names=["x"])


def test_a_flipped_bit_stops_the_export_and_leaves_no_file(
    tmp_path: Path, stored: StoredCheckpoints, trained: Manifest
) -> None:
    victim = trained.objects[0].name
    got = stored.blobs.do(GetBlob(victim))
    raw = bytearray(got.data)  # type: ignore[union-attr]
    raw[len(raw) // 2] ^= 1
    stored.blobs.do(PutBlob(victim, bytes(raw)))
    with pytest.raises(Damaged, match=victim):
        export_tables(stored, trained, tmp_path / "out", "parquet")
    stored.blobs.do(DeleteBlobs((victim,)))
    with pytest.raises(Damaged, match=f"{victim} is missing"):
        export_tables(stored, trained, tmp_path / "out", "parquet")
    assert all(path.suffix == ".parquet" for path in (tmp_path / "out").rglob("*.*"))


def test_checkpoints_are_found_without_anything_but_the_store(
    tmp_path: Path, stored: StoredCheckpoints
) -> None:
    path = plain(tmp_path, "w", keys=np.array([1]), values=np.ones(1))
    for number in (2, 10, 9):
        start = WarmStart(stored.blobs, origin(number), 1)
        start.add(open_table(path, Wanted("w")))
        start.finish()
    stored.blobs.do(PutBlob("ctr/checkpoints/1-11-0000000b/shard-0000/x", b""))
    assert [each.number for each in stored.ids()] == [11, 10, 9, 2]
    states = [(each.id.number, each.state) for each in stored.listed()]
    assert states == [(11, "incomplete"), (10, "complete"), (9, "complete"), (2, "complete")]
    with pytest.raises(NotFound, match="1-11-0000000b has no manifest"):
        stored.manifest(CheckpointId.of(1, 11, 11))
