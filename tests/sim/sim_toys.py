"""Small machines, to look at what a world does to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from resilient_ps.chaos.sim.process import LocalClock, Process
from resilient_ps.chaos.sim.world import World
from resilient_ps.machine import Event, MessageArrived, Send, Started
from resilient_ps.messages import Ask

MILLISECOND_NS = 1_000_000
SECOND_NS = 10**9


@dataclass
class Recorder:
    """Notes every event with its local time; `react` says what it does about one."""

    react: Callable[[Event, int], list[Any]] = lambda event, now_ns: []
    events: list[tuple[int, Event]] = field(default_factory=list)

    def handle(self, event: Event, now_ns: int) -> list[Any]:
        self.events.append((now_ns, event))
        return self.react(event, now_ns)

    def asks(self) -> list[int]:
        """The numbers of the questions that arrived, in order."""
        return [
            event.message.request
            for _, event in self.events
            if isinstance(event, MessageArrived) and isinstance(event.message, Ask)
        ]

    def of(self, kind: type) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]


@dataclass
class Pair:
    """A client `a` that talks to a server `b`."""

    seed: int = 1
    wire: bool = False
    clock: LocalClock = field(default_factory=LocalClock)

    def __post_init__(self) -> None:
        self.world = World(self.seed, wire=self.wire)
        self.client, self.server = Recorder(), Recorder()
        self.a = self.world.add(Process(self.world, "a", self.client, clock=self.clock))
        self.b = self.world.add(Process(self.world, "b", self.server), serves_as="b", port=1)
        self.run_for(MILLISECOND_NS)
        self._sent = 0

    def ask(self, count: int = 1) -> None:
        """`a` sends questions, numbered from 1."""
        for _ in range(count):
            self._sent += 1
            self.a.perform([Send("server:b", Ask(self._sent, "status"))])

    def run_for(self, ns: int) -> None:
        self.world.run_to(self.world.now_ns + ns)


def started(recorder: Recorder) -> bool:
    return any(isinstance(event, Started) for _, event in recorder.events)
