"""What a shard is and how it answers: its place in its log, what it holds, and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from resilient_ps.guards import Guards
from resilient_ps.ids import NO_EPOCH, NOWHERE
from resilient_ps.job import Job
from resilient_ps.ledger import Verdict
from resilient_ps.messages import PartAnswer, Status
from resilient_ps.table_part import TablePart

TEXT_BYTES_MAX = 1_024
_new = tuple.__new__  # several times faster than a named tuple's own constructor

Change: TypeAlias = Callable[[], PartAnswer]
"""What an admissible command does: to be run once, before anything else changes the shard."""


class Answering:
    """See the module. `position` is carried by every answer."""

    def __init__(self, number: int, guards: Guards) -> None:
        self.number = number
        self.guards = guards
        self.epoch = NO_EPOCH
        self.lsn = 0
        self.position = NOWHERE
        self.tables: dict[int, TablePart] = {}
        self.jobs: dict[int, Job] = {}

    def ok(self, value: int) -> PartAnswer:
        """What was asked for has happened, or is so."""
        return self._ok(value)

    def _ok(self, value: int = 0, text: bytes = b"") -> PartAnswer:
        return _new(PartAnswer, (self.number, Status.OK, self.position, value, 0, 0, text))

    def _no(self, status: Status, text: str) -> PartAnswer:
        return PartAnswer(self.number, status, self.position, text=text.encode()[:TEXT_BYTES_MAX])

    def _refuse(self, verdict: Verdict) -> PartAnswer:
        return self._no(verdict.status, verdict.text)._replace(value=verdict.value)

    def _no_job(self, number: int) -> PartAnswer:
        text = f"shard {self.number} knows no job {number}: it was removed, or is new"
        return self._no(Status.UNKNOWN, text)

    def _no_table(self, number: int) -> PartAnswer:
        text = f"shard {self.number} knows no table {number}: it was dropped, or is new"
        return self._no(Status.UNKNOWN, text)
