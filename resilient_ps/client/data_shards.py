"""One rank's side of the data shards of a job: taking, finishing and giving back, through etcd.

What these do to the record is decided in `coordinator.data_shards`; here it is read, written, and
tried again until a deadline. A change whose outcome is unknown is decided anew from what the record
then says, so it happens once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

from resilient_ps.consistency import JobSpec
from resilient_ps.coordinator.data_shards import (
    MAX_DATASET_CHARS,
    MAX_PER_EPOCH,
    DataShards,
    Grant,
    Over,
    Wait,
    reading,
    writing,
)
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, Kv, ReadResult, Reset, WatchBatch
from resilient_ps.coordinator.records import ClusterConfig, counter_bytes
from resilient_ps.errors import (
    BadInput,
    DeadlineExceeded,
    Fenced,
    NotFound,
    RetryLater,
    RolledBack,
    SpecMismatch,
)
from resilient_ps.ids import WorkerId

RETRY_S = 0.05
CALL_S = 2.0  # of one call to etcd; the whole has a longer deadline


T = TypeVar("T")


class _Read(NamedTuple):
    """What there is in etcd, and when."""

    item: KeyValue | None
    record: DataShards | None
    config: KeyValue
    revision: int


class _Written(NamedTuple):
    record: DataShards
    revision: int


class Leases:
    """What the data shards of a job are to one incarnation of a rank, in one of the cluster.

    All methods raise `RolledBack` when the cluster has another `incarnation`.
    """

    def __init__(
        self,
        kv: Kv,
        keys: ClusterKeys,
        job: JobSpec,
        worker: WorkerId,
        incarnation: int,
        deadline_s: float,
    ) -> None:
        self._kv = kv
        self._keys = keys
        self._job = job.name
        self._job_id = job.job
        self._worker = worker
        self._rank = worker.rank
        self._incarnation = incarnation
        self._deadline_s = deadline_s

    def open(self, dataset: str, per_epoch: int) -> DataShards:
        """The record of these data: created, or found. Raises `SpecMismatch` showing both."""
        if not 1 <= per_epoch <= MAX_PER_EPOCH:
            raise BadInput(f"{per_epoch} data shards per epoch: use 1 to {MAX_PER_EPOCH}")
        if len(dataset) > MAX_DATASET_CHARS:
            raise BadInput(f"the identity of the data set has over {MAX_DATASET_CHARS} characters")
        fresh = DataShards(self._job_id, dataset, per_epoch)
        found = self._change(lambda record: record or fresh).record
        if (found.dataset, found.per_epoch) != (dataset, per_epoch):
            raise SpecMismatch(
                f"job {self._job!r} works on {found.per_epoch} data shards per epoch of "
                f"{found.dataset}; asked for were {per_epoch} of {dataset}. All ranks of a job "
                "read the same data in the same data shards: use another job's name, or remove it"
            )
        return found

    def in_hand(self) -> Grant | None:
        """What the rank holds. Raises `Fenced` when it has been taken over since."""
        record = self._until(self._read).record
        return None if record is None else record.held(self._rank)

    def next(
        self, finished: Grant | None, epochs: int, clock: int
    ) -> tuple[Grant | Wait | Over, int]:
        """Finish one, and have the next in hand; and the revision at which it was so.

        What the rank has in hand already, and is not `finished`, is the next. `clock`: the last one
        that the rank ticked.
        """
        outcome: Grant | Wait | Over = Over(0)

        def change(record: DataShards | None) -> DataShards:
            nonlocal outcome
            record = self._existing(record)
            held = record.held(self._rank)
            if held is not None and finished is not None and held.grant == finished.grant:
                record, held = record.finish(held, clock), None
            if held is not None:
                outcome = held
            else:
                record, outcome = record.take(self._rank, epochs, clock)
            return record

        revision = self._change(change).revision
        return outcome, revision

    def finish(self, grant: Grant, clock: int) -> None:
        """All of it is ticked, and the rank wants no other."""
        self._put_down(grant, lambda record: record.finish(grant, clock))

    def give_back(self, grant: Grant, start: str, clock: int) -> None:
        """Leave the rest, from behind `start` on, to others."""
        self._put_down(grant, lambda record: record.give_back(grant, start, clock))

    def changed_since(self, revision: int) -> Changed:
        """Tells when the record is another than at that revision."""
        return Changed(self._kv, self._keys.data_shards(self._job), revision)

    def _put_down(self, grant: Grant, change: Callable[[DataShards], DataShards]) -> None:
        def decide(record: DataShards | None) -> DataShards:
            record = self._existing(record)
            return change(record) if record.held(self._rank) == grant else record

        self._change(decide)

    def _existing(self, record: DataShards | None) -> DataShards:
        if record is None:
            raise NotFound(f"job {self._job!r} has no data shards any more: it was removed")
        return record

    # -- etcd

    def _change(self, decide: Callable[[DataShards | None], DataShards]) -> _Written:
        """Read, decide and write until it is written, or there is nothing to write."""

        def attempt() -> _Written | None:
            read = self._read()
            new = decide(read.record)
            if new == read.record:
                return _Written(new, read.revision)
            txn = writing(self._keys, self._job, self._worker, read.item, read.config, new)
            written = self._kv.txn(txn, deadline_s=CALL_S)
            return _Written(new, written.revision) if written.succeeded else None

        return self._until(attempt)

    def _read(self) -> _Read:
        read = self._kv.txn(reading(self._keys, self._job, self._rank), deadline_s=CALL_S)
        at, counter, config = read.results
        assert isinstance(at, ReadResult)
        assert isinstance(counter, ReadResult)
        assert isinstance(config, ReadResult)
        self._check(config.items)
        if not counter.items:
            raise NotFound(f"job {self._job!r} was removed while rank {self._rank} was running")
        if counter.items[0].value != counter_bytes(self._worker.incarnation):
            raise Fenced(
                f"rank {self._rank} of job {self._job!r} was taken over by another process, or is "
                f"leaving (this one is incarnation {self._worker.incarnation}): end this process"
            )
        item = at.items[0] if at.items else None
        record = None if item is None else DataShards.from_bytes(item.value, item.key)
        if record is not None and record.job_id != self._job_id:
            record = None  # of a removed job that had this name
        return _Read(item, record, config.items[0], read.revision)

    def _check(self, items: tuple[KeyValue, ...]) -> None:
        """Is the configuration that of our incarnation of the cluster?"""
        if not items:
            raise NotFound(f"there is no cluster {self._keys.cluster!r} any more")
        found = ClusterConfig.from_bytes(items[0].value, items[0].key).incarnation
        if found != self._incarnation:
            raise RolledBack(
                f"the cluster was rolled back, and is at incarnation {found} now: rank "
                f"{self._rank} worked on data shards in incarnation {self._incarnation}. Call "
                "resume() to go on"
            )

    def _until(self, attempt: Callable[[], T | None]) -> T:
        end_s = time.monotonic() + self._deadline_s
        last: RetryLater | None = None
        while True:
            try:
                result = attempt()
                if result is not None:
                    return result
            except RetryLater as error:
                last = error
                time.sleep(RETRY_S)
            if time.monotonic() >= end_s:
                raise last or DeadlineExceeded(
                    f"job {self._job!r}, rank {self._rank}: for {self._deadline_s:g} s other ranks "
                    "were faster to change the record of data shards: use fewer or larger ones"
                )


class Changed:
    """Is set when a key has changed; use it in a `with`."""

    def __init__(self, kv: Kv, key: bytes, revision: int) -> None:
        self._event = threading.Event()
        self._watch = kv.watch(key, revision + 1, self._on_change)

    def is_set(self) -> bool:
        """Has it?"""
        return self._event.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for it at most so long."""
        return self._event.wait(timeout_s)

    def clear(self) -> bool:
        """Forget that it has; what it was. What is read from now on tells the rest."""
        was_set = self._event.is_set()
        self._event.clear()
        return was_set

    def _on_change(self, change: WatchBatch | Reset) -> None:
        self._event.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.close()
