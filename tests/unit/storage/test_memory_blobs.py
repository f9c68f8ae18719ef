"""The model's weaknesses, which are chosen, and what checkers see of it."""

from __future__ import annotations

import pytest

from resilient_ps.storage.blobs import (
    BlobGot,
    BlobList,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
)
from resilient_ps.storage.memory import MemoryBlobs


def listed(store: MemoryBlobs, now_s: int) -> dict[str, int]:
    page = store.apply(ListBlobs(""), now_s)
    assert isinstance(page, BlobList)
    return {item.name: item.size for item in page.items}


def test_a_lagging_listing_shows_what_there_was() -> None:
    store = MemoryBlobs(list_lag_s=5)
    store.apply(PutBlob("a", b"1"), 100)
    assert listed(store, 104) == {}
    store.apply(PutBlob("a", b"22"), 104)
    store.apply(PutBlob("b", b"333"), 104)
    assert listed(store, 105) == {"a": 1}
    assert listed(store, 109) == {"a": 2, "b": 3}
    store.apply(DeleteBlobs(("a",)), 110)
    assert listed(store, 114) == {"a": 2, "b": 3}
    assert listed(store, 115) == {"b": 3}
    assert store.names() == ["b"]


def test_reads_do_not_lag() -> None:
    store = MemoryBlobs(list_lag_s=5)
    store.apply(PutBlob("a", b"1"), 100)
    got = store.apply(GetBlob("a"), 100)
    assert isinstance(got, BlobGot)
    assert got.data == b"1"


def test_ignored_conditions_let_everybody_win() -> None:
    store = MemoryBlobs(conditional=False)
    store.apply(PutBlob("a", b"1", "create"), 0)
    store.apply(PutBlob("a", b"2", "create"), 0)
    store.apply(PutBlob("a", b"3", "if-match", "no such etag"), 0)
    assert store.peek("a") == b"3"


def test_a_full_store_refuses_what_would_grow_it() -> None:
    store = MemoryBlobs(bytes_max=10)
    store.apply(PutBlob("a", b"123456"), 0)
    with pytest.raises(StoreRefused, match="no space left") as caught:
        store.apply(PutBlob("b", b"12345"), 0)
    assert caught.value.why == "full"
    store.apply(PutBlob("a", b"1234567890"), 0)
    store.apply(DeleteBlobs(("a",)), 0)
    store.apply(PutBlob("b", b"12345"), 0)
    assert store.names() == ["b"]


def test_damage_leaves_the_etag_alone() -> None:
    store = MemoryBlobs()
    store.apply(PutBlob("a", b"abc"), 0)
    before = store.apply(GetBlob("a"), 0)
    store.damage("a", b"abX")
    after = store.apply(GetBlob("a"), 0)
    assert isinstance(before, BlobGot)
    assert isinstance(after, BlobGot)
    assert (before.etag, after.data) == (after.etag, b"abX")
    store.damage("a", None)
    assert store.peek("a") is None
