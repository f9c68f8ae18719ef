"""What clients asked for and what came of it, as frozen records in the order in which it happened.

An operation is invoked once and completed at most once: `ok` (it took effect), `fail` (it did not),
or `unknown`. One that was never completed, because its process died, is unknown too. A write that
touches several shards, or that was sent more than once, is `unknown` after any error: a part of it,
or the first sending, may have taken effect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from resilient_ps.ids import Position

Outcome: TypeAlias = Literal["ok", "fail", "unknown"]

# "open": a process takes its rank over; "leave": the coordinator takes it over and strikes it off.
# The value of both is the rank's last complete clock.
Action: TypeAlias = Literal["pull", "push", "tick", "tune", "open", "leave"]


class Invocation(NamedTuple):
    """A process begins an operation. `process` names one life of it: rank and incarnation.

    `table` is what it reads or writes, if that is one table. `deadline_ns`: when the operation has
    to be over, with whatever outcome; 0: no such moment.
    """

    number: int
    process: str
    action: Action
    rank: int
    clock: int
    keys: tuple[int, ...]
    at_ns: int
    table: str = ""
    deadline_ns: int = 0


class Completion(NamedTuple):
    """An operation is over. `values`: what a pull saw, one number for each key."""

    number: int
    outcome: Outcome
    values: tuple[int, ...]
    at_ns: int


class Death(NamedTuple):
    """A process was killed: what it had begun is never completed."""

    process: str
    at_ns: int


class Sight(NamedTuple):
    """Where shards stood, by number, in the latest answers that a process took for good.

    `incarnation`: the cluster's, in which the process believes to be.
    """

    process: str
    at_ns: int
    shards: tuple[Position, ...]
    incarnation: int = 0


class Told(NamedTuple):
    """A process was told that the cluster was rolled back; it was in incarnation `before`."""

    process: str
    at_ns: int
    before: int


class Operation(NamedTuple):
    """An invocation with its completion, if it had one. `ended_ns` is None when it had none."""

    invoked: Invocation
    outcome: Outcome = "unknown"
    values: tuple[int, ...] = ()
    ended_ns: int | None = None


Record: TypeAlias = Invocation | Completion | Death | Sight | Told


@dataclass(slots=True)
class History:
    """Records in the order of time."""

    records: list[Record] = field(default_factory=list)
    _numbers: int = 0
    _joined: list[Operation] = field(default_factory=list)
    _joined_at: int = -1  # how many records there were
    _of_action: dict[str, list[Operation]] = field(default_factory=dict)

    def invoke(
        self,
        process: str,
        action: Action,
        rank: int,
        clock: int,
        at_ns: int,
        keys: tuple[int, ...] = (),
        *,
        table: str = "",
        deadline_ns: int = 0,
    ) -> int:
        """Record the beginning of an operation; the number is for its completion."""
        self._numbers += 1
        self.records.append(
            Invocation(self._numbers, process, action, rank, clock, keys, at_ns, table, deadline_ns)
        )
        return self._numbers

    def complete(
        self, number: int, at_ns: int, outcome: Outcome = "ok", values: tuple[int, ...] = ()
    ) -> None:
        """Record the end of an operation."""
        self.records.append(Completion(number, outcome, values, at_ns))

    def died(self, process: str, at_ns: int) -> None:
        """Record that a process was killed."""
        self.records.append(Death(process, at_ns))

    def saw(
        self, process: str, at_ns: int, shards: tuple[Position, ...], incarnation: int = 0
    ) -> None:
        """Record where the shards stand in the eyes of a process."""
        self.records.append(Sight(process, at_ns, shards, incarnation))

    def told(self, process: str, at_ns: int, before: int) -> None:
        """Record that a process was told of a rollback."""
        self.records.append(Told(process, at_ns, before))

    def operations(self, *actions: Action) -> list[Operation]:
        """All operations of these kinds (none named: of all), in the order of their invocation."""
        if self._joined_at != len(self.records):
            self._joined, self._joined_at = _join(self.records), len(self.records)
            self._of_action.clear()
        if not actions:
            return self._joined
        if len(actions) == 1:
            if not self._of_action:
                for operation in self._joined:
                    self._of_action.setdefault(operation.invoked.action, []).append(operation)
            return self._of_action.get(actions[0], [])
        return [operation for operation in self._joined if operation.invoked.action in actions]

    def of(self, table: str) -> History:
        """The part that concerns one table: without what was done to other ones."""
        records = [
            record
            for record in self.records
            if type(record) is not Invocation or record.table in ("", table)
        ]
        operations = [op for op in self.operations() if op.invoked.table in ("", table)]
        return History(records, _joined=operations, _joined_at=len(records))

    def deaths(self) -> dict[str, int]:
        """When each process that was killed died."""
        return {r.process: r.at_ns for r in self.records if isinstance(r, Death)}

    def sights(self) -> list[Sight]:
        """What processes saw of the shards' positions, in the order of time."""
        return [record for record in self.records if isinstance(record, Sight)]

    def rollbacks_told(self) -> list[Told]:
        """Which processes were told of a rollback, in the order of time."""
        return [record for record in self.records if isinstance(record, Told)]


def _join(records: list[Record]) -> list[Operation]:
    ends = {r.number: r for r in records if type(r) is Completion}
    found: list[Operation] = []
    for record in records:
        if type(record) is Invocation:
            end = ends.get(record.number)
            found.append(
                Operation(record)
                if end is None
                else Operation(record, end.outcome, end.values, end.at_ns)
            )
    return found


def process_name(rank: int, incarnation: int, cluster: int = 1) -> str:
    """The name of a rank's process in a history; `cluster`: the cluster's incarnation.

    When the cluster goes on under another incarnation, so does the process under another name:
    numbers of ranks' processes may then begin anew.
    """
    return f"{rank}.{incarnation}" if cluster == 1 else f"{rank}.{incarnation}@{cluster}"
