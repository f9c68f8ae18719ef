"""The heartbeat's thread disturbs nobody, and ends when it is told to."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from resilient_ps.client.heartbeat import Heartbeat
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Put, Txn
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import Unavailable

KEYS = ClusterKeys("c")
LEADER = b'{"process": 7, "server": "s1"}'


class Watched(MemoryClient):
    """A store that tells when it has been read so many times."""

    def __init__(self, *, down: bool = False) -> None:
        super().__init__(MemoryKv())
        self.reads = 0
        self.enough = threading.Event()
        self._down = down

    def read(self, *arguments: object, **more: object) -> object:  # type: ignore[override]
        self.reads += 1
        if self.reads >= 4:
            self.enough.set()
        if self._down:
            raise Unavailable("etcd does not answer")
        return super().read(*arguments, **more)  # type: ignore[arg-type]


def heartbeat(kv: Watched) -> Heartbeat:
    return Heartbeat(kv, "c", job="j", rank=0, incarnation=1, beat_s=0.01)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("heartbeat")]


@pytest.mark.parametrize("leader", [None, LEADER, b"junk", b"[]", b'{"server": "s9"}'])
def test_without_a_coordinator_that_can_be_reached_it_goes_on_trying(leader: bytes | None) -> None:
    kv = Watched()
    nobody = ServerRecord("s1", 7, "127.0.0.1", 1, "", "", 1.0, 5, "0.1", 1, "host")
    kv.txn(Txn((), (Put(KEYS.server("s1"), nobody.to_bytes()),)))
    if leader is not None:
        kv.txn(Txn((), (Put(KEYS.coordinator_leader, leader),)))
    beats = heartbeat(kv)
    beats.start()
    assert kv.enough.wait(20)
    assert threads() == ["heartbeat j/0"]
    beats.stop()
    assert threads() == []


def test_without_etcd_it_goes_on_trying() -> None:
    kv = Watched(down=True)
    beats = heartbeat(kv)
    beats.start()
    assert kv.enough.wait(20)
    beats.stop()
    assert threads() == []


def test_it_ends_with_an_owner_that_nobody_closed() -> None:
    class Owner:
        pass

    kv, owner = Watched(), Owner()
    beats = heartbeat(kv)
    weakref.finalize(owner, beats.ask_to_stop)
    beats.start()
    (thread,) = [t for t in threading.enumerate() if t.name == "heartbeat j/0"]
    del owner
    gc.collect()
    thread.join(20)
    assert threads() == []


def test_one_that_was_never_started_can_be_stopped() -> None:
    heartbeat(Watched()).stop()
    assert threads() == []
