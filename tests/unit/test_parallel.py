"""Tasks on several cores: all run once, results in order, errors are raised."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from resilient_ps.runtime.parallel import Cores


@pytest.fixture
def cores() -> Iterator[Cores]:
    cores = Cores(helpers=2)
    yield cores
    cores.close()


def test_results_come_in_the_order_of_the_tasks(cores: Cores) -> None:
    for count in (1, 2, 3, 50):
        assert cores([partial(pow, number, 2) for number in range(count)]) == [
            number**2 for number in range(count)
        ]


def test_every_task_runs_once(cores: Cores) -> None:
    ran: list[int] = []
    for _ in range(200):
        ran.clear()
        cores([partial(ran.append, number) for number in range(8)])
        assert sorted(ran) == list(range(8))


def test_tasks_run_at_the_same_time(cores: Cores) -> None:
    """Each waits for the others: one after the other they would never end."""
    together = threading.Barrier(3, timeout=30)
    assert sorted(cores([together.wait] * 3)) == [0, 1, 2]


def test_an_error_of_a_task_is_raised_and_the_next_call_works(cores: Cores) -> None:
    def fail() -> int:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        cores([partial(pow, 2, 2), fail, partial(pow, 3, 2)])
    assert cores([partial(pow, 2, 2)]) == [4]


def test_without_helpers_the_caller_does_everything() -> None:
    alone = Cores(helpers=0)
    assert alone([threading.get_ident] * 3) == [threading.get_ident()] * 3
    alone.close()
