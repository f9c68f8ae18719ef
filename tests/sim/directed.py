"""Schedules that strike where one rule of the protocol is needed: seeded, but not at random.

Workers of the mixed workload push in bursts, at known moments (`Pace`), so that a fault can be
aimed at writes under way. Each pattern is repeated with another shard and other moments; a cluster
that keeps all rules survives all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from resilient_ps.chaos.sim.schedule import Fault, Schedule
from resilient_ps.chaos.workloads.pace import Pace

MS_NS = 1_000_000
SERVERS = ("s1", "s2", "s3")
SHARDS = 4
RANKS = 3
CLOCKS = (3, 6)  # in which a pattern strikes: all pushes and the tick are one burst
OTHER_CLOCKS = (2, 5)  # pushes come one after the other
LONG_MS = 3_500  # until well after the lease of a dead primary has ended

Pattern = Callable[[np.random.Generator, int, int], list[Fault]]
"""From chance, the moment of a burst (ms), and the rank whose burst it is, to faults."""


def directed(pattern: Pattern, seed: int, clocks: tuple[int, ...] = CLOCKS) -> Schedule:
    """The schedule of a seed."""
    rng = np.random.Generator(np.random.PCG64([seed, 4]))
    faults: list[Fault] = []
    for clock in clocks:
        rank = int(rng.integers(RANKS))
        burst_ms = Pace().due_ns(rank, clock, 0.4) // MS_NS
        faults += pattern(rng, burst_ms, rank)
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def _primary(rng: np.random.Generator) -> str:
    return f"primary:{int(rng.integers(SHARDS))}"


def _from_all(kind: str, primary: str, at_ms: int, duration_ms: int) -> list[Fault]:
    return [Fault(at_ms, kind, (primary, server), duration_ms) for server in SERVERS]


def die_before_backups_hold(rng: np.random.Generator, burst_ms: int, rank: int) -> list[Fault]:
    """A primary loses its backups, gets pushes, and dies."""
    primary = _primary(rng)
    dies_ms = burst_ms + int(rng.integers(40, 250))
    return [
        *_from_all("partition", primary, burst_ms - 5, LONG_MS),
        Fault(dies_ms, "crash", (primary,), LONG_MS),
    ]


def ask_again_before_backups_hold(
    rng: np.random.Generator, burst_ms: int, rank: int
) -> list[Fault]:
    """As before, and connections break again and again, so that pushes are sent again."""
    primary = _primary(rng)
    dies_ms = burst_ms + int(rng.integers(200, 500))
    return [
        *_from_all("partition", primary, burst_ms - 5, LONG_MS),
        *[
            Fault(at_ms, "refuse", (f"rank:{rank}", primary), 1)
            for at_ms in range(burst_ms + 30, dies_ms - 60, 60)
        ],
        Fault(dies_ms, "crash", (primary,), LONG_MS),
    ]


def vanish_when_one_of_two_backups_holds(
    rng: np.random.Generator, burst_ms: int, rank: int
) -> list[Fault]:
    """Of three replicas: the primary reaches one backup only, and then nobody any more.

    Both backups stand for election when its lease has ended.
    """
    primary, server = _primary(rng), str(rng.choice(SERVERS))
    return [
        Fault(burst_ms - 5, "one-way", (primary, server), LONG_MS),
        Fault(burst_ms + int(rng.integers(2, 60)), "isolate", (primary,), LONG_MS),
    ]


def hold_entries_back(rng: np.random.Generator, burst_ms: int, rank: int) -> list[Fault]:
    """What a primary sends to its backups arrives when another one has been elected."""
    primary = _primary(rng)
    ends_ms = int(rng.integers(2_300, 4_000))
    return [
        *_from_all("one-way", primary, burst_ms - 5, ends_ms),
        Fault(burst_ms - 5, "partition", (primary, "etcd"), ends_ms + 50),
    ]


def depose_a_sleeping_primary(rng: np.random.Generator, burst_ms: int, rank: int) -> list[Fault]:
    """A primary stands still, seems to be dead, and is replaced; it wakes up within its lease.

    What workers ask it meanwhile waits, and is read before it hears that it was replaced.
    """
    primary = _primary(rng)
    at_ms = burst_ms - int(rng.integers(20, 60))
    broken = [pair for server in SERVERS for pair in ((server, primary), (primary, server))]
    return [
        Fault(at_ms, "pause", (primary,), 1_200),
        Fault(at_ms, "etcd lags", (primary,), 1_500, how=2_400),
        *[Fault(at_ms, "refuse", pair, 1_500) for pair in broken],
        *[
            Fault(at_ms + 10, "refuse", (f"rank:{each}", server), 1)
            for each in range(RANKS)
            for server in SERVERS
        ],
    ]


def grow_and_die(rng: np.random.Generator, burst_ms: int, rank: int) -> list[Fault]:
    """A learner is counted in, the primary hears late of it, gets pushes, and dies.

    The learner is a server that was killed: it is back when its first lease has ended.
    """
    primary, server = _primary(rng), str(rng.choice(SERVERS))
    killed_ms = burst_ms - int(rng.integers(2_400, 3_400))
    return [
        Fault(killed_ms, "crash", (server,), 300),
        Fault(killed_ms, "etcd lags", (primary,), 4_000, how=550),
        Fault(burst_ms - 1_000, "etcd loses answers", (primary,), 1_300, how=80),
        Fault(burst_ms - 5, "one-way", (primary, server), LONG_MS),
        Fault(burst_ms + int(rng.integers(20, 150)), "crash", (primary,), LONG_MS),
    ]


def tick_without_a_shard(rng: np.random.Generator, burst_ms: int, rank: int) -> list[Fault]:
    """A worker is cut off from a primary while it pushes and ticks, and dies."""
    worker = f"rank:{rank}"
    return [
        Fault(burst_ms - 5, "refuse", (worker, _primary(rng)), 1_500),
        Fault(burst_ms + int(rng.integers(50, 800)), "crash worker", (worker,), 20),
    ]
