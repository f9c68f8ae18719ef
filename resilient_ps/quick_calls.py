"""A plain pull or push, while nothing else is under way: the quick way.

Theory of operation. Most calls of a training loop are alone: everything before them is over, one
server serves all shards, and all it says is that all is well. For these the native module makes the
bytes of the request straight from the user's arrays, and takes the answer straight into the user's
array (`native/asking.cpp`). What else there would be to know of the call stays *folded* in its
bytes. Whoever asks `Calls` for what is open has it unfolded first, so that everything unusual (a
broken connection, a second call, an error, an answer in pieces) finds the call that it would have
found: the same number, parts, keys and values.

Invariants: at most one call is folded, and then no other one is open.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from resilient_ps import framing, quick_frames
from resilient_ps.calls import Call, Calls, Piece
from resilient_ps.engine import native
from resilient_ps.ids import Position, WorkerId
from resilient_ps.messages import Kind, Request, Status, Values
from resilient_ps.split import Cut, pieces_of_cut
from resilient_ps.tables.spec import DenseSpec, SparseSpec
from resilient_ps.wire import place_nowhere

PlainTable: TypeAlias = "tuple[int, int, int, int]"
"""A table's number, the code of its dtype, the dimension of a sparse one, and the most keys of a
request."""

DENSE = 1, 0xFFFF_FFFF  # in place of a dimension and of how many keys: cuts see to it

IN_USE = quick_frames.IN_USE and int(Status.OK) == 0


class Asked(NamedTuple):
    """What is asked for, whatever the keys. `last`, of a push: by shard the push before it, which
    then is this one."""

    kind: Kind
    worker: WorkerId
    clock: int
    n: int = 0
    wait_ns: int = 0
    last: dict[int, int] | None = None


class QuickCall:
    """A call that is folded, or was. `over`: it was answered without having been unfolded."""

    __slots__ = ("_late", "_out", "_places", "_rows", "begun_ns", "buffers", "frame", "hoped",
                 "number", "op", "over")  # fmt: skip

    def __init__(
        self,
        number: int,
        buffers: list[memoryview],
        places: bytes | Cut | None,
        out: NDArray[Any] | None,
        seen: list[Position],
        begun_ns: int,
        late: tuple[bytes, NDArray[np.uint64], NDArray[Any]] | None = None,
    ) -> None:
        self._late = late  # of a large push: its keys and rows, which are not in its bytes yet
        self.number = number
        self.op = 0  # given by the driver
        self.buffers = buffers  # the request
        self.frame = frame = buffers[0]  # all of it, but for the values of a dense table
        self.begun_ns = begun_ns
        self.over = False
        where = places.parts if isinstance(places, Cut) else places
        self.hoped = frame, seen, where, out
        """What `native.receive` has to know of the answer."""
        self._places = places  # of a pull: for each row of the answer whose key's it is, uint32
        self._out = out
        self._rows: Values | None = None  # of a pull that was unfolded: what is received

    def take(
        self, scratch: memoryview, lo: int, hi: int, meta_limit: int, payload_limit: int
    ) -> bool:
        """Take in the answer, if `scratch[lo:hi]` is all of it and says that all is well."""
        self.over = native.answered(scratch, lo, hi, meta_limit, payload_limit, *self.hoped)
        return self.over

    def unfold(self) -> Call:
        """The call as it would have been."""
        request = self.request()
        call = Call(
            self.number,
            request.kind,
            tuple([part.shard for part in request.parts]),
            request.worker,
            request.clock,
            request.n,
            request.table,
            request.wait_ns,
            keys=request.keys,
            context=self.op,
            begun_ns=self.begun_ns,
        )
        row_bytes, out = 0, self._out
        if out is not None and isinstance(self._places, Cut):
            call.out, call.pieces = out.data.cast("B"), pieces_of_cut(self._places, out, pull=True)
            return call
        if out is not None:
            self._rows = np.empty_like(out)
            call.out, row_bytes = self._rows.data.cast("B"), self._rows.strides[0]
        call.pieces = _pieces(request, row_bytes)
        return call

    def fill(self, descriptor: int = -1) -> int:
        """Put the arrays of a large push into its bytes, sent meanwhile: how many of them were."""
        if self._late is None:
            return 0
        sent: int = native.send_rows(descriptor, self.frame, *self._late)
        self._late = None
        return sent

    def request(self) -> Request:
        """What its bytes say."""
        self.fill()
        frame = self.frame
        if len(self.buffers) > 1:
            frame = memoryview(b"".join(self.buffers))
        size = frame.nbytes
        taken = quick_frames.take(frame, 0, size, size, size, place_nowhere)
        assert taken is not None, "these are the bytes of a request"
        assert isinstance(taken[0], Request), "these are the bytes of a request"
        return taken[0]

    def finish(self, _: int = 0) -> None:
        """The call was answered: the rows that it asked for are to be where it wanted them."""
        if self._rows is not None and isinstance(self._places, bytes):
            native.scatter(self._rows, np.frombuffer(self._places, np.uint32), self._out)


def _pieces(request: Request, row_bytes: int) -> dict[int, Piece]:
    """What of the request is each shard's. `row_bytes`: of a row that is pulled."""
    pieces: dict[int, Piece] = {}
    first = start = 0
    for shard, _, prev, count, elements in request.parts:
        values = tuple([flat[start : start + elements] for flat in request.values])
        where = first * row_bytes, (first + count) * row_bytes
        pieces[shard] = Piece(first, count, values, elements, *where, prev)
        first += count
        start += elements
    return pieces


def plain_table(number: int, spec: SparseSpec | DenseSpec, rows_max: int = 0) -> PlainTable | None:
    """What `fold` is to know of a table; None if the quick way is not offered."""
    code = framing.DTYPE_CODES.get(np.dtype(spec.dtype))
    if not IN_USE or code is None:
        return None
    return (
        (number, code, spec.dim, rows_max)
        if isinstance(spec, SparseSpec)
        else (number, code, *DENSE)
    )


def fold(
    calls: Calls, asked: Asked, table: PlainTable, keys: Any, rows: NDArray[Any], now_ns: int
) -> QuickCall | None:
    """A call that now is under way, though still to be sent; None if it is not as plain as that.

    `rows` (number of keys, dim): the gradients of a push, or where to put what is pulled. Of a
    dense table, `keys` is the `Cut` that is asked for, and `rows` the whole array, flat.
    """
    if isinstance(keys, Cut):
        return _fold_blocks(calls, asked, table, keys, rows, now_ns)
    kind, worker, clock, n, wait_ns, last = asked
    routing, number = calls.routing, calls.last_number + 1
    made = native.ask(
        kind,
        number,
        routing.incarnation,
        worker,
        clock,
        n,
        wait_ns,
        table,
        routing.order,
        routing.rank_of_shard,
        calls.seen,
        last,
        keys,
        rows,
    )
    if made is None:
        return None
    frame, places = made
    calls.last_number = number
    if last is None:
        calls.folded = call = QuickCall(number, [frame], places, rows, calls.seen, now_ns)
    else:
        late = None if places is None else (places, keys, rows)
        calls.folded = call = QuickCall(number, [frame], None, None, calls.seen, now_ns, late)
    return call


def _fold_blocks(
    calls: Calls, asked: Asked, table: PlainTable, cut: Cut, flat: NDArray[Any], now_ns: int
) -> QuickCall | None:
    kind, worker, clock, n, wait_ns, last = asked
    number, incarnation = calls.last_number + 1, calls.routing.incarnation
    plain = kind, number, incarnation, worker, clock, n, wait_ns, table
    frame = native.ask_blocks(*plain, calls.seen, last, cut.keys, cut.parts)
    if frame is None:
        return None
    buffers, out = [frame], flat if last is None else None
    if last is not None:
        buffers += [flat[start:stop].data.cast("B") for start, stop in cut.runs]
    calls.last_number = number
    calls.folded = call = QuickCall(number, buffers, cut, out, calls.seen, now_ns)
    return call
