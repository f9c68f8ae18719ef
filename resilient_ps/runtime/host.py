"""The real host: runs one machine on sockets, timers, signals and the coordination store.

Everything happens in one thread, the loop's: an event goes into the machine, its effects are
performed in list order, and what becomes of them comes back as further events. Invariants:

* *one step at a time*: the machine is never entered while it handles something;
* *no news after the end*: after `Exit`, or after a bug, the machine sees no further event;
* *strangers stay outside*: the machine hears of a peer only after a whole, well-formed greeting;
* *nothing leaves late*: a message that is past its end takes its connection with it, so the peer
  asks again and does not wait for what never comes.

An exception out of the machine is a bug. The state may be half changed, so the host does not go
on with it: it logs the traceback and exits with `EXIT_BUG`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any

import uvloop

from resilient_ps.coordinator.kv import Kv, KvCall, KvWatch
from resilient_ps.engine import native
from resilient_ps.machine import (
    AnswerBytes,
    BeginPush,
    Drop,
    Effect,
    Event,
    Exit,
    Log,
    Machine,
    MessageArrived,
    Peer,
    PeerLost,
    Send,
    SetTimer,
    Started,
    StopAsked,
)
from resilient_ps.messages import Append, Appended, Hello, Message, Request
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.runtime.addresses import Directory
from resilient_ps.runtime.awake import Awake
from resilient_ps.runtime.blob_bridge import BLOB_THREADS, BlobBridge
from resilient_ps.runtime.clock import Clock, MonotonicClock
from resilient_ps.runtime.connection import Connection
from resilient_ps.runtime.expired import Expired
from resilient_ps.runtime.kv_bridge import KvBridge
from resilient_ps.runtime.limits import HostLimits
from resilient_ps.runtime.listening import BACKLOG, Listening
from resilient_ps.runtime.logs import Logger
from resilient_ps.runtime.outbound import Outbound
from resilient_ps.runtime.signals import StopSignals
from resilient_ps.runtime.timers import Timers
from resilient_ps.storage.blobs import BlobCall, Blobs

EXIT_BUG = 70
EXIT_SIGNALLED = 128  # and the signal's number
EXIT_GRACE_S = 0.5
"""How long an ending host waits for peers to take what was sent, and for the store's answers."""
EXIT_QUIET_S = 0.03
"""How long it then waits for them to close: who is idle does not notice that it should."""
EXIT_LOOK_S = 0.005


class Host:
    """Runs `machine` until it emits `Exit`.

    `listening`: where it is reached (see `listen_on`). `directory` and `hello`: how `server:` peers
    are found and greeted; a `hello` that is called is called for each connection anew. `kv`: the
    coordination store, `blobs`: the object store, which up to `blob_threads` calls use at once; the
    caller closes both. `ready` is called in the loop's thread once
    connections are accepted and `Started` has been handled.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        listening: Listening,
        kv: Kv | None = None,
        blobs: Blobs | None = None,
        blob_threads: int = BLOB_THREADS,
        directory: Directory | None = None,
        hello: Callable[[], Hello] | Hello | None = None,
        limits: HostLimits | None = None,
        clock: Clock | None = None,
        log: Logger | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        self._machine = machine
        self._answer_bytes: AnswerBytes | None = getattr(machine, "answer_bytes", None)
        self._begin_push: BeginPush | None = getattr(machine, "begin_push", None)
        self._listening = listening
        self._directory = directory
        self._hello = hello
        self._limits = limits or HostLimits()
        self._clock = clock or MonotonicClock()
        self._log = log or Logger()
        self._ready = ready
        self._connections: dict[Peer, Connection] = {}  # that the machine may send to
        self._open: set[Connection] = set()  # all of them, strangers too
        self._outbound: dict[Peer, Outbound] = {}
        self._numbers = itertools.count(1)
        self._unflushed: dict[Connection, None] = {}
        self._expired = Expired(self._clock, self._log)
        self._stepping = False
        self._started = False
        self._stop_early = False
        self._exit: Exit | None = None
        self._timers = Timers(self._clock, self.post)
        self._awake = Awake(self._clock, self._limits.linger_ns)
        self._kv = KvBridge(kv, self.post, self._log)
        self._blobs = BlobBridge(blobs, self.post, self._log, threads=blob_threads)

    def run(self) -> int:
        """Run in this thread until the machine exits; its exit code. Handles SIGTERM, SIGINT."""
        _allow_descriptors(2 * self._limits.connections)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(self._run())

    async def _run(self) -> int:
        with StopSignals(self._ask_to_stop, self._interrupt):
            return await self.serve()

    async def serve(self) -> int:
        """As `run`, in a loop that runs already, and without signal handlers."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        self._ended, self._closed = asyncio.Event(), asyncio.Event()
        self._kv.start()
        self._blobs.start()
        servers = [await self._accept_on(sock) for sock in self._listening.sockets]
        try:
            self._begin()
            await self._ended.wait()
        finally:
            for server in servers:
                server.close()
            self._listening.close()  # at once: who dials us now is to be refused
            self._timers.close()
            await self._close_connections()
            self._kv.close()
            self._blobs.close()
        assert self._exit is not None
        return self._exit.code

    def _begin(self) -> None:
        self._started = True
        self.post(Started())
        if self._stop_early:
            self.post(StopAsked())
        if self._ready is not None and self._exit is None:
            self._ready()

    # ----------------------------------------------------------------------------- the machine

    def post(self, event: Event) -> None:
        """Give the machine an event, in the loop's thread and not from within a step."""
        self._step(event)
        self._flush()

    def _step(self, event: Event) -> None:
        if self._over():
            return
        try:
            assert not self._stepping, "the machine was entered while it handled something"
            self._stepping = True
            for effect in self._machine.handle(event, self._clock.now_ns()):
                self._perform(effect)
                if self._over():
                    break
        except Exception as error:
            self._crash(type(event).__name__, error)
        finally:
            self._stepping = False

    def answered(
        self, connection: Connection, scratch: memoryview, lo: int, hi: int, limits: tuple[int, int]
    ) -> bool:
        if self._answer_bytes is None or self._over():
            return False
        try:
            now_ns = self._clock.now_ns()
            answer = self._answer_bytes(connection.peer, scratch, lo, hi, limits, now_ns)
        except Exception as error:
            self._crash("bytes", error)
            return True
        if answer is None:
            return False
        connection.send_bytes(*answer)
        return True

    def received_push(
        self, connection: Connection, request: Request, left_bytes: int
    ) -> tuple[int, bool] | None:
        if native is None or self._begin_push is None or self._over():
            return None
        try:
            push = self._begin_push(connection.peer, request, self._clock.now_ns())
            if push is None:
                return None
            where = connection.descriptor, request.keys, request.values[0], left_bytes
            received = native.receive_push(*where, push.counts, push.arrays)
            if received is None:
                return None
            count, lacks = received
            answer = push.end(lacks)
        except Exception as error:
            self._crash("a push", error)
            return None
        if answer is not None:
            connection.send_bytes(answer, push.until_ns)
        return count, answer is not None

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(effect)
            case SetTimer():
                self._timers.set(effect.name, effect.at_ns)
            case KvCall():
                self._kv.call(effect)
            case KvWatch():
                self._kv.watch(effect)
            case BlobCall():
                self._blobs.call(effect)
            case Drop():
                self._drop(effect.peer, effect.why)
            case Log():
                self._log.log(effect.level, effect.event, effect.fields)
            case Exit():
                self._end(effect)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None or isinstance(error, OSError):  # of one socket
            self._log.warning("socket error", what=context.get("message"), error=repr(error))
        else:
            self._crash(str(context.get("message")), error)

    def _crash(self, where: str, error: BaseException) -> None:
        trace = "".join(traceback.format_exception(error))
        self._log.error("bug: please report it", where=where, error=repr(error), traceback=trace)
        self._end(Exit(EXIT_BUG, f"bug: {error!r}"))

    def _ask_to_stop(self) -> None:
        if self._started:
            self.post(StopAsked())
        else:
            self._stop_early = True  # `Started` is the first event

    def _over(self) -> bool:
        return self._exit is not None

    def _interrupt(self, number: signal.Signals) -> None:
        self._end(Exit(EXIT_SIGNALLED + number, f"{number.name} came twice"))

    def _end(self, effect: Exit) -> None:
        if self._exit is None:
            self._exit = effect
            level = "error" if effect.code else "info"
            self._log.log(level, "exit", {"code": effect.code, "why": effect.why})
            self._ended.set()

    def _later(self, event: Event) -> None:
        """Report what became of an effect, after the step that asked for it."""
        asyncio.get_running_loop().call_soon(self.post, event)

    # ----------------------------------------------------------------------------------- peers

    def _send(self, send: Send) -> None:
        connection = self._connections.get(send.peer)
        if connection is not None:
            if connection.send(send.message, send.until_ns):
                self._unflushed[connection] = None
        elif send.peer.startswith(PEER_PREFIX):
            self._dial(send)

    def _flush(self) -> None:
        while self._unflushed:
            self._unflushed.popitem()[0].flush()

    def _dial(self, send: Send) -> None:
        peer = send.peer
        outbound = self._outbound.get(peer)
        if outbound is None:
            server = peer.removeprefix(PEER_PREFIX)
            address = self._directory.address_of(server) if self._directory else None
            if address is None:
                self._log.warning("server unknown", peer=peer)
                self._later(PeerLost(peer))
                return
            outbound = self._outbound[peer] = Outbound(peer, self._limits)
            outbound.dial(address, lambda: self._connection(peer), self._on_dial_failed)
        if not outbound.enqueue(send):
            outbound.cancel()
            self._on_dial_failed(outbound, PeerLost(peer), "too much to send while connecting")

    def _on_dial_failed(self, outbound: Outbound, lost: PeerLost, why: str) -> None:
        if self._outbound.get(outbound.peer) is outbound:
            del self._outbound[outbound.peer]
            self._log.info("server not reached", peer=outbound.peer, why=why, refused=lost.refused)
            self._later(lost)

    def _drop(self, peer: Peer, why: str) -> None:
        outbound = self._outbound.pop(peer, None)
        if outbound is not None:
            outbound.cancel()
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.dropped = True
            connection.finish()
        if outbound is not None or connection is not None:
            remote = connection.remote if connection else ""
            self._log.info("peer dropped", peer=peer, remote=remote, why=why)

    # ------------------------------------------------------------------------------ connections

    async def _accept_on(self, sock: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        if sock.family == socket.AF_UNIX:
            return await loop.create_unix_server(self._accepted, sock=sock, backlog=BACKLOG)
        return await loop.create_server(self._accepted, sock=sock, backlog=BACKLOG)

    def _accepted(self) -> Connection:
        return self._connection(f"client:{next(self._numbers)}")

    def _connection(self, peer: Peer) -> Connection:
        return Connection(self, peer, self._limits, self._clock)

    def on_opened(self, connection: Connection) -> None:
        self._open.add(connection)
        outbound = self._outbound.pop(connection.peer, None)
        if outbound is not None:
            self._connections[connection.peer] = connection
            outbound.send_all(connection, self._hello() if callable(self._hello) else self._hello)
        elif connection.peer.startswith(PEER_PREFIX):
            connection.dropped = True  # given up while the dial was succeeding
            connection.abort()
        elif self._exit is not None:
            connection.abort()
        elif len(self._open) > self._limits.connections:
            connection.refuse(f"{self._limits.connections} connections are open: try again later")

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        if connection.peer not in self._connections:
            self._connections[connection.peer] = connection
        for message in messages:
            if connection.finishing:
                break
            self._step(MessageArrived(connection.peer, message))
        self._flush()
        self._awake.heard(of_replicas=isinstance(messages[-1], (Append, Appended)))

    def on_refused(self, connection: Connection, why: str) -> None:
        self._log.warning("peer refused", peer=connection.peer, remote=connection.remote, why=why)

    def on_expired(self, connection: Connection, messages: int) -> None:
        self._expired.add(messages, connection.peer)

    def on_lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._closed.set()
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            if not connection.dropped:
                self.post(PeerLost(connection.peer))

    async def _close_connections(self) -> None:
        """Give what has been sent, to the store too, a moment to arrive; then close everything."""
        for outbound in self._outbound.values():
            outbound.cancel()
        self._flush()
        for connection in list(self._open):
            connection.finish()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_GRACE_S):
                while self._kv.is_busy or any(each.is_sending for each in self._open):
                    await asyncio.sleep(EXIT_LOOK_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_QUIET_S):
                while self._open:
                    self._closed.clear()
                    await self._closed.wait()
        for connection in list(self._open):
            connection.abort()


def _allow_descriptors(count: int) -> None:
    """Raise the soft limit of open files as far as it is needed and permitted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
