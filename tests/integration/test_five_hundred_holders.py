"""Five hundred holders at one coordinator: real servers, sockets and etcd.

The holders are connections of one process: each asks, and waits for its answer, as a process of its
own would. Their keys are under one lease. No task does anything: what is seen here is how tasks are
handed out, what is kept of them in etcd, and what is left when holders and the coordinator die.
"""

from __future__ import annotations

import json
import select
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from crew import CLUSTER, PATIENCE_S, Hurt, eventually, hurt_cluster

import resilient_ps as ps
from resilient_ps.client.graphs import open_graph
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Put, Txn
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.coordinator.task_asks import Granted, TaskAsk, TaskTold
from resilient_ps.coordinator.task_records import GraphRecord, HolderRecord
from resilient_ps.messages import PROTOCOL, Ask, Hello, Told
from resilient_ps.routing import address_of
from resilient_ps.runtime.channel import Channel
from resilient_ps.wire import WireError

KEYS = ClusterKeys(CLUSTER)
HOLDERS, LANES = 500, 40
REGISTERED_AT_ONCE = 100
LEASE_S = 600


class Seat:
    """One holder, at its own connection to the coordinator."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.done: Granted | None = None
        self.over = False
        self.channel: Channel | None = None
        self._asked = 0

    def sit_down(self, record: ServerRecord) -> None:
        self.leave()
        hello = Hello(PROTOCOL, CLUSTER, "status")
        self.channel = Channel(f"server:{record.server}", address_of(record), hello, nowhere)
        self.ask()

    def ask(self) -> None:
        assert self.channel is not None
        self._asked += 1
        ask = TaskAsk("wide", self.name, done=self.done, incarnation=1)
        self.channel.send(Ask(self._asked, json.dumps(ask.to_json())))

    def hear(self) -> Iterator[TaskTold]:
        assert self.channel is not None
        for message in self.channel.receive():
            if isinstance(message, Told) and message.request == self._asked:
                yield TaskTold.from_json(json.loads(message.body))

    def leave(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None


def nowhere(_head: object, _meta: object) -> None:
    """No arrays are received here."""


class Hall:
    """All holders, and what they were granted."""

    def __init__(self, hurt: Hurt, steps: int) -> None:
        self.granted: list[tuple[str, Granted]] = []
        self.graph = ps.Graph("wide", steps)
        self.graph.add("a", LANES)
        self.graph.after("a", "a", lag=2)
        self.seats = {f"holder-{number}": Seat(f"holder-{number}") for number in range(HOLDERS)}
        self._hurt = hurt
        with hurt.connect() as client:
            open_graph(client.catalogue, self.graph)
        lease = hurt.kv.grant(LEASE_S).lease
        record = HolderRecord("box", 1).to_bytes()
        puts = [Put(KEYS.holder("wide", name), record, lease) for name in self.seats]
        for first in range(0, HOLDERS, REGISTERED_AT_ONCE):
            hurt.kv.txn(Txn((), tuple(puts[first : first + REGISTERED_AT_ONCE])))

    def sit_down(self) -> None:
        """At whoever is the coordinator, as soon as there is one."""

        def all_sit() -> bool:
            record = self._coordinator()
            try:
                for seat in self.seats.values():
                    if record is not None and seat.channel is None and not seat.over:
                        seat.sit_down(record)
            except (OSError, ps.Unavailable):
                return False
            return record is not None

        eventually(all_sit, "a coordinator to sit down at")

    def _coordinator(self) -> ServerRecord | None:
        held = self._hurt.kv.read(KEYS.coordinator_leader).items
        if not held:
            return None
        key = KEYS.server(json.loads(held[0].value)["server"])
        items = self._hurt.kv.read(key).items
        return ServerRecord.from_bytes(items[0].value, key) if items else None

    def die(self, names: list[str]) -> None:
        """Without a word; the lease ends."""
        for name in names:
            self.seats.pop(name).leave()
        self._hurt.kv.txn(Txn((), tuple(Delete(KEYS.holder("wide", name)) for name in names)))

    def run(self, tasks: int) -> None:
        """Until so many tasks were granted in all, or all have been told of the end."""
        end_s = time.monotonic() + PATIENCE_S * 3
        while len(self.granted) < tasks and not all(seat.over for seat in self.seats.values()):
            assert time.monotonic() < end_s, f"only {len(self.granted)} of {tasks} tasks"
            for seat in self._ready():
                try:
                    for told in seat.hear():
                        self._on_told(seat, told)
                except (OSError, WireError):
                    seat.leave()
            if any(seat.channel is None and not seat.over for seat in self.seats.values()):
                self.sit_down()

    def _ready(self) -> list[Seat]:
        poll, seats = select.poll(), dict[int, Seat]()
        for seat in self.seats.values():
            if seat.channel is not None:
                seats[seat.channel.fileno()] = seat
                poll.register(seat.channel, select.POLLIN)
        return [seats[fd] for fd, _ in poll.poll(1_000)]

    def _on_told(self, seat: Seat, told: TaskTold) -> None:
        if told.over == "done":
            seat.over = True
            return seat.leave()
        if not told.elected:
            return seat.leave()
        assert told.kind in (None, "unknown"), told  # a successor may not know it yet
        if told.grant is not None:
            if seat.done != told.grant:
                self.granted.append((seat.name, told.grant))
            seat.done = told.grant
        return seat.ask()


@pytest.fixture
def hurt() -> Iterator[Hurt]:
    with hurt_cluster(2, replicas=2, shards=2) as hurt:
        yield hurt


@pytest.mark.parametrize("steps", [25, pytest.param(250, marks=pytest.mark.soak)])
def test_five_hundred_holders_do_all_tasks_though_some_of_them_and_the_coordinator_die(
    hurt: Hurt, steps: int
) -> None:
    hall = Hall(hurt, steps)
    tasks = hall.graph.tasks_total
    hall.sit_down()
    hall.run(tasks // 4)
    at_work = sorted({name for name, _ in hall.granted[-LANES:]})
    hall.die(at_work[:20])
    hall.run(tasks // 2)
    record = hall._coordinator()
    assert record is not None
    hurt.processes.kill(record.server)
    hall.run(10**9)
    done = Counter(task[:2] for _, task in hall.granted)
    assert len(done) == tasks
    assert sum(done.values()) - tasks <= 20 + LANES, "only what was lost is granted again"
    assert len({task[::2] for _, task in hall.granted}) == len(hall.granted), "a token twice"
    (item,) = hurt.kv.read(KEYS.graph("wide")).items
    assert GraphRecord.from_bytes(item.value, item.key).state == "done"
    lanes = hurt.kv.read(KEYS.graph_parts("wide") + b"lanes/", prefix=True).items
    assert len(lanes) == 1, "nothing is kept of a task that is done"
