"""A worker: one rank of a job, and the tables that it trains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.future import Future
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.consistency import Consistency, JobSpec
from resilient_ps.errors import BadInput, NotFound, SpecMismatch
from resilient_ps.messages import Kind
from resilient_ps.runtime.driver import Driver, deadline_after
from resilient_ps.shard import CURSOR_BYTES_MAX
from resilient_ps.split import TableHandle
from resilient_ps.tables.initialisers import Initialiser, Zeros
from resilient_ps.tables.optimisers import Optimiser
from resilient_ps.tables.spec import DenseSpec, Dtype, SparseSpec, TableSpec
from resilient_ps.takeover import Step

Batch_co = TypeVar("Batch_co", covariant=True)


class Batches(Protocol[Batch_co]):
    """A dataset that `Worker.batches` can walk through: see `resilient_ps.data`."""

    def batches(
        self, rank: int, of: int, batch_size: int, epochs: int = 1, cursor: Any = None
    ) -> Iterator[Batch_co]:
        """The rank's batches, from behind `cursor` on; each has a JSON-serialisable `cursor`."""
        ...

    def batches_per_rank(self, of: int, batch_size: int, epochs: int = 1) -> list[int] | None:
        """How many batches each rank has, if that is known without reading everything."""
        ...


class Worker:
    """One rank of a training job, as this process runs it. Close it, or use it in a `with`.

    `clock` is the open clock, from 1; `cursor` is what the last tick said (None: nothing yet). A
    new process that takes the rank over continues behind the last tick that any shard has seen.
    """

    def __init__(
        self, driver: Driver, catalogue: Catalogue, job: JobSpec, deadline_s: float
    ) -> None:
        self._driver = driver
        self._catalogue = catalogue
        self._job = job
        self._deadline_s = deadline_s
        self._tables: dict[str, SparseTable | DenseTable] = {}
        self._closed = False

    # -- what it is

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._driver.session.worker.rank

    @property
    def of(self) -> int:
        """How many ranks the job was opened with."""
        return self._job.ranks

    @property
    def consistency(self) -> Consistency:
        """BSP, SSP or ASP."""
        return self._job.consistency

    @property
    def clock(self) -> int:
        """The open clock: one more than the last that was ticked."""
        return self._driver.session.clock

    @property
    def cursor(self) -> Any:
        """What the last tick of this rank said, whoever ticked; None before the first."""
        raw = self._driver.session.cursor
        return json.loads(raw) if raw else None

    # -- tables

    def sparse_table(
        self,
        name: str,
        *,
        dim: int,
        optimiser: Optimiser,
        dtype: Dtype = "float32",
        initialiser: Initialiser | None = None,
    ) -> SparseTable:
        """The sparse table of this name: created, or found with the same specification."""
        spec = SparseSpec(name, dim, dtype, optimiser, initialiser or Zeros())
        table = self._open(spec)
        assert isinstance(table, SparseTable)
        return table

    def dense_table(
        self,
        name: str,
        *,
        shape: tuple[int, ...],
        optimiser: Optimiser,
        dtype: Dtype = "float32",
        initialiser: Initialiser | None = None,
    ) -> DenseTable:
        """The dense table of this name: created, or found with the same specification."""
        table = self._open(DenseSpec(name, shape, dtype, optimiser, initialiser or Zeros()))
        assert isinstance(table, DenseTable)
        return table

    def table(self, name: str) -> SparseTable | DenseTable:
        """An existing table. Raises `NotFound`."""
        handle = self._catalogue.table(name)
        if handle is None:
            names = ", ".join(self._catalogue.tables()) or "-"
            raise NotFound(f"there is no table {name!r}; tables: {names}")
        return self._open(handle.spec)

    def _open(self, spec: TableSpec) -> SparseTable | DenseTable:
        held = self._tables.get(spec.name)
        if held is not None:
            if held.spec != spec:
                raise SpecMismatch(
                    f"table {spec.name!r} is open as {held.spec.describe()}; asked for was "
                    f"{spec.describe()}"
                )
            return held
        handle = self._catalogue.create_table(spec)
        announce_table(self._driver, handle, self._deadline_s)
        self._tables[spec.name] = bind(handle, self._driver, self._deadline_s, writable=True)
        return self._tables[spec.name]

    # -- clocks

    def tick(self, cursor: Any = None) -> None:
        """End the clock: all its pushes are acknowledged, then it is closed on all shards.

        `cursor` is any JSON value of at most 4 KiB: where a successor of this process continues.
        None keeps the last one. Raises `DeadlineExceeded` naming the shards that it waited for;
        the tick is then still delivered.
        """
        self.tick_async(cursor).result()

    def tick_async(self, cursor: Any = None) -> Future[None]:
        """As `tick`, without waiting: pulls of the next clock may go out meanwhile."""
        driver = self._driver
        raw = driver.session.cursor if cursor is None else encode_cursor(cursor)
        with driver.lock:
            op = driver.next_op()
            driver.perform(driver.session.tick(op, raw, time.monotonic_ns()))
        return Future(driver, [op], None, self._deadline_s)

    def batches(
        self, dataset: Batches[Batch_co], *, batch_size: int = 1024, epochs: int = 1
    ) -> Iterator[Batch_co]:
        """This rank's batches of a dataset; each is a clock, ended when the next is asked for.

        After a takeover it continues behind the last tick. Ranks with fewer batches than others
        end with empty clocks, so that nobody waits for them; where the dataset cannot tell the
        number of its batches, the rank leaves the job at its end.
        """
        cursor = self.cursor or {}
        for batch in dataset.batches(
            self.rank, self.of, batch_size, epochs, cursor=cursor.get("data")
        ):
            yield batch
            self.tick({"data": batch.cursor})  # type: ignore[attr-defined]
        counts = dataset.batches_per_rank(self.of, batch_size, epochs)
        if counts is None:
            self.leave()
            return
        missing = max(counts) - counts[self.rank]
        for done in range(int((self.cursor or {}).get("empty", 0)), missing):
            self.tick({**(self.cursor or {}), "empty": done + 1})

    def leave(self) -> None:
        """Leave the job: nobody waits for this rank any more. This worker is closed.

        The coordinator carries it out on all shards. Raises `DeadlineExceeded` when none does.
        """
        self.flush()
        self._catalogue.propose("leave", self._job.name, self.rank)
        self.close()

    def flush(self) -> None:
        """Wait until all pushes and ticks are acknowledged."""
        driver = self._driver
        with driver.lock:
            deadline_ns = deadline_after(self._deadline_s)
            while driver.session.unsettled and driver.session.broken is None:
                if not driver.serve(deadline_ns):
                    raise driver.session.why_unsettled()

    # -- the end

    def close(self) -> None:
        """Deliver what is under way, and close the connections. The rank stays in the job."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._driver.session.broken is None:
                self.flush()
        finally:
            self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if kind is None:
            self.close()
        else:  # do not wait for deadlines while something has failed
            self._closed = True
            self._driver.close()
        return False


def encode_cursor(cursor: Any) -> bytes:
    """A cursor as bytes. Raises `BadInput` when it is no JSON value, or over 4 KiB."""
    try:
        raw = json.dumps(cursor, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadInput(f"a cursor must be a JSON value: {error}") from error
    if len(raw) > CURSOR_BYTES_MAX:
        raise BadInput(
            f"the cursor takes {len(raw)} bytes, at most {CURSOR_BYTES_MAX} are possible"
        )
    return raw


def bind(
    handle: TableHandle, driver: Driver, deadline_s: float, *, writable: bool
) -> SparseTable | DenseTable:
    """The table over a driver's session."""
    kind: Callable[..., SparseTable | DenseTable] = (
        SparseTable if isinstance(handle.spec, SparseSpec) else DenseTable
    )
    return kind(handle, driver, deadline_s, writable=writable)


def announce_table(driver: Driver, handle: TableHandle, deadline_s: float) -> None:
    """Make the table known to all shards; it may be known already."""
    text = handle.spec.to_json().encode()
    session = driver.session
    order = session.routing.order
    step = Step(Kind.OPEN_TABLE, order, session.worker, table=handle.number, text=text)
    broadcast(driver, step, deadline_s)


def broadcast(driver: Driver, step: Step, deadline_s: float) -> None:
    """One request to shards, answered by all. Raises what the first refusal says."""
    with driver.lock:
        op = driver.next_op()
        driver.perform(driver.session.broadcast(op, step, time.monotonic_ns()))
        outcome = driver.wait(op, deadline_after(deadline_s))
    if outcome.error is not None:
        raise outcome.error
