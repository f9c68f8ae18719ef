"""The consistent-hash ring."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.coordinator.ring import Ring, RingMember, stable_hash
from resilient_ps.errors import BadInput

NAMES = st.lists(st.sampled_from([f"s{i}" for i in range(12)]), min_size=1, unique=True)


def ring_of(names: list[str], zones: int = 0) -> Ring:
    """A ring of equal servers; with `zones`, spread over so many zones."""
    return Ring(
        tuple(
            RingMember(name, 1.0, f"z{i % zones}" if zones else "") for i, name in enumerate(names)
        )
    )


def test_the_hash_is_pinned_because_placements_outlive_versions() -> None:
    assert stable_hash("shard/0") == 7944619428585333620


def test_owners_are_the_same_in_a_process_with_another_hash_seed() -> None:
    program = (
        "from resilient_ps.coordinator.ring import *\n"
        "ring = Ring(tuple(RingMember(f's{i}', 1.0, f'z{i % 3}') for i in range(7)))\n"
        "print([ring.owners(s, 3) for s in range(50)], ring.zones)"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


@given(NAMES, st.randoms(use_true_random=False), st.integers(0, 1023))
def test_the_order_in_which_members_are_given_does_not_matter(
    names: list[str], random: object, shard: int
) -> None:
    shuffled = names[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert tuple(ring_of(names).walk(shard)) == tuple(ring_of(shuffled).walk(shard))


@given(NAMES, st.integers(0, 1023))
def test_a_walk_visits_every_server_once(names: list[str], shard: int) -> None:
    assert sorted(ring_of(names).walk(shard)) == sorted(names)


@given(NAMES, st.integers(0, 1023))
def test_a_server_that_leaves_does_not_change_the_order_of_the_others(
    names: list[str], shard: int
) -> None:
    gone, *left = sorted(names)
    if left:
        before = [name for name in ring_of(names).walk(shard) if name != gone]
        assert before == list(ring_of(left).walk(shard))


@given(NAMES, st.integers(1, 4), st.integers(1, 5), st.integers(0, 1023))
def test_owners_are_distinct_and_use_as_many_zones_as_there_are(
    names: list[str], zones: int, replicas: int, shard: int
) -> None:
    ring = ring_of(names, zones)
    owners = ring.owners(shard, replicas)
    assert len(owners) == len(set(owners)) == min(replicas, len(names))
    assert len({ring.zone(o) for o in owners}) == min(replicas, len(ring.zones))
    assert owners[0] == next(ring.walk(shard))


def test_owners_follow_the_weights() -> None:
    ring = Ring((RingMember("small", 1.0), RingMember("big", 3.0)), vnodes=1024)
    share = Counter(ring.owners(shard, 1)[0] for shard in range(4000))["big"] / 4000
    assert 0.70 < share < 0.80


@pytest.mark.parametrize(
    ("members", "vnodes", "says"),
    [
        ((), 64, "1 to 1024"),
        ((RingMember("a"), RingMember("a")), 64, "'a' is on the ring twice"),
        ((RingMember(""),), 64, "without a name"),
        ((RingMember("a", 0.0),), 64, "'a' has weight 0.0"),
        ((RingMember("a", float("nan")),), 64, "weight nan"),
        ((RingMember("a", float("inf")),), 64, "weight inf"),
        ((RingMember("a"),), 0, "vnodes=0"),
        ((RingMember("a"),), 1025, "vnodes=1025"),
        (tuple(RingMember(f"s{i}") for i in range(1025)), 1, "1025 servers"),
        (tuple(RingMember(f"s{i}", 1000.0) for i in range(20)), 64, "at most 1048576"),
    ],
)
def test_a_ring_that_cannot_be_is_refused(
    members: tuple[RingMember, ...], vnodes: int, says: str
) -> None:
    with pytest.raises(BadInput, match=says):
        Ring(members, vnodes)


def test_no_replicas_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 1"):
        ring_of(["a"]).owners(0, 0)
