"""Two servers that hold the same shards, connected by hand: frames wait until the test moves them.

Both share etcd's model. What one says to the other travels as bytes, as in production, so that a
receiver gets slices of arrays of a whole message.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import replace
from typing import Any

from served_node import RECORD, SECOND_NS

from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.kv import KvAnswered, KvCall, KvChanged, KvFailed, KvWatch
from resilient_ps.coordinator.memory import Compacted, MemoryKv
from resilient_ps.errors import ResilientPsError
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.machine import MessageArrived, Send, SetTimer, Started, TimerFired
from resilient_ps.messages import PROTOCOL, Answer, Append, Hello, Message, Request
from resilient_ps.node import Node, NodeSettings, build_node
from resilient_ps.wire import FrameReader, encode

CLIENT = "client:1"
NAMES = ("s1", "s2")
STEPS_MAX = 100_000


class Pair:
    """Servers s1 and s2, which serve `shards` shards with two replicas each.

    Without `quick` all goes the usual way, as wherever a rule might be switched off.
    """

    def __init__(self, shards: int = 4, *, quick: bool = True) -> None:
        self.model = MemoryKv()
        self.now_ns = SECOND_NS
        self.answers: list[tuple[str, Answer]] = []  # server, what it told the client
        self.appends: list[Append] = []  # as they arrived
        self._lines: dict[tuple[str, str], deque[bytes]] = {}  # by sender and peer's name
        self._readers: dict[tuple[str, str], FrameReader] = {}
        self._timers: dict[tuple[str, str], int] = {}
        self._watches: dict[str, int] = {}
        wishes = ClusterWishes(2, shards, replicas=2)
        draws = itertools.count(5)
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(NAMES):
            record = replace(RECORD, server=name, process=77 + number)
            settings = NodeSettings("c", record, 60, wishes, ALL_GUARDS if quick else Guards())
            self.nodes[name] = build_node(settings, lambda bits: next(draws))
        for name in NAMES:
            self.handle(name, Started())
            self.handle(name, MessageArrived(CLIENT, Hello(PROTOCOL, "c", "a test")))
        self.run_until(self._is_served)

    def _is_served(self) -> bool:
        served = [leading for node in self.nodes.values() for leading in node._replicas.primaries()]
        return (
            len(served) > 0
            and len(served) == served[0].home.shards
            and all(len(leading.known.record.in_sync) == 2 for leading in served)
        )

    # -- steps

    def handle(self, name: str, event: Any) -> None:
        """A server hears of something; what it says waits on its lines."""
        self._perform(name, self.nodes[name].handle(event, self.now_ns))

    def _perform(self, name: str, effects: list[Any]) -> None:
        node = self.nodes[name]
        for effect in effects:
            match effect:
                case KvCall(ref, request):
                    answer: KvAnswered | KvFailed
                    try:
                        answer = KvAnswered(ref, self.model.apply(request, self.now_ns))
                    except ResilientPsError as error:
                        answer = KvFailed(ref, error, unknown=False)
                    self._perform(name, node.handle(answer, self.now_ns))
                case KvWatch(_, prefix, revision):
                    self._watches[name] = self.model.watch(prefix, revision)
                case SetTimer(timer, at_ns):
                    self._timers[name, timer] = at_ns
                case Send(peer, message):
                    self._send(name, peer, message)
        self._look()

    def _look(self) -> None:
        for name, watch in list(self._watches.items()):
            batches = self.model.poll(watch)
            assert not isinstance(batches, Compacted)
            for batch in batches:
                self._perform(name, self.nodes[name].handle(KvChanged(31, batch), self.now_ns))

    def _send(self, name: str, peer: str, message: Message) -> None:
        if peer == CLIENT:
            if isinstance(message, Answer):
                self.answers.append((name, message))
            return
        line = self._lines.get((name, peer))
        if line is None:
            line = self._lines[name, peer] = deque()
            self._readers[name, peer] = FrameReader()
            if peer.startswith("server:"):
                line.append(b"".join(bytes(b) for b in encode(self.nodes[name].hello())))
        line.append(b"".join(bytes(memoryview(b).cast("B")) for b in encode(message)))

    def lines(self) -> list[tuple[str, str]]:
        """Those on which something waits, as (sender, peer as the sender calls it)."""
        return [line for line, waiting in sorted(self._lines.items()) if waiting]

    def deliver(self, line: tuple[str, str]) -> None:
        """The next frame on this line arrives."""
        sender, peer = line
        reader, data = self._readers[line], self._lines[line].popleft()
        if peer.startswith("server:"):
            receiver, known_as = peer.removeprefix("server:"), f"client:{sender}"
        else:
            receiver, known_as = peer.removeprefix("client:"), f"server:{sender}"
        while data:
            buffer = reader.get_buffer()
            count = min(len(data), buffer.nbytes)
            buffer[:count] = data[:count]
            data = data[count:]
            for message in reader.received(count):
                if isinstance(message, Append):
                    self.appends.append(message)
                self.handle(receiver, MessageArrived(known_as, message))

    def settle(self) -> None:
        """Deliver everything. No time goes by."""
        for _ in range(STEPS_MAX):
            lines = self.lines()
            if not lines:
                return
            self.deliver(lines[0])
        raise AssertionError("it does not come to rest")

    def tick(self) -> None:
        """A tenth of a second goes by."""
        self.now_ns += SECOND_NS // 10
        for (name, timer), at_ns in sorted(self._timers.items()):
            if at_ns <= self.now_ns:
                del self._timers[name, timer]
                self.handle(name, TimerFired(timer))

    def run_until(self, condition: Any) -> None:
        """Settle and let time go by, until this is so."""
        for _ in range(1_000):
            self.settle()
            if condition():
                return
            self.tick()
        raise AssertionError("it does not come about")

    # -- asking

    def says(self, name: str, request: Request) -> None:
        """The client asks a server."""
        self.handle(name, MessageArrived(CLIENT, request))

    def led_by(self, name: str) -> list[int]:
        """The shards that a server is primary of."""
        return [leading.number for leading in self.nodes[name]._replicas.primaries()]

    def digests(self) -> dict[tuple[str, int], tuple[str, int]]:
        """By server and shard: its state, and how far it is applied."""
        return {
            (name, number): (replica.shard.digest(), replica.log.applied)
            for name, node in self.nodes.items()
            for number, replica in node.replicas.items()
            if replica.shard is not None
        }
