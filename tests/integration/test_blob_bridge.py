"""Calls of a machine on a blocking object store: they never block the loop, nor the end."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest
from host_thread import Followed, HostThread
from wire_peer import TIMEOUT_S

from resilient_ps.errors import BadInput, Bug, NotFound, ResilientPsError
from resilient_ps.machine import Effect, Event, SetTimer, Started, TimerFired
from resilient_ps.runtime.blob_bridge import BLOB_THREADS, MAX_WAITING_BLOB_CALLS, is_unknown
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobGot,
    BlobMissing,
    BlobPut,
    BlobRequest,
    BlobResult,
    DeleteBlobs,
    Encoded,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
    StoreUnavailable,
    SweepUploads,
)
from resilient_ps.storage.memory import MemoryBlobs

# A store that hangs for ever, and a host that is told to end meanwhile
HANGING = """
import threading
from resilient_ps.machine import Exit, SetTimer, Started
from resilient_ps.runtime.host import Host
from resilient_ps.runtime.listening import listen_on
from resilient_ps.storage.blobs import BlobCall, GetBlob

begun = threading.Event()

class Hanging:
    def do(self, request):
        begun.set()
        threading.Event().wait()
    def close(self):
        pass

class Ending:
    def handle(self, event, now_ns):
        if event == Started():
            return [BlobCall(1, GetBlob("x")), SetTimer("look", now_ns)]
        return [Exit(7, "the call hangs")] if begun.is_set() else [SetTimer("look", now_ns + 10**6)]

raise SystemExit(Host(Ending(), listening=listen_on("127.0.0.1:0"), blobs=Hanging()).run())
"""


class LockedBlobs:
    """The model, for several threads. `hold`: requests wait until `release` is set."""

    def __init__(self, *, hold: bool = False) -> None:
        self._lock = threading.Lock()
        self._model = MemoryBlobs()
        self.release = threading.Event()
        if not hold:
            self.release.set()
        self.most = 0  # requests at once
        self._now = 0

    def do(self, request: BlobRequest) -> BlobResult:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.release.wait(TIMEOUT_S)
        with self._lock:
            self._now -= 1
            return self._model.apply(request, 0)

    def close(self) -> None:
        pass


class FailingBlobs(LockedBlobs):
    """Every request fails with this error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def do(self, request: BlobRequest) -> BlobResult:
        raise self._error


@dataclass
class Traced:
    """A body that notes the thread which encodes it."""

    threads: list[str]

    def encode(self) -> Encoded:
        self.threads.append(threading.current_thread().name)
        return Encoded((b"made ", b"when sent"), info="traced")


def calls(*requests: BlobRequest) -> Followed:
    effects: list[Effect] = [BlobCall(ref, request) for ref, request in enumerate(requests)]
    return Followed(lambda event: effects if event == Started() else [])


def failure(machine: Followed) -> BlobFailed:
    event = machine.next_event()
    assert isinstance(event, BlobFailed)
    return event


def test_every_call_is_answered_under_its_ref() -> None:
    store = LockedBlobs()
    store.do(PutBlob("x", b"abc"))
    machine = calls(PutBlob("y", b"y"), GetBlob("x", 1), ListBlobs("x"), DeleteBlobs(("z",)))
    with HostThread(machine, blobs=store):
        events = [machine.next_event() for _ in range(4)]
    results = {event.ref: event.result for event in events if isinstance(event, BlobAnswered)}
    assert sorted(results) == [0, 1, 2, 3]
    assert isinstance(results[0], BlobPut)
    assert isinstance(results[1], BlobGot)
    assert results[1].data == b"bc"


def test_bodies_are_encoded_and_answers_decoded_outside_of_the_loop() -> None:
    threads: list[str] = []

    def decode(data: bytes) -> bytes:
        threads.append(threading.current_thread().name)
        return data.upper()

    store = LockedBlobs()

    def script(event: Event) -> list[Effect]:
        if event == Started():
            return [BlobCall(1, PutBlob("x", Traced(threads)))]
        if isinstance(event, BlobAnswered) and event.ref == 1:
            return [BlobCall(2, GetBlob("x", decode=decode))]
        return []

    machine = Followed(script)
    with HostThread(machine, blobs=store):
        put, got = machine.next_event(), machine.next_event()
    assert isinstance(put, BlobAnswered)
    assert isinstance(put.result, BlobPut)
    assert put.result.info == "traced"
    assert isinstance(got, BlobAnswered)
    assert isinstance(got.result, BlobGot)
    assert got.result.decoded == b"MADE WHEN SENT"
    assert len(threads) == 2
    assert all(name.startswith("blobs-") for name in threads)


@pytest.mark.parametrize(
    ("request_", "error", "unknown"),
    [
        (PutBlob("x", b""), StoreUnavailable("no answer"), True),
        (DeleteBlobs(("x",)), StoreUnavailable("no answer"), True),
        (SweepUploads("", 0), StoreUnavailable("no answer"), True),
        (GetBlob("x"), StoreUnavailable("no answer"), False),
        (ListBlobs(""), StoreUnavailable("no answer"), False),
        (PutBlob("x", b""), StoreRefused("no"), False),
        (GetBlob("x"), BlobMissing("none"), False),
    ],
)
def test_a_failure_tells_whether_it_may_have_taken_effect(
    request_: BlobRequest, error: ResilientPsError, unknown: bool
) -> None:
    machine = calls(request_)
    with HostThread(machine, blobs=FailingBlobs(error)):
        failed = failure(machine)
    assert (failed.error, failed.unknown) == (error, unknown)
    assert is_unknown(request_, error) == unknown


def test_what_a_decoder_refuses_is_the_calls_failure() -> None:
    def refuse(data: bytes) -> None:
        raise NotFound("no sense in it")

    store = LockedBlobs()
    store.do(PutBlob("x", b"abc"))
    machine = calls(GetBlob("x", decode=refuse))
    with HostThread(machine, blobs=store):
        failed = failure(machine)
    assert isinstance(failed.error, NotFound)


def test_a_broken_store_is_a_bug_that_the_machine_hears_of() -> None:
    machine = calls(PutBlob("x", b""))
    with HostThread(machine, blobs=FailingBlobs(KeyError("oops"))) as host:
        failed = failure(machine)
    assert isinstance(failed.error, Bug)
    assert failed.unknown
    assert "KeyError" in host.log.getvalue()


def test_without_a_store_calls_fail_with_the_remedy() -> None:
    machine = calls(GetBlob("x"))
    with HostThread(machine):
        failed = failure(machine)
    assert isinstance(failed.error, BadInput)
    assert "--store" in str(failed.error)


def test_hanging_calls_do_not_hold_up_the_loop_and_only_so_many_run_at_once() -> None:
    store = LockedBlobs(hold=True)
    count = 5 * BLOB_THREADS

    def script(event: Event) -> list[Effect]:
        if event == Started():
            hanging = [BlobCall(ref, PutBlob(f"x{ref}", b"")) for ref in range(count)]
            return [*hanging, SetTimer("meanwhile", 0)]
        return []

    machine = Followed(script)
    with HostThread(machine, blobs=store):
        assert machine.next_event() == TimerFired("meanwhile")
        store.release.set()
        events = [machine.next_event() for _ in range(count)]
    assert all(isinstance(event, BlobAnswered) for event in events)
    assert store.most <= BLOB_THREADS


def test_more_calls_than_may_wait_fail_at_once() -> None:
    store = LockedBlobs(hold=True)
    machine = calls(*[PutBlob("x", b"")] * (MAX_WAITING_BLOB_CALLS + BLOB_THREADS + 1))
    with HostThread(machine, blobs=store):
        failed = failure(machine)
        store.release.set()
    assert isinstance(failed.error, StoreUnavailable)


def test_a_store_that_hangs_for_ever_does_not_keep_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
