"""A process of a world: a machine, its own clock, and what happens to it from outside.

A process may be paused for any length of time: what reaches it waits, in order, and is handled when
it goes on; timers that were due fire late. A pause may also fall between a step and its effects
(`mid_step`), as a long garbage collection or a page fault does. A killed process takes part in
nothing any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from resilient_ps.chaos.sim.audit import answered
from resilient_ps.coordinator.kv import KvCall, KvWatch
from resilient_ps.machine import Drop, Event, Exit, Log, PeerLost, Send, SetTimer, TimerFired
from resilient_ps.messages import Answer, Hello
from resilient_ps.routing import Address
from resilient_ps.storage.blobs import BlobCall
from resilient_ps.wire import Place, place_nowhere

if TYPE_CHECKING:
    from resilient_ps.chaos.sim.network import Connection
    from resilient_ps.chaos.sim.world import World

PPM = 1_000_000
INBOX_MAX = 100_000


class Runs(Protocol):
    """A machine, as a world runs it. Effects that it does not know go to `Process.other`."""

    def handle(self, event: Event, now_ns: int) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class LocalClock:
    """A monotonic clock that runs `rate_ppm` parts in a million too fast (negative: too slow)."""

    offset_ns: int = 0
    rate_ppm: int = 0

    def local(self, world_ns: int) -> int:
        """What the clock shows at a moment of the world."""
        return self.offset_ns + world_ns + world_ns * self.rate_ppm // PPM

    def world(self, local_ns: int) -> int:
        """The first moment of the world at which the clock shows at least this."""
        return -((self.offset_ns - local_ns) * PPM // (PPM + self.rate_ppm))  # rounded up


class Logged(NamedTuple):
    """A log line, and when it was written."""

    world_ns: int
    level: str
    event: str
    fields: Mapping[str, Any]


class Process:
    """One process. `host` is where it runs: faults of the network are between hosts."""

    def __init__(
        self,
        world: World,
        name: str,
        machine: Runs,
        place: Place = place_nowhere,
        *,
        host: str = "",
        clock: LocalClock | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.host = host or name
        self.machine = machine
        self.place = place
        self.clock = clock or LocalClock()
        self._shown = (-1, 0)  # a moment of the world, and what the clock showed
        world.processes_made += 1
        self.number = world.processes_made
        self.process_id = 0
        self.killed = False
        self.paused = False
        self.exit_code: int | None = None
        self.log: list[Logged] = []
        self.other: Callable[[Any], None] = lambda effect: None
        self.connections: dict[str, Connection] = {}
        self.dialling: set[str] = set()
        self._timers: dict[str, int] = {}  # name -> number of the latest setting
        self._inbox: deque[Callable[[], None]] = deque()
        self._unperformed: list[Any] = []
        self._until_ns = 0
        self._stall_ns = 0
        self._since_ns = 0
        self.paused_ns_total = 0

    @property
    def timer_count(self) -> int:
        """How many names of timers there are."""
        return len(self._timers)

    @property
    def now_ns(self) -> int:
        """What the process's own clock shows."""
        world_ns, shown_ns = self._shown
        if world_ns != self.world.now_ns:
            world_ns = self.world.now_ns
            shown_ns = self.clock.local(world_ns)
            self._shown = (world_ns, shown_ns)
        return shown_ns

    def hello(self) -> Hello:
        """How this process greets whom it dials."""
        return self.world.hello_of(self)

    def address_of(self, peer: str) -> Address | None:
        """Where the process believes that a server listens."""
        return self.world.address_of(self, peer)

    # -- events

    def run(self, action: Callable[[], None]) -> None:
        """Do something inside the process: now, or when it goes on."""
        if self.killed:
            return
        if self.paused:
            if len(self._inbox) < INBOX_MAX:
                self._inbox.append(action)
            return
        action()

    def step(self, event: Event) -> None:
        """One event in, its effects performed; both wait while the process is paused."""
        if self.killed:
            return
        if self.paused:
            self.run(partial(self.step, event))
            return
        world = self.world
        world_ns = world.now_ns
        if self._shown[0] != world_ns:
            self._shown = (world_ns, self.clock.local(world_ns))
        try:
            effects = self.machine.handle(event, self._shown[1])
        except Exception as error:
            error.add_note(f"in {self.name}, {world_ns / 1e9:.6f} s, handling {event!r}")
            raise
        if self._stall_ns or world.long_steps:
            stall_ns = self._stall_ns or world.long_step_ns(self)
            if stall_ns:
                self._stall_ns = 0
                self._unperformed = effects
                self.pause(stall_ns)
                return
        self.perform(effects)

    def lost(self, peer: str, *, refused: bool = False) -> None:
        """A connection is gone, or could not be made."""
        self.step(PeerLost(peer, refused))

    # -- pauses

    def pause(self, ns: int, *, mid_step: bool = False) -> None:
        """Do nothing for so long; with `mid_step` from within the next step on."""
        if self.killed:
            return
        if mid_step and not self.paused:
            self._stall_ns = ns
            return
        if not self.paused:
            self.paused, self._since_ns = True, self.world.now_ns
        self._until_ns = max(self._until_ns, self.world.now_ns + ns)
        self.world.at(self._until_ns, self._resume)

    def wake(self) -> None:
        """End a pause early, and forget one that has not begun."""
        self._stall_ns = 0
        if self.paused:
            self._until_ns = self.world.now_ns
            self._resume()

    def _resume(self) -> None:
        if self.killed or not self.paused or self.world.now_ns < self._until_ns:
            return
        self.paused = False
        self.paused_ns_total += self.world.now_ns - self._since_ns
        effects, self._unperformed = self._unperformed, []
        self.perform(effects)
        while self._inbox and not self.paused and not self.killed:
            self._inbox.popleft()()

    # -- effects

    def perform(self, effects: list[Any]) -> None:
        """Perform effects in list order."""
        for effect in effects:
            kind = type(effect)
            if kind is Send:
                self._send(effect)
            elif kind is SetTimer:
                self._set_timer(effect.name, effect.at_ns)
            elif kind is KvCall:
                self.world.store.call(self, effect)
            elif kind is Log:
                line = Logged(self.world.now_ns, effect.level, effect.event, effect.fields)
                self.log.append(line)
            elif kind is KvWatch:
                self.world.store.watch(self, effect)
            elif kind is BlobCall:
                self.world.bucket.call(self, effect)
            elif kind is Drop:
                self.world.network.drop(self, effect.peer)
            elif kind is Exit:
                self._exit(effect)
                return
            else:
                self.other(effect)

    def _send(self, effect: Send) -> None:
        world, peer, message = self.world, effect.peer, effect.message
        if effect.until_ns and self.clock.local(world.now_ns) > effect.until_ns:
            world.audit.expired += 1
            world.network.abort(self, peer)
            return
        if self.process_id and type(message) is Answer:
            world.audit.answers += answered(self, message)
        world.network.send(self, peer, message)

    def _exit(self, effect: Exit) -> None:
        self.exit_code = effect.code
        fields = {"code": effect.code, "why": effect.why}
        self.log.append(Logged(self.world.now_ns, "info", "exit", fields))
        self.world.kill(self)

    def _set_timer(self, name: str, at_ns: int) -> None:
        number = self._timers.get(name, 0) + 1
        self._timers[name] = number
        due_ns = max(self.clock.world(at_ns), self.world.now_ns)
        self.world.at(due_ns, partial(self._fire, name, number))

    def _fire(self, name: str, number: int) -> None:
        if self._timers.get(name) != number or self.killed:
            return
        if self.paused:
            self.run(partial(self._fire, name, number))
        else:
            self.step(TimerFired(name))
