"""The pace of uploads: gentle only where somebody pushes, and where there is time."""

from __future__ import annotations

import pytest

from resilient_ps.checkpoints.pace import (
    BUSY_PER_S,
    GENTLE_PART,
    KEPT_SHARE_MOST,
    REST_MOST_NS,
    SPAN_NS,
    Pace,
)

SECOND = 1_000_000_000
MS = 1_000_000


def busy(share: float = 0.25, every_s: float = 0.0, *, hurried: bool = False) -> Pace:
    """After a second of pushes."""
    pace = Pace(share, every_s)
    pace.begin(1000, 0, hurried=hurried)
    pace.count(1000 + BUSY_PER_S, SECOND)
    return pace


def test_it_is_gentle_while_pushes_come_in_and_not_when_they_end() -> None:
    pace = busy()
    assert pace.is_gentle(0.0, SECOND)
    pace.count(1000 + BUSY_PER_S, SECOND + SPAN_NS)
    assert not pace.is_gentle(0.0, SECOND + SPAN_NS)


def test_what_was_pushed_before_the_checkpoint_does_not_count() -> None:
    pace = busy()
    pace.begin(10**6, 2 * SECOND)
    assert not pace.is_gentle(0.0, 2 * SECOND)
    pace.count(10**6 + 1, 3 * SECOND)
    assert not pace.is_gentle(0.0, 3 * SECOND)


def test_a_moment_does_not_say_whether_pushes_come_in() -> None:
    pace = busy()
    pace.count(1000 + BUSY_PER_S, SECOND + SPAN_NS - 1)
    assert pace.is_gentle(0.0, SECOND)


def test_a_share_of_1_is_as_fast_as_possible() -> None:
    pace = busy(1.0)
    assert not pace.is_gentle(0.0, SECOND)
    pace.rest(10 * SECOND, SECOND)
    assert pace.has_rested(SECOND)


@pytest.mark.parametrize(("share", "rest_ms"), [(0.5, 100), (0.25, 300), (0.1, 900)])
def test_of_the_time_the_share_is_spent_on_writing(share: float, rest_ms: int) -> None:
    pace = busy(share)
    pace.rest(100 * MS, SECOND)
    assert not pace.has_rested(SECOND + rest_ms * MS - MS)
    assert pace.has_rested(SECOND + rest_ms * MS + MS)


def test_a_rest_after_a_slow_object_is_bounded() -> None:
    pace = busy(0.25)
    pace.rest(600 * SECOND, SECOND)
    assert not pace.has_rested(SECOND)
    assert pace.has_rested(SECOND + REST_MOST_NS)


def test_it_hurries_where_the_checkpoint_could_fail_or_come_too_late() -> None:
    assert busy().is_gentle(KEPT_SHARE_MOST, SECOND)
    assert not busy().is_gentle(KEPT_SHARE_MOST + 0.01, SECOND)
    assert not busy(hurried=True).is_gentle(0.0, SECOND)
    most = 10 * SECOND * GENTLE_PART
    assert busy(every_s=10.0).is_gentle(0.0, int(most) - 1)
    assert not busy(every_s=10.0).is_gentle(0.0, int(most))
