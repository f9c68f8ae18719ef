"""Which servers hold which shard."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.coordinator.placement import Placement, moved_copies, moved_primaries, place
from resilient_ps.coordinator.ring import Ring, RingMember
from resilient_ps.coordinator.shares import replica_bounds
from resilient_ps.errors import BadInput

SERVERS = [f"s{i}" for i in range(10)]
ZONES = st.sampled_from(["", "z1", "z2", "z3"])
WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 4.0])


def equal(names: list[str]) -> Ring:
    return Ring(tuple(RingMember(name) for name in names))


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    names = draw(st.lists(st.sampled_from(SERVERS), min_size=1, max_size=8, unique=True))
    return Ring(tuple(RingMember(name, draw(WEIGHTS), draw(ZONES)) for name in names))


def primaries(placement: Placement) -> Counter[str]:
    return Counter(servers[0] for servers in placement)


def copies(placement: Placement) -> Counter[str]:
    return Counter(server for servers in placement for server in servers)


def modulo_placement(names: list[str], shards: int) -> Placement:
    """What a ring is there to avoid."""
    return tuple((sorted(names)[shard % len(names)],) for shard in range(shards))


def most_moves(smaller: int, shards: int) -> int:
    """The promise: one of N servers comes or goes, 1/N of the shards move, rounded up.

    N is the number with that server. The slack of one shard is for shards not divisible by N.
    """
    return math.ceil(shards / (smaller + 1)) + 1


@given(st.integers(1, 24), st.integers(1, 16))
def test_few_shards_are_spread_evenly(servers: int, per_server: int) -> None:
    ring = equal([f"s{i}" for i in range(servers)])
    counts = primaries(place(ring, servers * per_server, 1))
    assert set(counts.values()) == {per_server}
    assert len(counts) == servers


@given(st.integers(2, 12), st.integers(1, 128), st.data())
def test_a_server_that_joins_or_leaves_moves_about_its_share(
    servers: int, shards: int, data: st.DataObject
) -> None:
    names = [f"s{i}" for i in range(servers)]
    other = data.draw(st.sampled_from(names))
    rest = [name for name in names if name != other]
    with_it = place(equal(names), shards, 1)
    without = place(equal(rest), shards, 1, current=with_it)
    again = place(equal(names), shards, 1, current=without)
    assert moved_primaries(with_it, without) <= most_moves(servers - 1, shards)
    assert moved_primaries(without, again) <= most_moves(servers - 1, shards)


def test_modulo_placement_would_break_that_promise() -> None:
    before = modulo_placement(SERVERS[:8], 32)
    after = modulo_placement(SERVERS[:7], 32)
    assert moved_primaries(before, after) > most_moves(7, 32)


@given(st.lists(st.sets(st.sampled_from(SERVERS), min_size=1), min_size=2, max_size=8))
def test_a_long_history_of_changes_moves_only_what_the_changes_ask_for(
    history: list[set[str]],
) -> None:
    """Shards of servers that left, shares of those that joined, and what exceeded a fair share."""
    shards = 40
    placement = place(equal(sorted(history[0])), shards, 1)
    for old, new in pairwise(history):
        after = place(equal(sorted(new)), shards, 1, current=placement)
        before = primaries(placement)
        orphans = sum(count for server, count in before.items() if server not in new)
        taken = len(new - old) * math.ceil(shards / len(new))
        carried = sum(max(0, before[s] - math.ceil(shards / len(old))) for s in old & new)
        assert moved_primaries(placement, after) <= orphans + taken + carried
        counts = primaries(after)
        assert max(counts.values()) <= math.ceil(1.25 * shards / len(new))
        assert min(counts[server] for server in new) >= shards // len(new)
        placement = after


@given(rings(), st.integers(1, 64), st.integers(1, 4), st.sampled_from([1.0, 1.25, 2.0]))
def test_no_server_is_primary_of_more_than_the_load_factor_allows(
    ring: Ring, shards: int, replicas: int, load_factor: float
) -> None:
    counts = primaries(place(ring, shards, replicas, load_factor=load_factor))
    total = sum(member.weight for member in ring.members)
    for member in ring.members:
        fair = member.weight / total * shards
        assert counts[member.server] <= math.ceil(load_factor * fair - 1e-6)
        assert counts[member.server] >= math.floor(fair + 1e-6)


@given(rings(), rings(), st.integers(1, 48), st.integers(1, 4))
def test_bounds_hold_from_any_earlier_placement(
    old: Ring, new: Ring, shards: int, replicas: int
) -> None:
    after = place(new, shards, replicas, current=place(old, shards, replicas))
    copies_each = min(replicas, len(new.members))
    counts, total = primaries(after), sum(member.weight for member in new.members)
    for member in new.members:
        assert counts[member.server] <= math.ceil(1.25 * member.weight / total * shards - 1e-6)
    bounds = replica_bounds(new, shards, copies_each, 1.25)
    for server, count in copies(after).items():
        assert count <= bounds[server].cap + 1  # where zones leave no other way
    for servers in after:
        assert len(set(servers)) == len(servers) == copies_each
        assert len({new.zone(s) for s in servers}) == min(copies_each, len(new.zones))


@given(st.integers(1, 10), st.integers(1, 64), st.integers(1, 4), st.sampled_from([1.0, 1.25]))
def test_copies_on_equal_servers_never_exceed_the_load_factor(
    servers: int, shards: int, replicas: int, load_factor: float
) -> None:
    placement = place(equal(SERVERS[:servers]), shards, replicas, load_factor=load_factor)
    fair = shards * min(replicas, servers) / servers
    assert max(copies(placement).values()) <= math.ceil(load_factor * fair)


@given(st.integers(3, 10), st.integers(2, 3), st.integers(1, 8))
def test_a_server_that_joins_gets_its_share_of_backups_and_little_else_moves(
    servers: int, replicas: int, per_server: int
) -> None:
    shards = servers * per_server
    before = place(equal(SERVERS[: servers - 1]), shards, replicas)
    after = place(equal(SERVERS[:servers]), shards, replicas, current=before)
    share = shards * replicas // servers
    assert copies(after)[SERVERS[servers - 1]] == share
    assert moved_copies(before, after) <= share + replicas


def test_a_server_alone_in_its_zone_holds_a_copy_of_everything() -> None:
    ring = Ring((RingMember("a", 1.0, "x"), *(RingMember(f"b{i}", 1.0, "y") for i in range(3))))
    placement = place(ring, 16, 2)
    assert copies(placement)["a"] == 16
    assert primaries(placement)["a"] == 4


@given(rings(), st.integers(1, 48), st.integers(1, 4))
def test_placing_again_moves_nothing(ring: Ring, shards: int, replicas: int) -> None:
    once = place(ring, shards, replicas)
    assert place(ring, shards, replicas, current=once) == once


def test_the_orphans_of_a_server_go_to_backups_that_hold_them_already() -> None:
    before = place(equal(SERVERS[:4]), 16, 2)
    after = place(equal(SERVERS[:3]), 16, 2, current=before)
    promoted = [
        new[0] in old for old, new in zip(before, after, strict=True) if old[0] == SERVERS[3]
    ]
    assert sum(promoted) >= len(promoted) - 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"shards": 0, "replicas": 1}, "shards=0"),
        ({"shards": 1025, "replicas": 1}, "shards=1025"),
        ({"shards": 4, "replicas": 0}, "replicas=0"),
        ({"shards": 4, "replicas": 17}, "replicas=17"),
        ({"shards": 4, "replicas": 1, "load_factor": 0.9}, "load_factor=0.9"),
        ({"shards": 4, "replicas": 1, "load_factor": math.nan}, "load_factor=nan"),
        ({"shards": 4, "replicas": 1, "current": (("s0",),)}, "has 1 shards, not 4"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        place(equal(["s0"]), **arguments)  # type: ignore[arg-type]
