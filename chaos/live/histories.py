"""The files that worker processes write, read as they grow, and joined to one history.

Every life of a process has a file of its own (`programs.journal` says what is in it). Reading goes
on where it ended; a line that is torn, because its process was killed meanwhile, counts as never
written. What a life had begun that has not come to its end in order was never completed.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient_ps.chaos.history import (
    Completion,
    Death,
    History,
    Invocation,
    Record,
    Sight,
    Told,
)
from resilient_ps.chaos.live.lines import GrowingFile
from resilient_ps.chaos.live.programs.journal import SUFFIX
from resilient_ps.errors import BadInput
from resilient_ps.ids import Epoch, Position

RECORDS_MOST = 5_000_000
"""Of all lives together: what a run may keep in memory."""
LIVES_MOST = 10_000
_LIFE_SHIFT = 40  # numbers of operations count from 1 in each life


@dataclass(slots=True)
class Life:
    """One life of a rank's process. `why`: how it ended; None while it has not, or was killed.

    `ended_clock`: where it ended in order, the last clock that it is sure to have ended.
    """

    path: Path
    number: int
    rank: int
    process: str
    at_ns: int = 0  # of its last line
    why: str | None = None
    ended_clock: int = 0
    records: list[Record] = field(default_factory=list)
    _file: GrowingFile = field(init=False)
    _open: dict[int, Invocation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._file = GrowingFile(self.path)

    def read(self) -> Iterator[tuple[Invocation, Completion]]:
        """Take in what has been written since, and tell what has ended."""
        for line in self._file.read():
            ended = self._take(line)
            if ended is not None:
                yield ended

    def _take(self, line: list[Any]) -> tuple[Invocation, Completion] | None:
        match line:
            case ["begun", number, process, action, clock, keys, table, at_ns, deadline_ns]:
                place = (self._number(number), process, action, self.rank, clock, tuple(keys))
                begun = Invocation(*place, at_ns, table, deadline_ns)
                self._open[number] = begun
                self._note(begun, at_ns)
            case ["ended", number, outcome, values, at_ns]:
                over = Completion(self._number(number), outcome, tuple(values), at_ns)
                self._note(over, at_ns)
                return self._open.pop(number), over
            case ["opened", process, begun_ns, at_ns, ticked]:
                self.process = process
                number = self._number(len(self.records)) + (1 << (_LIFE_SHIFT - 1))
                begun = Invocation(number, process, "open", self.rank, ticked + 1, (), begun_ns)
                self._note(begun, begun_ns)
                over = Completion(number, "ok", (ticked,), at_ns)
                self._note(over, at_ns)
                return begun, over
            case ["saw", process, at_ns, incarnation, places]:
                shards = tuple([Position(Epoch(i, c), lsn) for i, c, lsn in places])
                self._note(Sight(process, at_ns, shards, incarnation), at_ns)
            case ["told", process, at_ns, before]:
                self._note(Told(process, at_ns, before), at_ns)
            case ["over", at_ns, why, clock]:
                self.at_ns, self.why, self.ended_clock = at_ns, why, clock
            case _:
                raise BadInput(f"{self.path} is no history: it says {line!r}")
        return None

    def _number(self, own: int) -> int:
        return (self.number << _LIFE_SHIFT) + own

    def _note(self, record: Record, at_ns: int) -> None:
        self.records.append(record)
        self.at_ns = max(self.at_ns, at_ns)


class Histories:
    """All lives whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.lives: dict[Path, Life] = {}
        self._folder = folder

    def read(self) -> list[tuple[Invocation, Completion]]:
        """Take in what has been written since the last time, and tell what has ended meanwhile."""
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if path not in self.lives:
                rank, number = path.name.partition(".")[0], len(self.lives) + 1
                self.lives[path] = Life(path, number, int(rank), rank)
        if len(self.lives) > LIVES_MOST:
            raise BadInput(f"{len(self.lives)} lives of workers, at most {LIVES_MOST} are possible")
        ended = [each for life in self.lives.values() for each in life.read()]
        if sum(len(life.records) for life in self.lives.values()) > RECORDS_MOST:
            raise BadInput(
                f"the histories in {self._folder} have more than {RECORDS_MOST} records: make the "
                "run shorter, or its pace slower"
            )
        return ended

    def of(self, rank: int) -> list[Life]:
        """The lives of a rank, in the order in which they began."""
        lives = [life for life in self.lives.values() if life.rank == rank]
        return sorted(lives, key=lambda life: life.path.name)

    def history(self) -> History:
        """All that was read so far, in the order of time; lives without an end were killed."""
        records = [record for life in self.lives.values() for record in life.records]
        for life in self.lives.values():
            if life.why is None:
                records.append(Death(life.process, life.at_ns))
        records.sort(key=operator.attrgetter("at_ns"))
        return History(records)

    def failures(self) -> list[str]:
        """Lives that ended with an error."""
        lives = sorted(self.lives.values(), key=lambda life: life.path.name)
        return [f"{life.process}: {life.why}" for life in lives if life.why]
