"""Writes down what workers ask for and what comes of it, as the checkers want it.

Every operation has a deadline. One that passes it is recorded as unknown, and the program goes on:
a write that timed out is still delivered by its session, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from resilient_ps.chaos.history import Action, History, process_name
from resilient_ps.chaos.sim.worker import Operation, SimWorker, Together, Within
from resilient_ps.errors import DeadlineExceeded, RolledBack

Values: TypeAlias = tuple[int, ...]
Running: TypeAlias = Generator[Operation, Any, Any]


def _no_values(result: Any) -> Values:
    return ()


class Noted(NamedTuple):
    """An operation, and how it is to be written down. `values`: from its result to numbers."""

    action: Action
    operation: Operation
    table: str = ""
    keys: tuple[int, ...] = ()
    values: Callable[[Any], Values] = _no_values


@dataclass(slots=True)
class Journal:
    """The history of one job. `deadline_ns`: how long an operation may take."""

    deadline_ns: int
    history: History = field(default_factory=History)
    acknowledged: dict[int, int] = field(default_factory=dict)  # pushes, by rank

    def do(self, worker: SimWorker, *noted: Noted) -> Running:
        """Begin these operations at once; the last pull's result, or None after the deadline."""
        world, history = worker.world, self.history
        name, rank, clock, now_ns = name_of(worker), worker.rank, worker.clock, world.now_ns
        numbers = [
            history.invoke(
                name,
                each.action,
                rank,
                clock,
                now_ns,
                each.keys,
                table=each.table,
                deadline_ns=now_ns + self.deadline_ns,
            )
            for each in noted
        ]
        operations = tuple(each.operation for each in noted)
        together = operations[0] if len(operations) == 1 else Together(operations)
        try:
            result = yield Within(together, self.deadline_ns)
        except (DeadlineExceeded, RolledBack) as error:
            for number in numbers:
                history.complete(number, world.now_ns, "unknown")
            if isinstance(error, RolledBack):
                raise
            return None
        for number, each in zip(numbers, noted, strict=True):
            history.complete(number, world.now_ns, "ok", each.values(result))
        pushes = sum([each.action == "push" for each in noted])
        self.acknowledged[worker.rank] = self.acknowledged.get(worker.rank, 0) + pushes
        if noted[-1].action in ("pull", "tick"):
            seen = tuple(worker.session.calls.seen)
            history.saw(name, world.now_ns, seen, worker.incarnation)
        return result


def name_of(worker: SimWorker) -> str:
    """A worker process in a history: its rank and which incarnation of it."""
    return process_name(worker.rank, worker.session.worker.incarnation, worker.incarnation)
