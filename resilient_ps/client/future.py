"""Futures of pulls and pushes: they move on while somebody waits for one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from resilient_ps.errors import DeadlineExceeded, ResilientPsError
from resilient_ps.runtime.driver import Driver, deadline_after

T = TypeVar("T")


class Future(Generic[T]):
    """The outcome of one or several operations.

    There is no background thread: what is under way moves on inside the calls of its worker.
    """

    def __init__(
        self,
        driver: Driver,
        ops: list[int],
        value: T,
        deadline_s: float,
        finish: Callable[[int], None] | None = None,
        *,
        what: str = "",
    ) -> None:
        self._driver = driver
        self._ops = ops
        self._value = value
        self._deadline_s = deadline_s
        self._finish = finish  # what is left to do when operation number i has been answered
        self._what = what  # for errors: which table
        self._error: ResilientPsError | None = None
        self._over = False

    def done(self) -> bool:
        """Has everything been answered? Takes in what has arrived, but does not wait."""
        with self._driver.lock:
            if not self._over:
                self._driver.poll()
            return self._over or all(self._driver.is_resolved(op) for op in self._ops)

    def result(self, deadline_s: float | None = None) -> T:
        """The value; waits for it at most `deadline_s` seconds (default: as the table's calls).

        Raises `DeadlineExceeded` naming what it waited for. A push that timed out is still
        delivered: its outcome is unknown until a later `tick` succeeds.
        """
        with self._driver.lock:
            if not self._over:
                self._collect(self._deadline_s if deadline_s is None else deadline_s)
            if self._error is not None:
                raise self._error
            return self._value

    def _collect(self, deadline_s: float) -> None:
        deadline_ns = deadline_after(deadline_s)
        for number, op in enumerate(self._ops):
            outcome = self._driver.wait(op, deadline_ns)
            if outcome.error is not None and self._error is None:
                self._error = self._named(outcome.error)
            if self._finish is not None and self._error is None:
                self._finish(number)
        self._over = True

    def _named(self, error: ResilientPsError) -> ResilientPsError:
        """A session knows tables by number only: say here which one it was."""
        if self._what and isinstance(error, DeadlineExceeded):
            return DeadlineExceeded(f"{self._what}: {error}")
        return error
