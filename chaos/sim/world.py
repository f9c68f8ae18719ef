"""A world in one thread: machines, their connections, timers and etcd, in virtual time.

Everything that is performed waits in one queue, ordered by (time, order of arrival); delays come
from a seeded generator. So the same seed gives the same run, whatever the machine it runs on.
Messages travel as the bytes that the wire would carry. Connections behave like TCP: in order, or
broken; a process that is killed breaks its connections and loses its memory. A connection may also
be cut (`cut`): one end notices at once, the other a little later, and until then it still reads
what was under way. `trace` is a hash of all that was delivered, and when.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import xxhash

from resilient_ps.coordinator.kv import (
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvReset,
    KvWatch,
    Read,
    ReadResult,
)
from resilient_ps.coordinator.memory import Compacted, MemoryKv
from resilient_ps.errors import ResilientPsError, Unavailable
from resilient_ps.machine import (
    Drop,
    Event,
    Exit,
    Log,
    MessageArrived,
    PeerLost,
    Send,
    SetTimer,
    Started,
    TimerFired,
)
from resilient_ps.messages import PROTOCOL, Hello, Message
from resilient_ps.wire import FrameReader, Place, encode, place_nowhere

SECOND_NS = 10**9
MICROSECOND_NS = 1_000
STEPS_MAX = 5_000_000


class Runs(Protocol):
    """A machine, as a world runs it. Effects that it does not know go to `Process.other`."""

    def handle(self, event: Event, now_ns: int) -> list[Any]: ...


@dataclass(eq=False)
class Connection:
    """Two ends; each has the name under which it knows the other, and a reader of its bytes."""

    ends: tuple[Process, Process]  # who dialled, who listened: it may be the same process
    names: tuple[str, str]  # names[i]: what ends[i] calls the other end
    readers: tuple[FrameReader, FrameReader]
    number: int
    open: list[bool] = field(default_factory=lambda: [True, True])  # for each end
    arrives_ns: list[int] = field(default_factory=lambda: [0, 0])  # last arrival at each end


class Process:
    """A process of the world. `killed` ones take part in nothing any more."""

    def __init__(
        self, world: World, name: str, machine: Runs, place: Place = place_nowhere
    ) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.place = place
        self.killed = False
        self.exit_code: int | None = None
        self.log: list[Log] = []
        self.other: Callable[[Any], None] = lambda effect: None
        self.timers: dict[str, int] = {}  # name -> number of the latest setting
        self.connections: dict[str, Connection] = {}

    def step(self, event: Event) -> None:
        """One event in, its effects performed."""
        if not self.killed:
            self.perform(self.machine.handle(event, self.world.now_ns))

    def perform(self, effects: list[Any]) -> None:
        """Perform effects in list order."""
        for effect in effects:
            match effect:
                case Send(peer, message):
                    self.world.send(self, peer, message)
                case SetTimer(name, at_ns):
                    self._set_timer(name, at_ns)
                case KvCall():
                    self.world.call_kv(self, effect)
                case KvWatch():
                    self.world.watch_kv(self, effect)
                case Drop(peer):
                    self.world.drop(self, peer)
                case Log():
                    self.log.append(effect)
                case Exit(code):
                    self.exit_code = code
                    self.world.kill(self)
                case _:
                    self.other(effect)

    def _set_timer(self, name: str, at_ns: int) -> None:
        number = self.timers.get(name, 0) + 1
        self.timers[name] = number

        def fire() -> None:
            if self.timers.get(name) == number:
                self.step(TimerFired(name))

        self.world.at(max(at_ns, self.world.now_ns), fire)


class World:
    """Virtual time, the network and etcd. `seed` decides every delay."""

    def __init__(self, seed: int, cluster: str = "sim") -> None:
        self.cluster = cluster
        self.now_ns = SECOND_NS
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.kv = MemoryKv()
        self.processes: dict[str, Process] = {}
        self.addresses: dict[str, Process] = {}  # server name -> the process that listens
        self.steps = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._watches: list[tuple[int, Process, KvWatch]] = []
        self._last_event: dict[str, int] = {}  # when the last watch event reaches a process
        self._clients = 0
        self._trace = xxhash.xxh3_64()
        self.kv_down = False  # etcd answers nobody
        self.tend_leases()

    @property
    def trace(self) -> str:
        """A hash of everything that was delivered so far: equal runs have equal traces."""
        return self._trace.hexdigest()

    def draw_bits(self, bits: int) -> int:
        """Seeded random bits for machines."""
        return int.from_bytes(self.rng.bytes((bits + 7) // 8), "little") >> (-bits % 8)

    def add(self, process: Process, *, serves_as: str = "") -> Process:
        """Start a process; `serves_as` is the name of the server that others dial."""
        self.processes[process.name] = process
        if serves_as:
            self.addresses[serves_as] = process
        self.after(0, lambda: process.step(Started()))
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL: memory is gone, connections break; what was sent before may still arrive."""
        process.killed = True
        for name, connection in list(process.connections.items()):
            self.cut(connection, first=connection.names.index(name))

    # -- time

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        """Do this at a moment."""
        self._numbers += 1
        heapq.heappush(self._queue, (at_ns, self._numbers, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do this after a delay."""
        self.at(self.now_ns + delay_ns, action)

    def delay_ns(self) -> int:
        """How long something takes: mostly short, now and then long."""
        return int(self.rng.exponential(100)) * MICROSECOND_NS + 20 * MICROSECOND_NS

    def run_until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> bool:
        """Go on until the condition holds; False when `limit_s` of virtual time have passed."""
        end_ns = self.now_ns + int(limit_s * SECOND_NS)
        while not condition():
            if not self._queue or self._queue[0][0] > end_ns or self.steps > STEPS_MAX:
                return False
            self.now_ns, _, action = heapq.heappop(self._queue)
            self.steps += 1
            action()
        return True

    # -- network

    def send(self, sender: Process, peer: str, message: Message) -> None:
        """Put a message on the connection, dialling where there is none."""
        connection = sender.connections.get(peer)
        if connection is None:
            if not peer.startswith("server:"):
                return  # the other end of an inbound connection is gone
            target = self.addresses.get(peer.removeprefix("server:"))
            if target is None or target.killed:
                self.after(self.delay_ns(), lambda: sender.step(PeerLost(peer, refused=True)))
                return
            connection = self._dial(sender, peer, target)
        self._transmit(connection, connection.names.index(peer), message)

    def _dial(self, sender: Process, peer: str, target: Process) -> Connection:
        self._clients += 1
        name = f"client:{self._clients}"
        readers = (FrameReader(place=sender.place), FrameReader(place=target.place))
        connection = Connection((sender, target), (peer, name), readers, self._clients)
        sender.connections[peer] = connection
        target.connections[name] = connection
        self._transmit(connection, 0, Hello(PROTOCOL, self.cluster, sender.name))
        return connection

    def _transmit(self, connection: Connection, end: int, message: Message) -> None:
        data = b"".join(bytes(buffer) for buffer in encode(message))
        other = 1 - end
        arrives = max(connection.arrives_ns[other] + 1, self.now_ns + self.delay_ns())
        connection.arrives_ns[other] = arrives
        self.at(arrives, lambda: self._arrive(connection, other, data))

    def _arrive(self, connection: Connection, end: int, data: bytes) -> None:
        process, reader = connection.ends[end], connection.readers[end]
        view = memoryview(data)
        while len(view) and connection.open[end] and not process.killed:
            buffer = reader.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            for message in reader.received(count):
                self._note(process, data)
                process.step(MessageArrived(connection.names[end], message))

    def drop(self, process: Process, peer: str) -> None:
        """Close a connection from one side."""
        connection = process.connections.get(peer)
        if connection is not None:
            self._break(connection)

    def cut(self, connection: Connection, *, first: int = 0) -> None:
        """The network breaks a connection: `first` is the end that notices at once."""
        self._close(connection, first)
        self.after(2 * self.delay_ns(), lambda: self._close(connection, 1 - first))

    def connections(self) -> list[Connection]:
        """All connections, in the order in which they were made."""
        held = [c for process in self.processes.values() for c in process.connections.values()]
        return sorted(dict.fromkeys(held), key=lambda connection: connection.number)

    def _break(self, connection: Connection) -> None:
        self._close(connection, 0)
        self._close(connection, 1)

    def _close(self, connection: Connection, end: int) -> None:
        if not connection.open[end]:
            return
        connection.open[end] = False
        process, name = connection.ends[end], connection.names[end]
        if process.connections.get(name) is connection:
            del process.connections[name]
        self.after(self.delay_ns(), lambda: process.step(PeerLost(name)))

    def _note(self, process: Process, what: bytes) -> None:
        self._trace.update(f"{self.now_ns} {process.name} ".encode())
        self._trace.update(what)

    # -- etcd

    def call_kv(self, process: Process, call: KvCall) -> None:
        """Ask the store: the request travels, is performed, and the answer travels back."""

        def perform() -> None:
            event: Event
            if self.kv_down:
                error = Unavailable("etcd does not answer")
                lost = KvFailed(call.ref, error, unknown=True)
                self.after(SECOND_NS, lambda: process.step(lost))
                return
            self.kv.expire(self.now_ns)
            try:
                event = KvAnswered(call.ref, self.kv.apply(call.request, self.now_ns))
            except ResilientPsError as refusal:
                event = KvFailed(call.ref, refusal, unknown=False)
            self._note(process, repr(event).encode())
            self.after(self.delay_ns(), lambda: process.step(event))
            self._tell_watchers()

        self.after(self.delay_ns(), perform)

    def watch_kv(self, process: Process, watch: KvWatch) -> None:
        """Deliver changes from a revision on, with a delay."""
        number = self.kv.watch(watch.prefix, watch.from_revision)
        self._watches.append((number, process, watch))
        self._tell_watchers()

    def _tell_watchers(self) -> None:
        for index, (number, process, watch) in enumerate(self._watches):
            batches = self.kv.poll(number)
            if isinstance(batches, Compacted):
                self._reset(index, process, watch)
                continue
            for batch in batches:
                event = KvChanged(watch.ref, batch)
                self._deliver(process, event)

    def _reset(self, index: int, process: Process, watch: KvWatch) -> None:
        result = self.kv.apply(Read(watch.prefix, prefix=True), self.now_ns)
        assert isinstance(result, ReadResult)
        number = self.kv.watch(watch.prefix, result.revision + 1)
        self._watches[index] = (number, process, watch)
        self._deliver(process, KvReset(watch.ref, result.items, result.revision))

    def _deliver(self, process: Process, event: Event) -> None:
        """Watch events reach a process in their order."""
        self._note(process, repr(event).encode())
        arrives = max(self._last_event.get(process.name, 0) + 1, self.now_ns + self.delay_ns())
        self._last_event[process.name] = arrives
        self.at(arrives, lambda: process.step(event))

    def tend_leases(self, every_ns: int = SECOND_NS // 2) -> None:
        """Let leases expire while nobody asks the store for anything."""
        if not self.kv_down:
            self.kv.expire(self.now_ns)
            self._tell_watchers()
        self.after(every_ns, self.tend_leases)
