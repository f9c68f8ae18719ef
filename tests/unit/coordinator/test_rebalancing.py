"""Who is on the ring, and which step each shard takes next."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilient_ps.coordinator.rebalancing import (
    first_records,
    next_desired,
    next_ring,
    step_towards,
)
from resilient_ps.coordinator.records import (
    ClusterConfig,
    Member,
    RingRecord,
    ServerRecord,
    ShardRecord,
)
from resilient_ps.coordinator.ring import RingMember
from resilient_ps.coordinator.standing import standing_of
from resilient_ps.ids import Epoch

STEPS_MAX = 400


def server(name: str, weight: float = 1.0, zone: str = "") -> ServerRecord:
    process = 100 + int(name[1:])
    return ServerRecord(name, process, "127.0.0.1", 7000, "", zone, weight, 5, "0.1", 1, "host")


def ring(*names: str, version: int = 1) -> RingRecord:
    return RingRecord(version, tuple(RingMember(name) for name in sorted(names)))


@dataclass
class Cluster:
    """Servers, and replicas that do what their primaries would: copy, hand over, let go."""

    shards: int
    replicas: int
    processes: dict[str, int] = field(default_factory=dict)
    ring: RingRecord = field(default_factory=lambda: RingRecord(1, (RingMember("?"),)))
    records: dict[int, ShardRecord] = field(default_factory=dict)
    copied: int = 0
    started: int = 0

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig("0123456789abcdef", 1, self.shards, 1, self.replicas, 1, 64, "s1")

    def start(self, *names: str) -> None:
        for name in names:
            self.started += 1
            self.processes[name] = 1000 * self.started + int(name[1:])

    def turn(self, *drains: str, gone: tuple[str, ...] = ()) -> None:
        """The ring follows."""
        known = {m.server: m for m in self.ring.members if m.server != "?"}
        old = RingRecord(self.ring.version, tuple(known.values())) if known else None
        self.ring = next_ring(old, [server(n) for n in self.processes], drains, gone) or self.ring

    def place(self) -> None:
        new = first_records(self.config, self.ring, self.all, self.processes, "n")
        self.records.update({record.shard: record for record in new})
        for record in new:
            self.lead(record, record.in_sync[0])

    @property
    def all(self) -> list[ShardRecord]:
        return [record for _, record in sorted(self.records.items())]

    def lead(self, record: ShardRecord, member: Member) -> None:
        epoch = Epoch(1, record.epoch.counter + 1)
        self.records[record.shard] = replace(
            record, epoch=epoch, primary=member.server, primary_process=member.process
        )

    def kill(self, name: str) -> None:
        """Its lease ends; where another member lives, that one leads."""
        process = self.processes.pop(name)
        for record in self.all:
            rest = tuple(m for m in record.in_sync if m.process != process)
            if rest and rest != record.in_sync:
                record = replace(record, in_sync=rest)
                leader = rest[0] if record.primary == name else record.leader
                self.lead(record, leader)

    def plan(self) -> bool:
        """The coordinator's step; False when nothing is to be changed."""
        changed = next_desired(self.config, self.ring, self.all, self.processes)
        self.records.update({record.shard: record for record in changed})
        return bool(changed)

    def copy_one(self) -> bool:
        """One learner becomes in sync, and what can be let go or handed over is."""
        copies = min(self.replicas, len(self.ring.members))
        for record in self.all:
            standing = standing_of(record, self.processes, copies)
            if standing.living and standing.learning:
                name = standing.learning[0]
                members = (*record.in_sync, Member(name, self.processes[name]))
                self.records[record.shard] = replace(record, in_sync=members)
                self.copied += 1
                self.shrink(record.shard)
                return True
        return False

    def shrink(self, shard: int) -> None:
        record = self.records[shard]
        held = {member.server: member for member in record.in_sync}
        if not all(name in held for name in record.desired if name in self.processes):
            return
        first = held.get(record.desired[0])
        if first is not None and first != record.leader:
            self.lead(record, first)
            record = self.records[shard]
        kept = tuple(m for m in record.in_sync if m.server in record.desired)
        self.records[shard] = replace(record, in_sync=kept)

    def settle(self) -> None:
        for _ in range(STEPS_MAX):
            planned = self.plan()
            for shard in self.records:
                self.shrink(shard)
            if not planned and not self.copy_one():
                return
        raise AssertionError("the shards never come to rest")

    def copies(self) -> Counter[str]:
        return Counter(member.server for record in self.all for member in record.in_sync)

    def primaries(self) -> Counter[str]:
        return Counter(record.primary for record in self.all)


def cluster(servers: int, shards: int, replicas: int) -> Cluster:
    made = Cluster(shards, replicas)
    made.start(*[f"s{i}" for i in range(servers)])
    made.turn()
    made.place()
    return made


# -- the ring


def test_registered_servers_are_on_the_ring_with_their_weights_and_zones() -> None:
    found = next_ring(None, [server("s2"), server("s1", 2.0, "z")], (), ())
    assert found == RingRecord(1, (RingMember("s1", 2.0, "z"), RingMember("s2")))
    assert next_ring(found, [server("s2"), server("s1", 2.0, "z")], (), ()) is None
    again = next_ring(found, [server("s2"), server("s1", 1.0, "z")], (), ())
    assert again == RingRecord(2, (RingMember("s1", 1.0, "z"), RingMember("s2")))


def test_a_server_that_died_stays_on_the_ring_until_it_has_been_gone_for_long() -> None:
    assert next_ring(ring("s1", "s2"), [server("s1")], (), ()) is None
    assert next_ring(ring("s1", "s2"), [server("s1")], (), ["s2"]) == ring("s1", version=2)


def test_a_drained_server_is_not_on_the_ring_though_it_lives() -> None:
    both = [server("s1"), server("s2")]
    assert next_ring(ring("s1", "s2"), both, ["s2"], ()) == ring("s1", version=2)
    assert next_ring(ring("s1", version=2), both, ["s2"], ()) is None
    assert next_ring(ring("s1", version=2), both, (), ()) == ring("s1", "s2", version=3)


def test_the_ring_never_becomes_empty() -> None:
    assert next_ring(ring("s1"), [server("s1")], ["s1"], ()) is None
    assert next_ring(ring("s1"), [], (), ["s1"]) is None
    assert next_ring(None, [], (), ()) is None


# -- first records


@pytest.mark.parametrize(("replicas", "copies"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_first_records_name_living_processes_and_no_primary(replicas: int, copies: int) -> None:
    processes = {"s1": 11, "s2": 12, "s3": 13}
    config = Cluster(6, replicas).config
    records = first_records(config, ring("s1", "s2", "s3", "s4"), [], processes, "nonce")
    assert [record.shard for record in records] == list(range(6))
    for record in records:
        assert (record.epoch, record.primary, record.primary_process) == (Epoch(1, 0), "", 0)
        assert len(record.desired) == copies
        assert record.in_sync == tuple(Member(name, processes[name]) for name in record.desired)
    assert max(Counter(r.desired[0] for r in records).values()) == 2


def test_a_shard_whose_first_members_died_before_any_led_it_begins_anew() -> None:
    config = Cluster(1, 1).config
    (first,) = first_records(config, ring("s1", "s2"), [], {"s1": 11}, "one")
    assert first.in_sync == (Member("s1", 11),)
    (second,) = first_records(config, ring("s1", "s2"), [first], {"s2": 12}, "two")
    assert second.in_sync == (Member("s2", 12),)
    led = replace(first, epoch=Epoch(1, 1), primary="s1", primary_process=11)
    assert first_records(config, ring("s1", "s2"), [led], {"s2": 12}, "two") == []


def test_without_a_living_server_of_the_ring_nothing_is_placed() -> None:
    assert first_records(Cluster(1, 1).config, ring("s1"), [], {"s9": 9}, "n") == []


# -- steps


@pytest.mark.parametrize(
    ("desired", "target", "room", "expected"),
    [
        ("ab", "ab", "", "ab"),
        ("ab", "ba", "", "ba"),
        ("ab", "a", "", "a"),
        ("ab", "ac", "c", "ac"),
        ("ab", "ac", "", "ab"),
        ("ab", "ca", "c", "ca"),
        ("ab", "ca", "", "ab"),
        ("ab", "cd", "cd", "cd"),
        ("ab", "cd", "c", "ca"),
        ("ab", "cd", "d", "ad"),
        ("a", "abc", "b", "ab"),
        ("", "ab", "b", "b"),
    ],
)
def test_a_step_goes_as_far_as_there_is_room(
    desired: str, target: str, room: str, expected: str
) -> None:
    assert step_towards(tuple(desired), tuple(target), set(room), set("abcd")) == tuple(expected)


def test_of_those_that_have_to_go_the_living_stay_longer() -> None:
    assert step_towards(tuple("ab"), tuple("cd"), {"c"}, {"b"}) == tuple("cb")


# -- moves


@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 32))
@settings(deadline=None)
def test_a_server_that_joins_gets_about_its_share_and_no_more_moves(
    servers: int, replicas: int, shards: int
) -> None:
    made = cluster(servers, shards, replicas)
    made.start(f"s{servers}")
    made.turn()
    made.settle()
    copies = min(replicas, servers + 1)
    grown = shards if replicas > servers else 0  # copies that could not be before
    assert made.copied <= math.ceil(shards * copies / (servers + 1)) + replicas + grown
    assert made.copies()[f"s{servers}"] >= shards * copies // (servers + 1)
    check_rest(made)


@given(st.integers(2, 8), st.integers(1, 3), st.integers(1, 32), st.data())
@settings(deadline=None)
def test_a_server_that_is_drained_gives_away_its_share_and_no_more_moves(
    servers: int, replicas: int, shards: int, data: st.DataObject
) -> None:
    made = cluster(servers, shards, replicas)
    name = f"s{data.draw(st.integers(0, servers - 1))}"
    held = made.copies()[name]
    made.turn(name)
    made.settle()
    assert made.copied <= held + replicas
    assert made.copies()[name] == made.primaries()[name] == 0
    check_rest(made)


@given(st.integers(3, 8), st.integers(2, 3), st.integers(1, 32), st.data())
@settings(deadline=None)
def test_after_the_grace_time_a_dead_servers_copies_are_made_elsewhere(
    servers: int, replicas: int, shards: int, data: st.DataObject
) -> None:
    made = cluster(servers, shards, replicas)
    name = f"s{data.draw(st.integers(0, servers - 1))}"
    held = made.copies()[name]
    made.kill(name)
    made.turn()
    made.settle()
    assert made.copied == 0  # it may come back
    made.turn(gone=(name,))
    made.settle()
    assert made.copied <= held + replicas
    check_rest(made)


@given(st.integers(2, 6), st.integers(2, 3), st.integers(1, 24), st.data())
@settings(deadline=None)
def test_a_server_that_comes_back_in_time_gets_its_own_shards_again(
    servers: int, replicas: int, shards: int, data: st.DataObject
) -> None:
    made = cluster(servers, shards, replicas)
    before = {record.shard: record.desired for record in made.all}
    name = f"s{data.draw(st.integers(0, servers - 1))}"
    held = made.copies()[name]
    made.kill(name)
    made.turn()
    made.start(name)
    made.turn()
    made.settle()
    assert made.copied == held
    assert {record.shard: record.desired for record in made.all} == before
    check_rest(made)


@given(st.lists(st.sampled_from(["join", "drain", "die"]), max_size=6), st.integers(1, 3))
@settings(deadline=None)
def test_a_history_of_changes_comes_to_rest(history: list[str], replicas: int) -> None:
    made = cluster(3, 12, replicas)
    drains: list[str] = []
    for number, what in enumerate(history):
        names = sorted(set(made.processes) - set(drains))
        if what == "join":
            made.start(f"s{10 + number}")
        elif len(names) > replicas + 1:
            if what == "drain":
                drains.append(names[0])
            elif replicas > 1:
                made.kill(names[-1])
                made.turn(*drains, gone=(names[-1],))
        made.turn(*drains)
        made.settle()
        check_rest(made)


def check_rest(made: Cluster) -> None:
    """All copies are there, on the ring, and spread evenly."""
    names = [member.server for member in made.ring.members]
    copies = min(made.replicas, len(names))
    for record in made.all:
        assert [m.server for m in record.in_sync if m.server == record.desired[0]]
        assert {member.server for member in record.in_sync} == set(record.desired)
        assert set(record.desired) <= set(names)
        assert len(record.desired) == copies
        assert record.primary == record.desired[0]
    fair = made.shards / len(names)
    assert max(made.primaries().values()) <= math.ceil(1.25 * fair)
    assert all(made.primaries()[name] >= math.floor(fair) for name in names)


def test_a_server_has_one_copy_under_way_at_a_time() -> None:
    made = cluster(3, 24, 2)
    made.start("s3", "s4")
    made.turn()
    for _ in range(STEPS_MAX):
        planned = made.plan()
        under_way = Counter(
            name for r in made.all for name in standing_of(r, made.processes, 2).learning
        )
        assert max(under_way.values(), default=0) <= 1
        if not made.copy_one() and not planned:
            break
    made.settle()
    check_rest(made)


def test_shards_with_too_few_copies_come_before_moves_for_balance() -> None:
    made = cluster(3, 12, 2)
    made.kill("s2")
    made.start("s3")
    made.turn(gone=("s2",))
    poor = {r.shard for r in made.all if len(r.in_sync) == 1}
    healed = 0
    while poor:
        made.plan()
        coming = [r.shard for r in made.all if standing_of(r, made.processes, 2).learning]
        assert coming
        assert set(coming) <= poor
        made.copy_one()
        poor = {r.shard for r in made.all if len(r.in_sync) == 1}
        healed += 1
    assert healed == 8


def test_a_restarted_server_gets_nothing_new_until_it_has_its_own_again() -> None:
    made = cluster(3, 12, 2)
    own = {r.shard for r in made.all if "s2" in r.desired}
    made.kill("s2")
    made.turn()
    made.start("s2", "s3")
    made.turn()
    made.plan()
    while any("s2" in standing_of(r, made.processes, 2).learning for r in made.all):
        made.plan()
        assert {r.shard for r in made.all if "s2" in r.desired} <= own
        made.copy_one()


def test_a_dead_wished_primary_keeps_its_place_in_the_order() -> None:
    made = cluster(3, 12, 2)
    before = {record.shard: record.desired for record in made.all}
    made.kill("s1")
    made.turn()
    assert not made.plan()
    assert {record.shard: record.desired for record in made.all} == before


def test_a_lost_shard_is_left_alone() -> None:
    made = cluster(3, 12, 1)
    made.kill("s2")
    before = {r.shard: r for r in made.all if r.primary == "s2"}
    assert len(before) == 4
    made.turn(gone=("s2",))
    made.settle()
    assert {r.shard: r for r in made.all if r.primary == "s2"} == before
    made.start("s2")  # it is empty, so this does not help, nor does it hold up anything
    made.turn()
    made.start("s3")
    made.turn()
    made.settle()
    assert {r.shard: r for r in made.all if r.shard in before} == before
    assert made.copies()["s3"] >= 1


def test_what_the_primary_wrote_stays_as_it_is() -> None:
    made = cluster(2, 4, 2)
    made.start("s2")
    made.turn()
    before = {record.shard: record for record in made.all}
    changed = next_desired(made.config, made.ring, made.all, made.processes)
    assert changed
    for record in changed:
        old = before[record.shard]
        assert replace(record, desired=old.desired, ring_version=old.ring_version) == old
        assert record.ring_version == 2
