"""How a rank comes by its batches: by a fixed rule, or data shard by data shard as ranks get on.

*Static*: rank r of n reads part r of n of the data set, in every epoch. Which samples a rank sees
in a clock is a pure function of (data set with its seed, batch size, rank, n, clock), so that a run
can be repeated; all samples of a rank wait for it while it is down.

*Dynamic*: ranks take data shards from a record in etcd, so slow ranks take fewer, and what a rank
gives back others finish. `coordinator.data_shards` says why each sample still counts once. Ranks
stay within their consistency's bound clock by clock: under BSP and SSP a slow rank holds the others
back as long as it computes, under ASP it does not.

Who finds no data shard left waits while others have some in hand, for they may be given back.
Meanwhile it ticks empty clocks, as fast as its consistency lets it read, so that nobody waits for
it. At the end all ranks tick up to the same clock: the highest of all that had a data shard, and as
many more as who waited can be ahead.

When the cluster went back to a checkpoint, the worker is resumed where the next batch is asked for
(`resuming`), and reading goes on behind the restored cursor: what was read since is read again. A
batch that was given out before is not ticked then.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from resilient_ps.client.data_shards import Changed, Leases
from resilient_ps.client.resuming import check_life, resume_loudly, resuming
from resilient_ps.consistency import ASP, BSP, SSP, Consistency, Tasks
from resilient_ps.coordinator.data_shards import MAX_PER_EPOCH, DataShards, Grant, Over, Wait
from resilient_ps.data.shards import LineStride
from resilient_ps.errors import BadInput, DeadlineExceeded, RolledBack

if TYPE_CHECKING:
    from resilient_ps.client.worker import Worker

Batch_co = TypeVar("Batch_co", covariant=True)
Batch = TypeVar("Batch")

BATCHES_PER_DATA_SHARD = 8
DATA_SHARDS_PER_RANK = 64
PATIENCE_S = 600.0
LOOK_EVERY_S = 0.1
MAX_SHOWN = 5


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

    def beginning(self, rank: int, of: int, epoch: int) -> Any:
        """The cursor behind which the batches from this epoch on follow (dynamic only)."""
        ...


def static_batches(
    worker: Worker, dataset: Batches[Batch], batch_size: int, epochs: int
) -> Iterator[Batch]:
    """The rank's own part of the data."""
    return resuming(worker, lambda: _static(worker, dataset, batch_size, epochs))


def _static(
    worker: Worker, dataset: Batches[Batch], batch_size: int, epochs: int
) -> Iterator[Batch]:
    cursor = worker.cursor or {}
    if "grant" in cursor:
        raise BadInput(_other_schedule("static", "dynamic"))
    rank, of, resumed = worker.rank, worker.of, worker.resumed
    for batch in dataset.batches(rank, of, batch_size, epochs, cursor=cursor.get("data")):
        yield batch
        check_life(worker, resumed)
        worker.tick(_cursor_behind(worker, batch))
    counts = dataset.batches_per_rank(of, batch_size, epochs)
    if counts is None:
        worker.leave()
        return
    missing = max(counts) - counts[rank]
    for done in range(int((worker.cursor or {}).get("empty", 0)), missing):
        worker.tick({**(worker.cursor or {}), "empty": done + 1})


class DynamicBatches(Generic[Batch]):
    """A rank's way through the data shards that it takes."""

    def __init__(
        self,
        worker: Worker,
        leases: Callable[[], Leases],
        dataset: Batches[Batch],
        batch_size: int,
        epochs: int,
        data_shards: int | None,
        patience_s: float,
    ) -> None:
        if worker.cursor and "grant" not in worker.cursor:
            raise BadInput(_other_schedule("dynamic", "static"))
        self._worker = worker
        self._new_leases = leases
        self._dataset = dataset
        self._batch_size = batch_size
        self._epochs = epochs
        self._patience_s = patience_s
        self._per_epoch = data_shards or data_shards_per_epoch(dataset, worker.of, batch_size)
        try:
            self._record = self._open()
        except RolledBack as error:
            resume_loudly(worker, error)
            self._record = self._open()

    def _open(self) -> DataShards:
        self._opened_in, self._leases = self._worker.resumed, self._new_leases()
        return self._leases.open(_identity(self._dataset), self._per_epoch)

    def __iter__(self) -> Iterator[Batch]:
        return resuming(self._worker, self._walk)

    def _walk(self) -> Iterator[Batch]:
        worker = self._worker
        resumed = worker.resumed
        if self._opened_in != resumed:
            self._record = self._open()
        grant = self._last(None) if worker.retiring else self._next(None)
        while grant is not None:
            for batch in self._read(grant):
                if worker.retiring and worker.settled:
                    worker.leave()
                    return
                worker.has_batch = True
                yield batch
                check_life(worker, resumed)
                worker.tick(_cursor_behind(worker, batch, grant=grant.grant))
                worker.has_batch = False
            grant = self._last(grant) if worker.retiring else self._next(grant)
        if worker.retiring:
            worker.leave()

    def _read(self, grant: Grant) -> Iterator[Batch]:
        """What is not ticked yet of a data shard. Whoever had it before did its part in earlier
        clocks than we do ours, so that a cut has either nothing of ours or all of theirs."""
        record, worker = self._record, self._worker
        place, epoch = record.place(grant.number), record.epoch(grant.number)
        while worker.clock - 1 < grant.after:
            worker.tick()
        start = resume_behind(worker.cursor, grant)
        if start is None:
            start = self._dataset.beginning(place, record.per_epoch, epoch)
        return self._dataset.batches(
            place, record.per_epoch, self._batch_size, epoch + 1, cursor=start
        )

    def _next(self, finished: Grant | None) -> Grant | None:
        """The data shard to go on with; waits for it. None when there is nothing more to do."""
        worker, leases = self._worker, self._leases
        found, revision = leases.next(finished, self._epochs, worker.clock - 1)
        outcome: Grant | Over | None
        if isinstance(found, Wait):
            with leases.changed_since(revision) as changed:
                outcome = self._wait(found, changed)
        else:
            outcome = found
        if isinstance(outcome, Over):
            self._tick_up_to(outcome.clock)
            return None
        return outcome

    def _last(self, finished: Grant | None) -> Grant | None:
        """A worker that retires takes none; an heir has to end what its predecessor had begun."""
        if finished is not None:
            self._leases.finish(finished, self._worker.clock - 1)
        return self._leases.in_hand()

    # -- without a data shard

    def _wait(self, wait: Wait, changed: Changed) -> Grant | Over | None:
        """Until somebody gives a data shard back, or all are finished; None: we are to retire."""
        worker = self._worker
        while not worker.retiring:
            if not self._stand_by(changed):
                raise DeadlineExceeded(self._why_late(wait))
            was_set = changed.clear()
            outcome, _ = self._leases.next(None, self._epochs, worker.clock - 1)
            if not isinstance(outcome, Wait):
                return outcome
            wait = outcome
            # Others are still at work: only now, for who has ended ticks on, and would lead us on
            if not was_set and not isinstance(worker.consistency, ASP):
                worker.tick()
        return None

    def _stand_by(self, changed: Changed) -> bool:
        """Until the record has changed, or others wait for our clock; False: patience has ended."""
        worker, end_s = self._worker, time.monotonic() + self._patience_s

        def over() -> bool:
            return changed.is_set() or worker.retiring or time.monotonic() > end_s

        while not over():
            if isinstance(worker.consistency, ASP):
                changed.wait(LOOK_EVERY_S)  # nobody waits for our clock
            elif worker.wait_for_others(over, LOOK_EVERY_S):
                return True
        return changed.is_set() or worker.retiring

    def _why_late(self, wait: Wait) -> str:
        shown = [
            f"data shard {self._record.place(grant.number)} of epoch "
            f"{self._record.epoch(grant.number)} by rank {grant.rank}"
            for grant in wait.grants[:MAX_SHOWN]
        ]
        more = len(wait.grants) - len(shown)
        return (
            f"rank {self._worker.rank} has no data shard left to take, and for "
            f"{self._patience_s:g} s nothing came of those that others have in hand: "
            f"{', '.join(shown)}{f' and {more} more' if more else ''}. Start a rank that died "
            "again, or let its program retire it (`resilient-ps train ... --retire`)"
        )

    def _tick_up_to(self, clock: int) -> None:
        """All is done: end with the same clock as everybody else."""
        lead = ahead_at_most(self._worker.consistency)
        if lead is None:
            return
        while self._worker.clock - 1 < clock + lead:
            self._worker.tick()


def resume_behind(cursor: Any, grant: Grant) -> Any:
    """The reader's cursor behind which to go on with a grant; None: at the very beginning.

    `cursor`: that of the rank's last tick. It counts if the tick was of this very grant.
    """
    if cursor and cursor.get("grant") == grant.grant:
        return cursor["data"]
    return json.loads(grant.start) if grant.start else None


def ahead_at_most(consistency: Consistency) -> int | None:
    """How many clocks an idle rank can have ticked more than the slowest; None: it ticks none."""
    match consistency:
        case BSP():
            return 1
        case SSP(staleness):
            return staleness + 1
        case ASP() | Tasks():
            return None


def data_shards_per_epoch(dataset: Batches[Any], of: int, batch_size: int) -> int:
    """How many data shards to make of an epoch, where nobody has said.

    Of about `BATCHES_PER_DATA_SHARD` batches each; at least one for every rank, at most
    `DATA_SHARDS_PER_RANK` for each. A compressed text is read from its beginning for every data
    shard: there it is one for each rank.
    """
    part = dataset.shards(0, 1) if hasattr(dataset, "shards") else None
    if isinstance(part, LineStride):
        return of
    counts = dataset.batches_per_rank(1, batch_size)
    most = min(DATA_SHARDS_PER_RANK * of, MAX_PER_EPOCH)
    wished = most // 4 if counts is None else counts[0] // BATCHES_PER_DATA_SHARD
    return max(of, min(wished, most))


def _cursor_behind(worker: Worker, batch: Any, **more: int) -> dict[str, Any]:
    """What the tick of a batch says. `rows`: of the rank's batches so far, if batches say so."""
    cursor: dict[str, Any] = {"data": batch.cursor, **more}
    if hasattr(batch, "__len__"):
        cursor["rows"] = int((worker.cursor or {}).get("rows", 0)) + len(batch)
    return cursor


def _identity(dataset: Batches[Any]) -> str:
    if not hasattr(dataset, "beginning"):
        raise BadInput(
            f"the dynamic schedule needs a data set with a method beginning(rank, of, epoch); "
            f"{type(dataset).__name__} has none"
        )
    beginning = dataset.beginning(0, 1, 0)
    same = {name: beginning[name] for name in beginning if name not in ("rank", "of", "epoch")}
    return json.dumps(same, sort_keys=True)


def _other_schedule(asked: str, used: str) -> str:
    return (
        f"schedule={asked!r}, but this rank's last tick was of the schedule {used!r}: go on with "
        "that one, or use another job's name"
    )
