"""The network of a world: connections like TCP's, and what may become of them.

A connection is ordered, or broken. Faults are between hosts, one direction at a time:

* *blocked*: nothing gets through. What is under way is held back, and delivered in order when the
  direction is open again, unless the sender has given the connection up before that. Who dials
  across a blocked direction hears of it after `DIAL_TIMEOUT_NS`.
* *refused*: whoever dials is refused, as by a firewall, though the server lives.
* *slow*: delays are multiplied, and more uneven.
* `cut`: a connection breaks. One end notices at once and may dial again, the other one later, and
  reads until then what was under way: so old data arrives after newer, and requests are repeated
  that have been executed.

Between two processes there may be several connections: each may dial the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from resilient_ps.chaos.sim.carriage import carried, described, digest, placed
from resilient_ps.machine import MessageArrived
from resilient_ps.messages import Answer, Message
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.wire import FrameReader, encode

if TYPE_CHECKING:
    from resilient_ps.chaos.sim.process import Process
    from resilient_ps.chaos.sim.world import World

SECOND_NS = 10**9
DIAL_TIMEOUT_NS = SECOND_NS
PATIENCE_LEAST_NS, PATIENCE_MOST_NS = SECOND_NS, 20 * SECOND_NS
"""How long a sender waits for what it sent to be confirmed, before it gives the connection up."""

_new = tuple.__new__  # several times faster than a named tuple's own constructor
_CLOSE = object()  # stands in a stream where its sender has closed it


@dataclass(eq=False, slots=True)
class Connection:
    """Two ends; each has the name under which it knows the other."""

    ends: tuple[Process, Process]  # who dialled, who listened: it may be the same process
    names: tuple[str, str]  # names[i]: what ends[i] calls the other end
    number: int
    readers: tuple[FrameReader, FrameReader] | None = None  # where messages travel as bytes
    open: list[bool] = field(default_factory=lambda: [True, True])  # for each end
    arrives_ns: list[int] = field(default_factory=lambda: [0, 0])  # last arrival at each end
    held: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))  # for each end

    def route(self, end: int) -> tuple[str, str]:
        """From which host to which what arrives at this end travels."""
        return self.ends[1 - end].host, self.ends[end].host


class Network:
    """All connections of a world, and the faults between its hosts."""

    def __init__(self, world: World, *, wire: bool) -> None:
        self._world = world
        self._wire = wire
        self._numbers = 0
        self._blocked: dict[tuple[str, str], int] = {}  # how many faults block this direction
        self._refused: dict[tuple[str, str], int] = {}  # how many faults refuse these dials
        self._slow: dict[tuple[str, str], tuple[float, int]] = {}
        self.on_open: list[Callable[[], None]] = []  # called when a direction is open again

    # -- faults

    def block(self, source: str, target: str) -> None:
        """Nothing gets from one host to the other. Several faults may block one direction."""
        key = (source, target)
        self._blocked[key] = self._blocked.get(key, 0) + 1

    def unblock(self, source: str, target: str) -> None:
        """Take one `block` back; what was held goes on when it was the last."""
        key = (source, target)
        left = self._blocked.pop(key, 0) - 1
        if left > 0:
            self._blocked[key] = left
            return
        for connection in self.connections():
            for end in (0, 1):
                if connection.held[end] and connection.route(end) == key:
                    self._release(connection, end)
        for action in self.on_open:
            action()

    def is_blocked(self, source: str, target: str) -> bool:
        """Does nothing get through in this direction?"""
        return (source, target) in self._blocked

    def refuse(self, source: str, target: str) -> None:
        """Break the connections that one host made to the other, and refuse new ones."""
        key = (source, target)
        self._refused[key] = self._refused.get(key, 0) + 1
        for connection in self.connections():
            if connection.route(1) == key:
                self.cut(connection)

    def accept(self, source: str, target: str) -> None:
        """Take one `refuse` back."""
        key = (source, target)
        left = self._refused.pop(key, 0) - 1
        if left > 0:
            self._refused[key] = left

    def slow(self, source: str, target: str, factor: float, jitter_ns: int = 0) -> None:
        """Multiply delays in one direction, and add up to `jitter_ns`; factor 1 ends it."""
        if factor == 1:
            self._slow.pop((source, target), None)
        else:
            self._slow[source, target] = (factor, jitter_ns)

    def cut(self, connection: Connection, *, first: int = 0) -> None:
        """Break a connection: `first` is the end that notices at once."""
        self._close(connection, first)
        lag_ns = 2 * self._world.delay_ns()
        self._world.after(lag_ns, partial(self._arrive, connection, 1 - first, _CLOSE))

    def connections(self) -> list[Connection]:
        """All connections that have an open end, in the order in which they were made."""
        processes = self._world.processes.values()
        held = [c for process in processes for c in process.connections.values()]
        return sorted(dict.fromkeys(held), key=lambda connection: connection.number)

    def delay_ns(self, source: str, target: str) -> int:
        """How long something takes from one host to the other."""
        delay_ns = self._world.delay_ns()
        if self._slow:
            factor, jitter_ns = self._slow.get((source, target), (1.0, 0))
            delay_ns = int(delay_ns * factor)
            if jitter_ns:
                delay_ns += self._world.draw_below(jitter_ns)
        return delay_ns

    # -- what processes do

    def send(self, sender: Process, peer: str, message: Message) -> None:
        """Put a message on the connection, dialling where there is none."""
        connection = sender.connections.get(peer)
        if connection is None:
            if not peer.startswith(PEER_PREFIX) or peer in sender.dialling:
                return  # the other end is gone; or it waits for a dial that will fail
            connection = self._dial(sender, peer)
            if connection is None:
                return
        self._transmit(connection, 0 if connection.names[0] == peer else 1, message)

    def drop(self, process: Process, peer: str) -> None:
        """A process closes a connection after what it sent; it hears no more of it."""
        connection = process.connections.pop(peer, None)
        if connection is not None:
            self._leave(connection, 0 if connection.names[0] == peer else 1)

    def abort(self, process: Process, peer: str) -> None:
        """A process breaks a connection: it hears of that, as of any other break, and so does the
        other end."""
        if peer in process.connections:
            self.drop(process, peer)
            self._world.after(0, partial(process.lost, peer))

    # -- inside

    def _leave(self, connection: Connection, end: int) -> None:
        connection.open[end] = False
        at_ns = max(connection.arrives_ns[1 - end] + 1, self._world.now_ns + self._world.delay_ns())
        self._world.at(at_ns, partial(self._arrive, connection, 1 - end, _CLOSE))

    def _dial(self, sender: Process, peer: str) -> Connection | None:
        world = self._world
        address = sender.address_of(peer)
        if address is None:
            world.after(world.delay_ns(), partial(sender.lost, peer))
            return None
        server = peer.removeprefix(PEER_PREFIX)
        if self.is_blocked(sender.host, server) or self.is_blocked(server, sender.host):
            sender.dialling.add(peer)
            world.after(DIAL_TIMEOUT_NS, partial(self._give_up, sender, peer))
            return None
        target = world.listeners.get((server, address.port))
        if target is None or target.killed or (sender.host, server) in self._refused:
            sender.dialling.add(peer)
            delay_ns = self.delay_ns(sender.host, server)
            world.after(delay_ns, partial(self._give_up, sender, peer, refused=True))
            return None
        return self._connect(sender, peer, target)

    def _give_up(self, sender: Process, peer: str, *, refused: bool = False) -> None:
        sender.run(partial(sender.dialling.discard, peer))
        sender.lost(peer, refused=refused)

    def _connect(self, sender: Process, peer: str, target: Process) -> Connection:
        self._numbers += 1
        name = f"client:{self._numbers}"
        readers = None
        if self._wire:
            readers = (FrameReader(place=sender.place), FrameReader(place=target.place))
        connection = Connection((sender, target), (peer, name), self._numbers, readers)
        sender.connections[peer] = connection
        target.connections[name] = connection
        self._transmit(connection, 0, sender.hello())
        return connection

    def _transmit(self, connection: Connection, end: int, message: Message) -> None:
        other = 1 - end
        load: Any
        if self._wire:
            load = b"".join([bytes(buffer) for buffer in encode(message)])
        else:
            load = carried(message)
        world, arrivals = self._world, connection.arrives_ns
        delay_ns = self.delay_ns(*connection.route(other)) if self._slow else world.delay_ns()
        arrives_ns = world.now_ns + delay_ns
        if arrives_ns <= arrivals[other]:
            arrives_ns = arrivals[other] + 1
        arrivals[other] = arrives_ns
        world.at(arrives_ns, partial(self._arrive, connection, other, load))

    def _arrive(self, connection: Connection, end: int, load: Any) -> None:
        if not connection.open[end]:
            return
        held = connection.held[end]
        if held or (self._blocked and connection.route(end) in self._blocked):
            held.append(load)
            if len(held) == 1:
                patience_ns = PATIENCE_MOST_NS - PATIENCE_LEAST_NS
                wait_ns = PATIENCE_LEAST_NS + self._world.draw_below(patience_ns)
                self._world.after(wait_ns, partial(self._lose_patience, connection, end, load))
            return
        process = connection.ends[end]
        if process.paused:
            process.run(partial(self._take, connection, end, load))
        else:
            self._take(connection, end, load)

    def _take(self, connection: Connection, end: int, load: Any) -> None:
        """The process at this end reads what has arrived."""
        process = connection.ends[end]
        if process.killed or not connection.open[end]:
            return
        if load is _CLOSE:
            self._close(connection, end)
        elif connection.readers is not None:
            self._read(connection, end, load)
        else:
            self._world.note(process, described(load))
            if type(load) is Answer and load.values:
                load = placed(load, process.place)
            process.step(_new(MessageArrived, (connection.names[end], load)))

    def _read(self, connection: Connection, end: int, data: bytes) -> None:
        assert connection.readers is not None
        process, reader, view = connection.ends[end], connection.readers[end], memoryview(data)
        self._world.note(process, (digest(data),))
        while len(view) and connection.open[end] and not process.killed:
            buffer = reader.get_buffer()
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            view = view[count:]
            for message in reader.received(count):
                process.step(MessageArrived(connection.names[end], message))

    def _release(self, connection: Connection, end: int) -> None:
        """The direction is open again: what was held arrives, in order."""
        held = list(connection.held[end])
        connection.held[end].clear()
        for load in held:
            arrives_ns = max(
                connection.arrives_ns[end] + 1, self._world.now_ns + self._world.delay_ns()
            )
            connection.arrives_ns[end] = arrives_ns
            self._world.at(arrives_ns, partial(self._arrive, connection, end, load))

    def _lose_patience(self, connection: Connection, end: int, first: Any) -> None:
        """What was held is not confirmed: its sender gives up, and it never arrives."""
        held = connection.held[end]
        if not held or held[0] is not first:
            return
        held[:] = [_CLOSE]
        self._close(connection, 1 - end)

    def _close(self, connection: Connection, end: int) -> None:
        """The process at this end learns that the connection is broken."""
        process = connection.ends[end]
        if connection.open[end] and process.paused and not process.killed:
            process.run(partial(self._close, connection, end))
            return
        if not connection.open[end]:
            return
        connection.open[end] = False
        name = connection.names[end]
        if process.connections.get(name) is connection:
            del process.connections[name]
        process.lost(name)
