"""A server that begins with a checkpoint, and goes back to one: bootstrap, loading, rollback."""

from __future__ import annotations

import gc
import json
import weakref
from dataclasses import replace
from typing import Any

import pytest
from restoring_world import DATA_SHARDS, KEYS, SETTINGS, TTL_S, World, checkpoint, keys_of

from resilient_ps.checkpoints.rollback import COMMIT_REF
from resilient_ps.coordinator.kv import Put, Txn
from resilient_ps.coordinator.records import (
    IntentRecord,
    JobRecord,
    ShardRecord,
    TableRecord,
    counter_bytes,
)
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import READER, Epoch
from resilient_ps.messages import Kind, Part, Status
from resilient_ps.node import Node
from resilient_ps.storage.blobs import BlobCall, PutBlob
from resilient_ps.storage.names import marker_name

OLD = {key: key for key in range(1, 41)}
NEW = {key: 100 * key for key in range(1, 41)}
GRACE_S = TTL_S + SETTINGS.loss_grace_s


def lived(*, shards: int = 4) -> World:
    """A store with the checkpoints of a cluster whose etcd is lost."""
    world = World()
    world.start(shards=shards)
    checkpoint(world, 5, OLD, clock=10, shards=shards)
    checkpoint(world, 7, NEW, clock=20, shards=shards)
    world.kill()
    world.lose_etcd()
    return world


# -- bootstrap


def test_a_cluster_without_a_past_begins_empty_in_its_first_incarnation() -> None:
    world = World()
    world.start()
    assert (world.config().incarnation, world.restore()) == (1, None)
    assert world.names("c/markers/") == [marker_name("c", 1)]
    assert world.serving() == 4


def test_where_etcd_was_lost_it_goes_on_from_the_newest_checkpoint_in_a_later_incarnation() -> None:
    world = lived()
    world.start()
    world.wait(1)
    restore = world.restore()
    assert restore is not None
    assert (world.config().incarnation, restore.incarnation) == (2, 2)
    assert (restore.checkpoint, restore.registered) == ("1-7-00000007", True)
    assert restore.clocks == {"1": 20}
    assert world.rows() == NEW
    assert json.loads(world.stand(1).text) == {"row": 201}
    assert world.stand(1).value == 20
    led = ShardRecord.from_bytes(world.get(KEYS.shard(0)) or b"", b"")
    assert led.epoch == Epoch(2, 1)


def test_incarnations_grow_with_every_loss_of_etcd() -> None:
    world = lived()
    for incarnation in (2, 3, 4):
        world.start()
        assert world.config().incarnation == incarnation
        world.kill()
        world.lose_etcd()


def test_tables_jobs_and_counters_of_the_manifest_are_registered() -> None:
    world = World()
    checkpoint(world, 7, OLD, clock=3, data_shards=DATA_SHARDS)
    world.start()
    world.wait(1)
    table = TableRecord.from_bytes(world.get(KEYS.table("t")) or b"", b"")
    assert table.table_id == 1
    job = JobRecord.from_bytes(world.get(KEYS.job("j")) or b"", b"")
    assert (job.job_id, job.ranks, job.consistency, job.state) == (1, 2, "bsp", "running")
    assert world.get(KEYS.data_shards("j")) == DATA_SHARDS.to_bytes()
    assert world.get(KEYS.counter("tables")) == b'{"last":1}'
    assert world.get(KEYS.counter("intents")) == b'{"last":7}'


def test_checkpoints_that_were_found_are_recorded_again() -> None:
    world = lived()
    world.start()
    (old, new) = (world.checkpoint_record(number) for number in (5, 7))
    assert old is not None
    assert new is not None
    assert (old.id, old.clocks, old.state) == ("1-5-00000005", {"j": 10}, "good")


def test_a_table_that_was_dropped_while_images_were_made_does_not_come_back() -> None:
    world = World()
    checkpoint(world, 7, OLD, clock=3, has_table=False)
    world.start()
    world.wait(1)
    assert world.serving() == 4
    assert world.get(KEYS.table("t")) is None
    (answer,) = world.ask(Kind.PULL, Part(0), worker=READER, table=1, keys=keys_of(0))
    assert answer.status is Status.UNKNOWN


@pytest.mark.parametrize("shards", [1, 3, 4, 8, 11])
def test_it_may_come_back_with_another_number_of_shards(shards: int) -> None:
    world = lived(shards=4)
    world.start(shards=shards)
    world.wait(1)
    assert world.config().shards == shards
    assert world.rows() == NEW


def test_where_nobody_asks_the_number_of_shards_is_the_checkpoints() -> None:
    world = lived(shards=3)
    world.start(shards=0)
    assert world.config().shards == 3


@pytest.mark.parametrize("wish", ["1-5-00000005", "clock:19", "clock:j=10", "time:1006"])
def test_an_earlier_checkpoint_may_be_wished_for(wish: str) -> None:
    world = lived()
    world.start(wish)
    world.wait(1)
    assert world.rows() == OLD


def test_none_begins_empty_but_in_a_later_incarnation() -> None:
    world = lived()
    world.start("none")
    world.wait(1)
    restore = world.restore()
    assert restore is not None
    assert (world.config().incarnation, restore.checkpoint, restore.registered) == (2, "", True)
    assert world.serving() == 4
    assert world.stand(0).status is Status.UNKNOWN


def test_a_cluster_may_begin_with_another_ones_checkpoint_which_it_does_not_own() -> None:
    world = World()
    checkpoint(world, 7, OLD, clock=3, cluster="theirs", recorded=False)
    world.start(source="theirs")
    world.wait(1)
    assert world.config().incarnation == 1
    assert world.rows() == OLD
    assert world.checkpoint_record(7) is None


def test_while_the_store_is_away_a_cluster_waits_and_says_why() -> None:
    world = lived()
    world.store_away = True
    world.start()
    world.wait(20)
    assert world.get(KEYS.config) is None
    assert "the store is away" in str(world.said("the cluster cannot begin"))
    world.store_away = False
    world.wait(15)
    assert world.rows() == NEW


def test_where_no_checkpoint_verifies_a_cluster_does_not_begin_empty_by_itself() -> None:
    world = lived()
    for name in world.names("c/checkpoints/"):
        if name.endswith("manifest.json"):
            world.change(name, cut=True)
    world.start()
    world.wait(5)
    assert world.get(KEYS.config) is None
    (told,) = world.said("the cluster cannot begin")
    assert "1-7-00000007" in told["why"]
    assert "1-5-00000005" in told["why"]
    world.kill()
    world.start("none")
    world.wait(3)
    assert world.config().incarnation == 2


@pytest.mark.parametrize("part", ["chunks", "indexes", "manifest"])
@pytest.mark.parametrize("how", ["missing", "cut off"])
def test_a_damaged_checkpoint_is_skipped_with_the_reason(part: str, how: str) -> None:
    world = World()
    checkpoint(world, 5, OLD, clock=10, recorded=False)
    newest = checkpoint(world, 7, NEW, clock=20, recorded=False)
    name = newest.manifest if part == "manifest" else getattr(newest, part)[2]
    if how == "missing" and part != "manifest":
        world.drop(name)
    else:
        world.change(name, cut=True)
    world.start()
    world.wait(1)
    restore = world.restore()
    assert restore is not None
    assert restore.checkpoint == "1-5-00000005"
    assert "skipped 1-7-00000007" in restore.why
    assert name in restore.why
    assert world.rows() == OLD


# -- loading


def test_what_only_loading_finds_out_leads_to_the_checkpoint_before() -> None:
    world = lived()
    name = next(n for n in world.names("c/checkpoints/1-7-00000007/") if n.endswith(".chunks"))
    world.change(name)
    world.start()
    world.wait(3)
    restore = world.restore()
    assert restore is not None
    assert (restore.incarnation, restore.checkpoint) == (3, "1-5-00000005")
    assert name in restore.why
    damaged = world.checkpoint_record(7)
    assert damaged is not None
    assert damaged.state == "damaged"
    assert name in damaged.why
    assert world.rows() == OLD
    markers = [name for name in world.names("c/markers/") if not name.endswith(".began")]
    assert markers == [marker_name("c", n) for n in (1, 2, 3)]


def test_where_the_last_one_is_damaged_too_it_begins_anew_and_says_so() -> None:
    world = lived()
    for name in world.names("c/checkpoints/"):
        if name.endswith(".chunks"):
            world.change(name)
    world.start()
    world.wait(5)
    restore = world.restore()
    assert restore is not None
    assert (restore.incarnation, restore.checkpoint) == (4, "")
    assert world.serving() == 4


def test_a_store_that_goes_away_while_a_server_loads_is_waited_for_visibly() -> None:
    world = lived()
    world.start()
    world.kill()
    world.store_away = True
    world.wait(TTL_S)
    node = world.start()
    world.wait(GRACE_S + 5)
    assert world.serving() == 0
    world.store_away = False
    world.wait(20)
    assert world.rows() == NEW
    assert node.loading.status() is None


# -- rollback


def test_a_restarted_server_is_empty_and_its_shards_are_lost_after_the_grace() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.kill()
    world.start()
    world.wait(GRACE_S - 1)
    assert world.config().incarnation == 2
    assert world.serving() == 0
    world.wait(3)
    restore = world.restore()
    assert restore is not None
    assert (world.config().incarnation, restore.incarnation) == (3, 3)
    assert "shards were lost" in restore.why
    assert world.rows() == NEW
    (told,) = world.said("the cluster is rolled back")
    assert told["checkpoint"] == "1-7-00000007"


def test_a_shard_that_was_never_led_is_not_lost() -> None:
    world = World()
    world.start()
    for number in range(4):
        record = ShardRecord.from_bytes(world.get(KEYS.shard(number)) or b"", b"")
        never = replace(record, epoch=Epoch(1, 0), primary="", primary_process=0)
        world.put(KEYS.shard(number), never.to_bytes())
    world.kill()
    world.start()
    world.wait(GRACE_S + 5)
    assert (world.config().incarnation, world.serving()) == (1, 4)


def test_without_a_store_the_cluster_goes_back_to_its_initial_state() -> None:
    world = World(stored=False)
    world.start()
    world.put(KEYS.data_shards("j"), DATA_SHARDS.to_bytes())
    world.put(KEYS.job("j"), JobRecord(1, "j", "bsp", 2, "running").to_bytes())
    world.kill()
    world.start()
    world.wait(GRACE_S + 5)
    restore = world.restore()
    assert restore is not None
    assert (restore.incarnation, restore.checkpoint, restore.registered) == (2, "", True)
    assert world.serving() == 4
    assert world.get(KEYS.job("j")) is not None
    assert world.get(KEYS.data_shards("j")) is None


def test_open_intents_are_closed_with_the_incarnation_that_they_belong_to() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.kill()
    leave = IntentRecord(40, "leave", "j", 1, 3, "open")
    world.put(KEYS.intent(40), leave.to_bytes())
    world.put(KEYS.counter("intents"), b'{"last":40}')
    world.start()
    world.wait(GRACE_S + 5)
    closed = world.intent(40)
    assert (closed.state, closed.result) == ("aborted", {"why": "rolled back"})


def test_a_leave_that_is_proposed_while_the_cluster_is_rolled_back_belongs_to_what_was_before() -> (
    None
):
    """In the restored job that rank has work left."""
    world = lived()
    world.start()
    world.wait(1)
    ask = world._ask
    leave = IntentRecord(51, "leave", "j", 1, 3, "open")

    def at_the_last_moment(ref: int, request: Any) -> Any:
        if ref == COMMIT_REF and world.get(KEYS.intent(51)) is None:
            puts = (Put(KEYS.counter("intents"), counter_bytes(51)), Put(KEYS.intent(51), raw))
            world.kv.apply(Txn((), puts), world.now_ns)
        return ask(ref, request)

    raw = leave.to_bytes()
    world._ask = at_the_last_moment  # type: ignore[method-assign]
    world.propose(checkpoint="latest")
    world.wait(2)
    assert world.config().incarnation == 3
    closed = world.intent(51)
    assert (closed.state, closed.result) == ("aborted", {"why": "rolled back"})


@pytest.mark.parametrize("wish", ["1-5-00000005", "clock:12", "time:1005"])
def test_an_operator_may_have_a_living_cluster_go_back(wish: str) -> None:
    world = lived()
    world.start()
    world.wait(1)
    assert world.rows() == NEW
    world.propose(checkpoint=wish, why="a bad model")
    world.wait(1)
    done = world.intent(50)
    assert (done.state, done.result["checkpoint"]) == ("done", "1-5-00000005")
    assert world.config().incarnation == 3
    assert world.rows() == OLD
    restore = world.restore()
    assert restore is not None
    assert "a bad model" in restore.why


def test_tables_of_before_a_rollback_are_freed_before_those_after_it_are_loaded() -> None:
    world = lived()
    node = world.start()
    world.wait(1)
    before = [weakref.ref(shard.tables[1]) for shard in node.served()]
    gc.disable()  # a state of many GiB must not wait for Python's collector
    try:
        world.propose(checkpoint="latest")
        world.wait(1)
        assert world.config().incarnation == 3
        assert [held() for held in before] == [None] * 4
    finally:
        gc.enable()


def slabs(node: Node) -> list[Any]:
    return [shard.tables[1]._held._slab for shard in node.served()]  # type: ignore[union-attr]


def test_what_is_loaded_by_a_rollback_stands_in_the_memory_of_before() -> None:
    rows = {key: 3 * key for key in range(1, 201)}
    world = World()
    world.start()
    checkpoint(world, 5, rows, clock=10)
    world.kill()
    world.lose_etcd()
    node = world.start()
    world.wait(1)
    before = slabs(node)
    world.propose(checkpoint="latest")
    world.wait(1)
    assert world.config().incarnation == 3
    assert all(one is other for one, other in zip(before, slabs(node), strict=True))
    assert world.rows(count=200) == rows


def test_memory_of_before_a_rollback_does_not_wait_for_a_store_that_is_away() -> None:
    world = lived()
    node = world.start()
    world.wait(1)
    before = [weakref.ref(shard.tables[1]) for shard in node.served()]
    there = world._do

    def away_then(call: BlobCall) -> Any:
        world.store_away = world.config().incarnation == 3
        return there(call)

    world._do = away_then  # type: ignore[method-assign]
    world.propose(checkpoint="latest")
    world.wait(1)
    assert None not in [held() for held in before]
    world.wait(10)
    gc.collect()
    assert [held() for held in before] == [None] * 4
    world._do, world.store_away = there, False  # type: ignore[method-assign]
    world.wait(20)
    assert world.rows() == NEW


def test_what_an_operator_has_gone_back_behind_does_not_come_back_by_itself() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.propose(checkpoint="1-5-00000005")
    world.wait(1)
    world.kill()
    world.start()
    world.wait(GRACE_S + 5)
    assert world.config().incarnation == 4
    assert world.rows() == OLD


def test_where_nothing_else_is_left_even_that_is_better_than_nothing() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.propose(checkpoint="1-5-00000005")
    world.wait(1)
    world.kill()
    world.drop(world.checkpoint_record(5).manifest)  # type: ignore[union-attr]
    world.start()
    world.wait(GRACE_S + 5)
    assert world.rows() == NEW


def test_a_cluster_that_was_to_begin_empty_goes_back_to_that() -> None:
    world = lived()
    world.start(restore="none")
    world.wait(1)
    world.kill()
    world.start()
    world.wait(GRACE_S + 5)
    restore = world.restore()
    assert restore is not None
    assert (restore.incarnation, restore.checkpoint) == (3, "")


def test_a_cluster_that_began_with_another_ones_checkpoint_goes_back_to_it() -> None:
    world = World()
    checkpoint(world, 900, OLD, clock=10, cluster="other", recorded=False)
    world.start(restore="latest", source="other")
    world.wait(1)
    assert world.rows() == OLD
    world.kill()
    world.start()
    world.wait(GRACE_S + 5)
    assert world.config().incarnation == 2
    assert world.rows() == OLD


@pytest.mark.parametrize("given", [False, True])
def test_a_checkpoint_that_is_given_up_at_the_last_moment_is_not_gone_back_to(given: bool) -> None:
    """Its objects are deleted while servers load them."""
    world = lived()
    world.start()
    world.wait(1)
    ask = world._ask

    def at_the_last_moment(ref: int, request: Any) -> Any:
        record = world.checkpoint_record(5)
        if ref == COMMIT_REF and record is not None and record.state == "good":
            put = Put(KEYS.checkpoint(5), replace(record, state="deleting").to_bytes())
            world.kv.apply(Txn((), (put,)), world.now_ns)
        return ask(ref, request)

    world._ask = at_the_last_moment  # type: ignore[method-assign]
    record = world.checkpoint_record(5)
    assert record is not None
    manifest = [record.manifest, record.nbytes, record.sha256]
    world.propose(checkpoint=record.id, **({"manifest": manifest} if given else {}))
    world.wait(5)
    assert world.intent(50).state == "aborted"
    assert world.config().incarnation == 2
    assert world.rows() == NEW


def test_an_operator_may_name_a_checkpoint_that_etcd_does_not_know() -> None:
    world = World()
    world.start()
    imported = checkpoint(world, 9, OLD, clock=0, recorded=False)
    record = imported.record
    world.propose(checkpoint=record.id, manifest=[record.manifest, record.nbytes, record.sha256])
    world.wait(1)
    assert world.rows() == OLD


@pytest.mark.parametrize(
    ("details", "why"),
    [
        ({"checkpoint": "1-99-00000001"}, "no such checkpoint"),
        ({"checkpoint": "yesterday"}, "is no checkpoint"),
        ({"checkpoint": "1-5-00000005", "manifest": 7}, "a manifest is given as"),
        ({"checkpoint": "clock:3"}, "no such checkpoint"),
    ],
    ids=str,
)
def test_what_cannot_be_restored_is_refused_and_nothing_changes(
    details: dict[str, Any], why: str
) -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.propose(**details)
    world.wait(1)
    refused = world.intent(50)
    assert refused.state == "aborted"
    assert why in str(refused.result["why"])
    assert world.config().incarnation == 2
    assert world.rows() == NEW


def test_without_a_store_no_checkpoint_can_be_asked_for() -> None:
    world = World(stored=False)
    world.start()
    world.propose(checkpoint="latest")
    world.wait(1)
    assert "no object store" in str(world.intent(50).result["why"])


def test_a_rollback_waits_for_the_store_and_says_so() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.store_away = True
    world.propose(checkpoint="latest")
    world.wait(10)
    assert world.intent(50).state == "open"
    assert world.said("rollback waits for the store")
    world.store_away = False
    world.wait(15)
    assert (world.intent(50).state, world.config().incarnation) == ("done", 3)


def test_while_a_rollback_waits_for_the_store_ranks_join_and_leave() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.store_away = True
    world.propose(checkpoint="latest")
    world.wait(1)
    world.put(KEYS.counter("intents"), counter_bytes(51))
    world.put(KEYS.intent(51), IntentRecord(51, "join", "j", 7, 0, "open").to_bytes())
    world.wait(5)
    assert world.intent(50).state == "open"
    assert [told["intent"] for told in world.said("intent begins")] == [51]
    world.store_away = False
    world.wait(15)
    assert (world.intent(50).state, world.config().incarnation) == ("done", 3)
    assert world.intent(51).result == {"why": "rolled back"}


def test_a_marker_that_another_one_has_is_passed_over() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.kill()
    number = world.config().incarnation + 1

    world.do(PutBlob(marker_name("c", number), b'{"nonce": "another"}'))
    world.start()
    world.wait(GRACE_S + 5)
    assert world.config().incarnation == number + 1


def test_tables_that_were_made_after_the_cut_stay_and_are_empty() -> None:
    world = lived()
    world.start()
    world.wait(1)
    later = TableRecord(9, '{"name": "later"}')
    world.put(KEYS.table("later"), later.to_bytes())
    world.put(KEYS.counter("tables"), b'{"last":9}')
    world.propose(checkpoint="latest")
    world.wait(1)
    assert world.get(KEYS.table("later")) == later.to_bytes()
    assert world.get(KEYS.counter("tables")) == b'{"last":9}'


def test_ranks_that_had_finished_have_not() -> None:
    world = lived()
    world.start()
    world.wait(1)
    world.put(KEYS.finished("j", 0), b'{"last":1}')
    world.put(KEYS.rank("j", 0), b'{"last":1}')
    world.propose(checkpoint="latest")
    world.wait(1)
    assert world.get(KEYS.finished("j", 0)) is None
    assert world.get(KEYS.rank("j", 0)) == b'{"last":1}'


# -- requests of another incarnation


def test_requests_of_an_earlier_incarnation_are_told_and_change_nothing() -> None:
    world = lived()
    world.start()
    world.wait(1)
    (answer,) = world.ask(Kind.OPEN_TABLE, Part(0), incarnation=1, table=3, text=b"{}")
    assert (answer.status, answer.value) == (Status.ROLLED_BACK, 2)


def test_a_server_that_is_behind_sends_requests_of_a_later_incarnation_away() -> None:
    world = lived()
    world.start()
    world.wait(1)
    (answer,) = world.ask(Kind.STAND, Part(0), incarnation=3)
    assert (answer.status, answer.value) == (Status.NOT_OWNER, 0)


def test_without_the_check_of_incarnations_an_old_request_is_served() -> None:
    world = World(guards=replace(ALL_GUARDS, incarnation_check=False))
    world.start()
    (answer,) = world.ask(Kind.CLOSE_JOB, Part(0), incarnation=99)
    assert answer.status is Status.OK
