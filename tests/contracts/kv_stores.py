"""The stores that the key-value contract runs on, and what its tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from resilient_ps.coordinator.kv import Event, Kv, Reset, WatchBatch
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.coordinator.runtime.processes import (
    EtcdProcess,
    find_etcd,
    start_embedded,
    start_etcd,
)

PATIENCE_S = 20.0
"""How long a test waits for what must come; nothing that passes takes that long."""

NO_ETCD = "no etcd binary on the PATH: the tests on real etcd are skipped (apt: etcd-server)"


class ContractKv(Kv, Protocol):
    def compact(self, revision: int) -> None: ...


@dataclass
class Store:
    """`kv` is a client that tests share; `open` makes another one on the same store."""

    name: str
    kv: ContractKv
    open: Callable[[], ContractKv]


@contextmanager
def open_store(name: str) -> Iterator[Store]:
    """`model`, `embedded`, `etcd-1` or `etcd-3`."""
    if name == "model":
        model = MemoryKv(cluster_id=7)
        with closing(MemoryClient(model)) as client:
            # One model, one lock: further clients would have locks of their own.
            yield Store(name, client, lambda: client)
        return
    process = start_embedded() if name == "embedded" else fast_etcd(int(name[-1]))
    with process, closing(EtcdKv(process.endpoints)) as kv:
        yield Store(name, kv, lambda: EtcdKv(process.endpoints))


def fast_etcd(members: int, *options: str) -> EtcdProcess:
    """Real etcd that elects within a second and grants leases from 1 s on; skips without it."""
    if find_etcd() is None:
        pytest.skip(NO_ETCD)
    return start_etcd(members=members, heartbeat_ms=60, election_ms=600, options=options)


class Recorder:
    """A watch's consumer that keeps everything, and lets a test wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen: list[WatchBatch | Reset] = []

    def __call__(self, change: WatchBatch | Reset) -> None:
        with self._changed:
            self._seen.append(change)
            self._changed.notify_all()

    @property
    def seen(self) -> list[WatchBatch | Reset]:
        with self._changed:
            return list(self._seen)

    @property
    def batches(self) -> list[WatchBatch]:
        return [change for change in self.seen if isinstance(change, WatchBatch)]

    @property
    def resets(self) -> list[Reset]:
        return [change for change in self.seen if isinstance(change, Reset)]

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch.events]

    def names(self) -> list[tuple[str, bytes]]:
        return [(event.kind, event.item.key) for event in self.events]

    def state(self) -> dict[bytes, bytes]:
        """What a consumer knows that applies everything it has seen."""
        known: dict[bytes, bytes] = {}
        for change in self.seen:
            if isinstance(change, Reset):
                known = {item.key: item.value for item in change.items}
                continue
            for event in change.events:
                if event.kind == "put":
                    known[event.item.key] = event.item.value
                else:
                    known.pop(event.item.key, None)
        return known

    def wait(self, condition: Callable[[Recorder], Any], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), PATIENCE_S):
                pytest.fail(f"waited {PATIENCE_S} s in vain for {what}; seen: {self._seen[-20:]}")

    def wait_for_key(self, kind: str, key: bytes) -> None:
        self.wait(lambda seen: (kind, key) in seen.names(), f"{kind} of {key!r}")


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Asks again and again; for states that nobody announces."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail(f"waited {PATIENCE_S} s in vain for {what}")


def together(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Runs `act(0)` ... `act(count - 1)` at the same moment, a thread each; results in order."""
    start = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        start.wait(PATIENCE_S)
        try:
            results[number] = act(number)
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
