"""What a server that is told to stop does about a checkpoint."""

from __future__ import annotations

from conducting import JOB, KEYS, SECOND_NS, World
from test_checkpoint_clocks import shard_with

from resilient_ps.checkpoints.farewell import OTHERS_NS, TIMER, Farewell
from resilient_ps.checkpoints.refs import FAREWELL_REF
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.kv import KvAnswered, KvCall, Read
from resilient_ps.coordinator.records import Member, ServerRecord, ShardRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.ids import Epoch
from resilient_ps.machine import Effect, SetTimer
from resilient_ps.shard import Shard

ME = Member("s1", 10)
MOVED = [shard_with(3, 3)]
PATIENCE_NS = 8 * SECOND_NS


class Stopping:
    """A server that is to stop, in a cluster."""

    def __init__(self, world: World | None = None, on_stop_s: float = 8.0) -> None:
        self.world = world or World()
        self.view = ClusterView(KEYS)
        self.see()
        self.farewell = Farewell(self.view, ME, CheckpointSettings(on_stop_s=on_stop_s))

    def see(self) -> None:
        result = self.world.kv.apply(Read(KEYS.prefix, prefix=True), self.world.now_ns)
        self.view.load(result.items, result.revision)

    def perform(self, effects: list[Effect]) -> None:
        """The wish is written to etcd, again if need be."""
        while calls := [e for e in effects if isinstance(e, KvCall)]:
            result = self.world.kv.apply(calls[0].request, self.world.now_ns)
            self.world.changed()
            self.see()
            effects = self.farewell.on_kv(KvAnswered(calls[0].ref, result))

    def stop(self, served: list[Shard]) -> list[Effect]:
        effects = self.farewell.begin(served, self.world.now_ns)
        self.perform(effects)
        return effects

    @property
    def waits(self) -> bool:
        """Once others have had the time to announce their end."""
        return self.farewell.waits(MOVED, max(self.world.now_ns, OTHERS_NS))


def test_the_last_holder_of_a_shard_waits_for_a_checkpoint() -> None:
    stopping = Stopping()
    effects = stopping.stop(MOVED)
    assert any(isinstance(e, SetTimer) and e.name == TIMER for e in effects)
    assert stopping.waits
    stopping.world.shards.clocks[1] = [3, 3]
    stopping.world.start()
    assert stopping.world.run_until(lambda: bool(stopping.world.good()), 5)
    stopping.see()
    assert not stopping.waits
    (attempt,) = stopping.world.attempts()
    assert attempt.details["why"] == "a server stops"


def test_it_waits_through_failed_attempts() -> None:
    stopping = Stopping()
    stopping.stop(MOVED)
    world = stopping.world
    world.shards.broken = "no room"
    world.start()
    assert world.run_until(lambda: any("why" in i.result for i in world.attempts()), 5)
    stopping.see()
    assert stopping.waits
    world.shards.broken = ""
    assert world.run_until(lambda: bool(world.good()), 7)
    stopping.see()
    assert not stopping.waits


def test_it_waits_no_longer_than_it_may() -> None:
    stopping = Stopping()
    stopping.stop(MOVED)
    assert stopping.farewell.waits(MOVED, PATIENCE_NS - 1)
    assert not stopping.farewell.waits(MOVED, PATIENCE_NS)
    assert stopping.farewell.on_timer(MOVED, PATIENCE_NS) == []


def test_a_second_signal_ends_the_waiting() -> None:
    stopping = Stopping()
    stopping.stop(MOVED)
    assert stopping.stop(MOVED) == []
    assert not stopping.waits


def test_where_others_hold_the_shard_it_asks_and_goes() -> None:
    world = World()
    other = Member("s2", 10)
    record = ShardRecord(0, Epoch(1, 1), *ME, (ME, other), ("s1", "s2"), 1, "n")
    world.put(KEYS.shard(0), record.to_bytes())
    stopping = Stopping(world)
    stopping.stop(MOVED)
    assert not stopping.waits
    (wish,) = world.intents()
    assert wish.details == {"why": "a server stops", "by": "s1"}


def test_others_that_announce_their_end_a_moment_later_do_not_count() -> None:
    world = World()
    record = ShardRecord(0, Epoch(1, 1), *ME, (ME, Member("s2", 10)), ("s1", "s2"), 1, "n")
    world.put(KEYS.shard(0), record.to_bytes())
    stopping = Stopping(world)
    stopping.stop(MOVED)
    assert stopping.farewell.waits(MOVED, OTHERS_NS - 1)
    assert not stopping.waits
    server = ServerRecord("s2", 10, "h", 7000, "", "", 1.0, 5, "1", 1, "host", stopping=True)
    world.put(KEYS.server("s2"), server.to_bytes())
    stopping.see()
    assert stopping.waits


def test_others_that_are_stopping_too_or_are_other_processes_do_not_count() -> None:
    for process, is_stopping in [(10, True), (11, False)]:
        world = World()
        record = ShardRecord(0, Epoch(1, 1), *ME, (ME, Member("s2", 10)), ("s1",), 1, "n")
        world.put(KEYS.shard(0), record.to_bytes())
        server = ServerRecord(
            "s2", process, "h", 7000, "", "", 1.0, 5, "1", 1, "host", stopping=is_stopping
        )
        world.put(KEYS.server("s2"), server.to_bytes())
        stopping = Stopping(world)
        stopping.stop(MOVED)
        assert stopping.waits


def test_nothing_is_asked_for_where_nothing_has_happened_since_the_last_one() -> None:
    world = World()
    world.start()
    world.shards.clocks[1] = [3, 3]
    world.make()
    intents = len(world.intents())
    stopping = Stopping(world)
    assert stopping.stop(MOVED) == []
    assert not stopping.waits
    assert len(world.intents()) == intents
    assert stopping.stop([shard_with(3, 4)]) == []  # that was the second signal


def test_nothing_is_asked_for_where_it_is_switched_off_or_nobody_trains() -> None:
    assert Stopping(on_stop_s=0).stop(MOVED) == []
    world = World()
    world.delete(KEYS.job(JOB.name))
    assert Stopping(world).stop(MOVED) == []


def test_a_number_that_somebody_else_has_taken_is_no_obstacle() -> None:
    stopping = Stopping()
    effects = stopping.farewell.begin(MOVED, 0)
    stopping.world.wish()  # our view has not seen it, and does not when our transaction fails
    lost = stopping.world.kv.apply(
        next(e for e in effects if isinstance(e, KvCall)).request, stopping.world.now_ns
    )
    assert stopping.farewell.on_kv(KvAnswered(FAREWELL_REF, lost)) == []
    stopping.see()
    stopping.perform(stopping.farewell.on_timer(MOVED, 1))
    assert [i.details["why"] for i in stopping.world.intents()] == ["a test", "a server stops"]
    assert stopping.waits
