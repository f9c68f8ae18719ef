"""Progress while nothing is healed: who may stand still for how long."""

from __future__ import annotations

from resilient_ps.chaos.live.liveness import Liveness


def _looked(*, answered_s: float, ticked_s: float, until_s: float = 60.0) -> Liveness:
    """Shard 0 and rank 0 go on until these moments, shard 1 and rank 1 all the time."""
    liveness = Liveness(lease_ttl_s=2)
    for second in range(int(until_s)):
        now_s = float(second)
        answered = {0: min(now_s, answered_s), 1: now_s}
        ticked = {0: min(now_s, ticked_s), 1: now_s}
        liveness.look(now_s, 6.0 if now_s >= 6 else None, answered, ticked)
    return liveness


def test_who_goes_on_again_and_again_makes_progress() -> None:
    assert _looked(answered_s=100, ticked_s=100).verdict().outcome == "true"


def test_a_shard_that_stands_still_for_longer_than_a_lease_time_and_ten_seconds_is_named() -> None:
    verdict = _looked(answered_s=20, ticked_s=100).verdict()
    assert verdict.outcome == "false"
    assert verdict.reasons == ("shard 0 made no progress for 39.0 s, 12 s are allowed",)


def test_so_is_a_rank() -> None:
    assert "rank 0" in _looked(answered_s=100, ticked_s=40).verdict().reasons[0]


def test_the_time_counts_from_the_last_fault() -> None:
    assert _looked(answered_s=0, ticked_s=0, until_s=18).verdict().outcome == "true"
    assert _looked(answered_s=0, ticked_s=0, until_s=20).verdict().outcome == "false"


def test_before_the_last_fault_nothing_is_known() -> None:
    assert _looked(answered_s=9, ticked_s=9, until_s=5).verdict().outcome == "unknown"
