"""The conductor of checkpoints: from a wish to a record, and what keeps it from getting there."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from conducting import JOB, KEYS, MS, SECOND_NS, World

from resilient_ps.checkpoints.beginning import APART_NS
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.data_shards import NO_CUT, DataShards, Grant
from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.records import IntentRecord, JobRecord, RestoreRecord
from resilient_ps.coordinator.task_records import GraphRecord, LanesRecord, LaneState
from resilient_ps.errors import BadInput
from resilient_ps.messages import Ask, Kind, Request
from resilient_ps.storage.manifest import Manifest


def manifest_of(world: World) -> Manifest:
    record = world.good()[-1]
    raw = world.blobs.peek(record.manifest)
    assert raw is not None
    return Manifest.from_json(raw, record.manifest)


# -- wishes and attempts


def test_a_wish_becomes_a_checkpoint_and_says_which() -> None:
    world = World()
    world.start()
    wish = world.wish()
    assert world.run_until(lambda: bool(world.good())), world.story()
    (record,) = world.good()
    served = world.intent(wish)
    assert (served.state, served.result) == ("aborted", {"retried_as": record.number})
    attempt = world.intent(record.number)
    assert (attempt.state, attempt.result["checkpoint"]) == ("done", record.id)
    assert record.id.startswith(f"1-{record.number}-")
    assert record.clocks == {"train": 0}
    assert record.stored_bytes == record.uploaded_bytes > 0


def test_wishes_that_are_there_together_are_served_by_one_checkpoint() -> None:
    world = World()
    wishes = [world.wish() for _ in range(5)]
    world.start()
    assert world.run_until(lambda: bool(world.good()))
    world.run(5)
    (record,) = world.good()
    assert {world.intent(wish).result["retried_as"] for wish in wishes} == {record.number}


def test_no_shard_hears_of_a_cut_before_it_is_in_etcd() -> None:
    world = World()
    world.start()
    told: list[bool] = []
    answer = world.shards.request

    def watched(request: Request):  # type: ignore[no-untyped-def]
        if request.kind is Kind.CUT:
            told.append(any(i.number == request.n and i.state == "open" for i in world.attempts()))
        return answer(request)

    world.shards.request = watched  # type: ignore[method-assign]
    world.make()
    world.make()
    assert told
    assert all(told)


def test_the_next_checkpoint_builds_upon_the_newest_good_one() -> None:
    world = World()
    world.start()
    first, second = world.make(), world.make()
    assert world.intent(first.number).details["base"] == ""
    assert world.intent(second.number).details["base"] == first.id
    world.put(KEYS.checkpoint(second.number), replace(second, state="damaged").to_bytes())
    third = world.make()
    assert world.intent(third.number).details["base"] == first.id


def test_a_job_that_is_done_is_captured_as_it_stands() -> None:
    world = World()
    world.start()
    world.shards.clocks[1] = [7, 9]  # the ranks have ended at different clocks
    world.put(KEYS.job("train"), replace(JOB, state="done").to_bytes())
    record = world.make()
    assert world.intent(record.number).details["resting"] == ["train"]
    assert record.clocks == {"train": 7}  # what the model's images say of the ranks


def test_a_job_that_ends_behind_the_cut_is_running_in_the_checkpoint() -> None:
    """Restored as done, it would never run again what it did behind the cut."""
    world = World()
    world.start()
    world.shards.clocks[1] = [7, 9]
    world.wish()
    assert world.run_until(lambda: len(world.shards.accepted) == 3)
    world.shards.clocks[1] = [12, 12]
    world.put(KEYS.job("train"), replace(JOB, state="done").to_bytes())
    assert world.run_until(lambda: bool(world.good()))
    assert world.good()[0].clocks == {"train": 9}
    (job,) = manifest_of(world).jobs
    assert job.state == "running"


def test_a_job_that_is_done_and_closed_on_its_shards_has_no_clock() -> None:
    """With clock 0, who asks for a checkpoint of an early clock would be given its last state."""
    world = World()
    world.start()
    world.shards.ranks = 0
    world.put(KEYS.job("train"), replace(JOB, state="done").to_bytes())
    assert world.make().clocks == {}


def test_a_graph_that_is_done_and_closed_on_its_shards_has_done_all_its_steps() -> None:
    """Without a clock its tasks would be done again on what they have done already."""
    world = World()
    world.start()
    world.shards.ranks = 0
    graph = Graph("train", steps=12)
    graph.add("part", width=2)
    lanes = LanesRecord(1, 1, (LaneState(12, 1), LaneState(12, 1)))
    world.put(KEYS.lanes("train", 0), lanes.to_bytes())
    world.put(KEYS.graph("train"), GraphRecord(1, graph.to_json(), "done").to_bytes())
    world.put(KEYS.job("train"), replace(JOB, state="done").to_bytes())
    assert world.make().clocks == {"train": 12}


def test_a_table_that_was_dropped_around_the_cut_is_left_out_of_the_checkpoint() -> None:
    """A shard may have dropped it before its cut, and another one after."""
    world = World()
    world.start()
    kept = Manifest.from_json(world.blobs.peek(world.make().manifest) or b"", "")
    assert [table.name for table in kept.tables] == ["weights"]
    leader, see = world.leader, world.leader.see
    leader.see = lambda: None  # type: ignore[method-assign]  # its view lags behind
    world.delete(KEYS.table("weights"))
    leader.see = see  # type: ignore[method-assign]
    left = Manifest.from_json(world.blobs.peek(world.make().manifest) or b"", "")
    assert left.tables == ()


def test_a_malformed_attempt_is_closed_and_hinders_nobody() -> None:
    world = World()
    world.start()
    bad = IntentRecord(1, "cut", "", 0, 0, "open", details={"clocks": 7})
    number = world.propose(bad)
    assert world.run_until(lambda: world.intent(number).state == "aborted")
    assert "are an object" in world.intent(number).result["why"]
    world.make()


def test_more_jobs_than_a_cut_can_name_are_an_error_in_the_log_and_no_more() -> None:
    world = World()
    world.start()
    for number in range(2, 1_100):
        job = replace(JOB, job_id=number, name=f"job-{number}", state="done")
        world.put(KEYS.job(job.name), job.to_bytes())
    world.wish()
    world.run(5)
    assert "jobs" in world.leader.log("no checkpoint can begin").fields["error"]
    assert world.attempts() == []


# -- clocks and margins


@pytest.mark.parametrize("clocks_per_s", [0.2, 5.0, 100.0, 1000.0])
def test_a_job_of_any_speed_is_cut_within_a_few_attempts(clocks_per_s: float) -> None:
    world = World()
    world.start()
    world.run(5)
    world.shards.clocks_per_s = clocks_per_s
    world.make()
    attempts = len(world.attempts())
    assert attempts <= 3, world.story()
    world.make()
    assert len(world.attempts()) - attempts <= 2, world.story()


def test_a_slow_job_gets_the_clock_that_it_has_reached() -> None:
    world = World()
    world.start()
    world.shards.clocks_per_s = 0.3
    world.run(20)
    held = world.shards.held(1)
    record = world.make()
    assert record.clocks["train"] - held <= 1


def test_an_idle_job_gets_the_clock_that_it_has_reached() -> None:
    world = World()
    world.start()
    world.shards.clocks[1] = [41, 41]
    assert world.make().clocks == {"train": 41}


@pytest.mark.parametrize(("state", "readings"), [("running", 2), ("done", 1)])
def test_clocks_are_read_twice_where_a_job_runs_and_once_where_none_does(
    state: str, readings: int
) -> None:
    """Two readings tell how fast a job is; where none runs nobody waits for the second."""
    world = World()
    world.start()
    world.put(KEYS.job("train"), replace(JOB, state=state).to_bytes())
    world.run(1)
    read_ns: list[int] = []
    answer = world.shards.ask

    def noting(server: str, ask: Ask) -> str:
        if server == "s1" and "clocks" in ask.what:
            read_ns.append(world.now_ns)
        return answer(server, ask)

    world.shards.ask = noting  # type: ignore[method-assign]
    world.make()
    assert len(read_ns) == readings
    assert read_ns[-1] - read_ns[0] >= (readings - 1) * APART_NS


def test_a_refusal_is_aborted_on_all_shards_and_followed_by_an_attempt_that_lies_further() -> None:
    world = World()
    world.start()
    world.run(1)
    world.wish()
    assert world.run_until(lambda: bool(world.attempts()))
    world.shards.clocks[1] = [1, 1]  # it moves on before the shards hear of the cut
    assert world.run_until(lambda: bool(world.good()), 60), world.story()
    refused, done = world.attempts()
    assert (refused.state, refused.result["kind"]) == ("aborted", "refused")
    assert refused.result["retried_as"] == done.number
    assert {(refused.number, shard) for shard in range(3)} <= world.shards.aborted
    assert (done.details["attempt"], done.details["refusals"]) == (1, 1)
    assert world.good()[0].clocks == {"train": 1}


# -- waiting for ranks


def test_a_cut_that_is_not_reached_is_given_up_naming_the_rank() -> None:
    world = World(settings=CheckpointSettings(cut_deadline_s=5))
    world.start()
    world.shards.clocks[1] = [7, 9]  # rank 0 does nothing
    world.wish()
    assert world.run_until(lambda: bool(world.attempts()))
    begun_ns = world.now_ns
    assert world.run_until(lambda: world.attempts()[0].state == "aborted", 60)
    assert world.now_ns - begun_ns < 7 * SECOND_NS
    failed = world.attempts()[0]
    assert failed.result["kind"] == "deadline"
    assert "rank 1" in failed.result["why"]
    assert "rank 1" in world.leader.log("checkpoint given up").fields["why"]
    assert {(failed.number, shard) for shard in range(3)} <= world.shards.aborted


def test_after_three_failures_pushes_behind_the_cut_are_held_back() -> None:
    world = World(settings=CheckpointSettings(cut_deadline_s=1))
    world.start()
    world.shards.clocks[1] = [7, 9]
    world.wish()
    assert world.run_until(lambda: len(world.attempts()) == 5, 120)
    holds = [intent.details["hold"] for intent in world.attempts()]
    assert holds == [False, False, False, True, False]


def test_pushes_are_not_held_back_for_so_long_that_workers_give_up() -> None:
    """A rank that is gone will not come to the cut, however long the others wait for it."""
    world = World(settings=CheckpointSettings(cut_deadline_s=60))
    world.start()
    world.shards.clocks[1] = [7, 9]
    world.wish()
    held = lambda: [i for i in world.attempts() if i.details["hold"]]  # noqa: E731
    assert world.run_until(lambda: bool(held()), 600)
    assert world.run_until(lambda: held()[0].state == "aborted", 12), world.story()
    assert world.shards.aborted >= {(held()[0].number, shard) for shard in range(3)}


def test_attempts_that_fail_are_repeated_ever_more_seldom() -> None:
    world = World(settings=CheckpointSettings(cut_deadline_s=1))
    world.start()
    world.shards.clocks[1] = [7, 9]
    world.wish()
    world.run(3600)
    number = world.attempts()[-1].details["attempt"]
    assert 8 <= number <= 25
    assert len(world.intents()) < 60  # and they are forgotten, in time
    world.shards.clocks[1] = [9, 9]
    assert world.run_until(lambda: bool(world.good()), 400)


def test_joins_are_executed_while_a_cut_waits_and_in_the_order_of_numbers() -> None:
    world = World()
    world.start()
    world.shards.clocks[1] = [7, 9]
    world.wish()
    assert world.run_until(lambda: len(world.shards.accepted) == 3)
    join = world.propose(IntentRecord(1, "join", "train", 5, 0, "open"))
    assert world.run_until(lambda: world.intent(join).state == "done", 5), world.story()
    assert world.attempts()[0].state == "open"
    world.shards.clocks[1] = [9, 9]
    assert world.run_until(lambda: bool(world.good()))


# -- servers that make images


def test_a_server_that_dies_with_its_image_makes_the_attempt_fail_and_the_next_succeeds() -> None:
    world = World()
    world.start()
    world.start_server("s4")
    world.shards.by[1] = "s4"
    world.shards.clocks[1] = [7, 9]
    world.wish()
    assert world.run_until(lambda: len(world.shards.accepted) == 3)
    world.run(1)
    world.start_server("s4", process=11)  # another process, which knows nothing
    assert world.run_until(lambda: world.attempts()[0].state == "aborted", 5)
    assert "server s4, which made shard 1's, has died" in world.attempts()[0].result["why"]
    world.shards.clocks[1] = [9, 9]
    assert world.run_until(lambda: bool(world.good()), 60)


def test_a_server_that_does_not_answer_does_not_hold_the_others_up_for_ever() -> None:
    world = World(settings=CheckpointSettings(cut_deadline_s=4))
    world.start()
    world.make()
    world.shards.silent.add("s3")
    world.wish()
    assert world.run_until(lambda: world.attempts()[-1].state == "aborted", 30), world.story()
    assert "server s3 has not told yet" in world.attempts()[-1].result["why"]
    world.shards.silent.clear()
    assert world.run_until(lambda: len(world.good()) == 2, 60)


def test_an_image_that_fails_is_made_again() -> None:
    world = World()
    world.start()
    world.shards.broken = "more pushes than can be kept apart"
    world.wish()
    assert world.run_until(lambda: "why" in (world.attempts() or world.intents())[0].result, 20)
    assert "more pushes" in world.attempts()[0].result["why"]
    world.shards.broken = ""
    assert world.run_until(lambda: bool(world.good()), 60)


@pytest.mark.parametrize(("done_bytes", "pause_ns"), [(9, 50 * MS), (10, 10 * MS)])
def test_servers_are_asked_more_often_when_nothing_but_indexes_is_missing(
    done_bytes: int, pause_ns: int
) -> None:
    world = World()
    world.start()
    asked_ns: list[int] = []
    answer = world.shards.ask

    def writing(server: str, ask: Ask) -> str:
        if "image" not in ask.what or len(asked_ns) > 3:
            return answer(server, ask)
        if server == "s1":
            asked_ns.append(world.now_ns)
        told = json.loads(answer(server, ask))
        said = {"state": "writing", "done_bytes": done_bytes, "total_bytes": 10}
        return json.dumps({**told, "images": dict.fromkeys(told["images"], said)})

    world.shards.ask = writing  # type: ignore[method-assign]
    world.make()
    pauses_ns = [after - before for before, after in itertools.pairwise(asked_ns)]
    assert all(pause_ns <= each <= pause_ns + 10 * MS for each in pauses_ns), pauses_ns


def test_an_index_that_was_damaged_on_its_way_is_not_published() -> None:
    world = World()
    world.start()
    world.wish()
    assert world.run_until(lambda: bool(world.shards.written))
    info = next(iter(world.shards.written.values()))
    raw = world.blobs.peek(info.name)
    assert raw is not None
    world.blobs.damage(info.name, raw[:-1] + b"\x00")
    assert world.run_until(lambda: bool(world.good()), 60), world.story()
    failed, done = world.attempts()
    assert info.name in failed.result["why"]
    assert done.state == "done"


# -- the store


@pytest.mark.parametrize("hours", [0.1, 0.5])
def test_a_store_outage_of_any_length_only_delays_checkpoints(hours: float) -> None:
    world = World(settings=CheckpointSettings(every_s=60))
    world.start()
    world.shards.clocks_per_s = 1
    world.run(130)
    made = len(world.good())
    assert made >= 1
    world.outage = True
    calls = world.blob_calls
    world.run(3600 * hours)
    minutes = 60 * hours
    assert world.blob_calls - calls < 10 + 2 * minutes  # it is not flooded
    assert len(world.intents()) < 60
    join = world.propose(IntentRecord(1, "join", "train", 5, 0, "open"))
    assert world.run_until(lambda: world.intent(join).state == "done", 5)
    warning = world.leader.log("no recent checkpoint")
    assert warning.fields["failures"] > 1
    status = world.leader.conductor.status(world.now_ns)
    assert status["old"]
    assert status["age_s"] >= 3600 * hours
    world.outage = False
    assert world.run_until(lambda: world.good()[-1].created_s > 1_800_000_130, 700)
    world.run(1)
    status = world.leader.conductor.status(world.now_ns)
    assert (status["old"], status["failures"], status["last_failure"]) == (False, 0, "")


# -- what the policy asks for


def test_a_checkpoint_is_made_every_so_many_seconds_if_anything_has_moved() -> None:
    world = World(settings=CheckpointSettings(every_s=30))
    world.start()
    world.run(100)
    assert world.good() == []  # nothing has happened so far
    world.shards.clocks_per_s = 1
    world.run(120)
    made = [record.created_s for record in world.good()]
    assert len(made) == 3  # as many as are kept
    assert all(29 <= later - sooner <= 45 for sooner, later in itertools.pairwise(made))
    world.shards.clocks = {1: [world.shards.held(1)] * 2}
    world.shards.clocks_per_s = 0
    world.run(100)
    last = world.good()[-1]
    world.run(300)
    assert world.good()[-1] == last  # nor since


def test_a_checkpoint_is_made_every_so_many_clocks() -> None:
    world = World(settings=CheckpointSettings(every_clocks=100, keep_last=100))
    world.start()
    world.shards.clocks_per_s = 10
    world.run(65)
    clocks = [record.clocks["train"] for record in world.good()]
    assert len(clocks) >= 5
    assert all(100 <= b - a <= 160 for a, b in itertools.pairwise(clocks))


def test_a_successor_takes_the_age_of_the_newest_checkpoint_from_its_record() -> None:
    world = World(settings=CheckpointSettings(every_s=100, keep_last=100))
    world.start()
    world.shards.clocks_per_s = 1
    assert world.run_until(lambda: len(world.good()) == 1, 200)
    world.run(60)
    world.leader.kill()
    world.start()
    world.run(30)
    assert len(world.good()) == 1
    assert world.run_until(lambda: len(world.good()) == 2, 20)


# -- data shards


SHARDS = DataShards(1, "data", 10, following=3, grants=3, doing=(Grant(2, 0, 3),))


def test_the_record_of_data_shards_keeps_what_ends_while_a_cut_waits_and_no_longer() -> None:
    world = World()
    world.start()
    key = KEYS.data_shards("train")
    world.put(key, SHARDS.to_bytes())
    world.shards.clocks[1] = [7, 9]

    def cut() -> int:
        return DataShards.from_bytes(world.get(key) or b"", key).cut

    world.wish()
    assert world.run_until(lambda: bool(world.attempts()))
    assert cut() == 9  # in the transaction that has written the attempt
    world.shards.clocks[1] = [9, 9]
    assert world.run_until(lambda: bool(world.good()))
    assert world.run_until(lambda: cut() == NO_CUT, 5)
    (job,) = manifest_of(world).jobs
    assert job.data_shards is not None
    # rank 0 has ticked nothing of it, as its cursor says: others may take it
    assert (job.data_shards["doing"], job.data_shards["following"]) == ({}, 2)


def test_without_what_became_of_data_shards_since_the_cut_there_is_no_checkpoint() -> None:
    world = World()
    world.start()
    key = KEYS.data_shards("train")
    world.shards.clocks[1] = [7, 9]
    world.wish()
    assert world.run_until(lambda: len(world.shards.accepted) == 3)
    world.put(key, SHARDS.to_bytes())  # it was made after the cut had begun
    world.shards.clocks[1] = [9, 9]
    assert world.run_until(lambda: bool(world.good()), 60), world.story()
    failed, _ = world.attempts()
    assert "was not kept" in failed.result["why"]


def test_a_job_that_begins_behind_the_cut_has_no_data_shards_in_the_checkpoint() -> None:
    """It begins anew when it is restored: what was done with them is not in the images."""
    world = World()
    world.start()
    world.shards.clocks[1] = [7, 9]
    world.wish()
    assert world.run_until(lambda: len(world.shards.accepted) == 3)
    world.put(KEYS.job("late"), JobRecord(2, "late", "asp", 2, "running").to_bytes())
    world.put(KEYS.data_shards("late"), replace(SHARDS, job_id=2).to_bytes())
    world.shards.clocks[1] = [9, 9]
    assert world.run_until(lambda: bool(world.good()))
    assert [(job.name, job.data_shards) for job in manifest_of(world).jobs if job.number == 2] == [
        ("late", None)
    ]


# -- a coordinator elsewhere


def test_a_rollback_that_closes_the_attempt_ends_it() -> None:
    world = World()
    world.start()
    first = world.make()
    world.shards.clocks[1] = [7, 9]
    world.run(5)
    world.wish()
    assert world.run_until(lambda: len(world.attempts()) == 2)
    world.run(2)
    (attempt,) = [intent for intent in world.attempts() if intent.state == "open"]
    closed = replace(attempt, state="aborted", result={"why": "rolled back"})
    restore = RestoreRecord(
        2, first.id, first.manifest, first.nbytes, first.sha256, {}, "lost", 0, registered=True
    )
    world.put(KEYS.restore, restore.to_bytes())
    world.put(KEYS.intent(attempt.number), closed.to_bytes())
    world.run(30)
    assert world.leader.conductor.to_abort() == 0
    assert [i.state for i in world.attempts()] == ["done", "aborted"]
    world.shards.clocks[1] = [9, 9]
    world.make()


def test_settings_out_of_range_are_refused_by_name() -> None:
    for name, value in [("every_s", -1), ("keep_last", 0), ("mtbf_h", float("nan"))]:
        with pytest.raises(BadInput, match=name):
            CheckpointSettings(**{name: value})  # type: ignore[arg-type]


def test_status_tells_what_is_under_way() -> None:
    world = World(settings=CheckpointSettings(every_s=900))
    one = world.start()
    world.shards.clocks[1] = [7, 9]
    world.wish()
    world.run(3)
    status = one.conductor.status(world.now_ns)
    doing = status["under_way"]
    assert (doing["stage"], doing["done"], doing["total"]) == ("imaging", 0, 3)
    assert "rank 1" in doing["waits_for"]
    assert (status["newest"], status["interval_s"], status["interval_by"]) == (None, 900, "every_s")
    world.shards.clocks[1] = [9, 9]
    assert world.run_until(lambda: bool(world.good()))
    world.run_until(lambda: False, 10 * MS / SECOND_NS)
    status = one.conductor.status(world.now_ns)
    assert status["under_way"] is None
    assert status["newest"] == world.good()[0].id
    assert 890 <= status["due_s"] <= 900


def test_the_coordinator_tells_figures_and_nobody_else_does() -> None:
    world = World(settings=CheckpointSettings(every_s=900))
    one, two = world.start(), world.start()
    record = world.make()
    world.run(30)
    leader, other = (one, two) if one.controller.elected else (two, one)
    told = {figure.name: figure.value for figure in leader.conductor.figures()}
    assert told["resilient_ps_checkpoints"] == 1
    assert told["resilient_ps_checkpoint_age_seconds"] in (29, 30)
    assert told["resilient_ps_checkpoint_interval_seconds"] == 900
    assert told["resilient_ps_checkpoint_old"] == 0
    assert other.conductor.figures() == ()
    leader.kill()
    world.run(5)
    assert {f.name: f.value for f in other.conductor.figures()}["resilient_ps_checkpoints"] == 1
    assert world.good() == [record]
