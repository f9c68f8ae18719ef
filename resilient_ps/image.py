"""The image of a shard as it is at a cut, taken by one replica while the shard goes on.

Theory of operation. The image begins with the cut's entry. Until the cut is *reached* (all live
ranks have ticked its clocks), pushes of clocks up to the cut belong in it and later ones do not:
overlays keep the rows apart whose two views differ. Then the content is captured piece by piece,
in the order of creation; a row that is pushed before its turn is kept as it was. Nothing of this
is part of the shard's state: an image that fails costs nothing but the attempt.

The order of use: wait until `reached`; ask `delta_rows`, if deltas are wanted; `start`; `head`;
`next_piece` until it gives None; `close`. At any time `failed` may say that it is of no use: then
everything has been let go, and pieces have ended early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from resilient_ps.cut import Cut
from resilient_ps.cut_ranks import CutRanks
from resilient_ps.cuts import Cuts
from resilient_ps.errors import Bug
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.job import Job
from resilient_ps.ledger import RankRecord
from resilient_ps.messages import Keys, Values
from resilient_ps.small_state import Item
from resilient_ps.table_part import Overlay, TablePart
from resilient_ps.tables.allowance import Allowance
from resilient_ps.tables.sparse_overlay import SparseOverlay
from resilient_ps.tables.survey import Survey

PieceKind: TypeAlias = Literal["rows", "delta", "elements"]
OVERLAY_BYTES_LEAST = 16 << 20
OVERLAY_SHARE = 0.25  # of sparse tables; dense ones may be kept whole
HOLD_SHARE = 1.25  # after attempts that have failed: also where every clock touches every row


class ImagePiece(NamedTuple):
    """Some of a table, in arrays that are the piece's own.

    `rows` and `delta`: `at` and `end` count the image's rows of the table in the order of their
    creation (of a delta, its own rows); `keys` (uint64), one for each, and `content`, 1-D, in the
    table's dtype: of each row its `columns` values and state. `elements`: `at` and `end` are places
    in the *whole* flattened array; no keys; `content` is what `DenseShard.capture` gives: the
    values, each slot of the state, then the step counts of blocks that begin there.
    """

    table: int
    kind: PieceKind
    at: int
    end: int
    keys: Keys
    content: Values
    columns: int


@dataclass(slots=True)
class _Taken:
    """One table of the image."""

    number: int
    part: TablePart
    overlay: Overlay
    kind: PieceKind

    def capture(self, bytes_max: int) -> ImagePiece | None:
        offset = self.part.first_element
        at = offset + self.overlay.captured
        content = self.overlay.capture(bytes_max)
        if content is None:
            return None
        return ImagePiece(
            self.number,
            self.kind,
            at,
            offset + self.overlay.captured,
            content[0],
            content[1].reshape(-1),
            self.part.columns,
        )

    def let_go(self) -> None:
        if self.part.overlay is self.overlay:
            self.part.overlay = None
        self.overlay.close()


class ShardImage:
    """See the module. The shard tells it what happens (`on_...`, `reach`)."""

    def __init__(
        self,
        cut: Cut,
        cuts: Cuts,
        tables: Mapping[int, TablePart],
        jobs: Mapping[int, Job],
        *,
        overlay_bytes_max: int = 0,
        guards: Guards = ALL_GUARDS,
    ) -> None:
        self.cut = cut
        self.reached = False
        self._cuts = cuts
        self._jobs = jobs
        self._guards = guards
        share = HOLD_SHARE if cut.hold else OVERLAY_SHARE
        self._allowance = Allowance(overlay_bytes_max or allowed_bytes(tables, share), self._let_go)
        self._ranks = CutRanks(cut, jobs)
        self._taken: dict[int, _Taken] = {}
        self._head: tuple[list[Item], list[Item]] | None = None
        self._queue: deque[_Taken] | None = None
        self._surveys: dict[tuple[int, int], Survey] = {}
        for number in sorted(tables):
            self.on_open_table(number, tables[number])
        if any(table.loading for table in tables.values()):
            self.fail("this replica takes in a copy of the shard at the moment")

    # -- what it is

    @property
    def failed(self) -> str:
        """Why it is of no use any more; "" while it is."""
        return self._allowance.failed

    @property
    def overlay_bytes(self) -> int:
        """What is kept beside the live state."""
        return self._allowance.spent_bytes

    @property
    def overlay_share(self) -> float:
        """The same, of what may be kept."""
        return self._allowance.spent_bytes / max(1, self._allowance.bytes_max)

    def waits_for(self) -> str:
        """Which ranks have not come to the cut; "" when it is reached."""
        return "" if self.reached else self._cuts.waits_for(self._jobs)

    def fail(self, why: str) -> None:
        """It is of no use any more: let everything go."""
        self._allowance.fail(why)

    def _let_go(self) -> None:
        taken, self._taken, self._queue = list(self._taken.values()), {}, deque()
        self._surveys.clear()
        for each in taken:
            each.let_go()

    # -- what the shard tells

    def on_open_table(self, number: int, part: TablePart) -> None:
        """A table that is opened while pushes may still belong in the image is in it too."""
        if self.reached or self.failed:
            return
        overlay = part.make_overlay(self._allowance)
        kind: PieceKind = "rows" if part.is_sparse else "elements"
        self._taken[number] = _Taken(number, part, overlay, kind)
        if self._guards.cut_overlay:
            part.overlay = overlay

    def on_drop_table(self, number: int) -> None:
        """Shards learn of it at different moments, so the image would have a part of the table."""
        if number in self._taken:
            self.fail(f"table {number} was dropped while the image was taken")

    def on_open_job(self, number: int, job: Job) -> None:
        """The cut may name it, and wait for its ranks."""
        if not self.reached:
            self._ranks.open_job(number, job)

    def on_close_job(self, number: int) -> None:
        """What it has pushed is not whole up to the cut."""
        if number in self._ranks and not self.reached:
            self.fail(f"job {number} was removed before it came to the cut")

    def on_rank(self, number: int, rank: int, record: RankRecord) -> None:
        """A rank has ticked or left."""
        self._ranks.look(number, rank, record)

    def reach(self) -> None:
        """Nothing will be pushed any more that belongs in the image."""
        if self.reached or self.failed:
            return
        self.reached = True
        tables: list[Item] = []
        for number, taken in sorted(self._taken.items()):
            overlay, part = taken.overlay, taken.part
            overlay.freeze()
            tables.append([number, part.text, overlay.lr, overlay.writer, overlay.rows])
        self._head = tables, self._ranks.items()

    # -- what the image is

    def head(self) -> tuple[list[Item], list[Item]]:
        """(tables, jobs), once it is reached: what is small.

        Tables [number, text, lr, writer, rows or elements]; jobs [number, text, clock, [[rank,
        ticked, live, started, cursor in base64], ...]]. On a shard in whose head a table is
        missing, the table has its initial state.
        """
        if self._head is None:
            raise Bug("an image has no head before its cut is reached")
        return self._head

    def survey(self, base_cut: int) -> bool:
        """A step of finding out, in about a millisecond, what was touched since `base_cut`.

        True when that is known for all tables. `delta_rows` does what is left at once.
        """
        if not self.reached:
            raise Bug("an image is surveyed before its cut is reached")
        for number in sorted(self._taken):
            survey = self._survey(number, base_cut)
            if survey is not None and not survey.done:
                survey.step()
                return False
        return True

    def delta_rows(self, table: int, base_cut: int) -> int | None:
        """How many of a table's rows may have changed between the cut `base_cut` and this one.

        None where that is not known, or most have, for dense tables, and for tables that are not
        in the image.
        """
        survey = self._survey(table, base_cut)
        touched = None if survey is None else survey.finish()
        overlay = None if touched is None else self._taken[table].overlay
        if touched is None or not isinstance(overlay, SparseOverlay):
            return None
        return overlay.count(touched)

    def _survey(self, table: int, base_cut: int) -> Survey | None:
        taken, at = self._taken.get(table), (table, base_cut)
        if taken is None or not isinstance(taken.overlay, SparseOverlay) or not self.reached:
            return None
        if at not in self._surveys:
            made = taken.part.survey(base_cut, taken.overlay.rows_passed)
            if made is None:
                return None
            self._surveys[at] = made
        return self._surveys[at]

    def start(self, deltas: Mapping[int, int]) -> None:
        """Begin to capture: `deltas` names, by table, the cut whose image is to be completed.

        All other tables are captured in full. To be called once, when the cut is reached.
        """
        if not self.reached or self._queue is not None:
            raise Bug("an image is started once, when its cut is reached")
        for table, base_cut in sorted(deltas.items()):
            survey = self._survey(table, base_cut)
            touched = None if survey is None else survey.finish()
            taken = self._taken.get(table)
            if touched is None or taken is None or not isinstance(taken.overlay, SparseOverlay):
                self.fail(f"what of table {table} has changed since cut {base_cut} is not known")
                return
            taken.overlay.leave_out(touched)
            taken.kind = "delta"
        self._surveys.clear()
        self._queue = deque(taken for _, taken in sorted(self._taken.items()))

    def next_piece(self, bytes_max: int) -> ImagePiece | None:
        """Some rows or elements, of at most `bytes_max` with the keys (one row at least).

        None behind the last one, and when the image has failed: look at `failed`.
        """
        if self.failed:
            return None
        if self._queue is None:
            raise Bug("an image gives no pieces before it is started")
        while self._queue:
            piece = self._queue[0].capture(bytes_max)
            if piece is not None:
                return piece
            taken = self._queue.popleft()
            del self._taken[taken.number]
            taken.let_go()
        return None

    def close(self) -> None:
        """It is not needed any more."""
        self._let_go()


def allowed_bytes(tables: Mapping[int, TablePart], share: float = OVERLAY_SHARE) -> int:
    """How much an image may keep beside these tables if nobody has said; a share of sparse ones."""
    sparse = sum(table.bytes_held for table in tables.values() if table.is_sparse)
    dense = sum(table.bytes_held for table in tables.values() if not table.is_sparse)
    return max(OVERLAY_BYTES_LEAST, int(sparse * share) + dense)
