"""Runs a host in a thread of the test's process, with a machine that a test can follow."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from io import StringIO
from typing import Any

import uvloop
from wire_peer import TIMEOUT_S, WirePeer

from resilient_ps.coordinator.kv import Kv
from resilient_ps.machine import Effect, Event, Exit, Started, StopAsked
from resilient_ps.messages import Hello
from resilient_ps.runtime.addresses import Address
from resilient_ps.runtime.clock import Clock
from resilient_ps.runtime.host import Host
from resilient_ps.runtime.limits import HostLimits
from resilient_ps.runtime.listening import listen_on
from resilient_ps.runtime.logs import Logger
from resilient_ps.storage.blobs import Blobs


class Followed:
    """A machine that answers events by a script and hands each of them to the test."""

    def __init__(self, script: Callable[[Event], list[Effect]]) -> None:
        self._script = script
        self._events: queue.Queue[Event] = queue.Queue()

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        self._events.put(event)
        return [Exit(0, "asked to")] if event == StopAsked() else self._script(event)

    def next_event(self) -> Event:
        """The next event that is not `Started`; waits for it."""
        event = self._events.get(timeout=TIMEOUT_S)
        return event if event != Started() else self.next_event()

    def rest(self) -> list[Event]:
        """All other events so far."""
        return [self._events.get() for _ in range(self._events.qsize())]


class Servers(dict[str, Address]):
    """A directory that a test writes."""

    def address_of(self, server: str) -> Address | None:
        return self.get(server)


class HostThread:
    """A context in which the machine runs; `code` is its exit code afterwards."""

    def __init__(
        self,
        machine: Any,
        *,
        directory: Servers | None = None,
        hello: Callable[[], Hello] | Hello | None = None,
        kv: Kv | None = None,
        blobs: Blobs | None = None,
        limits: HostLimits | None = None,
        unix_path: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._ready = threading.Event()
        self.log = StringIO()
        self.code = -1
        self.listening = listen_on("127.0.0.1:0", unix_path)
        self.host = Host(
            machine,
            listening=self.listening,
            directory=directory,
            hello=hello,
            kv=kv,
            blobs=blobs,
            limits=limits,
            clock=clock,
            log=Logger(self.log, format="json"),
            ready=self._ready.set,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            self._loop = runner.get_loop()
            self.code = runner.run(self.host.serve())

    def __enter__(self) -> HostThread:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._thread.is_alive():
            self.post(StopAsked())
        self.join()

    def post(self, event: Event) -> None:
        self._loop.call_soon_threadsafe(self.host.post, event)

    def join(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def peer(self) -> WirePeer:
        return WirePeer((self.listening.address.host, self.listening.address.port))
