"""Reads from a store: bounded, in order, tried again while that may help."""

from __future__ import annotations

import pytest

from resilient_ps.checkpoints.fetching import PAUSE_FIRST_NS, PAUSE_MOST_NS, Fetching, Wanted
from resilient_ps.checkpoints.refs import LOADING_BLOBS, Refs
from resilient_ps.errors import ResilientPsError
from resilient_ps.machine import Effect, SetTimer
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobGot,
    BlobMissing,
    GetBlob,
    StoreRefused,
    StoreUnavailable,
)
from resilient_ps.storage.documents import Damaged


def fetching(count: int = 5, nbytes: int = 10, **limits: int) -> Fetching:
    wanted = [Wanted(GetBlob(f"object-{place}"), nbytes) for place in range(count)]
    return Fetching(Refs(LOADING_BLOBS), wanted, "t", **limits)


def calls(effects: list[Effect]) -> list[BlobCall]:
    return [effect for effect in effects if isinstance(effect, BlobCall)]


def names(effects: list[Effect]) -> list[str]:
    found = [call.request for call in calls(effects)]
    return [request.name for request in found if isinstance(request, GetBlob)]


def answered(call: BlobCall) -> BlobAnswered:
    assert isinstance(call.request, GetBlob)
    return BlobAnswered(call.ref, BlobGot(call.request.name.encode(), "e", 9))


def taken(fetch: Fetching) -> list[bytes]:
    found = []
    while (got := fetch.take()) is not None:
        found.append(got.data)
    return found


def test_answers_are_handed_on_in_order_whatever_the_order_in_which_they_come() -> None:
    fetch = fetching(3)
    first, second, third = calls(fetch.advance(0))
    fetch.on_blob(answered(third), 0)
    fetch.on_blob(answered(second), 0)
    assert taken(fetch) == []
    fetch.on_blob(answered(first), 0)
    assert taken(fetch) == [b"object-0", b"object-1", b"object-2"]
    assert fetch.done


def test_only_so_many_calls_are_under_way() -> None:
    fetch = fetching(5, calls_max=2)
    first, _ = calls(fetch.advance(0))
    assert fetch.advance(0) == []
    assert names(fetch.on_blob(answered(first), 0)) == ["object-2"]


def test_only_so_many_bytes_are_under_way_or_wait_to_be_taken() -> None:
    fetch = fetching(5, nbytes=10, bytes_max=25)
    first, second = calls(fetch.advance(0))
    assert fetch.on_blob(answered(second), 0) == []
    assert fetch.on_blob(answered(first), 0) == []
    assert taken(fetch) == [b"object-0", b"object-1"]
    assert names(fetch.advance(0)) == ["object-2", "object-3"]


def test_one_read_that_is_larger_than_all_that_is_allowed_goes_alone() -> None:
    fetch = fetching(2, nbytes=100, bytes_max=25)
    (only,) = calls(fetch.advance(0))
    fetch.on_blob(answered(only), 0)
    taken(fetch)
    assert names(fetch.advance(0)) == ["object-1"]


@pytest.mark.parametrize(
    "error",
    [
        StoreUnavailable("away"),
        StoreRefused("who?", why="credentials"),
        StoreRefused("which?", why="bucket"),
    ],
    ids=str,
)
def test_what_may_be_mended_is_tried_again_with_growing_pauses(error: ResilientPsError) -> None:
    fetch, now_ns, pauses = fetching(1), 0, []
    for _ in range(10):
        (call,) = calls(fetch.advance(now_ns))
        (timer,) = fetch.on_blob(BlobFailed(call.ref, error), now_ns)
        assert isinstance(timer, SetTimer)
        assert calls(fetch.advance(now_ns)) == []
        pauses.append(timer.at_ns - now_ns)
        now_ns = timer.at_ns
    assert pauses[:3] == [PAUSE_FIRST_NS, 2 * PAUSE_FIRST_NS, 4 * PAUSE_FIRST_NS]
    assert pauses[-1] == PAUSE_MOST_NS
    assert fetch.trouble == str(error)
    (call,) = calls(fetch.advance(now_ns))
    fetch.on_blob(answered(call), now_ns)
    assert (fetch.trouble, taken(fetch)) == ("", [b"object-0"])


@pytest.mark.parametrize(
    "error",
    [BlobMissing("gone"), Damaged("bits"), StoreRefused("too long", why="request")],
    ids=str,
)
def test_what_no_attempt_changes_is_told_and_nothing_more_is_read(error: ResilientPsError) -> None:
    fetch = fetching(5, calls_max=2)
    first, second = calls(fetch.advance(0))
    assert fetch.on_blob(BlobFailed(second.ref, error), 0) == []
    assert (fetch.failed, fetch.failed_at) == (error, 1)
    assert calls(fetch.on_blob(answered(first), 0)) == []


def test_calls_that_fail_together_are_tried_again_in_order_after_one_pause() -> None:
    fetch = fetching(3)
    under_way = calls(fetch.advance(0))
    for call in reversed(under_way):
        fetch.on_blob(BlobFailed(call.ref, StoreUnavailable("away")), 0)
    assert names(fetch.advance(PAUSE_FIRST_NS)) == ["object-0", "object-1", "object-2"]
