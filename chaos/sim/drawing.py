"""Schedules drawn from a seed: faults at random moments, and some that belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import numpy as np

from resilient_ps.chaos.sim.bucket import BUCKET
from resilient_ps.chaos.sim.recipes import HOLDER_RECIPES, draw_recipe
from resilient_ps.chaos.sim.schedule import Fault, FaultKind, Schedule, StoreFaultKind


@dataclass(frozen=True, slots=True)
class Shape:
    """What there is to strike, and how long there is time.

    `holder_recipes`: faults that are aimed at who does the tasks of a graph.

    `store_faults`: how many faults of the object store, if there is one; `disasters`: how many of
    those that no replica survives.
    """

    servers: tuple[str, ...]
    shards: int
    ranks: tuple[int, ...]
    lease_ttl_ms: int
    first_ms: int = 1_000
    last_ms: int = 21_000
    faults_least: int = 8  # at random moments
    faults_most: int = 14
    recipes: int = 2
    recipe_ms: int = 6_000  # the longest that a recipe takes
    store_faults: int = 0
    disasters: int = 0
    holder_recipes: int = 0


WEIGHTS: dict[FaultKind, int] = {
    "crash": 6,
    "crash worker": 4,
    "supersede": 2,
    "pause": 4,
    "pause mid-step": 3,
    "partition": 4,
    "one-way": 4,
    "isolate": 2,
    "refuse": 2,
    "slow": 2,
    "cut": 3,
    "long steps": 2,
    "etcd down": 1,
    "etcd leader": 2,
    "etcd loses answers": 3,
    "etcd lags": 2,
    "etcd compacts": 1,
    "stop": 2,
    "join": 1,
    "drain": 1,
}
assert set(WEIGHTS) == set(get_args(FaultKind))

STORE_WEIGHTS: dict[StoreFaultKind, int] = {
    "store down": 2,
    "store loses answers": 2,
    "store slow": 1,
    "store damage": 1,
}
DISASTER_WEIGHTS: dict[StoreFaultKind, int] = {
    "crash shard": 3,
    "crash all": 2,
    "lose etcd": 2,
    "roll back": 2,
}
assert STORE_WEIGHTS.keys() | DISASTER_WEIGHTS.keys() == set(get_args(StoreFaultKind))
CUT_OFF_SHARE = 0.4  # of a store's faults: a server is cut off from it


def draw_schedule(seed: int, shape: Shape) -> Schedule:
    """The faults of a seed, in the order of time."""
    rng = np.random.Generator(np.random.PCG64([seed, 2]))
    count = int(rng.integers(shape.faults_least, shape.faults_most + 1))
    kinds = list(WEIGHTS)
    weights = np.array([WEIGHTS[kind] for kind in kinds], float)
    drawn = rng.choice(len(kinds), count, p=weights / weights.sum())
    faults = [_draw(kinds[index], rng, shape) for index in drawn.tolist()]
    for _ in range(shape.recipes):
        begin_ms = int(rng.integers(shape.first_ms, shape.last_ms - shape.recipe_ms))
        faults += draw_recipe(rng, begin_ms, shape.shards, len(shape.ranks))
    faults += [_draw_store_fault(rng, shape) for _ in range(shape.store_faults)]
    faults += [_draw_disaster(rng, shape) for _ in range(shape.disasters)]
    for _ in range(shape.holder_recipes):
        begin_ms = int(rng.integers(shape.first_ms, shape.last_ms - shape.recipe_ms))
        faults += draw_recipe(rng, begin_ms, shape.shards, len(shape.ranks), HOLDER_RECIPES)
    return tuple(sorted(faults, key=lambda fault: fault.at_ms))


def _draw(kind: FaultKind, rng: np.random.Generator, shape: Shape) -> Fault:
    ttl_ms = shape.lease_ttl_ms

    def between(least_ms: float, most_ms: float) -> int:
        """Short ones and long ones alike often: uniform in the logarithm."""
        low, high = np.log(least_ms), np.log(most_ms)
        return int(np.exp(rng.uniform(low, high)))

    durations: dict[FaultKind, Callable[[], int]] = {
        "crash": lambda: between(5, 3 * ttl_ms),
        "crash worker": lambda: between(1, ttl_ms),
        "supersede": lambda: between(20, ttl_ms),
        "pause": lambda: between(ttl_ms / 10, 3 * ttl_ms),
        "pause mid-step": lambda: between(ttl_ms / 10, 3 * ttl_ms),
        "partition": lambda: between(50, 3 * ttl_ms),
        "one-way": lambda: between(50, 3 * ttl_ms),
        "isolate": lambda: between(50, 3 * ttl_ms),
        "refuse": lambda: between(20, ttl_ms),
        "slow": lambda: between(200, 2 * ttl_ms),
        "cut": lambda: between(20, ttl_ms),
        "long steps": lambda: between(200, ttl_ms),
        "etcd down": lambda: between(200, 2 * ttl_ms),
        "etcd leader": lambda: between(50, ttl_ms / 2),
        "etcd loses answers": lambda: between(200, 2 * ttl_ms),
        "etcd lags": lambda: between(500, 2 * ttl_ms),
        "etcd compacts": lambda: between(200, ttl_ms),
        "stop": lambda: between(100, 2 * ttl_ms),
        "join": lambda: 0,
        "drain": lambda: between(500, 5 * ttl_ms),
    }
    at_ms = int(rng.integers(shape.first_ms, shape.last_ms))
    target = _draw_target(kind, rng, shape)
    return Fault(at_ms, kind, target, durations[kind](), int(rng.integers(1 << 30)))


def _draw_store_fault(rng: np.random.Generator, shape: Shape) -> Fault:
    at_ms, how = int(rng.integers(shape.first_ms, shape.last_ms)), int(rng.integers(1 << 30))
    duration_ms = int(rng.integers(100, 3 * shape.lease_ttl_ms))
    if rng.random() < CUT_OFF_SHARE:
        server = str(rng.choice([*shape.servers, "coordinator"]))
        kind: FaultKind = "one-way" if rng.random() < 0.5 else "partition"
        ends = (server, BUCKET) if rng.random() < 0.5 else (BUCKET, server)
        return Fault(at_ms, kind, ends, duration_ms, how)
    return Fault(at_ms, _choose(rng, STORE_WEIGHTS), (), duration_ms, how)


def _draw_disaster(rng: np.random.Generator, shape: Shape) -> Fault:
    at_ms, how = int(rng.integers(shape.first_ms, shape.last_ms)), int(rng.integers(1 << 30))
    kind = _choose(rng, DISASTER_WEIGHTS)
    target = (f"shard:{int(rng.integers(shape.shards))}",) if kind == "crash shard" else ()
    return Fault(at_ms, kind, target, int(rng.integers(10, 2 * shape.lease_ttl_ms)), how)


def _choose(rng: np.random.Generator, weights: dict[StoreFaultKind, int]) -> StoreFaultKind:
    kinds, chances = list(weights), np.array(list(weights.values()), float)
    return kinds[int(rng.choice(len(kinds), p=chances / chances.sum()))]


def _draw_target(kind: FaultKind, rng: np.random.Generator, shape: Shape) -> tuple[str, ...]:
    def server() -> str:
        if rng.random() < 0.15:
            return "coordinator"
        if rng.random() < 0.4:
            return f"primary:{int(rng.integers(shape.shards))}"
        return str(rng.choice(shape.servers))

    def rank() -> str:
        return f"rank:{int(rng.choice(shape.ranks))}"

    match kind:
        case "crash worker" | "supersede":
            return (rank(),)
        case "pause" | "pause mid-step" | "isolate":
            return (rank() if rng.random() < 0.2 else server(),)
        case "partition" | "one-way" | "slow" | "refuse":
            ends = [server(), (server, lambda: "etcd", rank)[int(rng.integers(3))]()]
            return tuple(ends if rng.random() < 0.5 else reversed(ends))
        case "etcd down" | "etcd leader" | "cut" | "join":
            return ()
        case _:
            return (server(),)
