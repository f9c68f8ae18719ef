"""A world in one thread: machines, their connections, timers and etcd, in virtual time.

Everything that is performed waits in one queue, ordered by (time, order of arrival); delays come
from a seeded generator. So the same seed gives the same run, whatever the machine it runs on.
Messages travel as copies, or, with `wire`, as the bytes that the wire would carry. Every process
has a clock of its own, with another offset and another rate. `trace` is a hash of all that was
delivered, and when.

What can go wrong stands in `process` (pauses), `network` (partitions, broken connections), `store`
(etcd) and `bucket` (the object store).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from heapq import heappop, heappush

import numpy as np
import xxhash

from resilient_ps.chaos.sim.audit import Audit
from resilient_ps.chaos.sim.bucket import Bucket
from resilient_ps.chaos.sim.network import Connection, Network
from resilient_ps.chaos.sim.process import LocalClock, Process
from resilient_ps.chaos.sim.store import Store
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.machine import Started
from resilient_ps.messages import PROTOCOL, Hello
from resilient_ps.routing import PEER_PREFIX, Address

SECOND_NS = 10**9
MICROSECOND_NS = 1_000
BEGIN_S = 1_800_000_000  # the time of day at which a world begins, in seconds since 1970
STEPS_MAX = 5_000_000
SKEW_MOST_PPM = 20_000
DRAWN_AT_ONCE = 4_096
WORD_BITS = 64
NOTES_MAX = 65_536
DELAY_LEAST_NS = 20 * MICROSECOND_NS
DELAY_MEAN_NS = 100 * MICROSECOND_NS


class World:
    """Virtual time, the network, etcd and an object store. `seed` decides what is left open.

    `list_lag_s`: how much older what the object store's listings show is.
    """

    def __init__(
        self, seed: int, cluster: str = "sim", *, wire: bool = False, list_lag_s: int = 0
    ) -> None:
        self.cluster = cluster
        self.now_ns = SECOND_NS
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self._own_rng = np.random.Generator(np.random.PCG64([seed, 1]))
        self.processes: dict[str, Process] = {}  # by name: the latest of each
        self.processes_made = 0
        self.listeners: dict[tuple[str, int], Process] = {}  # by server and port
        self.audit = Audit()
        self.steps = 0
        self.long_steps: dict[str, tuple[float, int]] = {}  # host -> share of steps, most ns
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = 0
        self._delays: list[int] = []
        self._shares: list[float] = []
        self._words: list[int] = []
        self._trace = xxhash.xxh3_64()
        self._notes: list[int] = []  # that are not in `_trace` yet
        self.network = Network(self, wire=wire)
        self.store = Store(self)
        self.bucket = Bucket(self, list_lag_s=list_lag_s)

    @property
    def kv(self) -> MemoryKv:
        """The model of etcd, to look at from outside."""
        return self.store.kv

    @property
    def kv_down(self) -> bool:
        """Does etcd answer nobody?"""
        return self.store.down

    @kv_down.setter
    def kv_down(self, down: bool) -> None:
        if down != self.store.down:
            (self.store.stop if down else self.store.start)()

    # -- chance

    def draw_bits(self, bits: int) -> int:
        """Seeded random bits for machines."""
        drawn = 0
        for _ in range(0, bits, WORD_BITS):
            if not self._words:
                self._words = self._own_rng.integers(
                    1 << WORD_BITS, size=DRAWN_AT_ONCE, dtype=np.uint64
                ).tolist()
            drawn = drawn << WORD_BITS | self._words.pop()
        return drawn >> (-bits % WORD_BITS)

    def draw_share(self) -> float:
        """From 0 to less than 1."""
        if not self._shares:
            self._shares = self._own_rng.random(DRAWN_AT_ONCE).tolist()
        return self._shares.pop()

    def draw_below(self, limit: int) -> int:
        """From 0 to less than `limit`."""
        return int(self.draw_share() * limit)

    def draw_clock(self) -> LocalClock:
        """A clock that shows another time, and runs at another rate."""
        skew_ppm = self.draw_below(2 * SKEW_MOST_PPM + 1) - SKEW_MOST_PPM
        return LocalClock(self.draw_below(3_600 * SECOND_NS), skew_ppm)

    def delay_ns(self) -> int:
        """How long something takes: mostly short, now and then long."""
        if not self._delays:
            drawn = self._own_rng.exponential(DELAY_MEAN_NS, DRAWN_AT_ONCE) + DELAY_LEAST_NS
            self._delays = drawn.astype(np.int64).tolist()
        return self._delays.pop()

    def long_step_ns(self, process: Process) -> int:
        """How long a process does nothing between a step and its effects: mostly 0."""
        share, most_ns = self.long_steps.get(process.host, (0.0, 0))
        return self.draw_below(most_ns) if self.draw_share() < share else 0

    # -- processes

    def add(self, process: Process, *, serves_as: str = "", port: int = 0) -> Process:
        """Start a process; `serves_as` is the name of the server that others dial."""
        self.processes[process.name] = process
        if serves_as:
            self.listeners[serves_as, port] = process
        self.after(0, lambda: process.step(Started()))
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL: memory is gone, connections break; what was sent before may still arrive."""
        process.killed = True
        for name, connection in list(process.connections.items()):
            self.network.cut(connection, first=connection.names.index(name))

    def hello_of(self, process: Process) -> Hello:
        """How a process greets: as its machine says, if it does."""
        hello = getattr(process.machine, "hello", None)
        if hello is None:
            return Hello(PROTOCOL, self.cluster, process.name)
        greeting = hello()
        assert isinstance(greeting, Hello)
        return greeting

    def address_of(self, process: Process, peer: str) -> Address | None:
        """Where a process believes that a server listens."""
        find = getattr(process.machine, "address_of", None)
        if find is not None:
            address = find(peer)
            assert address is None or isinstance(address, Address)
            return address
        name = peer.removeprefix(PEER_PREFIX)
        ports = [port for server, port in self.listeners if server == name]
        return Address("127.0.0.1", ports[-1], "", "", 0) if ports else None

    def cut(self, connection: Connection, *, first: int = 0) -> None:
        """Break a connection: `first` is the end that notices at once."""
        self.network.cut(connection, first=first)

    def connections(self) -> list[Connection]:
        """All connections, in the order in which they were made."""
        return self.network.connections()

    # -- time

    def wall_s(self) -> int:
        """The time of day, in seconds since 1970."""
        return BEGIN_S + self.now_ns // SECOND_NS

    def at(self, at_ns: int, action: Callable[[], None]) -> None:
        """Do this at a moment."""
        self._numbers = number = self._numbers + 1
        heappush(self._queue, (at_ns, number, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        """Do this after a delay."""
        self._numbers = number = self._numbers + 1
        heappush(self._queue, (self.now_ns + delay_ns, number, action))

    def run_until(self, condition: Callable[[], bool], limit_s: float = 600.0) -> bool:
        """Go on until the condition holds; False when `limit_s` of virtual time have passed."""
        end_ns = self.now_ns + int(limit_s * SECOND_NS)
        while not condition():
            if not self._queue or self._queue[0][0] > end_ns or self.steps > STEPS_MAX:
                return False
            self.now_ns, _, action = heappop(self._queue)
            self.steps += 1
            action()
        return True

    def run_to(self, end_ns: int) -> None:
        """Go on until this moment."""
        queue = self._queue
        while queue and queue[0][0] <= end_ns and self.steps <= STEPS_MAX:
            self.now_ns, _, action = heappop(queue)
            self.steps += 1
            action()
        self.now_ns = max(self.now_ns, end_ns)

    def wait_for(
        self, condition: Callable[[], bool], limit_s: float, every_ns: int = SECOND_NS // 50
    ) -> bool:
        """As `run_until`, for conditions that are costly: looks now and then."""
        end_ns = self.now_ns + int(limit_s * SECOND_NS)
        while not condition():
            if self.now_ns >= end_ns or self.steps > STEPS_MAX:
                return False
            self.run_to(min(end_ns, self.now_ns + every_ns))
        return True

    # -- trace

    @property
    def trace(self) -> str:
        """A hash of everything that was delivered so far: equal runs have equal traces."""
        self._hash_notes()
        return self._trace.hexdigest()

    def note(self, process: Process, what: tuple[int, ...]) -> None:
        """Add to the trace what is delivered to a process: numbers of 64 bits."""
        notes = self._notes
        notes += (self.now_ns, process.number, *what)
        if len(notes) >= NOTES_MAX:
            self._hash_notes()

    def _hash_notes(self) -> None:
        self._trace.update(struct.pack(f"<{len(self._notes)}q", *self._notes))
        self._notes.clear()
