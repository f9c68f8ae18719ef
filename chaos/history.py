"""What clients asked for and what came of it, as frozen records in the order in which it happened.

An operation is invoked once and completed at most once: `ok` (it took effect), `fail` (it did not),
or `unknown`. One that was never completed, because its process died, is unknown too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Outcome: TypeAlias = Literal["ok", "fail", "unknown"]
Action: TypeAlias = Literal["pull", "push", "tick"]


@dataclass(frozen=True, slots=True)
class Invocation:
    """A process begins an operation. `process` names one life of it: rank and incarnation."""

    number: int
    process: str
    action: Action
    rank: int
    clock: int
    keys: tuple[int, ...]
    at_ns: int


@dataclass(frozen=True, slots=True)
class Completion:
    """An operation is over. `values`: what a pull saw, one number for each key."""

    number: int
    outcome: Outcome
    values: tuple[int, ...]
    at_ns: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An invocation with its completion, if it had one. `ended_ns` is None when it had none."""

    invoked: Invocation
    outcome: Outcome = "unknown"
    values: tuple[int, ...] = ()
    ended_ns: int | None = None


@dataclass(slots=True)
class History:
    """Records in the order of time."""

    records: list[Invocation | Completion] = field(default_factory=list)
    _numbers: int = 0

    def invoke(
        self,
        process: str,
        action: Action,
        rank: int,
        clock: int,
        at_ns: int,
        keys: tuple[int, ...] = (),
    ) -> int:
        """Record the beginning of an operation; the number is for its completion."""
        self._numbers += 1
        self.records.append(Invocation(self._numbers, process, action, rank, clock, keys, at_ns))
        return self._numbers

    def complete(
        self, number: int, at_ns: int, outcome: Outcome = "ok", values: tuple[int, ...] = ()
    ) -> None:
        """Record the end of an operation."""
        self.records.append(Completion(number, outcome, values, at_ns))

    def operations(self, action: Action) -> list[Operation]:
        """All operations of one kind, in the order of their invocation."""
        ends = {r.number: r for r in self.records if isinstance(r, Completion)}
        found: list[Operation] = []
        for record in self.records:
            if isinstance(record, Invocation) and record.action == action:
                end = ends.get(record.number)
                found.append(
                    Operation(record)
                    if end is None
                    else Operation(record, end.outcome, end.values, end.at_ns)
                )
        return found
