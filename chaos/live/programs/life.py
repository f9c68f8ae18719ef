"""One life of a rank's process: it takes the rank over, runs clock after clock, and ends.

A program says what a clock is; this says when. A call that fails for the moment is written down as
`unknown`, and the program goes on: what a write that timed out was to do is still delivered, in its
order. When the cluster was rolled back, the rank goes on where it went back to. All ranks end
behind the clock that the file `last_clock` in the folder names, once it is there. SIGTERM ends a
life behind its present clock.

Clocks have a pace: histories stay bounded, and the machine is not kept busy for its own sake.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.history import Action, Outcome, process_name
from resilient_ps.chaos.live.programs.journal import Journal
from resilient_ps.client.connection import Client, connect
from resilient_ps.client.future import Future
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.client.worker import Worker
from resilient_ps.errors import ResilientPsError, RetryLater, RolledBack

T = TypeVar("T")
Array: TypeAlias = NDArray[Any]

DEADLINE_S = 20.0  # of each call
PAUSE_S = 0.2  # before something is tried again
SIGHT_EVERY = 4  # clocks
LAST_CLOCK = "last_clock"
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process is told. `pace_s`: how long a clock takes at least, on average."""

    folder: Path
    job: str
    rank: int
    of: int
    mode: str
    seed: int
    pace_s: float
    rest: tuple[str, ...] = ()  # of the program's own

    @staticmethod
    def parse(arguments: Sequence[str]) -> Settings:
        """From a command line."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--job", required=True)
        parser.add_argument("--rank", type=int, required=True)
        parser.add_argument("--of", type=int, required=True)
        parser.add_argument("--mode", required=True)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--pace-s", type=float, default=0.0)
        parser.add_argument("rest", nargs="*")
        told = vars(parser.parse_args(arguments))
        return Settings(**{**told, "rest": tuple(told["rest"])})


class Push(NamedTuple):
    """A push that is to be made. `keys`: None for all of a dense table; `noted`: what is written
    down as its keys (default: its keys)."""

    table: SparseTable | DenseTable
    keys: Array | None
    values: Array
    noted: Sequence[int] | None = None


class Program(Protocol):
    """What a rank does. Repeatable: what push n of a clock covers depends on (rank, clock, n)."""

    def open(self, life: Life) -> None:
        """Create or find the tables."""

    def one_clock(self, life: Life) -> None:
        """Pull, push, and end the clock with `life.tick`."""


class Life:
    """See the module. `deadline_s`: of each call."""

    def __init__(self, settings: Settings, *, deadline_s: float = DEADLINE_S) -> None:
        self.settings = settings
        self.journal = Journal(settings.folder, settings.rank)
        self.worker: Worker
        self._deadline_s = deadline_s
        self._ending = False
        self._due_s = time.monotonic()

    def run(self, program: Program) -> None:
        """Until the last clock, or SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        try:
            with self._patiently(lambda: connect(deadline_s=self._deadline_s)) as client:
                self.worker = self._patiently(lambda: self._take_over(client))
                self._tell_opened()
                self._again_after_rollbacks(lambda: self._patiently(lambda: program.open(self)))
                self._again_after_rollbacks(lambda: self._clocks(program))
                self.worker.close()
        except ResilientPsError as error:
            self.journal.over(f"{type(error).__name__}: {error}")
            raise
        self.journal.over(clock=self.worker.clock - 1)

    def _on_sigterm(self, number: int, frame: object) -> None:
        self._ending = True

    def _take_over(self, client: Client) -> Worker:
        settings, self._begun_ns = self.settings, time.monotonic_ns()
        return client.worker(settings.job, settings.rank, settings.of, settings.mode)

    def _tell_opened(self) -> None:
        session = self.worker._driver.session  # histories name what users need not know
        me = session.worker
        name = process_name(me.rank, me.incarnation, self.worker.incarnation)
        self.journal.opened(name, self._begun_ns, self.worker.clock - 1)

    def _clocks(self, program: Program) -> None:
        worker = self.worker
        while not self._ending and worker.clock <= self.last_clock():
            program.one_clock(self)
            if worker.clock % SIGHT_EVERY == 0:
                self.journal.saw(worker._driver.session.calls.seen, worker.incarnation)
        self._patiently(worker.flush)
        self._patiently(worker.check_incarnation)

    def last_clock(self) -> int:
        """The one to end behind, as far as is known."""
        try:
            return int((self.settings.folder / LAST_CLOCK).read_text())
        except FileNotFoundError:
            return NEVER

    # -- troubles

    def _patiently(self, attempt: Callable[[], T]) -> T:
        while True:
            try:
                return attempt()
            except RetryLater as error:
                print(f"again: {error}", file=sys.stderr, flush=True)
                time.sleep(PAUSE_S)

    def _again_after_rollbacks(self, attempt: Callable[[], None]) -> None:
        while True:
            try:
                return attempt()
            except RolledBack as error:
                print(f"rolled back: {error}", file=sys.stderr, flush=True)
                self.journal.told(self.worker.incarnation)
                self._resume()

    def _resume(self) -> None:
        while True:
            self._begun_ns = time.monotonic_ns()
            try:
                self._patiently(self.worker.resume)
            except RolledBack:  # once more, meanwhile
                continue
            self._tell_opened()
            return

    # -- what programs do

    def rest(self, part: float) -> None:
        """Wait until it is time for the rest of a clock, after `part` of the pace.

        In each clock another rank takes twice as long. When the end is near nobody waits.
        """
        settings = self.settings
        if self.last_clock() != NEVER:
            return
        slow = self.worker.clock % settings.of == settings.rank
        self._due_s += settings.pace_s * part * (2 if slow else 1)
        left_s = self._due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        else:  # what was missed is not made up for
            self._due_s = time.monotonic()

    def pull(
        self,
        table: SparseTable | DenseTable,
        keys: Array | None,
        noted: Sequence[int] | None = None,
    ) -> Array | None:
        """The rows; None when they did not come in time. Written down are the first values.

        `keys`: None for all of a dense table; `noted`: as for a `Push`.
        """
        noted = _noted(keys) if noted is None else noted
        numbers = self.journal.begin(
            "pull", self.worker.clock, [(table.name, noted)], self._deadline_s
        )
        return self._outcome("pull", numbers, lambda: _pulled(table, keys), shown=len(noted))

    def push(self, *pushes: Push) -> None:
        """Make these pushes at once, and wait for all of them."""
        tables = [(p.table.name, _noted(p.keys) if p.noted is None else p.noted) for p in pushes]
        numbers = self.journal.begin("push", self.worker.clock, tables, self._deadline_s)
        begun = [_begin(push) for push in pushes]
        for number, future in zip(numbers, begun, strict=True):
            self._outcome("push", [number], future.result)

    def tick(self, cursor: Any = None) -> None:
        """End the clock."""
        numbers = self.journal.begin("tick", self.worker.clock, [("", ())], self._deadline_s)
        self._outcome("tick", numbers, lambda: self.worker.tick(cursor))

    def _outcome(
        self, action: Action, numbers: list[int], wait: Callable[[], T], shown: int = 0
    ) -> T | None:
        """`shown`: of how many rows the first values are written down, where they are whole."""
        outcome: Outcome = "unknown"
        values: Sequence[int] = ()
        result: T | None = None
        try:
            result = wait()
            outcome = "ok"
            if shown and isinstance(result, np.ndarray) and result.dtype == np.int64:
                values = result[:shown, 0].tolist()
        except RetryLater as error:
            print(f"{action} of clock {self.worker.clock}: {error}", file=sys.stderr, flush=True)
        finally:
            self.journal.end(numbers, outcome, values)
        return result


def _begin(push: Push) -> Future[None]:
    if isinstance(push.table, DenseTable):
        return push.table.push_async(push.values)
    return push.table.push_async(push.keys, push.values)


def _pulled(table: SparseTable | DenseTable, keys: Array | None) -> Array:
    return table.pull() if isinstance(table, DenseTable) else table.pull(keys)


def _noted(keys: Array | None) -> Sequence[int]:
    return () if keys is None else keys.tolist()
