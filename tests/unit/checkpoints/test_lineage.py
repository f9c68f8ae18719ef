"""Which incarnations have begun, with what: where etcd is lost, or was restored from old times."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from restoring_world import KEYS, SETTINGS, TTL_S, World, checkpoint

from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import IntentRecord, RestoreRecord, counter_bytes
from resilient_ps.storage.blobs import (
    BlobCall,
    BlobFailed,
    ListBlobs,
    PutBlob,
    StoreUnavailable,
)
from resilient_ps.storage.names import marker_name

OLD = {key: key for key in range(1, 41)}
NEW = {key: 100 * key for key in range(1, 41)}
LATEST = {key: 7 * key for key in range(1, 41)}
GRACE_S = TTL_S + SETTINGS.loss_grace_s


def rolled_back() -> World:
    """An operator had it go back behind its newest checkpoint: it lives in incarnation 2."""
    world = World()
    world.start()
    checkpoint(world, 5, OLD, clock=10)
    checkpoint(world, 7, NEW, clock=20)
    world.propose(10, checkpoint="1-5-00000005")
    world.wait(1)
    assert world.config().incarnation == 2
    return world


def with_old_etcd() -> World:
    """It went on to incarnation 3, and made a checkpoint; etcd knows neither."""
    world = rolled_back()
    old = snapshot(world)
    world.start()
    world.wait(GRACE_S + 5)
    assert world.config().incarnation == 3
    checkpoint(world, 12, LATEST, clock=30, incarnation=3)
    world.kill()
    world.kv = old
    return world


def snapshot(world: World) -> MemoryKv:
    """What is in etcd when the server has gone."""
    world.kill()
    return copy.deepcopy(world.kv)


def restored(world: World) -> RestoreRecord:
    record = world.restore()
    assert record is not None
    return record


# -- etcd is lost


def test_what_an_operator_has_gone_back_behind_does_not_come_back_when_etcd_is_lost() -> None:
    world = rolled_back()
    world.kill()
    world.lose_etcd()
    world.start()
    world.wait(1)
    assert (world.config().incarnation, restored(world).checkpoint) == (3, "1-5-00000005")
    assert world.rows() == OLD


def test_what_the_cluster_did_after_it_went_back_is_its_newest() -> None:
    world = rolled_back()
    checkpoint(world, 6, LATEST, clock=11, incarnation=2)
    world.kill()
    world.lose_etcd()
    world.start()
    world.wait(1)
    assert world.rows() == LATEST


def test_whoever_went_back_to_what_had_been_given_up_has_that() -> None:
    world = rolled_back()
    world.propose(11, checkpoint="1-7-00000007")
    world.wait(1)
    world.kill()
    world.lose_etcd()
    world.start()
    world.wait(1)
    assert (world.config().incarnation, world.rows()) == (4, NEW)


def test_a_rollback_that_was_called_off_gives_nothing_up() -> None:
    """It has left its marker behind, and the cluster lives on as it was."""
    world = World()
    world.start()
    checkpoint(world, 5, OLD, clock=10)
    world.do(PutBlob(marker_name("c", 2), b"{}"))
    checkpoint(world, 7, NEW, clock=20)
    world.kill()
    world.lose_etcd()
    world.start()
    world.wait(1)
    assert (world.config().incarnation, world.rows()) == (3, NEW)


def test_where_the_line_has_nothing_left_a_future_that_was_given_up_is_better_than_nothing() -> (
    None
):
    world = rolled_back()
    world.kill()
    world.lose_etcd()
    world.change(next(n for n in world.names("c/checkpoints/1-5-") if "manifest" in n), cut=True)
    world.start()
    world.wait(1)
    assert world.rows() == NEW
    assert "skipped 1-5-00000005" in restored(world).why


@pytest.mark.parametrize("wish", ["1-7-00000007", "clock:20"])
def test_who_asks_for_it_gets_what_was_given_up(wish: str) -> None:
    world = rolled_back()
    world.kill()
    world.lose_etcd()
    world.start(wish)
    world.wait(1)
    assert world.rows() == NEW


def test_no_worker_goes_on_before_the_store_knows_what_the_incarnation_began_with() -> None:
    world = rolled_back()
    do, away = world._do, [True]

    def but_not_that(call: BlobCall) -> Any:
        name = call.request.name if isinstance(call.request, PutBlob) else ""
        if away[0] and name.endswith(".began"):
            return BlobFailed(call.ref, StoreUnavailable("the store is away"))
        return do(call)

    world._do = but_not_that  # type: ignore[method-assign]
    world.propose(11, checkpoint="latest")
    world.wait(5)
    assert (world.config().incarnation, restored(world).registered) == (3, False)
    away[0] = False
    world.wait(15)
    assert restored(world).registered


# -- etcd is old


def test_under_an_old_etcd_nothing_goes_on_and_the_newest_of_the_later_life_is_restored() -> None:
    world = with_old_etcd()
    world.start()
    world.wait(1)
    record = restored(world)
    assert (world.config().incarnation, record.checkpoint) == (4, "3-12-0000000c")
    assert "etcd was restored from an old snapshot" in record.why
    assert world.said("the cluster has to be rolled back")
    assert world.rows() == LATEST
    assert marker_name("c", 4) in world.names("c/markers/")


def test_it_goes_back_once() -> None:
    world = with_old_etcd()
    world.logs.clear()
    world.start()
    world.wait(20)
    assert world.config().incarnation == 4
    assert len(world.said("the cluster is rolled back")) == 1


def test_if_the_newest_of_the_later_life_is_damaged_it_is_what_that_began_with() -> None:
    world = with_old_etcd()
    world.change(next(n for n in world.names("c/checkpoints/3-12-") if "manifest" in n), cut=True)
    world.start()
    world.wait(1)
    assert (world.config().incarnation, restored(world).checkpoint) == (4, "1-5-00000005")


@pytest.mark.parametrize(("incarnation", "by"), [(9, "a test"), (3, "import by pid 1")])
def test_what_was_imported_into_the_store_is_not_what_the_cluster_did(
    incarnation: int, by: str
) -> None:
    world = with_old_etcd()
    checkpoint(world, 99, NEW, clock=0, incarnation=incarnation, recorded=False, written_by=by)
    world.start()
    world.wait(1)
    assert world.rows() == LATEST


def test_an_old_etcd_is_found_out_as_soon_as_the_store_is_back() -> None:
    world = with_old_etcd()
    world.store_away = True
    world.start()
    world.wait(2)
    assert world.config().incarnation == 2
    world.store_away = False
    world.wait(15)
    assert (world.config().incarnation, world.rows()) == (4, LATEST)


def test_while_the_rollback_waits_for_the_store_no_intent_is_begun() -> None:
    world = with_old_etcd()
    do = world._do

    def away_after_the_markers(call: BlobCall) -> Any:
        answer = do(call)
        if isinstance(call.request, ListBlobs) and not isinstance(answer, BlobFailed):
            world.store_away = "markers" in call.request.prefix
        return answer

    world._do = away_after_the_markers  # type: ignore[method-assign]
    world.start()
    world.put(KEYS.counter("intents"), counter_bytes(51))
    world.put(KEYS.intent(51), IntentRecord(51, "join", "j", 7, 0, "open").to_bytes())
    world.wait(2)
    assert (world.config().incarnation, world.said("intent begins")) == (2, [])
    world._do = do  # type: ignore[method-assign]
    world.store_away = False
    world.wait(15)
    assert (world.config().incarnation, world.rows()) == (4, LATEST)
    assert world.intent(51).state == "aborted"


def test_a_marker_whose_incarnation_never_began_hinders_nobody() -> None:
    """Another server lost the race for the configuration, or died before its transaction."""
    world = World()
    world.start()
    world.do(PutBlob(marker_name("c", 2), b"{}"))
    world.kill()
    world.start()
    world.wait(1)
    assert (world.config().incarnation, world.said("the cluster has to be rolled back")) == (1, [])
    world.wait(GRACE_S + 5)
    assert world.config().incarnation == 3
    assert "shards were lost" in restored(world).why
