"""The object store in a world: what its client reports of lost answers, outages and damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sim_toys import SECOND_NS, Recorder

from resilient_ps.chaos.sim.bucket import ATTEMPT_NS, ATTEMPTS, BUCKET
from resilient_ps.chaos.sim.process import Process
from resilient_ps.chaos.sim.world import World
from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobExists,
    BlobFailed,
    BlobMissing,
    BlobPut,
    DeleteBlobs,
    Encoded,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreUnavailable,
)

ALL_ATTEMPTS_NS = 2 * ATTEMPTS * ATTEMPT_NS


class Client:
    """A process that asks the object store."""

    def __init__(self, seed: int = 1, *, list_lag_s: int = 0) -> None:
        self.world = World(seed, list_lag_s=list_lag_s)
        self.bucket = self.world.bucket
        self.machine = Recorder()
        self.process = self.world.add(Process(self.world, "c", self.machine))
        self.run_for(1)

    def run_for(self, ns: int) -> None:
        self.world.run_to(self.world.now_ns + ns)

    def call(self, request: Any, ref: int = 1) -> None:
        self.process.perform([BlobCall(ref, request)])

    def result(self, request: Any) -> Any:
        self.call(request)
        self.run_for(SECOND_NS)
        return self.machine.of(BlobAnswered)[-1].result

    def errors(self) -> list[tuple[type, bool]]:
        """Of every failed call: the error, and is its outcome unknown?"""
        return [(type(event.error), event.unknown) for event in self.machine.of(BlobFailed)]


def test_what_was_put_is_got_and_listed_until_it_is_deleted() -> None:
    client = Client()
    put = client.result(PutBlob("a/b", b"content"))
    got = client.result(GetBlob("a/b", 1, 3))
    assert (put.nbytes, got.data, got.size, got.etag) == (7, b"ont", 7, put.etag)
    assert [item.name for item in client.result(ListBlobs("a/")).items] == ["a/b"]
    client.result(DeleteBlobs(("a/b",)))
    client.call(GetBlob("a/b"))
    client.run_for(SECOND_NS)
    assert client.errors() == [(BlobMissing, False)]


class Counted:
    """A body that tells how often it was encoded."""

    times = 0

    def encode(self) -> Encoded:
        self.times += 1
        return Encoded((b"ab", b"c"), "what is to be known")


def test_a_body_is_encoded_once_whatever_its_put_goes_through() -> None:
    client, body = Client(), Counted()
    client.bucket.lost_answers = 1.0
    client.call(PutBlob("a", body))
    client.run_for(ATTEMPT_NS)
    client.bucket.lost_answers = 0.0
    client.run_for(ALL_ATTEMPTS_NS)
    (answered,) = client.machine.of(BlobAnswered)
    assert isinstance(answered.result, BlobPut)
    assert (answered.result.nbytes, answered.result.info, body.times) == (
        3,
        "what is to be known",
        1,
    )


def test_a_conditional_put_whose_answer_was_lost_finds_its_own_object() -> None:
    client = Client()
    client.bucket.lost_answers = 1.0
    client.call(PutBlob("a", b"mine", "create"))
    client.run_for(ATTEMPT_NS)
    client.bucket.lost_answers = 0.0
    client.run_for(ALL_ATTEMPTS_NS)
    assert client.errors() == [(BlobExists, False)]
    assert client.bucket.blobs.peek("a") == b"mine"


def test_a_put_all_of_whose_answers_are_lost_is_unknown_and_has_taken_effect() -> None:
    client = Client()
    client.bucket.lost_answers = 1.0
    client.call(PutBlob("a", b"1"))
    client.run_for(ALL_ATTEMPTS_NS)
    assert client.errors() == [(StoreUnavailable, True)]
    assert client.bucket.blobs.peek("a") == b"1"


def cut_off(client: Client) -> Callable[[], None]:
    client.world.network.block("c", BUCKET)
    return lambda: client.world.network.unblock("c", BUCKET)


def stopped(client: Client) -> Callable[[], None]:
    client.bucket.stop()
    return client.bucket.start


@pytest.mark.parametrize("fault", [cut_off, stopped])
def test_an_outage_fails_calls_after_all_attempts_and_short_ones_do_not(
    fault: Callable[[Client], Callable[[], None]],
) -> None:
    client = Client()
    undo = fault(client)
    client.call(PutBlob("a", b"1"))
    client.call(GetBlob("a"), 2)
    client.run_for(ALL_ATTEMPTS_NS)
    assert client.errors() == [(StoreUnavailable, True), (StoreUnavailable, False)] or (
        client.errors() == [(StoreUnavailable, False), (StoreUnavailable, True)]
    )
    client.call(PutBlob("b", b"1"), 3)
    client.run_for(ATTEMPT_NS)
    undo()
    client.run_for(ALL_ATTEMPTS_NS)
    assert [event.ref for event in client.machine.of(BlobAnswered)] == [3]


def test_answers_that_do_not_come_back_are_lost() -> None:
    client = Client()
    client.world.network.block(BUCKET, "c")
    client.call(PutBlob("a", b"1"))
    client.run_for(ALL_ATTEMPTS_NS)
    assert client.errors() == [(StoreUnavailable, True)]
    assert client.bucket.blobs.peek("a") == b"1"


def test_what_was_given_up_may_be_written_late() -> None:
    late = 0
    for seed in range(12):
        client = Client(seed)
        client.bucket.stop()
        client.call(PutBlob("a", b"1"))
        client.run_for(3 * ATTEMPT_NS)
        client.process.killed = True
        client.bucket.start()
        client.run_for(ALL_ATTEMPTS_NS)
        late += client.bucket.blobs.peek("a") is not None
    assert 0 < late < 12


def test_a_dead_process_gets_no_answer_and_a_paused_one_gets_it_later() -> None:
    client = Client()
    client.call(PutBlob("a", b"1"))
    client.process.pause(2 * SECOND_NS)
    client.run_for(SECOND_NS)
    assert client.machine.of(BlobAnswered) == []
    client.run_for(2 * SECOND_NS)
    assert len(client.machine.of(BlobAnswered)) == 1
    client.call(PutBlob("b", b"1"))
    client.world.kill(client.process)
    client.run_for(SECOND_NS)
    assert len(client.machine.of(BlobAnswered)) == 1
    assert client.bucket.blobs.peek("b") == b"1"


def test_large_objects_and_slow_stores_take_longer() -> None:
    def took_ns(nbytes: int, slowness: int) -> int:
        client = Client()
        client.bucket.slowness = slowness
        client.call(PutBlob("a", bytes(nbytes)))
        begun_ns = client.world.now_ns
        assert client.world.run_until(lambda: bool(client.machine.of(BlobAnswered)))
        return client.world.now_ns - begun_ns

    small = took_ns(1, 1)
    assert took_ns(1 << 20, 1) > small + 50_000_000
    assert took_ns(1, 20) > 5 * small


def test_listings_may_lag() -> None:
    client = Client(list_lag_s=3)
    client.result(PutBlob("a", b"1"))
    assert client.result(ListBlobs("")).items == ()
    client.run_for(4 * SECOND_NS)
    assert [item.name for item in client.result(ListBlobs("")).items] == ["a"]


@pytest.mark.parametrize("how", range(9))
def test_damage_changes_an_object_behind_everybodys_back(how: int) -> None:
    client = Client()
    client.result(PutBlob("a", b"content"))
    told = client.bucket.damage("a", how)
    held = client.bucket.blobs.peek("a")
    assert held != b"content"
    assert (held is None) == (told == "is lost")
    assert client.bucket.damaged == {"a"}


def test_a_request_that_cannot_be_is_refused() -> None:
    client = Client()
    client.call(GetBlob("../etc/passwd"))
    client.run_for(SECOND_NS)
    assert client.errors() == [(BadInput, False)]


def test_watchers_see_requests_before_and_after_they_take_effect() -> None:
    client = Client()
    seen: list[str] = []
    held = client.bucket.blobs
    client.bucket.on_asked.append(lambda process, request: seen.append(f"{held.peek('a')!r}"))
    client.bucket.on_performed.append(lambda process, request: seen.append(f"{held.peek('a')!r}"))
    client.result(PutBlob("a", b"1"))
    assert seen == ["None", "b'1'"]
