"""Whoever dies at whatever step of a checkpoint, in real stores: see `test_sim_crash_points`.

A run on the model tells the steps; on a directory and on an S3 server it takes the same ones. Then
the run is made again for each step, below a prefix of its own, and somebody dies there: before or
after an object is written or deleted, or etcd is told. What checkpoints hold is read from the
store that is tested. By default one step is struck of each kind that changes the store, and all of
them with `soak`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import pytest
from blob_stores import Store, listed, open_blobs
from stored_scenes import (
    FIRST_CONDUCTED,
    LIMIT_S,
    SECOND_NS,
    SEED,
    ConductedWorld,
    HastyBlobs,
    Step,
    StoredBlobs,
    StoredScene,
    Victim,
    kind,
)

from resilient_ps.chaos.checkers.published import check_published, check_swept
from resilient_ps.chaos.sim.outcome import RunRecord
from resilient_ps.chaos.sim.process import Process
from resilient_ps.coordinator.kv import Read
from resilient_ps.coordinator.records import RestoreRecord
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.prefixed import PrefixedBlobs

Fresh = Callable[[], PrefixedBlobs]
STRUCK: dict[Victim, tuple[str, ...]] = {
    "the process": ("chunks", "index"),  # else it is the coordinator
    "the coordinator": ("manifest", "delete objects"),
    "all servers": ("manifest",),
}
"""Steps of which kinds the default run strikes, by victim."""
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=["directory", "seaweedfs"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    with open_blobs(request.param, tmp_path_factory.mktemp("blobs")) as opened:
        yield opened


@pytest.fixture
def fresh(store: Store) -> Fresh:
    """Gives the store below a prefix that nobody has used."""
    return lambda: PrefixedBlobs(store.blobs, f"point{next(_NUMBERS)}/")


# ------------------------------------------------------------------- a cluster that makes images


def calm(blobs: MemoryBlobs) -> StoredScene:
    """A run in which nobody dies, up to the end of two more checkpoints."""
    scene = StoredScene(blobs)
    assert scene.world.wait_for(lambda: len(scene.archive.published) >= 3, LIMIT_S)
    scene.world.run_to(scene.world.now_ns + SECOND_NS // 4)
    assert check_published(scene.archive.published).outcome == "true"
    return scene


@cache
def calm_steps() -> tuple[Step, ...]:
    """The steps of such a run."""
    return tuple(calm(MemoryBlobs()).steps)


def one_of_each_kind() -> list[Step]:
    """The last ones: that checkpoint has one before it, which is deleted when it stands."""
    return sorted({kind(step): step for step in calm_steps()}.values())


def crash_at(blobs: StoredBlobs, step: Step, victim: Victim, guards: Guards = ALL_GUARDS) -> None:
    """Make the run in which the victim dies at this step, and look at what remains."""
    scene = StoredScene(blobs, guards)
    died: list[Step] = []

    def at(now: Step, process: Process | None) -> None:
        if now == step and not died:
            died.append(now)
            scene.kill(victim, process)
            blobs.crash()

    scene.at = at
    assert scene.world.wait_for(lambda: bool(died), LIMIT_S), (step, victim)
    archive = scene.archive
    known = archive.good()
    assert known, "no checkpoint is left"
    assert [archive.problem(record) for record in known] == [""] * len(known), (step, victim)
    newest, incarnation = known[-1].number, 1 + (victim == "all servers")
    succeeds = scene.world.wait_for(lambda: scene.later(newest, incarnation), LIMIT_S)
    assert succeeds, (step, victim)
    assert scene.cluster.incarnation == incarnation
    published = check_published(archive.published)
    assert published.outcome == "true", (step, victim, published)
    if victim == "all servers":
        assert restored(scene) >= newest, (step, victim)
    scene.load.stop()
    rest = scene.world.wait_for(lambda: scene.load.finished and scene.cluster.settled(), LIMIT_S)
    assert rest, (step, victim, scene.cluster.unsettled())
    judge(scene, (step, victim))


def restored(scene: StoredScene) -> int:
    """The number of the checkpoint that the shards began with; it was whole when etcd named it."""
    key = scene.cluster.keys.restore
    (item,) = scene.world.kv.apply(Read(key), scene.world.now_ns).items
    record = RestoreRecord.from_bytes(item.value, key)
    assert record.checkpoint in scene.archive.stored, record
    return scene.archive.stored[record.checkpoint].number


def judge(scene: StoredScene, where: tuple[Step, Victim]) -> None:
    """Nothing was lost or doubled, and every checkpoint was whole as long as it was named."""
    run = RunRecord(scene.cluster, "safety", SEED, (), (), True, scene.world.now_ns)
    wrong = [finding for finding in scene.load.judge(run) if finding.verdict.outcome != "true"]
    assert not wrong, (where, wrong)
    for verdict in check_published(scene.archive.published), check_swept(scene.archive.sweeps):
        assert verdict.outcome == "true", (where, verdict)


def crash_at_all(fresh: Fresh, steps: Iterable[Step], victim: Victim) -> None:
    for step in steps:
        if victim != "the process" or not step.what.startswith("etcd"):
            crash_at(StoredBlobs(fresh()), step, victim)


def test_a_real_store_leads_to_the_same_steps_as_the_model(fresh: Fresh) -> None:
    store = fresh()
    model, real = calm(MemoryBlobs()), calm(StoredBlobs(store))
    assert real.steps == model.steps
    assert real.world.trace == model.world.trace
    assert sorted(item.name for item in listed(store, "")) == model.world.bucket.blobs.names()


def test_the_kinds_of_steps_are_those_of_a_whole_checkpoint() -> None:
    kinds = {kind(step) for step in one_of_each_kind()}
    for what in ("put .chunks", "put index.json", "put manifest.json", "delete objects"):
        assert {("before", what), ("after", what)} <= kinds
    for when in ("before", "after"):
        for noun in ("checkpoint", "intent"):
            assert any(k[0] == when and "etcd" in k[1] and noun in k[1] for k in kinds), kinds


@pytest.mark.parametrize("victim", STRUCK)
def test_a_crash_at_each_kind_of_write_leaves_a_usable_checkpoint_and_a_later_one_succeeds(
    fresh: Fresh, victim: Victim
) -> None:
    struck = [s for s in one_of_each_kind() if any(what in s.what for what in STRUCK[victim])]
    crash_at_all(fresh, struck, victim)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", STRUCK)
def test_a_crash_at_any_step_leaves_a_usable_checkpoint_and_a_later_one_succeeds(
    fresh: Fresh, victim: Victim
) -> None:
    crash_at_all(fresh, calm_steps(), victim)


def manifests() -> list[Step]:
    """Each time when a manifest has just been written."""
    return [step for step in calm_steps() if kind(step) == ("after", "put manifest.json")]


def test_a_manifest_that_is_written_before_its_objects_is_convicted_by_a_crash(
    fresh: Fresh,
) -> None:
    calm(HastyBlobs(fresh()))  # nobody notices as long as nobody dies
    with pytest.raises(AssertionError, match="chunks is missing"):
        crash_at(HastyBlobs(fresh()), manifests()[-1], "all servers")


def test_deleting_what_the_next_checkpoint_needs_is_convicted(fresh: Fresh) -> None:
    guards = Guards(sweep_unused_only=False)
    with pytest.raises(AssertionError, match=r"which checkpoint \S+ needs"):
        crash_at(StoredBlobs(fresh()), manifests()[0], "the process", guards)


# --------------------------------------------------------------- coordinators, each of their calls


def told() -> list[str]:
    """What a coordinator does, from the wish to the last deletion of what was before."""
    world = ConductedWorld(MemoryBlobs())
    world.make()
    assert world.run_until(world.swept, 60)
    return world.told


TOLD = told()
SWEEPING = [1 + TOLD.index(what) for what in ("ListBlobs", "SweepUploads")]
"""Steps at which the cluster above is not struck: they change nothing that anybody needs."""


def conduct(blobs: MemoryBlobs, step: int, when: str) -> None:
    """The coordinator dies at this step, and its successor makes the next checkpoint."""
    world = ConductedWorld(blobs)
    world.crash_at = (world.steps + step, when)
    world.wish()

    def newer() -> bool:
        return bool(world.good()) and world.good()[-1].number > FIRST_CONDUCTED

    assert world.run_until(newer, 120), world.story()
    assert not [intent for intent in world.intents() if intent.state == "open"], world.story()
    assert world.run_until(world.swept, 700), world.story()
    assert len(world.coordinators) == 2


@pytest.mark.parametrize("step", SWEEPING)
def test_a_coordinator_that_dies_sweeping_leaves_nothing_behind(fresh: Fresh, step: int) -> None:
    conduct(StoredBlobs(fresh()), step, "before")


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_coordinator_that_dies_at_any_step_has_a_successor_that_makes_the_next(
    fresh: Fresh, when: str
) -> None:
    for step in range(1, 1 + len(TOLD)):
        conduct(StoredBlobs(fresh()), step, when)
