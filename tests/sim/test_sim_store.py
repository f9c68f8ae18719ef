"""etcd in a world: what its client reports of lost answers, and how leases and watches fare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sim_toys import SECOND_NS, Recorder

from resilient_ps.chaos.sim.process import Process
from resilient_ps.chaos.sim.world import World
from resilient_ps.coordinator.kv import (
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvReset,
    KvWatch,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseTtl,
    Put,
    Read,
    ReadResult,
    Txn,
    TxnResult,
    absent,
    unchanged,
)

KEY = b"/resilient-ps/sim/key"
NONCE = b"0123456789abcdef"


class Client:
    """A process that asks etcd."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.machine = Recorder()
        self.process = self.world.add(Process(self.world, "c", self.machine))
        self.run_for(1)

    def run_for(self, ns: int) -> None:
        self.world.run_to(self.world.now_ns + ns)

    def call(self, request: Any, nonce: bytes = b"") -> None:
        self.process.perform([KvCall(1, request, nonce)])

    def answers(self) -> list[Any]:
        return [event.result for event in self.machine.of(KvAnswered)]

    def failures(self) -> list[bool]:
        """Of every failed call: is its outcome unknown?"""
        return [event.unknown for event in self.machine.of(KvFailed)]

    def value(self) -> bytes:
        items = self.world.kv.apply(Read(KEY), self.world.now_ns).items
        return items[0].value if items else b""

    def lose_answers(self, share: float) -> None:
        self.world.store.lost_answers["c"] = share

    def put(self, value: bytes) -> None:
        """Somebody else writes."""
        self.world.kv.apply(Txn((), (Put(KEY, value),)), self.world.now_ns)


CREATE = Txn((absent(KEY),), (Put(KEY, NONCE),))


def test_a_lost_answer_of_a_guarded_transaction_is_recognised_by_its_nonce() -> None:
    client = Client()
    client.lose_answers(1.0)
    client.call(CREATE, NONCE)
    client.run_for(SECOND_NS // 2)
    assert client.value() == NONCE
    client.lose_answers(0.0)
    client.run_for(6 * SECOND_NS)
    (result,) = client.answers()
    assert isinstance(result, TxnResult)
    assert result.succeeded
    assert result.recognised


def test_without_a_nonce_a_lost_answer_leaves_the_outcome_unknown() -> None:
    client = Client()
    client.lose_answers(1.0)
    client.call(CREATE)
    client.run_for(SECOND_NS // 2)
    client.lose_answers(0.0)
    client.run_for(6 * SECOND_NS)
    assert client.value() == NONCE
    assert client.failures() == [True]


def test_a_nonce_that_was_overwritten_leaves_the_outcome_unknown() -> None:
    client = Client()
    client.lose_answers(1.0)
    client.call(CREATE, NONCE)
    client.run_for(SECOND_NS // 2)
    client.put(b"another")
    client.lose_answers(0.0)
    client.run_for(6 * SECOND_NS)
    assert client.failures() == [True]


def test_an_unguarded_write_is_sent_once_only() -> None:
    client = Client()
    client.lose_answers(1.0)
    client.call(Txn((), (Put(KEY, b"once"),)))
    client.run_for(SECOND_NS // 2)
    assert client.value() == b"once"
    client.put(b"later")
    client.run_for(6 * SECOND_NS)
    assert client.value() == b"later"
    assert client.failures() == [True]


def test_a_guarded_write_is_repeated_until_it_gets_through() -> None:
    client = Client()
    client.world.network.block("c", "etcd")
    client.call(CREATE, NONCE)
    client.run_for(2 * SECOND_NS)
    assert client.answers() == []
    client.world.network.unblock("c", "etcd")
    client.run_for(2 * SECOND_NS)
    assert [result.succeeded for result in client.answers()] == [True]


def test_who_is_cut_off_from_etcd_hears_that_nothing_is_known() -> None:
    client = Client()
    client.world.network.block("c", "etcd")
    client.call(LeaseRefresh(5))
    client.run_for(SECOND_NS + SECOND_NS // 10)
    assert client.failures() == [True]
    client.call(Read(KEY))
    client.run_for(7 * SECOND_NS)
    assert client.failures() == [True, True]


def test_a_request_that_was_given_up_may_be_performed_later() -> None:
    late = 0
    for seed in range(20):
        client = Client(seed)
        client.world.network.block("c", "etcd")
        client.call(Txn((unchanged(KEY, 0),), (Put(KEY, b"late"),), (Put(KEY, b"no"),)))
        client.run_for(SECOND_NS + SECOND_NS // 2)
        assert client.failures() == [True]
        assert client.value() == b""
        client.world.network.unblock("c", "etcd")
        client.run_for(5 * SECOND_NS)
        late += client.value() == b"late"
    assert 0 < late < 20


def test_what_was_sent_to_an_etcd_that_is_lost_reaches_no_other_one() -> None:
    for seed in range(20):
        client = Client(seed)
        for held_back in (True, False):
            if held_back:
                client.world.network.block("c", "etcd")
            client.call(Txn((unchanged(KEY, 0),), (Put(KEY, b"late"),), (Put(KEY, b"no"),)))
            client.run_for(SECOND_NS if held_back else 0)
            client.world.store.wipe()
            if held_back:
                client.world.network.unblock("c", "etcd")
            client.run_for(5 * SECOND_NS)
            assert client.value() == b""
        assert client.failures() == [True, True]


def test_where_no_answers_come_back_requests_do_not_get_through_for_ever() -> None:
    client = Client()
    client.call(LeaseGrant(2))
    client.run_for(SECOND_NS // 10)
    (granted,) = client.answers()
    assert isinstance(granted, Leased)
    client.world.network.block("etcd", "c")
    for _ in range(8):
        client.call(LeaseRefresh(granted.lease))
        client.run_for(SECOND_NS)
    assert client.world.kv.lease_deadline_ns(granted.lease) == 0


def granted_lease(client: Client, ttl_s: int) -> int:
    client.call(LeaseGrant(ttl_s))
    client.run_for(SECOND_NS // 10)
    (granted,) = client.answers()
    assert isinstance(granted, Leased)
    return granted.lease


def test_a_lease_ends_in_the_time_of_the_world() -> None:
    client = Client()
    lease = granted_lease(client, 2)
    client.run_for(SECOND_NS)
    assert client.world.kv.lease_count == 1
    client.run_for(2 * SECOND_NS)
    assert client.world.kv.lease_count == 0
    client.call(LeaseRefresh(lease))
    client.run_for(SECOND_NS)
    assert client.answers()[-1] == LeaseTtl(lease, 0)


def trouble_down(client: Client) -> None:
    client.world.store.stop()
    client.run_for(3 * SECOND_NS)
    client.world.store.start()


def trouble_leader(client: Client) -> None:
    client.world.store.change_leader(SECOND_NS // 2)
    client.run_for(SECOND_NS // 2)


@pytest.mark.parametrize("trouble", [trouble_down, trouble_leader])
def test_a_new_leader_of_etcd_gives_every_lease_its_whole_ttl_again(
    trouble: Callable[[Client], None],
) -> None:
    client = Client()
    lease = granted_lease(client, 2)
    client.run_for(SECOND_NS)
    trouble(client)
    left_ns = client.world.kv.lease_deadline_ns(lease) - client.world.now_ns
    assert left_ns == 2 * SECOND_NS


def test_a_grant_whose_answer_was_lost_is_one_lease() -> None:
    client = Client()
    client.lose_answers(1.0)
    client.call(LeaseGrant(60))
    client.run_for(SECOND_NS // 2)
    client.lose_answers(0.0)
    lease = 0
    client.run_for(2 * SECOND_NS)
    for result in client.answers():
        assert isinstance(result, Leased)
        lease = result.lease
    assert lease
    assert client.world.kv.lease_count == 1


def revisions(client: Client) -> list[int]:
    return [event.batch.revision for event in client.machine.of(KvChanged)]


def watching(client: Client) -> None:
    client.process.perform([KvWatch(2, b"/resilient-ps/sim/", client.world.kv.revision + 1)])


def test_watch_events_that_lag_come_late_and_in_order() -> None:
    client = Client()
    watching(client)
    client.world.store.lags["c"] = SECOND_NS
    for number in range(5):
        client.put(b"%d" % number)
        client.run_for(SECOND_NS // 4)
    client.world.store.lags.clear()
    client.put(b"last")
    client.run_for(SECOND_NS // 4)
    assert len(revisions(client)) < 6
    client.run_for(2 * SECOND_NS)
    assert revisions(client) == sorted(revisions(client))
    assert len(revisions(client)) == 6


def test_watch_events_wait_for_the_end_of_a_partition() -> None:
    client = Client()
    watching(client)
    client.world.network.block("etcd", "c")
    client.put(b"1")
    client.run_for(3 * SECOND_NS)
    assert revisions(client) == []
    client.world.network.unblock("etcd", "c")
    client.run_for(SECOND_NS)
    assert len(revisions(client)) == 1


def test_who_was_cut_off_while_etcd_compacted_gets_everything_anew() -> None:
    client = Client()
    watching(client)
    client.world.network.block("etcd", "c")
    client.put(b"1")
    client.put(b"2")
    client.put(b"3")
    client.world.store.compact()
    client.world.network.unblock("etcd", "c")
    client.put(b"4")
    client.run_for(SECOND_NS)
    (reset,) = client.machine.of(KvReset)
    assert [item.value for item in reset.items] in ([b"3"], [b"4"])
    assert client.value() == b"4"
    assert client.machine.of(KvFailed) == []


def test_calls_are_answered_by_what_etcd_holds() -> None:
    client = Client()
    client.put(b"here")
    client.call(Read(KEY))
    client.run_for(SECOND_NS)
    (result,) = client.answers()
    assert isinstance(result, ReadResult)
    assert [item.value for item in result.items] == [b"here"]
