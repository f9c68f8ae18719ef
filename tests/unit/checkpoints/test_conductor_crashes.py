"""Coordinators that die, hang or lose answers at any step of a checkpoint."""

from __future__ import annotations

import pytest
from conducting import KEYS, Unusable, World

from resilient_ps.checkpoints.housekeeping import unswept
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.guards import Guards
from resilient_ps.storage.names import CheckpointId

FIRST = 4  # the number of the checkpoint that stands at the beginning
SETTINGS = CheckpointSettings(keep_last=1)


def world_with_two(guards: Guards | None = None) -> World:
    """Of two checkpoints the older one has gone again, with its objects."""
    world = World(settings=SETTINGS, guards=guards or Guards())
    world.start()
    world.make()
    world.make()
    world.run_until(lambda: len(world.checkpoints()) == 1, 20)
    assert [record.number for record in world.checkpoints()] == [FIRST]
    return world


def swept(world: World) -> bool:
    """One checkpoint is left, with its objects, and no others."""
    records = world.checkpoints()
    if len(records) != 1 or any(unswept(intent) for intent in world.intents()):
        return False
    return world.blobs.names() == world.objects_of(records[0])


def steps_of_a_checkpoint() -> int:
    """How many effects it takes, from the wish to the last deletion of what was before."""
    world = world_with_two()
    before = world.steps
    world.make()
    world.run_until(lambda: swept(world), 60)
    return world.steps - before


STEPS = range(1, steps_of_a_checkpoint() + 1)


def finished(world: World) -> None:
    """A newer checkpoint is made, and nothing is left of the older one, nor of failed attempts."""
    assert world.run_until(lambda: bool(world.good()) and world.good()[-1].number > FIRST, 120), (
        world.story()
    )
    assert not [i for i in world.intents() if i.state == "open"], world.story()
    assert world.run_until(lambda: swept(world), 700), world.story()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_a_usable_checkpoint_and_a_successor_makes_the_next(
    step: int, when: str
) -> None:
    world = world_with_two()
    world.crash_at = (world.steps + step, when)
    world.wish()
    finished(world)  # the world looks after each step whether every checkpoint can be read
    assert len(world.coordinators) == 2


@pytest.mark.parametrize("step", STEPS)
def test_a_lost_answer_to_any_call_does_no_harm(step: int) -> None:
    world = world_with_two()
    world.lose_answer_of = world.steps + step
    world.wish()
    finished(world)
    assert len(world.coordinators) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_coordinator_that_hangs_at_any_step_changes_nothing_when_it_goes_on(step: int) -> None:
    world = world_with_two()
    (one,) = world.coordinators
    at = world.steps + step
    world.wish()
    world.run_until(lambda: world.steps >= at, 60)
    one.pause()
    world.start()
    finished(world)
    before = {key: world.get(key) for key in _keys(world)}
    one.go_on()
    world.run_until(lambda: False, 0.01)
    assert {key: world.get(key) for key in _keys(world)} == before
    finished_again = world.make()
    assert finished_again in world.good()


def _keys(world: World) -> list[bytes]:
    return [KEYS.intent(i.number) for i in world.intents()] + [
        KEYS.checkpoint(c.number) for c in world.checkpoints()
    ]


def deposed_while_it_publishes(guards: Guards) -> World:
    """The manifest is written by one that is not the coordinator any more: its attempt is over."""
    world = World(guards=guards)
    one = world.start()
    world.make()
    world.wish()
    assert world.run_until(lambda: any(i.state == "open" for i in world.attempts()))
    attempt = world.attempts()[-1].number
    manifest = None

    def is_publishing() -> bool:
        nonlocal manifest
        names = [name for name in world.blobs.names() if name.endswith("manifest.json")]
        manifest = names[-1]
        return len(names) == 2

    assert world.run_until(is_publishing)
    one.pause()  # its answer will come late
    for (number, shard), _ in sorted(world.shards.accepted.items()):
        world.shards.aborted.add((number, shard))  # as after a shard was lost and came back
    assert manifest is not None
    world.blobs.damage(manifest, None)  # nor is the manifest there when the next one looks
    world.start()
    assert world.run_until(lambda: len(world.good()) == 2, 60), world.story()
    world.run(60)  # what was written for the first attempt is swept
    assert world.intent(attempt).state == "aborted"
    one.go_on()
    world.run(5)
    return world


def test_a_deposed_coordinator_publishes_nothing() -> None:
    world = deposed_while_it_publishes(Guards())
    assert len(world.good()) == 2


def test_without_the_guard_a_deposed_coordinator_publishes_what_is_gone() -> None:
    with pytest.raises(Unusable):
        deposed_while_it_publishes(Guards(guarded_publishing=False))


def test_a_successor_takes_a_manifest_that_stands_there_for_its_own() -> None:
    world = World()
    one = world.start()
    world.wish()
    assert world.run_until(lambda: any("manifest" in name for name in world.blobs.names()))
    one.kill()
    world.shards.broken = "the image has gone with its server"
    world.start()
    assert world.run_until(lambda: bool(world.good()), 60), world.story()
    (attempt,) = world.attempts()
    assert attempt.state == "done"


def test_the_manifest_of_somebody_else_is_not_taken_for_our_own() -> None:
    world = World()
    world.start()
    made = world.make()
    raw = world.blobs.peek(made.manifest)
    assert raw is not None
    world.wish()
    assert world.run_until(lambda: len(world.attempts()) == 2)
    id = CheckpointId.parse(world.attempts()[-1].details["id"])
    world.object(f"c/checkpoints/{id}/manifest.json", raw)
    assert world.run_until(lambda: len(world.good()) == 2, 60), world.story()
    failed, done = world.attempts()[-2:]
    assert "is the manifest of checkpoint" in failed.result["why"]
    assert done.state == "done"
