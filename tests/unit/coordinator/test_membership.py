"""A server's lease and record: when it may answer, and how it comes back."""

from __future__ import annotations

from dataclasses import replace

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    KeyValue,
    KvAnswered,
    KvCall,
    KvFailed,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseTtl,
    Put,
    ReadResult,
    Txn,
    TxnResult,
)
from resilient_ps.coordinator.membership import (
    GRANT_REF,
    RATE_MARGIN,
    REFRESH_REF,
    REGISTER_REF,
    RETRY_NS,
    REVOKE_REF,
    SECOND_NS,
    TIMER,
    Membership,
)
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.errors import Unavailable
from resilient_ps.machine import Effect, Log, SetTimer

RECORD = ServerRecord("s1", 7, "127.0.0.1", 7000, "", "", 1.0, 0, "0.1", 1, "host")
TTL_NS = 6 * SECOND_NS
VALID_NS = TTL_NS - TTL_NS // RATE_MARGIN
MS = 1_000_000


def membership() -> Membership:
    return Membership(ClusterKeys("c"), RECORD, 6)


def calls(effects: list[Effect]) -> list[type]:
    return [type(effect.request) for effect in effects if isinstance(effect, KvCall)]


def member(sent_ns: int = 0) -> Membership:
    """A server that was registered at once; its first renewal was sent at `sent_ns`."""
    made = membership()
    made.start(sent_ns)
    made.on_answer(KvAnswered(GRANT_REF, Leased(5, 6)), sent_ns)
    made.on_answer(KvAnswered(REGISTER_REF, TxnResult(True, 1, ())), sent_ns)
    made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 6)), sent_ns)
    return made


def test_a_server_asks_for_a_lease_then_writes_its_record_under_it() -> None:
    made = membership()
    assert made.start(0) == [KvCall(GRANT_REF, LeaseGrant(6))]
    effects = made.on_answer(KvAnswered(GRANT_REF, Leased(5, 6)), 10)
    assert calls(effects) == [Txn, LeaseRefresh]
    register = effects[0]
    assert isinstance(register, KvCall)
    assert isinstance(register.request, Txn)
    assert register.request.success[0].lease == 5  # type: ignore[union-attr]
    assert not made.may_answer(11)
    made.on_answer(KvAnswered(REGISTER_REF, TxnResult(True, 1, ())), 20)
    assert made.may_answer(21)
    assert made.lease == 5


def test_the_lease_is_valid_for_nearly_its_ttl_from_when_the_renewal_was_sent() -> None:
    made = member()
    assert made.on_timer(2 * SECOND_NS) == [KvCall(REFRESH_REF, LeaseRefresh(5))]
    made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 6)), 4 * SECOND_NS)
    assert made.may_answer(2 * SECOND_NS + VALID_NS - 1)
    assert not made.may_answer(2 * SECOND_NS + VALID_NS)


def test_a_clock_that_runs_a_twentieth_slow_stops_answering_before_the_lease_ends() -> None:
    made = member()
    slow_clock_at_the_end_ns = TTL_NS * (RATE_MARGIN - 1) // RATE_MARGIN
    assert not made.may_answer(slow_clock_at_the_end_ns)


def test_a_server_that_stops_says_so_in_its_record_under_its_lease() -> None:
    made = member()
    (call,) = made.announce_end()
    assert isinstance(call, KvCall)
    assert isinstance(call.request, Txn)
    (guard,), (put,) = call.request.compares, call.request.success
    assert (guard.target, guard.operand) == ("lease", 5)
    assert isinstance(put, Put)
    assert put.lease == 5
    assert ServerRecord.from_bytes(put.value, put.key).stopping


def test_a_server_that_is_no_member_has_nothing_to_announce() -> None:
    assert membership().announce_end() == []


def test_renewals_come_at_a_third_of_the_ttl() -> None:
    made = member()
    made.on_timer(2 * SECOND_NS)
    effects = made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 6)), 3 * SECOND_NS)
    assert effects == [SetTimer(TIMER, 3 * SECOND_NS + TTL_NS // 3)]


def test_a_slow_renewal_is_not_counted_from_a_later_one() -> None:
    """While one is under way no other is sent, whose time could be taken for the first one's."""
    made = member()
    made.on_timer(1 * SECOND_NS)
    assert made.on_timer(3 * SECOND_NS) == []
    made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 6)), 4 * SECOND_NS)
    assert not made.may_answer(1 * SECOND_NS + TTL_NS)


def test_a_failed_renewal_is_tried_again_and_the_deadline_stays() -> None:
    made = member()
    made.on_timer(2 * SECOND_NS)
    failed = KvFailed(REFRESH_REF, Unavailable("no etcd"), unknown=True)
    log, timer = made.on_answer(failed, 3 * SECOND_NS)
    assert isinstance(log, Log)
    assert timer == SetTimer(TIMER, 3 * SECOND_NS + RETRY_NS)
    assert made.on_timer(3 * SECOND_NS + RETRY_NS) != []
    assert made.may_answer(VALID_NS - 1)
    assert not made.may_answer(VALID_NS)


def test_a_renewal_answered_with_no_time_left_is_a_lost_lease() -> None:
    made = member()
    made.on_timer(2 * SECOND_NS)
    log, grant = made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 0)), 2 * SECOND_NS)
    assert isinstance(log, Log)
    assert log.event == "lease lost"
    assert grant == KvCall(GRANT_REF, LeaseGrant(6))
    assert not made.may_answer(2 * SECOND_NS + 1)
    effects = made.on_answer(KvAnswered(GRANT_REF, Leased(8, 6)), 3 * SECOND_NS)
    assert calls(effects) == [Txn, LeaseRefresh]
    assert made.lease == 8


def test_a_late_answer_about_an_earlier_lease_says_nothing_about_the_present_one() -> None:
    made = member()
    made.on_timer(2 * SECOND_NS)
    made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 0)), 2 * SECOND_NS)
    made.on_answer(KvAnswered(GRANT_REF, Leased(8, 6)), 3 * SECOND_NS)
    made.on_answer(KvAnswered(REGISTER_REF, TxnResult(True, 2, ())), 3 * SECOND_NS)
    before_ns = made.deadline_ns
    effects = made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 6)), 5 * SECOND_NS)
    assert made.deadline_ns == before_ns
    assert made.lease == 8
    assert [type(effect) for effect in effects] == [SetTimer]


def test_a_late_registration_does_not_make_a_member_of_who_lost_the_lease() -> None:
    made = membership()
    made.start(0)
    made.on_answer(KvAnswered(GRANT_REF, Leased(5, 6)), 0)
    made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 0)), MS)
    assert made.on_answer(KvAnswered(REGISTER_REF, TxnResult(True, 2, ())), 2 * MS) == []
    assert made.state == "granting"


def test_a_name_that_is_taken_is_waited_for_and_said_so() -> None:
    made = membership()
    made.start(0)
    made.on_answer(KvAnswered(GRANT_REF, Leased(5, 6)), 0)
    log, timer = made.on_answer(KvAnswered(REGISTER_REF, TxnResult(False, 1, ())), 10)
    assert isinstance(log, Log)
    assert log.event == "name taken"
    assert "--name" in str(log.fields["remedy"])
    assert timer == SetTimer(TIMER, 10 + RETRY_NS)
    made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 6)), 20)
    assert calls(made.on_timer(10 + RETRY_NS)) == [Txn, LeaseRefresh]
    assert not made.may_answer(11)


def test_a_grant_that_failed_is_asked_for_again() -> None:
    made = membership()
    made.start(0)
    failed = KvFailed(GRANT_REF, Unavailable("no etcd"), unknown=True)
    made.on_answer(failed, SECOND_NS)
    assert calls(made.on_timer(2 * SECOND_NS)) == [LeaseGrant]


def test_who_leaves_revokes_the_lease_and_answers_no_more() -> None:
    made = member()
    assert calls(made.leave()) == [LeaseRevoke]
    assert not made.may_answer(1)
    assert made.on_timer(SECOND_NS) == []
    assert made.on_answer(KvAnswered(REFRESH_REF, LeaseTtl(5, 0)), SECOND_NS) == []
    assert membership().leave() == []


def registering() -> Membership:
    """A server whose record is being written under lease 5."""
    made = membership()
    made.start(0)
    made.on_answer(KvAnswered(GRANT_REF, Leased(5, 6)), 0)
    return made


def refused(process: int, lease: int) -> KvAnswered:
    """The record of `process`, under `lease`, stands in the way."""
    record = replace(RECORD, process=process, lease=lease)
    item = KeyValue(b"k", record.to_bytes(), 1, 1, 1, lease)
    return KvAnswered(REGISTER_REF, TxnResult(False, 2, (ReadResult((item,), 2),)))


def test_a_registration_that_was_carried_out_late_is_recognised() -> None:
    made = registering()
    made.on_answer(refused(RECORD.process, 5), 1)
    assert made.state == "member"


def test_an_own_record_under_a_lease_that_was_given_up_is_removed_with_that_lease() -> None:
    made = registering()
    effects = made.on_answer(refused(RECORD.process, 4), 1)
    assert KvCall(REVOKE_REF, LeaseRevoke(4)) in effects
    assert made.state == "registering"


def test_another_process_of_that_name_is_waited_for() -> None:
    made = registering()
    log, _ = made.on_answer(refused(RECORD.process + 1, 9), 1)
    assert isinstance(log, Log)
    assert log.event == "name taken"
    assert made.state == "registering"
