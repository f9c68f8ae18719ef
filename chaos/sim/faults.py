"""Faults at seeded moments of a world."""

from __future__ import annotations

import numpy as np

from resilient_ps.chaos.sim.world import World


def break_connections(world: World, seed: int, *, every_ns: int, until_ns: int) -> None:
    """Cut a random connection every `every_ns` on average, up to `until_ns`.

    Either end may notice first. What is under way towards the other one may still arrive, so that
    requests are repeated that have been executed, and old ones come after newer ones.
    """
    rng = np.random.Generator(np.random.PCG64(seed))

    def strike() -> None:
        open_ones = world.connections()
        if open_ones:
            chosen = open_ones[int(rng.integers(len(open_ones)))]
            world.cut(chosen, first=int(rng.integers(2)))
        at_ns = world.now_ns + int(rng.exponential(every_ns)) + 1
        if at_ns < until_ns:
            world.at(at_ns, strike)

    world.after(int(rng.exponential(every_ns)), strike)
