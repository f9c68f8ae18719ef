"""Receipts of workers and audits of servers, read from their files as these grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resilient_ps.chaos.checkers.applied import (
    Event,
    Receipt,
    check_applied,
    check_nothing_lost,
)
from resilient_ps.chaos.checkers.gates import AnsweredPull, check_gates
from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.live import audit
from resilient_ps.chaos.live.lines import GrowingFile
from resilient_ps.client import receipts
from resilient_ps.consistency import JobSpec
from resilient_ps.errors import BadInput
from resilient_ps.ids import Epoch, Position

RECORDS_MOST = 5_000_000
"""Of all files together: what a run may keep in memory."""
AUDIT_FOLDER = "audit"
"""Where servers put theirs, in the folder of the scene."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that succeeded."""

    what: str
    rank: int
    clock: int
    begun_ns: int
    ended_ns: int


@dataclass(slots=True)
class ReceiptFiles:
    """All receipts in a folder."""

    folder: Path
    pushes: list[Receipt] = field(default_factory=list)
    pulls: list[AnsweredPull] = field(default_factory=list)
    _files: dict[Path, GrowingFile] = field(default_factory=dict)

    def read(self) -> Iterator[Call]:
        """What has been written since the last time."""
        for path in sorted(self.folder.glob(f"*{receipts.SUFFIX}")):
            file = self._files.setdefault(path, GrowingFile(path))
            for line in file.read():
                yield self._take(line)
        if len(self.pushes) + len(self.pulls) > RECORDS_MOST:
            raise BadInput(
                f"more than {RECORDS_MOST} pushes and pulls were answered: make the run shorter, "
                "or the requests fewer and larger"
            )

    def _take(self, line: list[Any]) -> Call:
        match line:
            case [str(what), job, rank, process, clock, n, begun_ns, ended_ns, places]:
                shards = tuple([(s, Position(Epoch(i, c), lsn)) for s, i, c, lsn in places])
                if what == "push":
                    self.pushes.append(Receipt(job, rank, process, clock, n, shards))
                elif what == "pull":
                    self.pulls.append(AnsweredPull(job, rank, clock, shards))
                return Call(what, rank, clock, begun_ns, ended_ns)
        raise BadInput(f"{self.folder}: no receipt: {line!r}")


@dataclass(slots=True)
class AuditFiles:
    """All audits in a folder. `lost`: by file, how many lines were never written."""

    folder: Path
    events: list[Event] = field(default_factory=list)
    lost: dict[str, int] = field(default_factory=dict)
    _files: dict[Path, GrowingFile] = field(default_factory=dict)

    def read(self) -> None:
        """Take in what has been written since the last time."""
        for path in sorted(self.folder.glob(f"*{audit.SUFFIX}")):
            file = self._files.setdefault(path, GrowingFile(path))
            for line in file.read():
                self._take(line, path.name)
        if len(self.events) > RECORDS_MOST:
            raise BadInput(
                f"servers applied more than {RECORDS_MOST} entries: make the run shorter, or "
                "pushes fewer and larger"
            )

    def _take(self, line: list[Any], name: str) -> None:
        match line:
            case [str(what), shard, incarnation, counter, lsn, *whose] if len(whose) == 5:
                at = Position(Epoch(incarnation, counter), lsn)
                self.events.append(Event(what, shard, at, *whose))
            case ["lost", count]:
                self.lost[name] = self.lost.get(name, 0) + count
            case _:
                raise BadInput(f"{self.folder / name} is no audit: it says {line!r}")

    @property
    def is_kept(self) -> bool:
        """Is there any?"""
        return bool(self._files)


def check_evidence(made: ReceiptFiles, applied: AuditFiles) -> Verdict:
    """Was everything applied once that was acknowledged?"""
    usable = _usable(made, applied)
    return usable if usable.outcome != "true" else check_applied(made.pushes, applied.events)


def check_bounds_kept(
    made: ReceiptFiles, applied: AuditFiles, jobs: Mapping[int, JobSpec]
) -> Verdict:
    """Was every pull answered only when all ranks of its job had come so far? `jobs` by number."""
    usable = _usable(made, applied)
    return usable if usable.outcome != "true" else check_gates(made.pulls, applied.events, jobs)


def _usable(made: ReceiptFiles, applied: AuditFiles) -> Verdict:
    """Is all there that there is to be compared?"""
    list(made.read())
    applied.read()
    if not applied.is_kept:
        why = f"servers keep no audit in {applied.folder} ({audit.AUDIT_VARIABLE})"
        return Verdict("unknown", (why,))
    return check_nothing_lost(applied.lost)
