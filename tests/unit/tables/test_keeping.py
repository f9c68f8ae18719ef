"""What an image keeps of many shards in one native call, against what it keeps push by push."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.engine import native
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.optimisers import SGD, Adagrad, Sum
from resilient_ps.tables.sparse import SparseShard
from resilient_ps.tables.sparse_overlay import SparseOverlay
from resilient_ps.tables.spec import SparseSpec

if native is None:
    pytest.skip("there is no native module here", allow_module_level=True)

SPECS = (
    SparseSpec("a", 3, "float32", Adagrad(0.1)),
    SparseSpec("b", 16, "float32", SGD(0.1)),
    SparseSpec("c", 1, "int64", Sum()),
)
ROWS = 400


def frozen(spec: SparseSpec, bytes_max: int = 1 << 30) -> tuple[SparseShard, SparseOverlay]:
    """A shard with rows, and its overlay when all early pushes have been made."""
    live = SparseShard(spec)
    live.push(np.arange(ROWS, dtype=np.uint64), values(spec, ROWS))
    overlay = SparseOverlay(live, Allowance(bytes_max, lambda: None))
    overlay.freeze()
    return live, overlay


def values(spec: SparseSpec, count: int) -> Any:
    return (np.arange(count * spec.dim) % 11 + 1).astype(spec.dtype).reshape(count, spec.dim)


def keep(overlays: list[SparseOverlay], pushed: list[Any]) -> bool:
    if not all(o.may_keep(len(keys)) for o, keys in zip(overlays, pushed, strict=True)):
        return False
    ends = np.cumsum([len(keys) for keys in pushed]).tolist()
    parts = [
        overlay.keep_arrays(end - len(keys))
        for overlay, keys, end in zip(overlays, pushed, ends, strict=True)
    ]
    counts = [len(keys) for keys in pushed]
    return bool(native.keep_parts(np.concatenate(pushed), counts, parts))


def rest(overlay: SparseOverlay) -> list[tuple[bytes, bytes]]:
    found = []
    while (piece := overlay.capture(2_000)) is not None:
        found.append((piece[0].tobytes(), piece[1].tobytes()))
    return found


batches = st.lists(st.lists(st.integers(0, ROWS + 50), max_size=120), min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(batches, st.booleans()), max_size=8))
def test_what_is_kept_at_once_is_what_is_kept_one_by_one(turns: list[Any]) -> None:
    one_by_one, at_once = [frozen(s) for s in SPECS], [frozen(s) for s in SPECS]
    captured: list[list[Any]] = [[], []]
    for batch, capture in turns:
        pushed = [np.array(keys, np.uint64) for keys in batch]
        assert keep([overlay for _, overlay in at_once], pushed)
        for i, keys in enumerate(pushed):
            one_by_one[i][1].push(keys, values(SPECS[i], len(keys)), late=True)
            at_once[i][0].push(keys, values(SPECS[i], len(keys)))
            at_once[i][1].note_kept()
        if capture:
            for found, sides in zip(captured, (one_by_one, at_once), strict=True):
                pieces = [overlay.capture(3_000) for _, overlay in sides]
                found += [p and (p[0].tobytes(), p[1].tobytes()) for p in pieces]
    for found, sides in zip(captured, (one_by_one, at_once), strict=True):
        found += [rest(overlay) for _, overlay in sides]
    assert captured[0] == captured[1]
    assert [live.digest() for live, _ in one_by_one] == [live.digest() for live, _ in at_once]


def test_it_keeps_what_stood_there_before() -> None:
    live, overlay = frozen(SPECS[0])
    before = rest(frozen(SPECS[0])[1])
    keys = np.arange(ROWS, dtype=np.uint64)
    assert keep([overlay], [keys])
    live.push(keys, values(SPECS[0], ROWS))
    assert rest(overlay) == before


def test_nothing_is_kept_at_once_before_all_early_pushes_are_made() -> None:
    live = SparseShard(SPECS[0])
    overlay = SparseOverlay(live, Allowance(1 << 30, lambda: None))
    assert not overlay.may_keep(1)


def test_where_there_is_no_room_nothing_is_kept_at_once() -> None:
    _, overlay = frozen(SPECS[1], bytes_max=100 * (16 * 4 + 8))
    assert overlay.may_keep(64)
    assert not overlay.may_keep(10_000)


def test_parts_that_do_not_fit_are_left_alone() -> None:
    _, overlay = frozen(SPECS[0])
    assert overlay.may_keep(2)
    keys = np.arange(2, dtype=np.uint64)
    arrays = overlay.keep_arrays(0)
    assert native.keep_parts(keys, [3], [arrays]) is None
    assert native.keep_parts(keys, [2], [overlay.keep_arrays(1)]) is None
    assert native.keep_parts(keys, [2], [arrays[:-1]]) is None
    assert native.keep_parts(keys, [2], [(*arrays[:7], ROWS + 1, *arrays[8:])]) is None
    assert not arrays[5].any()
