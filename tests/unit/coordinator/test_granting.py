"""Granting tasks: who gets what, what is refused, and what survives of it, on etcd's model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from candidates import KEYS, Candidate, elected
from desk import JOB_ID, SECOND_NS, Desk

from resilient_ps.coordinator.graph import Graph
from resilient_ps.coordinator.records import JobRecord
from resilient_ps.coordinator.task_asks import Failure, Granted, TaskAsk, TaskTold
from resilient_ps.coordinator.task_records import GraphRecord, LaneState
from resilient_ps.errors import BadInput
from resilient_ps.machine import PeerLost, Send
from resilient_ps.messages import Ask, Told


def chain(steps: int = 2) -> Graph:
    """Lanes: a 0, a 1, b. Each step of b after both of a."""
    graph = Graph("g", steps)
    graph.add("a", 2)
    graph.add("b")
    graph.after("b", "a")
    return graph


def free(width: int = 2, steps: int = 3) -> Graph:
    graph = Graph("g", steps)
    graph.add("a", width)
    return graph


def desk(graph: Graph, *holders: str) -> Desk:
    found = Desk(graph)
    found.register(*holders)
    found.run()
    return found


# -- who gets what


def test_lanes_begin_when_the_graph_appears() -> None:
    assert desk(chain()).lanes() == [LaneState()] * 3


def test_a_task_is_granted_when_it_is_written_and_not_before() -> None:
    at = desk(chain(), "x")
    request = at.put("x")
    result = at.write()
    at.look()
    assert request not in at.answers
    at.answer(result)
    assert at.answers[request].grant == Granted(0, 1, 1)
    assert at.lanes()[0] == LaneState(0, 1, "x")


def test_a_graph_is_run_to_its_end_by_one_holder() -> None:
    at = desk(chain(), "x")
    order, task = [], at.granted("x")
    for _ in range(at.record().graph.tasks_total - 1):
        order.append((task.rank, task.step))
        task = at.granted("x", done=task)
    told = at.ask("x", done=task)
    assert told == TaskTold(over="done")
    assert order == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)]
    assert at.record().state == "done"
    assert at.job().state == "done"
    assert [state.done for state in at.lanes()] == [2, 2, 2]


def test_who_comes_to_a_graph_that_is_done_is_told_so() -> None:
    at = desk(free(1, 1), "x", "y")
    at.ask("x", done=at.granted("x"))
    assert at.ask("y") == TaskTold(over="done")
    late = Desk(etcd=at.etcd)
    late.run()
    assert late.ask("z") == TaskTold(over="done")


def test_a_holder_waits_until_there_is_a_task_and_is_told_at_once() -> None:
    at = desk(chain(), "x", "y", "z")
    first, second = at.granted("x"), at.granted("y")
    waits = at.put("z", namespaces=("b",))
    assert at.ask("x", done=first, namespaces=()) is not None
    assert waits not in at.answers
    at.ask("y", done=second, namespaces=())
    assert at.answers[waits].grant == Granted(2, 1, 1)


def test_a_report_and_the_next_grant_are_one_transaction() -> None:
    at = desk(free(), "x")
    task, before = at.granted("x"), at.txns
    assert at.granted("x", done=task) == Granted(0, 2, 2)
    assert at.txns == before + 1


def test_a_holder_that_only_reports_is_granted_nothing() -> None:
    at = desk(free(), "x")
    task = at.granted("x")
    told = at.ask("x", done=task, namespaces=())
    assert told is not None
    assert (told.grant, told.nothing) == (None, True)
    assert at.lanes()[0] == LaneState(1, 1)
    told = at.ask("x", namespaces=())
    assert told is not None
    assert told.nothing


def test_a_holder_gets_the_lane_it_had_if_it_is_ready_and_else_the_first() -> None:
    at = desk(free(3, 3), "x", "y")
    first, second = at.granted("x"), at.granted("y")
    assert (first.rank, second.rank) == (0, 1)
    at.ask("x", done=first, namespaces=())
    assert at.granted("y", done=second) == Granted(1, 2, 2)
    assert at.granted("x").rank == 0
    at.register("z")
    assert at.granted("z").rank == 2


def test_a_waiting_holder_gets_the_lane_that_it_had_when_it_becomes_ready() -> None:
    graph = Graph("g", 3)
    graph.add("a", 2)
    graph.after("a", "a", lag=1)
    at = desk(graph, "x", "y")
    first, second = at.granted("x"), at.granted("y")
    later = at.put("y", done=second)  # both wait for both lanes
    at.run()
    earlier = at.granted("x", done=first)
    assert earlier.rank == first.rank
    assert at.answers[later].grant == Granted(second.rank, 2, 2)


def test_who_waited_longest_is_served_first() -> None:
    at = desk(free(1), "x", "y", "z")
    task = at.granted("x")
    second, third = at.put("y"), at.put("z")
    at.ask("x", done=task, namespaces=())
    assert at.answers[second].grant == Granted(0, 2, 2)
    assert third not in at.answers


def test_namespaces_that_were_not_asked_for_are_not_granted() -> None:
    at = desk(chain(), "x")
    request = at.put("x", namespaces=("b",))
    at.run()
    assert request not in at.answers
    at.register("y")
    task = at.granted("y", namespaces=("a",))
    at.ask("y", done=at.granted("y", done=task, namespaces=("a", "b")), namespaces=())
    assert request not in at.answers
    task = at.granted("y", namespaces=("a",))
    assert task.rank == 1
    at.ask("y", done=task, namespaces=())
    assert at.answers[request].grant == Granted(2, 1, 1)


def test_exclusive_namespaces_are_never_granted_together() -> None:
    graph = Graph("g", 2)
    graph.add("f")
    graph.add("b")
    graph.exclusive("f", "b")
    at = desk(graph, "x", "y")
    task = at.granted("x", namespaces=("f",))
    waits = at.put("y", namespaces=("b",))
    at.run()
    assert waits not in at.answers
    at.ask("x", done=task, namespaces=())
    assert at.answers[waits].grant == Granted(1, 1, 1)


# -- what is refused


def test_a_lost_answer_is_given_again() -> None:
    at = desk(free(), "x")
    task, before = at.granted("x"), at.txns
    assert at.granted("x") == task
    assert at.txns == before
    following = at.granted("x", done=task)
    assert at.granted("x", done=task) == following


def test_a_duplicate_completion_changes_nothing() -> None:
    at = desk(free(1), "x", "y")
    task = at.granted("x")
    at.ask("x", done=task, namespaces=())
    following = at.granted("y")
    lanes = at.lanes()
    told = at.ask("x", done=task, namespaces=())
    assert told is not None
    assert told.nothing
    assert at.lanes() == lanes == [LaneState(1, 2, "y")]
    assert following == Granted(0, 2, 2)


def test_a_holder_that_was_replaced_is_fenced() -> None:
    at = desk(free(1), "x", "y")
    task = at.granted("x")
    at.kill("x")
    assert at.granted("y") == Granted(0, 1, 2)
    told = at.ask("x", done=task)
    assert told is not None
    assert (told.kind, told.grant) == ("fenced", None)
    assert "step 1 of a lane 0 is not x's any more: it has token 1" in told.error
    assert "last one is 2, to y" in told.error


def test_a_token_is_of_use_to_its_holder_alone() -> None:
    at = desk(free(1), "x", "y")
    task = at.granted("x")
    told = at.ask("y", done=task)
    assert told is not None
    assert told.kind == "fenced"
    assert at.lanes() == [LaneState(0, 1, "x")]


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (Granted(0, 1, 2), "was never granted with token 2"),
        (Granted(0, 2, 1), "the lane's next step is 1"),
        (Granted(1, 1, 1), "was never granted with token 1"),
        (Granted(2, 1, 1), "has 2 lanes and 3 steps"),
        (Granted(0, 4, 1), "has 2 lanes and 3 steps"),
    ],
)
def test_a_report_that_cannot_be_is_refused(task: Granted, says: str) -> None:
    at = desk(free(), "x")
    at.granted("x")
    before = at.lanes()
    told = at.ask("x", done=task)
    assert told is not None
    assert told.kind == "refused"
    assert says in told.error
    assert at.lanes() == before


def test_a_namespace_that_the_graph_does_not_have_is_named() -> None:
    told = desk(free(), "x").ask("x", namespaces=("a", "c"))
    assert told == TaskTold(error="graph 'g' has no namespace 'c'", kind="unknown")


def test_an_unknown_graph_may_appear_for_a_moment_and_is_refused_then() -> None:
    at = Desk()
    soon, never = at.put("x", graph="g"), at.put("x", graph="h")
    at.create(free())
    at.register("x")
    at.run()
    assert at.answers[soon].grant == Granted(0, 1, 1)
    assert never not in at.answers
    at.wait(1)
    assert at.answers[never] == TaskTold(error="there is no graph 'h'", kind="unknown")


def test_a_graph_that_cannot_be_read_is_refused_with_its_fault() -> None:
    at = Desk()
    at.etcd.put(KEYS.graph("g"), b"{}")
    at.run()
    told = at.ask("x")
    assert told is not None
    assert told.kind == "refused"
    assert KEYS.graph("g").decode() in told.error


@pytest.mark.parametrize("raw", [b"{}", b'{"incarnation":1,"job_id":3,"lanes":[[0,0,""]]}'])
def test_lanes_that_cannot_be_read_are_not_begun_anew(raw: bytes) -> None:
    at = desk(free(), "x")
    at.granted("x")
    at.etcd.put(KEYS.lanes("g", 0), raw)
    at.run()
    told = at.ask("x")
    assert told is not None
    assert told.kind == "refused"
    assert at.etcd.get(KEYS.lanes("g", 0)) == raw


def test_a_question_that_is_none_is_refused() -> None:
    at = desk(free())
    with pytest.raises(BadInput, match="cannot name a holder"):
        at.granting.ask("client:1", 1, {"graph": "g", "holder": "", "wait_s": 1}, 0)


def test_more_questions_than_there_may_be_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resilient_ps.coordinator.granting.WAITERS_MAX", 3)
    at = desk(free(1), "w", "x", "y", "z")
    at.granted("w")
    for holder in ("x", "y", "z"):
        at.put(holder)
    told = at.ask("w", done=Granted(0, 1, 1))
    assert told is not None
    assert told.kind == "busy"
    assert at.ask("x") is None  # its own earlier question is over


# -- time, connections and registration


def test_when_its_time_is_over_a_holder_is_told_what_it_waits_for() -> None:
    at = desk(chain(), "x", "y")
    task = at.granted("x")
    request = at.put("y", namespaces=("b",), wait_s=2)
    at.wait(1.9)
    assert request not in at.answers
    at.wait(0.1)
    told = at.answers[request]
    assert told.nothing
    assert told.waits_for == "step 1 of b lane 0, which waits for step 1 of a lane 0 (at x)"
    at.kill("x")
    assert at.ask("y", namespaces=("b",), wait_s=0.5) is None
    at.wait(0.5)
    told = at.answers[max(at.answers)]
    assert told.waits_for.endswith("step 1 of a lane 0 (at x, which is gone)")
    assert task == Granted(0, 1, 1)


def test_a_holder_that_is_not_registered_yet_is_waited_for() -> None:
    at = desk(free())
    request = at.put("x")
    at.run()
    assert request not in at.answers
    at.register("x")
    at.run()
    assert at.answers[request].grant == Granted(0, 1, 1)


def test_a_holder_that_never_registers_is_told_so() -> None:
    at = desk(free())
    request = at.put("x", wait_s=1)
    at.wait(1)
    told = TaskTold(error="holder x is not registered with graph 'g'", kind="unknown")
    assert at.answers[request] == told


def test_a_waiting_holder_whose_lease_ends_is_told_so() -> None:
    at = desk(free(1), "x", "y")
    at.granted("x")
    request = at.put("y")
    at.kill("y")
    at.run()
    told = TaskTold(error="holder y is registered no longer", kind="unknown")
    assert at.answers[request] == told


def test_the_task_of_a_dead_holder_goes_to_who_waits_with_a_larger_token() -> None:
    at = desk(free(1), "x", "y")
    at.granted("x")
    request = at.put("y")
    at.run()
    at.kill("x")
    at.run()
    assert at.answers[request].grant == Granted(0, 1, 2)


def test_a_holder_that_comes_back_before_others_got_its_task_keeps_it() -> None:
    at = desk(free(1), "x")
    task = at.granted("x")
    at.kill("x")
    at.run()
    at.register("x")
    at.run()
    assert at.granted("x") == task
    at.register("y")
    assert at.ask("y") is None


def test_a_holder_that_came_back_unseen_keeps_its_task() -> None:
    at = desk(free(1), "x", "y")
    task = at.granted("x")
    waits = at.put("y")
    at.kill("x")
    at.look()  # its task is being granted to y, when
    at.register("x")
    at.run()
    assert waits not in at.answers
    assert at.lanes() == [LaneState(0, 1, "x")]
    assert at.granted("x") == task


def test_a_dead_holder_s_report_counts_while_nobody_else_got_its_task() -> None:
    at = desk(free(1), "x", "y")
    task = at.granted("x")
    at.kill("x")
    at.run()
    at.put("x", done=task)
    at.run()
    assert at.lanes() == [LaneState(1, 1)]
    assert at.granted("y") == Granted(0, 2, 2)


def test_a_death_that_the_view_does_not_know_makes_nobody_lose_anything() -> None:
    at = desk(free(2), "x", "y")
    at.kill("x")  # not seen yet
    dead, request = at.put("x"), at.put("y")
    result = at.write()
    assert not result.succeeded
    at.answer(result)
    assert request not in at.answers
    at.run()
    assert at.answers[request].grant == Granted(0, 1, 1)
    assert dead not in at.answers
    assert at.lanes() == [LaneState(0, 1, "y"), LaneState()]


def test_a_holder_s_later_question_takes_the_place_of_its_earlier_one() -> None:
    at = desk(free(1), "x", "y")
    task = at.granted("x")
    earlier = at.put("y", peer="client:1")
    later = at.put("y", peer="client:2")
    at.ask("x", done=task, namespaces=())
    assert at.answers[later].grant == Granted(0, 2, 2)
    assert earlier not in at.answers


def test_a_question_asked_again_while_its_grant_is_written_gets_that_grant() -> None:
    at = desk(free(2), "x")
    at.put("x", peer="client:1")
    again = at.put("x", peer="client:2")
    at.run()
    assert at.answers == {again: TaskTold(grant=Granted(0, 1, 1))}
    assert at.lanes()[1] == LaneState()


def test_a_report_over_a_connection_that_broke_counts() -> None:
    at = desk(free(2), "x", "y", "z")
    first, second = at.granted("x"), at.granted("y")
    at.put("y", done=second, namespaces=())  # is being written, when
    at.put("x", done=first)
    at.granting.on_lost("client:x")
    at.run()
    assert at.lanes() == [LaneState(1, 1), LaneState(1, 1)]
    assert at.granted("z") == Granted(0, 2, 2)


def test_questions_that_are_put_again_while_etcd_is_away_do_not_pile_up() -> None:
    at = desk(free(2), "x", "y")
    first, second = at.granted("x"), at.granted("y")
    at.put("y", done=second)
    result = at.write()  # and etcd does not answer for a while
    for number in range(20):
        peer = f"client:{number}"
        request = at.put("x", done=first, peer=peer)
        at.now_ns += 15 * SECOND_NS
        at.take(at.granting.expire(at.now_ns))
        at.granting.on_lost(peer)
        at.put("z", peer=peer)
        at.granting.on_lost(peer)
    assert at.granting.status()["g"]["waiting"] == 1
    at.answer(result)
    at.run()
    assert request not in at.answers
    assert at.lanes() == [LaneState(1, 1), LaneState(1, 2, "y")]
    assert at.granted("x") == Granted(0, 2, 2)


def test_a_removed_graph_s_waiters_are_not_served_when_it_comes_back() -> None:
    at = desk(free(1), "x", "y")
    at.granted("x")
    request = at.put("y")
    at.run()
    job = JobRecord(JOB_ID, "g", "tasks", 1, "running")
    at.etcd.put(KEYS.job("g"), replace(job, state="stopped").to_bytes())
    at.run()
    assert at.answers[request] == TaskTold(over="removed")
    at.etcd.put(KEYS.job("g"), job.to_bytes())
    at.kill("x")
    at.run()
    assert at.lanes() == [LaneState(0, 1, "x")]
    assert at.granted("y") == Granted(0, 1, 2)


def test_one_that_is_elected_again_waits_for_its_earlier_transaction() -> None:
    at = desk(free(1), "x", "y")
    at.put("x")
    at.take(at.granting.drop())  # deposed ...
    late = at.write()
    at.elect()  # ... and elected again, before its transaction is answered
    old = at.calls
    at.calls = []
    request = at.put("y")
    assert at.calls == []
    at.calls = old
    at.answer(late)
    at.run()
    assert request not in at.answers
    assert at.lanes() == [LaneState(0, 1, "x")]


def test_who_waits_at_a_broken_connection_is_granted_nothing() -> None:
    at = desk(free(1), "x", "y")
    task = at.granted("x")
    at.put("y")
    at.granting.on_lost("client:y")
    at.ask("x", done=task, namespaces=())
    assert at.lanes() == [LaneState(1, 1)]


# -- failures, removal, retry


def test_a_failed_task_ends_the_waiting_of_everybody() -> None:
    at = desk(chain(), "x", "y", "z")
    task = at.granted("x")
    other = at.granted("z")
    waits = at.put("y", namespaces=("b",))
    told = at.ask("x", failed=(task, "log of 0"))
    failure = Failure("a", 0, 1, "log of 0")
    assert told == at.answers[waits] == TaskTold(over="failed", failure=failure)
    assert at.record() == GraphRecord(JOB_ID, chain().to_json(), "failed", failure)
    assert "a task has failed" in [log.event for log in at.logs]
    assert at.ask("y") == told
    assert at.ask("z", done=other) == told  # what others did counts
    assert at.lanes() == [LaneState(0, 1), LaneState(1, 1), LaneState()]


def test_after_a_retry_the_graph_goes_on_with_new_tokens() -> None:
    at = desk(free(1), "x")
    task = at.granted("x")
    at.ask("x", failed=(task, "why"))
    at.etcd.put(KEYS.graph("g"), GraphRecord(JOB_ID, free(1).to_json()).to_bytes())
    at.run()
    assert at.granted("x") == Granted(0, 1, 2)
    told = at.ask("x", failed=(task, "late"))
    assert told is not None
    assert told.kind == "fenced"


def test_a_late_completion_of_a_failed_task_is_fenced() -> None:
    at = desk(free(1), "x")
    task = at.granted("x")
    at.ask("x", failed=(task, "why"))
    told = at.ask("x", done=task)
    assert told is not None
    assert told.kind == "fenced"


def test_a_task_that_is_done_cannot_fail() -> None:
    at = desk(free(1), "x")
    task = at.granted("x")
    at.ask("x", done=task, namespaces=())
    told = at.ask("x", failed=(task, "why"))
    assert told is not None
    assert told.kind == "fenced"
    assert at.record().state == "running"


@pytest.mark.parametrize("how", ["state", "graph", "job", "stopped", "another"])
def test_a_removed_graph_wakes_who_waits(how: str) -> None:
    at = desk(free(1), "x", "y")
    at.granted("x")
    request = at.put("y")
    at.run()
    if how == "state":
        record = GraphRecord(JOB_ID, free(1).to_json(), "removed")
        at.etcd.put(KEYS.graph("g"), record.to_bytes())
    elif how == "graph":
        at.etcd.delete(KEYS.graph("g"))
    elif how == "job":
        at.etcd.delete(KEYS.job("g"))
    elif how == "stopped":
        at.etcd.put(KEYS.job("g"), JobRecord(JOB_ID, "g", "tasks", 1, "stopped").to_bytes())
    else:
        at.create(free(2), JOB_ID + 1)
    at.run()
    assert at.answers[request] == TaskTold(over="removed")


def test_lanes_of_a_removed_graph_of_the_same_name_do_not_count() -> None:
    at = desk(free(1), "x")
    at.ask("x", done=at.granted("x"), namespaces=())
    at.etcd.delete(KEYS.graph("g"))
    at.run()
    at.create(free(1), JOB_ID + 1)
    at.run()
    assert at.lanes() == [LaneState()]
    assert at.granted("x") == Granted(0, 1, 1)


# -- the coordinator, etcd and the cluster go wrong


def test_a_transaction_of_which_nobody_knows_is_looked_at_again_applied_or_not() -> None:
    for applied in (True, False):
        at = desk(free(), "x", "y")
        task = at.granted("x")
        x, y = at.put("x", done=task), at.put("y")
        if applied:
            at.write()
        at.answer(None)
        assert at.calls == []
        at.wait(1)
        told = [at.answers[request].grant for request in (x, y)]
        assert None not in told
        assert {grant.rank for grant in told if grant} == {0, 1}
        tokens = [(state.token, state.holder) for state in at.lanes()]
        assert sorted(tokens) == sorted((g.token, h) for g, h in zip(told, "xy", strict=True) if g)
        assert at.lanes()[0].done == 1


def test_a_deposed_coordinator_grants_nothing_and_sends_who_waits_away() -> None:
    at = desk(free(1), "x", "y", "z")
    at.granted("x")
    waits = at.put("y")
    at.run()
    at.kill("x")
    at.look()  # a grant is under way ...
    other = Desk(etcd=at.etcd, name="s2")  # ... when another one is elected
    result = at.write()
    assert not result.succeeded
    at.look()
    assert not at.answers[waits].elected
    another = Graph("h", 1)
    another.add("a")
    at.create(another)
    at.look()
    at.answer(result)
    assert at.calls == []  # nor does it begin with another graph
    assert at.granting.status() == {}
    other.run()
    assert other.granted("z") == Granted(0, 1, 2)


def test_where_there_is_no_cluster_any_more_nobody_grants_anything() -> None:
    at = desk(free(1), "x")
    at.granting.drop()
    at.etcd.delete(KEYS.config)
    at.look()
    told = at.ask("x")
    assert told is not None
    assert not told.elected


def test_a_successor_goes_on_where_its_predecessor_was() -> None:
    at = desk(chain(), "x", "y")
    first, second = at.granted("x"), at.granted("y")
    at.put("x", done=first)
    at.write()  # and dies before it has told anybody
    other = Desk(etcd=at.etcd, name="s2")
    other.run()
    assert other.granted("x", done=first) == Granted(0, 2, 2)
    assert other.granted("y") == second


def test_after_a_rollback_lanes_begin_at_the_checkpoint_s_clock_with_new_tokens() -> None:
    at = desk(free(2, 9), "x", "y")
    for _ in range(3):
        at.ask("x", done=at.granted("x"), namespaces=())
    held = at.granted("x")
    assert held == Granted(0, 4, 4)
    waits = at.put("y")  # is being granted lane 1, when
    at.roll_back({str(JOB_ID): 2, "77": 5}, registered=False)
    at.run()
    late = at.put("x", done=held)
    at.run()
    assert at.lanes() == [LaneState(3, 4, "x"), LaneState(0, 0)]
    assert not {waits, late} & set(at.answers)  # tables and jobs come back first
    at.roll_back({str(JOB_ID): 2})
    at.run()
    assert at.answers[late].kind == "fenced"
    assert at.answers[waits].grant == Granted(0, 3, 6)
    assert at.lanes() == [LaneState(2, 6, "y"), LaneState(2, 0)]


def test_a_graph_that_was_done_runs_again_after_a_rollback() -> None:
    at = desk(free(1, 2), "x")
    at.ask("x", done=at.granted("x", done=at.granted("x")))
    assert (at.record().state, at.job().state) == ("done", "done")
    at.roll_back({str(JOB_ID): 1})
    at.run()
    assert (at.record().state, at.job().state) == ("running", "running")
    assert at.granted("x") == Granted(0, 2, 4)
    other = Desk(etcd=at.etcd, name="s2")  # a successor finds it out, too
    other.roll_back({str(JOB_ID): 0})
    other.run()
    assert other.granted("x") == Granted(0, 1, 6)


def test_a_graph_that_was_done_at_the_checkpoint_stays_so() -> None:
    at = desk(free(1, 2), "x")
    at.ask("x", done=at.granted("x", done=at.granted("x")))
    at.roll_back({str(JOB_ID): 2})
    at.run()
    assert at.record().state == "done"
    assert at.ask("x") == TaskTold(over="done")


def test_a_report_of_before_a_rollback_is_fenced_even_where_numbers_fit() -> None:
    at = desk(free(1, 9), "x")
    task = at.granted("x", done=at.granted("x"))
    assert task == Granted(0, 2, 2)
    for bucket in (KEYS.lanes("g", 0), KEYS.graph("g")):
        at.etcd.delete(bucket)  # as where etcd was lost, and began anew
    at.roll_back({})
    at.create(free(1, 9))
    at.run()
    assert at.granted("x", done=at.granted("x"), incarnation=2) == task
    before = at.lanes()
    for report in (Granted(0, 1, 1), task):
        told = at.ask("x", done=report, incarnation=1)
        assert told is not None
        assert told.kind == "fenced"
        assert at.lanes() == before
    assert at.granted("x", done=task, incarnation=2) == Granted(0, 3, 3)


def test_a_report_of_an_incarnation_that_is_not_known_yet_is_to_be_repeated() -> None:
    at = desk(free(1), "x")
    task = at.granted("x")
    told = at.ask("x", done=task, incarnation=2)
    assert told is not None
    assert told.kind == "busy"
    assert at.lanes() == [LaneState(0, 1, "x")]


def test_what_was_reported_before_a_rollback_is_not_written_after_it() -> None:
    at = desk(free(1, 9), "x")
    at.put("x", done=at.granted("x"))
    at.roll_back({str(JOB_ID): 0})
    assert not at.write().succeeded


# -- through the coordinator


def ask_of(candidate: Candidate, ask: TaskAsk) -> list[Send]:
    question = Ask(1, json.dumps(ask.to_json()))
    candidate.effects = candidate.controller.on_ask("client:1", question, candidate.now_ns)
    return [effect for effect in candidate.effects if isinstance(effect, Send)]


def test_the_coordinator_answers_a_holder_when_it_has_a_task() -> None:
    candidate = elected()
    graph = free()
    record = GraphRecord(JOB_ID, graph.to_json())
    job = JobRecord(JOB_ID, "g", "tasks", 2, "running")
    candidate.etcd.put(KEYS.job("g"), job.to_bytes())
    candidate.etcd.put(KEYS.graph("g"), record.to_bytes())
    candidate.etcd.put(KEYS.holder("g", "x"), b"{}")
    candidate.settle()
    assert ask_of(candidate, TaskAsk("g", "x")) == []
    assert candidate.perform() == [True]
    (sent,) = [effect for effect in candidate.effects if isinstance(effect, Send)]
    assert isinstance(sent.message, Told)
    told = TaskTold.from_json(json.loads(sent.message.body))
    assert told.grant == Granted(0, 1, 1)
    question = Ask(2, '{"tasks": {}}')
    (sent,) = candidate.controller.on_ask("client:1", question, 0)  # type: ignore[misc]
    assert isinstance(sent.message, Told)
    figures = {"state": "running", "tasks": 6, "done": 0, "granted": 1, "ready": 1, "waiting": 0}
    assert json.loads(sent.message.body)["graphs"] == {"g": figures}


def test_who_is_not_the_coordinator_says_so() -> None:
    candidate = elected()
    candidate.etcd.delete(KEYS.coordinator_leader)
    candidate.see()
    (sent,) = ask_of(candidate, TaskAsk("g", "x"))
    assert isinstance(sent.message, Told)
    assert json.loads(sent.message.body)["elected"] is False


def test_a_coordinator_whose_lease_is_over_sends_holders_away() -> None:
    candidate = elected()
    assert ask_of(candidate, TaskAsk("g", "x")) == []
    (sent,) = [e for e in candidate.controller.look(0, SECOND_NS) if isinstance(e, Send)]
    assert isinstance(sent.message, Told)
    assert json.loads(sent.message.body)["elected"] is False


def test_the_coordinator_forgets_who_asked_over_a_broken_connection() -> None:
    candidate = elected()
    assert ask_of(candidate, TaskAsk("g", "x")) == []
    candidate.controller.handle(PeerLost("client:1"), 0)
    effects = candidate.controller.look(0, SECOND_NS)
    assert [effect for effect in effects if isinstance(effect, Send)] == []
