"""Servers that join, leave, die and are drained while a job runs; coordinators die on the way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.staleness import check_staleness
from resilient_ps.chaos.sim.cluster import SimCluster, SimServer
from resilient_ps.chaos.sim.worker import SimWorker
from resilient_ps.chaos.workloads.counters import Counters
from resilient_ps.consistency import BSP, SSP, Consistency, JobSpec
from resilient_ps.coordinator.kv import Delete, Read, Txn
from resilient_ps.coordinator.records import DrainRecord, RingRecord
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec

SECOND_NS = 10**9
GRACE_S = 4.0
SHARDS = 6
REST_S = 60.0
SSP1 = SSP(1)


class Servers:
    """Three servers in a cluster of `SHARDS` shards."""

    def __init__(self, seed: int, replicas: int, *, come_up: bool = True) -> None:
        self.replicas = replicas
        self.cluster = SimCluster(
            seed, servers=3, shards=SHARDS, replicas=replicas, grace_s=GRACE_S, come_up=come_up
        )
        self.world = self.cluster.world

    # -- what happens

    def drain(self, name: str) -> None:
        self.cluster.put(self.cluster.keys.drain(name), DrainRecord(name, "a test").to_bytes())

    def cancel(self, name: str) -> None:
        txn = Txn((), (Delete(self.cluster.keys.drain(name)),))
        self.world.kv.apply(txn, self.world.now_ns)

    def join(self, name: str) -> SimServer:
        return self.cluster.start_server(name)

    def coordinate(self, name: str) -> None:
        """Let this server be the coordinator: others lose the key until it has it."""
        key = self.cluster.keys.coordinator_leader

        def elected() -> bool:
            held = self.world.kv.apply(Read(key), self.world.now_ns).items
            if held and f'"{name}"'.encode() not in held[0].value:
                self.world.kv.apply(Txn((), (Delete(key),)), self.world.now_ns)
            return self.cluster.servers[name].node.controller.elected

        assert self.world.run_until(elected, 60)

    def pass_time(self, seconds: float) -> None:
        until_ns = self.world.now_ns + int(seconds * SECOND_NS)
        self.world.at(until_ns, lambda: None)
        assert self.world.run_until(lambda: self.world.now_ns >= until_ns, seconds + 1)

    def come_to_rest(self, when: Callable[[], bool] = lambda: True) -> None:
        """Until every shard is where it is to be."""
        at_rest = lambda: when() and self.at_rest()  # noqa: E731
        assert self.world.run_until(at_rest, REST_S), self.cluster.unsettled()

    # -- what is to be seen

    def ring(self) -> tuple[str, ...]:
        (item,) = self.world.kv.apply(Read(self.cluster.keys.ring), self.world.now_ns).items
        return tuple(m.server for m in RingRecord.from_bytes(item.value, item.key).members)

    def exists(self, key: bytes) -> bool:
        return bool(self.world.kv.apply(Read(key), self.world.now_ns).items)

    def at_rest(self) -> bool:
        """All copies on the ring, primaries as wished, everything balanced."""
        ring, records = self.ring(), list(self.cluster.records().values())
        copies = min(self.replicas, len(ring))
        if not all(set(r.desired) <= set(ring) and len(r.desired) == copies for r in records):
            return False
        if any(r.primary != r.desired[0] for r in records):
            return False
        primaries = Counter(r.primary for r in records)
        fair = SHARDS / len(ring)
        if not all(math.floor(fair) <= primaries[name] <= math.ceil(1.25 * fair) for name in ring):
            return False
        return self.cluster.settled()

    def holds(self, name: str) -> int:
        """Of how many shards it is, or is to be, a member."""
        return sum(
            name in (*r.desired, *(m.server for m in r.in_sync))
            for r in self.cluster.records().values()
        )


class Training(Servers):
    """The same, and workers that count through all that happens to the servers."""

    def __init__(
        self, seed: int, replicas: int = 2, mode: Consistency = SSP1, clocks: int = 6
    ) -> None:
        super().__init__(seed, replicas)
        self.mode = mode
        self.clocks = clocks
        rows = self.cluster.create_table(1, SparseSpec("rows", 1, "int64", Sum()))
        slots = self.cluster.create_table(2, SparseSpec("slots", 1, "int64", Sum()))
        self.job = JobSpec(1, "count", 2, mode)
        self.cluster.register(self.job)
        self.load = Counters(rows, slots, (0, 1), clocks)
        self.workers = [self.spawn(rank) for rank in (0, 1)]

    def spawn(self, rank: int) -> SimWorker:
        incarnation = self.cluster.draw_incarnation(self.job, rank)
        return self.cluster.spawn(self.job, rank, incarnation, self.load.program)

    def judge(self) -> None:
        """The workers end, and nothing was lost or counted twice on the way."""
        assert self.cluster.run(self.workers), [w.session.calls.open for w in self.workers]
        assert [w.error for w in self.workers] == [None, None]
        keys = np.array([0, 1], np.uint64)
        assert self.cluster.read(self.load.rows, keys)[:, 0].tolist() == [self.clocks] * 2
        all_slots = self.load.all_slots()
        held = self.cluster.read(self.load.slots, all_slots)[:, 0]
        counted = dict(zip(all_slots.tolist(), held.tolist(), strict=True))
        once = check_one_hot(self.load.slot_history, counted)
        assert once.outcome == "true", once
        fresh = check_staleness(self.load.row_history, self.mode, None)
        assert fresh.outcome == "true", fresh


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_a_server_is_drained_while_workers_train(seed: int, replicas: int) -> None:
    run = Training(seed, replicas)
    run.drain("s2")
    run.come_to_rest(lambda: run.holds("s2") == 0)
    assert run.ring() == ("s1", "s3")
    run.cluster.kill("s2")  # nobody misses it
    run.judge()
    assert run.cluster.lost_shards() == ()


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_a_server_that_joins_gets_its_share_while_workers_train(seed: int, replicas: int) -> None:
    run = Training(seed, replicas)
    before = run.cluster.records()
    share = SHARDS * replicas // 4
    run.join("s4")
    run.come_to_rest(lambda: run.holds("s4") >= share)
    after = run.cluster.records()
    coming = [s for n in after for s in after[n].desired if s not in before[n].desired]
    assert len(coming) <= share + replicas
    run.judge()


@pytest.mark.parametrize("mode", [BSP(), SSP(1)], ids=str)
def test_one_server_after_the_other_is_replaced(mode: Consistency) -> None:
    run = Training(1, 2, mode, clocks=20)
    run.load.compute_ns = 20_000_000
    for old, new in (("s1", "s4"), ("s2", "s5"), ("s3", "s6")):
        run.join(new)
        run.drain(old)
        run.come_to_rest(lambda old=old: run.holds(old) == 0)  # type: ignore[misc]
        run.cluster.stop(old)
    run.judge()
    assert run.ring()[-3:] == ("s4", "s5", "s6")


def test_a_dead_servers_shards_are_copied_after_the_grace_time_not_before() -> None:
    run = Training(2, clocks=4)
    run.coordinate("s1")
    run.cluster.kill("s3")
    gone = lambda: not run.exists(run.cluster.keys.server("s3"))  # noqa: E731
    assert run.world.run_until(gone, 10)
    run.pass_time(GRACE_S - 1)
    assert run.ring() == ("s1", "s2", "s3")
    run.come_to_rest(lambda: run.ring() == ("s1", "s2"))
    assert run.holds("s3") == 0
    run.judge()


def test_a_server_that_comes_back_in_time_gets_its_own_shards_again() -> None:
    run = Training(3, clocks=4)
    before = {n: record.desired for n, record in run.cluster.records().items()}
    run.cluster.kill("s3")
    run.pass_time(GRACE_S / 2)
    run.cluster.restart_server("s3")
    run.come_to_rest()
    run.pass_time(2 * GRACE_S)
    assert {n: record.desired for n, record in run.cluster.records().items()} == before
    assert run.ring() == ("s1", "s2", "s3")
    run.judge()


def test_a_new_coordinator_gives_the_whole_grace_time_again() -> None:
    run = Training(4, clocks=4)
    run.coordinate("s1")
    run.cluster.kill("s3")
    gone = lambda: not run.exists(run.cluster.keys.server("s3"))  # noqa: E731
    assert run.world.run_until(gone, 10)
    run.pass_time(GRACE_S - 1)
    run.coordinate("s2")
    run.pass_time(GRACE_S - 1)
    assert run.ring() == ("s1", "s2", "s3")
    run.come_to_rest(lambda: run.ring() == ("s1", "s2"))


def test_a_mark_of_a_drain_goes_with_the_server_and_stays_through_a_restart() -> None:
    run = Training(5, clocks=4)
    key = run.cluster.keys.drain("s3")
    run.drain("s3")
    run.come_to_rest(lambda: run.holds("s3") == 0)
    run.cluster.kill("s3")
    run.pass_time(1)
    run.cluster.restart_server("s3")
    run.pass_time(2 * GRACE_S)
    assert run.ring() == ("s1", "s2")
    assert run.exists(key)
    run.cluster.kill("s3")
    assert run.world.run_until(lambda: not run.exists(key), 30)
    run.cluster.restart_server("s3")  # whoever comes with this name now, is somebody new
    run.come_to_rest(lambda: run.ring() == ("s1", "s2", "s3"))
    run.judge()


def test_a_drain_that_is_cancelled_gives_the_server_its_share_again() -> None:
    run = Training(6, clocks=4)
    run.drain("s2")
    assert run.world.run_until(lambda: run.ring() == ("s1", "s3"), 10)
    run.cancel("s2")
    run.come_to_rest(lambda: run.ring() == ("s1", "s2", "s3"))
    run.judge()


def test_when_all_servers_are_drained_everything_stays() -> None:
    run = Training(7, clocks=4)
    for name in ("s1", "s2", "s3"):
        run.drain(name)
    run.pass_time(10)
    assert run.ring() != ()
    run.judge()


def every(step: int, last: int) -> list[Any]:
    """Steps at which somebody dies; every second one is for the long tests."""
    soak = pytest.mark.soak
    return [pytest.param(n, marks=soak if n % (2 * step) else ()) for n in range(0, last, step)]


@pytest.mark.parametrize("step", every(24, 360))
def test_a_new_coordinator_goes_on_with_a_drain(step: int) -> None:
    run = Training(step, clocks=4)
    run.coordinate("s1")
    run.drain("s2")
    first = run.world.steps
    assert run.world.run_until(lambda: run.world.steps >= first + step)
    run.cluster.kill("s1")
    run.come_to_rest(lambda: run.holds("s2") == 0 and run.ring() == ("s3",))
    run.judge()


@pytest.mark.parametrize("step", every(24, 360))
def test_a_new_coordinator_goes_on_with_a_join(step: int) -> None:
    run = Training(step, clocks=4)
    run.coordinate("s1")
    joining = run.join("s4")
    member = lambda: joining.node.membership.state == "member"  # noqa: E731
    assert run.world.run_until(member, 10)
    first = run.world.steps
    assert run.world.run_until(lambda: run.world.steps >= first + step)
    run.cluster.kill("s1")
    run.come_to_rest(lambda: run.ring() == ("s2", "s3", "s4"))
    run.judge()


@pytest.mark.parametrize("step", every(10, 100))
def test_the_first_placement_is_finished_by_whoever_is_coordinator(step: int) -> None:
    run = Servers(step, 2, come_up=False)
    elected = lambda: bool(run.cluster.coordinator())  # noqa: E731
    assert run.world.run_until(elected, 10)
    first = run.world.steps
    assert run.world.run_until(lambda: run.world.steps >= first + step)
    run.cluster.kill(run.cluster.coordinator())
    placed = lambda: len(run.cluster.records()) == SHARDS  # noqa: E731
    if not run.exists(run.cluster.keys.ring):
        run.pass_time(5)
        assert not placed()  # it waits for three servers
        run.cluster.restart_server(next(s.name for s in run.cluster.lives if not s.alive))
    assert run.world.run_until(placed, 60)
    run.come_to_rest()
