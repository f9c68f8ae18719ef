"""Schedules on real processes: what a seed draws."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from resilient_ps.chaos.faults.drawing import (
    ACTIVE_MOST,
    Shape,
    draw_schedule,
    permanent_faults,
    possible,
)
from resilient_ps.chaos.faults.kinds import KINDS, choose
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.errors import BadInput

SERVERS, WORKERS, ETCD = ("s1", "s2", "s3", "s4"), ("w0", "w1", "w2", "w3"), ("e0", "e1", "e2")
SHAPE = Shape(tuple(KINDS.values()), SERVERS, WORKERS, ETCD, 8, 2.0, 60.0)
SEEDS = range(1, 21)
PRINTED = (
    "from resilient_ps.chaos.faults.drawing import *\n"
    "from resilient_ps.chaos.faults.kinds import KINDS\n"
    "shape = Shape(tuple(KINDS.values()), ('s1', 's2', 's3'), ('w0',), ('e0',), 6, 2.0, 60.0)\n"
    "print(draw_schedule(7, shape))\n"
)


def _shape(names: tuple[str, ...] = (), duration_s: float = 60.0) -> Shape:
    return Shape(choose(names), SERVERS, WORKERS, ETCD, 8, 2.0, duration_s)


def test_twenty_seeds_have_every_kind_several_times() -> None:
    drawn = Counter(fault.kind for seed in SEEDS for fault in draw_schedule(seed, SHAPE))
    assert set(drawn) == set(KINDS)
    assert min(drawn.values()) >= 3


@pytest.mark.parametrize("group", ["kill", "partition", "store", "etcd"])
def test_a_few_seeds_have_every_kind_of_a_group(group: str) -> None:
    shape = _shape((group,))
    drawn = {fault.kind for seed in range(4) for fault in draw_schedule(seed, shape)}
    assert drawn == {kind.name for kind in shape.kinds}


def test_a_fault_comes_every_two_or_three_seconds_and_two_or_three_overlap() -> None:
    overlap: list[int] = []
    for seed in SEEDS:
        faults = draw_schedule(seed, SHAPE)
        assert 20 <= len(faults) <= 30
        moments = [second / 2 for second in range(120)]
        overlap += [sum(f.at_s <= at < f.at_s + f.lasts_s for f in faults) for at in moments]
    assert max(overlap) <= ACTIVE_MOST + 1
    assert sum(count >= 2 for count in overlap) > len(overlap) / 4


@pytest.mark.parametrize("duration_s", [3.0, 5.0, 10.0, 15.0, 60.0, 300.0])
def test_all_faults_are_healed_before_the_end(duration_s: float) -> None:
    for seed in SEEDS:
        faults = draw_schedule(seed, _shape((), duration_s))
        assert faults
        assert [fault.number for fault in faults] == list(range(len(faults)))
        assert [f.at_s for f in faults] == sorted(f.at_s for f in faults)
        assert all(f.at_s > 0 and f.at_s + f.lasts_s < duration_s for f in faults)


def test_targets_are_who_the_kind_strikes() -> None:
    for seed in SEEDS:
        for fault in draw_schedule(seed, SHAPE):
            _check_target(fault)


def _check_target(fault: Planned) -> None:
    kind = KINDS[fault.kind]
    if kind.name in ("partition", "one-way"):
        first, second = fault.target
        assert first != second
        assert {first, second} <= set(SERVERS)
    elif kind.name == "worker-server":
        assert fault.target[0] in WORKERS
        assert fault.target[1] in SERVERS
    elif kind.targets == ("all",):
        assert fault.target == ()
    else:
        (target,) = fault.target
        by_role = {"server": SERVERS, "worker": WORKERS, "etcd": ETCD}
        if kind.targets[0] in by_role:
            assert target in by_role[kind.targets[0]]
        else:
            assert target.partition(":")[0] == kind.targets[0]


def test_the_same_seed_gives_the_same_schedule_and_another_one_another() -> None:
    assert draw_schedule(3, SHAPE) == draw_schedule(3, SHAPE)
    assert draw_schedule(3, SHAPE) != draw_schedule(4, SHAPE)


def test_a_schedule_does_not_depend_on_the_hash_seed() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", PRINTED],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_only_what_is_there_can_be_struck() -> None:
    kinds = tuple(KINDS.values())
    assert {kind.group for kind in possible(kinds, (), 4)} >= {"kill", "pause", "stop"}
    assert not any(kind.needs for kind in possible(kinds, (), 4))
    everything = [need for kind in kinds for need in kind.needs]
    assert possible(kinds, everything, 4) == kinds
    alone = {kind.name for kind in possible(kinds, everything, 1)}
    assert not alone & {"partition", "one-way"}


def test_a_duration_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="use 3 s to"):
        draw_schedule(1, _shape((), 1.0))


def test_without_a_possible_kind_there_is_no_fault() -> None:
    assert draw_schedule(1, Shape((), SERVERS, WORKERS, ETCD, 8, 2.0, 60.0)) == ()


def test_permanent_faults_leave_a_majority_well() -> None:
    for seed in SEEDS:
        faults = permanent_faults(seed, SHAPE, 60.0)
        dead = [f.target[0] for f in faults if f.kind == "kill-server"]
        deaf = {f.target[0] for f in faults if f.kind == "one-way"}
        assert len(dead) == len(deaf) == 1
        assert deaf.isdisjoint(dead)
        heard = {f.target[1] for f in faults if f.kind == "one-way"}
        assert heard == set(SERVERS) - deaf
        assert [f.target[0] in ETCD for f in faults if f.kind == "kill-etcd"] == [True]
        assert all(f.at_s + f.lasts_s == 60.0 for f in faults)


def test_permanent_faults_need_three_servers() -> None:
    shape = Shape((), ("s1", "s2"), WORKERS, ETCD, 8, 2.0, 60.0)
    with pytest.raises(BadInput, match="--liveness"):
        permanent_faults(1, shape, 60.0)
