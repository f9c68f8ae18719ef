"""What the image of a shard has to be: the shard, had nothing come that is behind the cut."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilient_ps.cut import Cut
from resilient_ps.cuts import Cuts
from resilient_ps.ids import Epoch, Position
from resilient_ps.image import ImagePiece, ShardImage
from resilient_ps.messages import Command, Entry, Kind, PartAnswer, Status
from resilient_ps.shard import Shard

EPOCH = Epoch(1, 1)
ME = "s1"
OF_CLOCKS = {Kind.PUSH, Kind.TUNE, Kind.TICK, Kind.REDO}

Content = dict[int, dict[int, bytes]]
"""By table: by key (or element, in runs) what the image has."""


@dataclass
class Said:
    """A command that was executed. `early`: it is a LEAVE before the rank came to the cut."""

    command: Command
    early: bool = False


@dataclass
class Kept:
    """A shard whose log is kept."""

    shard: Shard
    log: list[Said] = field(default_factory=list)

    def apply(self, command: Command) -> PartAnswer:
        early = self._is_early(command)
        answer = self.shard.apply(Entry(Position(EPOCH, self.shard.lsn + 1), command))
        if answer.status is Status.OK:
            self.log.append(Said(command, early))
        return answer

    def _is_early(self, command: Command) -> bool:
        worker = command.worker
        job = self.shard.jobs.get(worker.job)
        if command.kind is not Kind.LEAVE or job is None or worker.rank not in job.ledger.ranks:
            return False
        return job.ledger.ranks[worker.rank].ticked < self.shard.cuts.clock_of(worker.job)

    def _gone_before(self, cut: Cut) -> set[int]:
        """Jobs that were removed before the cut: all that they have pushed is before it."""
        gone = set()
        for said in self.log:
            if said.command.kind is Kind.CUT and said.command.n == cut.number:
                return gone
            if said.command.kind is Kind.CLOSE_JOB:
                gone.add(said.command.worker.job)
        raise AssertionError(f"there was no cut {cut.number}")

    def without_the_rest(self, cut: Cut) -> Shard:
        """A shard that got only what is before the cut."""
        bare = Shard(self.shard.number, self.shard.shards)
        clocks, begun, gone = dict(cut.clocks), False, self._gone_before(cut)
        before = Cuts()
        before.begin(cut, {})
        for said in self.log:
            command, job = said.command, said.command.worker.job
            if command.kind is Kind.CUT and command.n == cut.number:
                begun = True
            if command.kind is Kind.CUT and command.n >= cut.number:
                continue  # earlier ones have a say in where ranks start
            is_behind = command.clock > before.clock_of(job) and job not in gone
            if command.kind in OF_CLOCKS and is_behind:
                continue
            if begun and command.kind is Kind.OPEN_JOB and job not in clocks:
                continue
            if begun and command.kind in (Kind.JOIN, Kind.DROP_TABLE, Kind.CLOSE_JOB):
                continue  # an image that they change has failed
            if begun and command.kind is Kind.LEAVE and not said.early:
                continue
            bare.apply(Entry(Position(EPOCH, bare.lsn + 1), command))
        return bare


def content_of(shard: Shard) -> Content:
    """All that a shard holds of its tables."""
    found: Content = {}
    for number, table in shard.tables.items():
        at, offset = 0, table.first_element
        rows = found.setdefault(number, {})
        while at < table.rows:
            end, keys, content = table.capture(at, 1 << 20)
            kind: Any = "rows" if table.is_sparse else "elements"
            piece = ImagePiece(
                number, kind, offset + at, offset + end, keys, content, table.columns
            )
            add(rows, piece, shard)
            at = end
    return found


def add(rows: dict[int, bytes], piece: ImagePiece, shard: Shard) -> None:
    """Take in a piece: rows by key; of a dense table each column's element by number."""
    if piece.kind != "elements":
        assert piece.end - piece.at == len(piece.keys)
        by_key = piece.content.reshape(len(piece.keys), piece.columns)
        for key, row in zip(piece.keys.tolist(), by_key, strict=True):
            rows[key] = row.tobytes()
        return
    count = piece.end - piece.at
    slots = 1 + shard.tables[piece.table].spec.optimiser.slots
    columns = piece.content[: slots * count].reshape(slots, count)
    for element in range(0, count, 997):  # some of them are enough, at the same places
        place = piece.at + element
        aligned = (-place) % 997
        if element + aligned < count:
            rows[place + aligned] = columns[:, element + aligned].tobytes()
    steps = piece.content[slots * count :]
    per_block = shard.tables[piece.table]._held.layout.elements_per_block  # type: ignore[union-attr]
    first = -(-piece.at // per_block)
    for i, value in enumerate(steps):
        rows[-1 - first - i] = np.asarray(value).tobytes()


def taken(image: ShardImage, shard: Shard, base: Content, piece_bytes: int = 1 << 20) -> Content:
    """All that is left of a started image, over what its deltas build upon."""
    found = {number: dict(rows) for number, rows in base.items()}
    while (piece := image.next_piece(piece_bytes)) is not None:
        add(found.setdefault(piece.table, {}), piece, shard)
    assert not image.failed
    return found


def places_of(shard: Shard, job: int) -> list[list[Any]]:
    """What a head says of the ranks of a job."""
    ranks = shard.jobs[job].ledger.ranks
    return [
        [rank, r.ticked, r.live, r.started, base64.b64encode(r.cursor).decode()]
        for rank, r in sorted(ranks.items())
    ]


def assert_is(image: ShardImage, content: Content, bare: Shard) -> None:
    """The image is this shard, in its tables and in the ranks of its jobs."""
    tables, jobs = image.head()
    numbers = {number for number, *_ in tables}
    for number, text, lr, writer, rows in tables:
        table = bare.tables[number]
        assert (text, lr, rows) == (table.text, table.lr, table.rows)
        assert writer == table.writer or not table.writer  # a REDO may have forgotten its pushes
    expected = content_of(bare)
    for number, held in expected.items():
        if number in numbers:
            assert content.get(number, {}) == held, number
        else:  # opened when the cut was reached
            assert bare.tables[number].writer == 0
    for number, text, clock, places in jobs:
        assert text == bare.jobs[number].text
        assert clock == dict(image.cut.clocks)[number]
        assert places == places_of(bare, number)
    assert {number for number, *_ in jobs} == set(bare.jobs) & set(dict(image.cut.clocks))
