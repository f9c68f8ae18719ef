"""Faults that belong together: each strikes one shard where a rule of the protocol is needed.

Faults at random moments seldom meet: these are aimed at the primary and a backup of one shard, one
after the other, with moments and durations from a seed. `P` is the shard's primary when the fault
strikes, `B` its first backup then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from resilient_ps.chaos.sim.schedule import Fault, FaultKind

Span = tuple[int, int]  # milliseconds, from .. to


@dataclass(frozen=True, slots=True)
class Part:
    """One fault: when after the recipe's beginning, and for how long."""

    kind: FaultKind
    target: tuple[str, ...]
    after_ms: Span
    duration_ms: Span


RECIPES: tuple[tuple[Part, ...], ...] = (
    # A primary is deposed by who is refused by it, though it lives, and hears of it late.
    (
        Part("etcd lags", ("P",), (0, 10), (1_500, 3_000)),
        Part("refuse", ("B", "P"), (20, 800), (100, 1_500)),
        Part("cut", (), (0, 2_000), (50, 500)),
    ),
    # Writes wait for a backup that is cut off; clients ask again; the primary dies with them.
    (
        Part("partition", ("P", "B"), (0, 1), (2_500, 4_000)),
        Part("cut", (), (300, 1_700), (20, 500)),
        Part("crash", ("P",), (600, 1_900), (100, 4_000)),
    ),
    # The backup holds what the primary never hears of.
    (
        Part("one-way", ("B", "P"), (0, 1), (2_000, 4_000)),
        Part("cut", (), (300, 1_700), (20, 500)),
        Part("crash", ("P",), (600, 2_500), (100, 4_000)),
    ),
    # The backup is paused with entries under way; the primary dies; both come back.
    (
        Part("pause", ("B",), (0, 1), (1_000, 3_000)),
        Part("crash", ("P",), (500, 1_900), (100, 1_000)),
    ),
    # A learner is being taken in when the primary dies, or does not know whether it was.
    (
        Part("crash", ("B",), (0, 1), (5, 300)),
        Part("etcd loses answers", ("P",), (0, 2_500), (500, 2_500)),
        Part("crash", ("P",), (300, 3_500), (500, 3_000)),
    ),
    # The same, where the learner gets its copy over a bad line.
    (
        Part("crash", ("B",), (0, 1), (5, 300)),
        Part("slow", ("P", "B"), (0, 1_000), (2_000, 4_000)),
        Part("cut", (), (1_800, 3_000), (100, 1_000)),
    ),
    # A primary wakes up after its lease, in the middle of a step, and finds a successor.
    (
        Part("pause mid-step", ("P",), (0, 1), (2_050, 5_000)),
        Part("cut", (), (0, 2_500), (50, 500)),
    ),
    # A cut off primary comes back with entries that nobody else has; its successor dies then.
    (
        Part("isolate", ("P",), (0, 1), (2_500, 5_000)),
        Part("pause", ("B",), (2_600, 5_500), (500, 3_000)),
    ),
    # A primary lives without etcd up to the end of its lease, and answers until then.
    (
        Part("partition", ("P", "etcd"), (0, 1), (1_500, 5_000)),
        Part("long steps", ("P",), (0, 500), (2_000, 3_000)),
    ),
    # Whoever should see to it is dead.
    (
        Part("crash", ("coordinator",), (0, 1), (100, 4_000)),
        Part("crash", ("P",), (0, 2_500), (100, 4_000)),
    ),
    # An orderly end meets a failure.
    (
        Part("stop", ("P",), (0, 1), (500, 3_000)),
        Part("pause", ("B",), (0, 100), (200, 3_000)),
        Part("crash worker", ("R",), (0, 500), (10, 500)),
    ),
)


HOLDER_RECIPES: tuple[tuple[Part, ...], ...] = (
    # A holder stands still for longer than its lease, wakes up, and goes on with its task.
    (Part("pause", ("R",), (0, 1), (2_200, 6_000)),),
    (
        Part("pause mid-step", ("R",), (0, 1), (2_200, 6_000)),
        Part("crash", ("coordinator",), (500, 3_000), (100, 3_000)),
    ),
    # It loses its lease while it works on, or works for a lease that it has only just lost.
    (
        Part("partition", ("R", "etcd"), (0, 1), (2_500, 5_000)),
        Part("etcd lags", ("coordinator",), (0, 1_500), (500, 3_000)),
    ),
    (
        Part("isolate", ("R",), (0, 1), (1_800, 5_000)),
        Part("cut", (), (1_500, 5_000), (100, 1_000)),
    ),
    # It dies between the shards of a tick; so does who should notice it.
    (
        Part("slow", ("R", "P"), (0, 1), (500, 2_000)),
        Part("crash worker", ("R",), (100, 2_000), (10, 1_500)),
        Part("crash", ("P",), (100, 2_500), (100, 3_000)),
    ),
    # What was granted, or recorded, is not known to who did it.
    (
        Part("etcd loses answers", ("coordinator",), (0, 1), (1_000, 4_000)),
        Part("cut", (), (0, 2_000), (100, 1_000)),
    ),
    # The coordinator is deposed, and hears of it late.
    (
        Part("pause", ("coordinator",), (0, 1), (2_100, 5_000)),
        Part("crash worker", ("R",), (0, 2_000), (10, 1_000)),
    ),
)
"""Of those who do the tasks of a graph (`R`)."""


def draw_recipe(
    rng: np.random.Generator,
    begin_ms: int,
    shards: int,
    ranks: int,
    recipes: tuple[tuple[Part, ...], ...] = RECIPES,
) -> list[Fault]:
    """The faults of one recipe, struck from `begin_ms` on."""
    recipe = recipes[int(rng.integers(len(recipes)))]
    shard, rank = int(rng.integers(shards)), int(rng.integers(ranks))
    roles = {"P": f"primary:{shard}", "B": f"backup:{shard}", "R": f"rank:{rank}"}
    return [
        Fault(
            begin_ms + _within(rng, part.after_ms),
            part.kind,
            tuple(roles.get(name, name) for name in part.target),
            _within(rng, part.duration_ms),
            int(rng.integers(1 << 30)),
        )
        for part in recipe
    ]


def _within(rng: Any, span: Span) -> int:
    return int(rng.integers(span[0], span[1]))
