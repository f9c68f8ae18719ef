"""Which checkpoints stay, whose objects are deleted, and which intents are forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conducting import KEYS, Unusable, World
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilient_ps.checkpoints.housekeeping import (
    CLOSED_KEPT,
    DONE_KEPT,
    UNSWEPT_KEPT,
    forgettable,
    unswept,
)
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.records import IntentRecord, RestoreRecord
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.names import CheckpointId, checkpoint_prefix


def keeping(count: int, guards: Guards = ALL_GUARDS) -> World:
    world = World(settings=CheckpointSettings(keep_last=count), guards=guards)
    world.start()
    return world


def test_the_last_ones_are_kept_and_of_the_others_nothing_is_left() -> None:
    world = keeping(2)
    made = [world.make() for _ in range(6)]
    assert world.run_until(lambda: world.checkpoints() == made[-2:], 60), world.story()
    kept = [name for record in made[-2:] for name in world.objects_of(record)]
    assert world.blobs.names() == sorted(kept)


def test_objects_that_later_checkpoints_use_stay_when_their_own_goes() -> None:
    world = keeping(1)
    first = world.make()
    world.shards.reuse = True
    second, third = world.make(), world.make()
    assert world.run_until(lambda: len(world.good()) == 1)
    world.run(60)
    assert world.good() == [third]
    chunks = [name for name in world.objects_of(first) if name.endswith(".chunks")]
    assert len(chunks) == 3  # its chunks are a part of the third
    assert world.objects_of(first) == chunks  # and nothing else of it is left
    assert world.objects_of(second) == []
    assert [record.state for record in world.checkpoints()] == ["deleting", "good"]
    world.shards.reuse = False
    last = world.make()
    assert world.run_until(lambda: world.checkpoints() == [last], 60), world.story()
    assert world.blobs.names() == world.objects_of(last)


def test_a_manifest_goes_though_listings_do_not_show_it_yet() -> None:
    world = keeping(1)
    world.blobs = MemoryBlobs(list_lag_s=3_600)
    first, last = world.make(), world.make()
    assert world.run_until(lambda: world.checkpoints() == [last], 60), world.story()
    assert world.blobs.peek(first.manifest) is None
    assert world.blobs.peek(last.manifest) is not None


def test_without_the_guard_what_is_used_is_swept() -> None:
    world = keeping(1, replace(ALL_GUARDS, sweep_unused_only=False))
    world.make()
    world.shards.reuse = True
    world.wish()
    with pytest.raises(Unusable):
        world.run(60)


def test_what_the_cluster_was_restored_from_stays() -> None:
    world = keeping(1)
    first = world.make()
    restore = RestoreRecord(
        1, first.id, first.manifest, first.nbytes, first.sha256, {}, "lost", 0, registered=True
    )
    world.put(KEYS.restore, restore.to_bytes())
    for _ in range(3):
        last = world.make()
    world.run(60)
    assert world.checkpoints() == [first, last]


def test_a_damaged_checkpoint_is_not_counted() -> None:
    world = keeping(2)
    made = [world.make() for _ in range(2)]
    world.put(KEYS.checkpoint(made[1].number), replace(made[1], state="damaged").to_bytes())
    third = world.make()
    world.run(30)
    assert [record.id for record in world.good()] == [made[0].id, third.id]
    fourth = world.make()
    world.run(60)
    assert [record.id for record in world.checkpoints()] == [third.id, fourth.id]


def test_a_manifest_that_cannot_be_read_makes_a_checkpoint_damaged_and_nothing_else_suffers() -> (
    None
):
    world = keeping(1)
    first = world.make()
    restore = RestoreRecord(
        1, first.id, first.manifest, first.nbytes, first.sha256, {}, "lost", 0, registered=True
    )
    world.put(KEYS.restore, restore.to_bytes())
    world.make()
    raw = world.blobs.peek(first.manifest)
    assert raw is not None
    world.put(KEYS.checkpoint(first.number), replace(first, state="damaged").to_bytes())
    world.blobs.damage(first.manifest, raw[:-2] + b"??")
    world.put(KEYS.checkpoint(first.number), replace(first, state="damaged").to_bytes())
    last = world.make()
    world.run(120)
    states = {record.id: record.state for record in world.checkpoints()}
    assert states == {first.id: "damaged", last.id: "good"}


def test_what_an_attempt_that_failed_has_written_is_swept_twice() -> None:
    world = keeping(1)
    world.shards.by[2] = "s9"  # of shard 2 there never is an image
    world.start_server("s9")
    world.shards.silent.add("s9")
    world.wish()
    assert world.run_until(lambda: len(world.shards.written) == 2)
    assert world.run_until(lambda: world.attempts()[0].state == "aborted", 120)
    failed = CheckpointId.parse(world.attempts()[0].details["id"])
    prefix = checkpoint_prefix("c", failed)
    assert any(name.startswith(prefix) for name in world.blobs.names())
    world.shards.by.clear()
    assert world.run_until(lambda: bool(world.good()), 60)
    world.run(20)
    assert not any(name.startswith(prefix) for name in world.blobs.names())
    world.object(f"{prefix}shard-0001/000000000000000a-000002.chunks", b"by one that heard late")
    assert world.run_until(lambda: unswept(world.intent(failed.number)) is None, 700)
    assert world.blobs.names() == world.objects_of(world.good()[0])


def test_what_the_cluster_was_restored_from_stays_though_its_attempt_was_never_recorded() -> None:
    """Its coordinator died between the manifest and the record, and a rollback has chosen it."""
    world = keeping(1)
    world.shards.by[2] = "s9"  # of shard 2 there never is an image
    world.start_server("s9")
    world.shards.silent.add("s9")
    world.wish()
    assert world.run_until(lambda: len(world.shards.written) == 2)
    plan = CutPlan.of(world.attempts()[0])
    assert plan is not None
    written = world.objects_of(plan)
    restore = RestoreRecord(1, plan.id, "c/x", 1, "0" * 64, {}, "lost", 0, registered=True)
    world.put(KEYS.restore, restore.to_bytes())
    assert world.run_until(lambda: world.attempts()[0].state == "aborted", 120)
    world.run(700)
    assert world.objects_of(plan) == written
    world.delete(KEYS.restore)
    world.run(700)
    assert world.objects_of(plan) == []


def test_nothing_is_swept_while_the_store_is_away_and_all_of_it_afterwards() -> None:
    world = keeping(1)
    world.make()
    first, second = world.make(), world.make()
    world.outage = True
    world.run(600)
    assert world.objects_of(second)
    world.outage = False
    assert world.run_until(lambda: world.checkpoints() == [second], 700)
    assert world.objects_of(first) == []


def test_objects_that_nobody_knows_are_left_alone() -> None:
    world = keeping(1)
    strangers = [
        "c/markers/00000001",
        "c/checkpoints/1-900-00000000/shard-0000/000000000000000a-000001.chunks",
        "c/checkpoints/readme.txt",
        "other/checkpoints/1-2-00000000/manifest.json",
    ]
    for name in strangers:
        world.object(name, b"x")
    for _ in range(3):
        last = world.make()
    world.run(60)
    assert world.blobs.names() == sorted([*strangers, *world.objects_of(last)])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keep=st.integers(1, 3),
    moves=st.lists(
        st.sampled_from(["make", "reuse", "anew", "kill", "damage", "outage", "back", "wait"]),
        max_size=14,
    ),
)
def test_the_newest_good_checkpoint_is_always_usable(keep: int, moves: list[str]) -> None:
    world = keeping(keep)
    world.make()
    newest = 0
    for move in moves:
        match move:
            case "make":
                world.wish()
                world.run(30)
            case "reuse" | "anew":
                world.shards.reuse = move == "reuse"
            case "kill":
                world.leader.kill()
                world.start()
                world.run(1)
            case "damage" if len(world.good()) > 1:
                record = world.good()[0]
                world.put(
                    KEYS.checkpoint(record.number), replace(record, state="damaged").to_bytes()
                )
            case "outage" | "back":
                world.outage = move == "outage"
            case "wait":
                world.run(60)
        good = world.good()  # and the world looks after each step whether they can be read
        assert good
        assert good[-1].number >= newest
        newest = good[-1].number
    world.outage = False
    last = world.make(700)
    assert world.run_until(lambda: len(world.good()) <= keep, 60)
    assert last in world.good()


def cut(number: int, state: str, id: str = "", **result: object) -> IntentRecord:
    details = {"id": id, "clocks": {}} if id else {}
    return IntentRecord(number, "cut", "", 0, 0, state, dict(result), details)  # type: ignore[arg-type]


def test_closed_wishes_and_attempts_are_forgotten_but_not_those_that_are_still_needed() -> None:
    wishes = [cut(n, "aborted", retried_as=n) for n in range(1, 101)]
    assert forgettable(wishes) == list(range(1, 101 - CLOSED_KEPT))
    left = [cut(1, "aborted", "1-1-00000000"), *wishes[1:]]
    assert 1 not in forgettable(left)
    swept = [cut(1, "aborted", "1-1-00000000", swept=True), *wishes[1:]]
    assert 1 in forgettable(swept)
    assert 1 not in forgettable([cut(1, "aborted", retry=True, swept=True), *wishes[1:]])
    assert 1 not in forgettable([cut(1, "open"), *wishes[1:]])
    done = [cut(n, "done") for n in range(1, 20)] + [
        replace(w, number=w.number + 20) for w in wishes
    ]
    assert {*range(1, 20)} - {*forgettable(done)} == {*range(20 - DONE_KEPT, 20)}


def test_of_very_many_attempts_that_cannot_be_swept_the_oldest_are_forgotten() -> None:
    left = [cut(n, "aborted", f"1-{n}-00000000") for n in range(1, 501)]
    assert forgettable(left) == list(range(1, 501 - UNSWEPT_KEPT))


def test_joins_and_leaves_are_never_forgotten_here() -> None:
    leaves = [IntentRecord(n, "leave", "j", n, 1, "done") for n in range(1, 200)]
    assert forgettable(leaves) == []
