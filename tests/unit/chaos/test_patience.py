"""What should be tried later is tried again; what will not get better is told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from resilient_ps.chaos.live.patience import patiently
from resilient_ps.errors import BadInput, NotFound, ResilientPsError, RetryLater


def told_one_after_the_other(*answers: ResilientPsError | str) -> Callable[[], str]:
    """A call that raises or returns what it is given, a thing each time."""
    left: Iterator[ResilientPsError | str] = iter(answers)

    def call() -> str:
        answer = next(left)
        if isinstance(answer, ResilientPsError):
            raise answer
        return answer

    return call


def test_a_call_whose_answer_was_lost_is_made_again() -> None:
    call = told_one_after_the_other(RetryLater("lost"), RetryLater("lost"), "healed")
    assert patiently(call, 60) == "healed"


def test_what_no_time_will_heal_is_told_at_once() -> None:
    call = told_one_after_the_other(BadInput("no such key"), "never asked")
    with pytest.raises(BadInput, match="no such key"):
        patiently(call, 60)


def test_what_else_may_pass_is_named() -> None:
    call = told_one_after_the_other(NotFound("not yet"), "there")
    assert patiently(call, 60, NotFound) == "there"


def test_when_the_time_is_over_the_last_reason_is_told() -> None:
    call = told_one_after_the_other(RetryLater("the reason"), "too late")
    with pytest.raises(RetryLater, match="the reason"):
        patiently(call, -1)
