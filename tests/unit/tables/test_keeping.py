"""What an image keeps of many shards in one native call, against what it keeps push by push."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.engine import native
from resilient_ps.quick_requests import KEPT
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.optimisers import SGD, Adagrad, Sum
from resilient_ps.tables.parameters import INDEX_FULL, ROOM_FULL
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


Pair = tuple[SparseShard, SparseOverlay]


def push(pairs: list[Pair], pushed: list[Any]) -> Any:
    """All at once; what `push_parts` gives. What it lacks is made up for."""
    specs = [live.spec for live, _ in pairs]
    assert len({spec.dtype for spec in specs}) == 1
    if not all(o.may_keep(len(keys)) for (_, o), keys in zip(pairs, pushed, strict=True)):
        return None
    grads = [values(spec, len(keys)) for spec, keys in zip(specs, pushed, strict=True)]
    lacks = native.push_parts(
        np.concatenate(pushed),
        np.concatenate([each.reshape(-1) for each in grads]),
        [len(keys) for keys in pushed],
        [live.push_arrays for live, _ in pairs],
        [overlay.keep_arrays() for _, overlay in pairs],
    )
    for (live, overlay), keys, given_grads, lack in zip(pairs, pushed, grads, lacks, strict=True):
        if lack & KEPT:
            overlay.note_kept()
        if lack & ~KEPT:
            live.go_on(lack & ~KEPT, keys, given_grads)
    return lacks


def rest(overlay: SparseOverlay) -> list[tuple[bytes, bytes]]:
    found = []
    while (piece := overlay.capture(2_000)) is not None:
        found.append((piece[0].tobytes(), piece[1].tobytes()))
    return found


batches = st.lists(st.lists(st.integers(0, ROWS + 3_000), max_size=120), min_size=2, max_size=2)


@pytest.mark.parametrize("specs", [SPECS[:2], SPECS[2:] * 2])
@settings(max_examples=25, deadline=None)
@given(turns=st.lists(st.tuples(batches, st.booleans()), max_size=8))
def test_what_is_kept_at_once_is_what_is_kept_one_by_one(
    specs: tuple[SparseSpec, ...], turns: list[Any]
) -> None:
    one_by_one, at_once = [frozen(s) for s in specs], [frozen(s) for s in specs]
    captured: list[list[Any]] = [[], []]
    for batch, capture in turns:
        pushed = [np.array(keys, np.uint64) for keys in batch]
        assert push(at_once, pushed) is not None
        for i, keys in enumerate(pushed):
            one_by_one[i][1].push(keys, values(specs[i], len(keys)), late=True)
        if capture:
            for found, sides in zip(captured, (one_by_one, at_once), strict=True):
                pieces = [overlay.capture(3_000) for _, overlay in sides]
                found += [p and (p[0].tobytes(), p[1].tobytes()) for p in pieces]
    for found, sides in zip(captured, (one_by_one, at_once), strict=True):
        found += [rest(overlay) for _, overlay in sides]
    assert captured[0] == captured[1]
    assert [live.digest() for live, _ in one_by_one] == [live.digest() for live, _ in at_once]


def test_it_keeps_what_stood_there_before() -> None:
    before = rest(frozen(SPECS[0])[1])
    pair = frozen(SPECS[0])
    keys = np.arange(ROWS // 2, dtype=np.uint64)
    assert push([pair], [keys]) == (KEPT,)
    assert push([pair], [keys]) == (0,)  # once is enough
    assert rest(pair[1]) == before


def test_what_lacks_room_for_new_rows_has_kept_the_old_ones_before_it_goes_on() -> None:
    before = rest(frozen(SPECS[0])[1])
    pair, (alone, _) = frozen(SPECS[0]), frozen(SPECS[0])
    lacked = set()
    for turn in range(8):
        new = np.arange(200, dtype=np.uint64) + ROWS + 200 * turn
        keys = np.concatenate([new, np.arange(20, dtype=np.uint64) + 20 * turn])
        (lack,) = push([pair], [keys])
        assert lack & KEPT
        lacked.add(lack & ~KEPT)
        alone.push(keys, values(SPECS[0], len(keys)))
    assert lacked == {0, INDEX_FULL, ROOM_FULL}
    assert rest(pair[1]) == before
    assert pair[0].digest() == alone.digest()


def test_nothing_is_kept_at_once_before_all_early_pushes_are_made() -> None:
    live = SparseShard(SPECS[0])
    overlay = SparseOverlay(live, Allowance(1 << 30, lambda: None))
    assert not overlay.may_keep(1)


def test_where_there_is_no_room_nothing_is_kept_at_once() -> None:
    _, overlay = frozen(SPECS[1], bytes_max=100 * (16 * 4 + 8))
    assert overlay.may_keep(64)
    assert not overlay.may_keep(10_000)


def test_parts_that_do_not_fit_are_left_alone() -> None:
    live, overlay = frozen(SPECS[0])
    assert overlay.may_keep(2)
    keys, before = np.arange(2, dtype=np.uint64), live.digest()
    kept = overlay.keep_arrays()
    for given_kept in (
        [kept, kept],
        [kept[:-1]],
        [(*kept[:2], ROWS + 1, *kept[3:])],
        [(*kept[:6], kept[6][:2], kept[7])],
        [list(kept)],
    ):
        grads = values(SPECS[0], 2).reshape(-1)
        assert native.push_parts(keys, grads, [2], [live.push_arrays], given_kept) is None
    assert not kept[0].any()
    assert live.digest() == before
