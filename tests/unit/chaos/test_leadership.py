"""Who led which shard when, as a watch on etcd tells it."""

from __future__ import annotations

from dataclasses import dataclass, field

from resilient_ps.chaos.faults.leadership import Leadership
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Event, KeyValue, ReadResult, Reset, WatchBatch
from resilient_ps.coordinator.records import ClusterConfig, IntentRecord, Member, ShardRecord
from resilient_ps.ids import Epoch

KEYS = ClusterKeys("c")
A, B = Member("a", 1), Member("b", 2)


@dataclass
class Etcd:
    """A cluster's records, each change a revision."""

    leadership: Leadership = field(default_factory=lambda: Leadership(KEYS))
    revision: int = 1

    def begin(self) -> Leadership:
        self.leadership.begin(ReadResult((), self.revision), 0.0)
        return self.leadership

    def put(self, at_s: float, *items: tuple[bytes, bytes]) -> None:
        self.revision += 1
        events = tuple(Event("put", self._item(key, value)) for key, value in items)
        self.leadership.take(WatchBatch(self.revision, events), at_s)

    def delete(self, at_s: float, key: bytes) -> None:
        self.revision += 1
        event = Event("delete", self._item(key, b""))
        self.leadership.take(WatchBatch(self.revision, (event,)), at_s)

    def _item(self, key: bytes, value: bytes) -> KeyValue:
        return KeyValue(key, value, self.revision, self.revision, 1, 0)

    def led_by(
        self, at_s: float, primary: Member, counter: int, in_sync: tuple[Member, ...]
    ) -> None:
        """An election or a hand-over."""
        record = _record(primary, counter, in_sync)
        self.put(at_s, (KEYS.shard(0), record.to_bytes()), (KEYS.leader(0), b"{}"))


def _record(primary: Member, counter: int, in_sync: tuple[Member, ...]) -> ShardRecord:
    place = Epoch(1, counter), primary.server, primary.process
    return ShardRecord(0, *place, in_sync, ("a", "b"), 1, f"n{counter}")


def _reigns(held: Leadership, until_s: float) -> list[tuple[str, str, float, float]]:
    return [(r.server, r.epoch, r.from_s, r.to_s) for r in held.all_reigns(until_s)]


def test_a_reign_ends_with_the_leader_key_and_the_next_begins_with_an_election() -> None:
    etcd = Etcd()
    held = etcd.begin()
    etcd.led_by(1.0, A, 1, (A, B))
    etcd.delete(5.0, KEYS.leader(0))
    etcd.led_by(7.5, B, 2, (B,))
    assert _reigns(held, 9.0) == [
        ("a", "1.1", 1.0, 5.0),
        ("", "1.1", 5.0, 7.5),
        ("b", "1.2", 7.5, 9.0),
    ]
    assert held.failovers == [(7.5, 0, "a", "b")]


def test_a_hand_over_is_no_failover() -> None:
    etcd = Etcd()
    held = etcd.begin()
    etcd.led_by(1.0, A, 1, (A, B))
    etcd.led_by(2.0, B, 2, (A, B))
    assert held.failovers == []
    assert [reign[0] for reign in _reigns(held, 3.0)] == ["a", "b"]


def test_a_change_of_the_in_sync_set_keeps_the_reign_and_is_recorded() -> None:
    etcd = Etcd()
    held = etcd.begin()
    etcd.led_by(1.0, A, 1, (A, B))
    etcd.put(2.0, (KEYS.shard(0), _record(A, 1, (A,)).to_bytes()))
    assert _reigns(held, 3.0) == [("a", "1.1", 1.0, 3.0)]
    assert [record.in_sync for record in held.records] == [(A, B), (A,)]


def test_what_was_missed_is_taken_in_and_counted() -> None:
    etcd = Etcd()
    held = etcd.begin()
    etcd.led_by(1.0, A, 1, (A, B))
    items = [(KEYS.shard(0), _record(B, 3, (B,)).to_bytes()), (KEYS.leader(0), b"{}")]
    found = tuple(KeyValue(key, value, 9, 9, 1, 0) for key, value in items)
    held.take(Reset(found, 9), 4.0)
    assert held.resets == 1
    assert [reign[:2] for reign in _reigns(held, 5.0)] == [("a", "1.1"), ("b", "1.3")]


def test_incarnations_and_the_clock_of_an_open_cut_are_known() -> None:
    etcd = Etcd()
    held = etcd.begin()
    for incarnation in (1, 1, 2):
        config = ClusterConfig("0" * 16, incarnation, 4, 2, 2, 1, 64, "test")
        etcd.put(1.0, (KEYS.config, config.to_bytes()))
    assert held.incarnations == [1, 2]
    assert held.due_clock("probe") == 0
    for number, details in enumerate(({}, {"clocks": {"probe": 7}}, {"clocks": {"other": 9}})):
        intent = IntentRecord(number + 1, "cut", "", 0, 0, "open", details=details)
        etcd.put(2.0, (KEYS.intent(number + 1), intent.to_bytes()))
    assert held.due_clock("probe") == 7
