"""Who is slow when, and what can be reached at best."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.cli.bench.stragglers.slowness import Pattern, Slowness

CLOCKS = 3_000


def slowness(pattern: Pattern, seed: int = 1) -> Slowness:
    return Slowness(pattern, ranks=4, compute_s=0.04, factor=3.0, seed=seed)


def test_in_every_clock_exactly_one_rank_is_slow_and_each_in_its_turn() -> None:
    rule = slowness(Pattern.RANDOM)
    seconds = np.stack([rule.seconds(rank, CLOCKS) for rank in range(4)])
    assert set(np.unique(seconds)) == {0.04, 0.12}
    assert ((seconds == 0.12).sum(axis=0) == 1).all()
    assert np.allclose((seconds == 0.12).mean(axis=1), 0.25, atol=0.03)


def test_the_seed_alone_says_who() -> None:
    rule = slowness(Pattern.RANDOM)
    assert np.array_equal(rule.slow_ranks(50), slowness(Pattern.RANDOM).slow_ranks(50))
    assert np.array_equal(rule.slow_ranks(50), rule.slow_ranks(80)[:50])
    assert not np.array_equal(rule.slow_ranks(50), slowness(Pattern.RANDOM, 2).slow_ranks(50))


def test_the_fixed_one_is_always_slow() -> None:
    rule = slowness(Pattern.FIXED)
    assert (rule.seconds(0, 9) == 0.12).all()
    assert (rule.seconds(3, 9) == 0.04).all()


def test_without_staleness_everybody_waits_for_the_slow_one() -> None:
    for pattern in Pattern:
        assert slowness(pattern).rounds_per_s(CLOCKS, 0) == pytest.approx(1 / 0.12, rel=1e-3)


def test_a_bound_helps_against_chance_and_not_in_the_long_run_against_one() -> None:
    chance, one = slowness(Pattern.RANDOM), slowness(Pattern.FIXED)
    rates = [chance.rounds_per_s(CLOCKS, s) for s in (0, 1, 3, 8)]
    assert rates == sorted(rates)
    assert rates[2] > 1.7 * rates[0]
    assert rates[-1] < chance.rounds_per_s(CLOCKS, None) <= 1 / 0.06 * 1.02
    assert one.rounds_per_s(CLOCKS, 8) == pytest.approx(1 / 0.12, rel=0.01)
    # three ranks go on at full speed, the fourth at a third of it
    assert one.rounds_per_s(CLOCKS, None) == pytest.approx((3 + 1 / 3) / 4 / 0.04, rel=0.01)
