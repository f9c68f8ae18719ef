"""What one life of a worker process asks for and what comes of it, as lines in a file of its own.

Every line is a JSON array, written by one call and never buffered: a process that is killed has
written down everything that it began; at most its last line is torn. `chaos.live.histories` reads
them. Times are nanoseconds of the monotonic clock, which all processes of a machine share.

    ["begun", number, process, action, clock, keys, table, at, deadline]
    ["ended", number, outcome, values, at]
    ["opened", process, begun, ended, ticked]       the rank was taken over
    ["saw", process, at, incarnation, [[incarnation, counter, lsn] of each shard]]
    ["told", process, at, before]                   of a rollback
    ["over", at, why, clock]                        "": in order, all of this clock was ended
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from resilient_ps.chaos.history import Action, Outcome
from resilient_ps.ids import Position

SUFFIX = ".jsonl"


class Journal:
    """The file of this life of a rank: its name tells the rank, and when it began."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.process = str(rank)  # until the rank is taken over
        self._rank = rank
        self._numbers = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        name = f"{rank}.{time.monotonic_ns():020d}.{os.getpid()}{SUFFIX}"
        self._file = os.open(folder / name, flags, 0o644)

    def begin(
        self,
        action: Action,
        clock: int,
        tables: Sequence[tuple[str, Sequence[int]]],
        deadline_s: float,
    ) -> list[int]:
        """One operation for each table with its keys; their numbers, for `end`."""
        at_ns = time.monotonic_ns()
        until_ns, numbers, lines = at_ns + int(deadline_s * 1e9), [], []
        for table, keys in tables:
            self._numbers += 1
            numbers.append(self._numbers)
            what = (self._numbers, self.process, action, clock, list(keys), table, at_ns, until_ns)
            lines.append(["begun", *what])
        self._write(lines)
        return numbers

    def end(self, numbers: Iterable[int], outcome: Outcome, values: Sequence[int] = ()) -> None:
        """They are over."""
        at_ns = time.monotonic_ns()
        self._write([["ended", number, outcome, list(values), at_ns] for number in numbers])

    def opened(self, process: str, begun_ns: int, ticked: int) -> None:
        """The rank was taken over, behind this clock; from now on this is the process's name."""
        self.process = process
        self._write([["opened", process, begun_ns, time.monotonic_ns(), ticked]])

    def saw(self, shards: Iterable[Position], incarnation: int) -> None:
        """Where the shards stand, in the eyes of this process."""
        places = [[*position.epoch, position.lsn] for position in shards]
        self._write([["saw", self.process, time.monotonic_ns(), incarnation, places]])

    def told(self, before: int) -> None:
        """The cluster was rolled back, from incarnation `before`."""
        self._write([["told", self.process, time.monotonic_ns(), before]])

    def over(self, why: str = "", *, clock: int = 0) -> None:
        """The end of this life behind `clock`; `why` where it is none in order."""
        self._write([["over", time.monotonic_ns(), why, clock]])

    def _write(self, lines: Iterable[list[Any]]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        os.write(self._file, text.encode())
