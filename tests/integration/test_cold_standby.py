"""Everything is killed, memory is gone: the job goes on from the store, as if nothing had been."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing

import pytest
from standby import CLOCKS, CLUSTER, EPOCHS, Outcome, Running, cold_standby, outcome_of

from resilient_ps.cli.resuming import restored
from resilient_ps.client.checkpoints import checkpoint_records
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.errors import NotFound
from resilient_ps.storage.blobs import BlobGot, DeleteBlobs, GetBlob, PutBlob
from resilient_ps.storage.names import CheckpointId, checkpoint_prefix
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[SeaweedFS]:
    try:
        find_weed()
    except NotFound as error:
        pytest.skip(str(error))
    with SeaweedFS() as process:
        yield process


@pytest.fixture(autouse=True)
def credentials(seaweedfs: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with cold_standby(str(tmp_path_factory.mktemp("calm")), 2) as running:
        running.train()
        for rank in running.ranks:
            rank.wait_for_end()
        return outcome_of(running)


def continued(running: Running, *, pause_ms: int = 0) -> None:
    """Ranks begin behind a clock of the checkpoint, not at the first."""
    running.train(pause_ms=pause_ms)
    for rank in running.ranks:
        rank.wait_until(lambda rank=rank: rank.began_at > 1)  # type: ignore[misc]


@pytest.mark.timeout(300)
def test_killed_completely_and_resumed_on_1_and_5_servers_it_ends_byte_identical(
    seaweedfs: SeaweedFS, undisturbed: Outcome
) -> None:
    assert undisturbed.counts == (EPOCHS,)
    url = f"{seaweedfs.url}/chain"
    with cold_standby(url, 2) as running:
        running.train(pause_ms=20)
        running.wait_for_checkpoints(1)
        running.kill_everything()
    with cold_standby(url, 1) as running:
        before = len(running.checkpoints())
        continued(running, pause_ms=20)
        running.wait_for_checkpoints(before + 1)
        running.kill_everything()
    with cold_standby(url, 5) as running:
        continued(running)
        for rank in running.ranks:
            rank.wait_for_end()
        assert outcome_of(running) == undisturbed


def damage(url: str, checkpoint: CheckpointId, how: str) -> str:
    """Hurt an object that this checkpoint has written; its name."""
    with closing(open_store(url)) as blobs:
        stored = StoredCheckpoints(blobs, CLUSTER)
        own = checkpoint_prefix(CLUSTER, checkpoint)
        manifest = stored.manifest(checkpoint)
        name = next(each.name for each in manifest.objects if each.name.startswith(own))
        got = blobs.do(GetBlob(name))
        assert isinstance(got, BlobGot)
        raw = bytearray(got.data)
        raw[len(raw) // 2] ^= 1
        match how:
            case "flip":
                blobs.do(PutBlob(name, bytes(raw)))
            case "truncate":
                blobs.do(PutBlob(name, got.data[:-1]))
            case "miss":
                blobs.do(DeleteBlobs((name,)))
        return name


def test_damaged_checkpoints_are_skipped_and_named(seaweedfs: SeaweedFS) -> None:
    url = f"{seaweedfs.url}/damaged"
    with cold_standby(url, 2) as running:
        running.train(pause_ms=20)
        running.wait_for_checkpoints(4)
        running.kill_everything()
        newest = running.checkpoints()
    hurt = {
        newest[0]: damage(url, newest[0], "truncate"),
        newest[1]: damage(url, newest[1], "flip"),  # found only when it is loaded
        newest[2]: damage(url, newest[2], "miss"),
    }
    with cold_standby(url, 2) as running, running.catalogue() as catalogue:
        record = restored(catalogue)
        assert record is not None
        assert record.checkpoint == str(newest[3])
        told = {each.id: each for each in checkpoint_records(catalogue)}
        for checkpoint in hurt:
            assert told[str(checkpoint)].state == "damaged"
            why = told[str(checkpoint)].why  # its own object, or one that it shares
            assert any(name in why for name in hurt.values()), why
        assert told[str(newest[3])].state == "good"
        continued(running)
        for rank in running.ranks:
            rank.wait_until(lambda rank=rank: rank.clock > rank.began_at)  # type: ignore[misc]


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_at_20_random_moments(seaweedfs: SeaweedFS, undisturbed: Outcome) -> None:
    dice = random.Random(20)
    for number in range(20):
        url = f"{seaweedfs.url}/moment{number}"
        with cold_standby(url, dice.choice((1, 2, 5))) as running:
            running.train(pause_ms=10)
            running.wait_for_checkpoints(1)
            until = running.ranks[0].clock + dice.randrange(CLOCKS // 3)
            until = min(until, CLOCKS - 10)
            running.ranks[0].wait_until(lambda: running.ranks[0].clock >= until)  # noqa: B023
            running.kill_everything()
        with cold_standby(url, (1, 2, 5)[number % 3]) as running:
            continued(running)
            for rank in running.ranks:
                rank.wait_for_end()
            assert outcome_of(running) == undisturbed
