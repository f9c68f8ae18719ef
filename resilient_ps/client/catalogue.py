"""Tables, jobs, ranks and intents as they are registered in etcd: created once, never mixed up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from resilient_ps.client.scopes import Scopes
from resilient_ps.consistency import Consistency, JobSpec, consistency_name
from resilient_ps.coordinator.data_shards import DataShards, Grant
from resilient_ps.coordinator.intents import job_spec
from resilient_ps.coordinator.keys import ClusterKeys, Counter
from resilient_ps.coordinator.kv import Compare, Delete, KeyValue, Kv, Put, Txn, absent, unchanged
from resilient_ps.coordinator.records import (
    EVICT_LEAST_S,
    EVICT_MOST_S,
    ClusterConfig,
    IntentRecord,
    JobRecord,
    RestoreRecord,
    TableRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.errors import (
    BadInput,
    DeadlineExceeded,
    Fenced,
    FixTheCall,
    NotFound,
    Reopen,
    RetryLater,
    RolledBack,
    SpecMismatch,
    Unavailable,
)
from resilient_ps.split import TableHandle
from resilient_ps.tables.spec import TableSpec, spec_from_json

POLL_S = 0.05
ETCD_DEADLINE_S = 10.0
_T = TypeVar("_T")


class Catalogue:
    """What is registered in one cluster. All calls end at `deadline_s`."""

    def __init__(self, kv: Kv, cluster: str, deadline_s: float = 10.0) -> None:
        self.keys = ClusterKeys(cluster)
        self.kv = kv
        self.scopes = Scopes(kv, self.keys, deadline_s)
        self._deadline_s = deadline_s

    @property
    def deadline_s(self) -> float:
        """How long a call here may take, with all that it asks etcd."""
        return self._deadline_s

    @property
    def call_deadline_s(self) -> float:
        """How long one call to etcd may take."""
        return min(self._deadline_s, ETCD_DEADLINE_S)

    def incarnation(self) -> int:
        """In which incarnation the cluster is. Raises `NotFound`."""
        return self._config()[0].incarnation

    def _config(self) -> tuple[ClusterConfig, KeyValue]:
        item = self._get(self.keys.config)
        if item is None:
            raise NotFound(f"there is no cluster {self.keys.cluster!r}")
        return ClusterConfig.from_bytes(item.value, item.key), item

    # -- tables

    def tables(self) -> dict[str, TableHandle]:
        """All tables, by name."""
        items = self.kv.read(self.keys.tables, prefix=True, deadline_s=self._deadline_s).items
        handles = (_handle(item) for item in items)
        return {handle.spec.name: handle for handle in handles}

    def table(self, name: str) -> TableHandle | None:
        """The table of this name."""
        item = self._get(self.keys.table(name))
        return None if item is None else _handle(item)

    def create_table(self, spec: TableSpec) -> TableHandle:
        """The table of this name: created, or found. Raises `SpecMismatch` showing both."""

        def attempt() -> TableHandle | None:
            self.scopes.check_in_force(spec.name)
            found = self.table(spec.name)
            if found is not None:
                if found.spec != spec:
                    raise SpecMismatch(
                        f"table {spec.name!r} exists as {found.spec.describe()}; asked for was "
                        f"{spec.describe()}. Use another name, or drop it: "
                        f"`resilient-ps table rm {spec.name}`"
                    )
                return found
            number, guard, put = self._draw("tables")
            key = self.keys.table(spec.name)
            record = TableRecord(number, spec.to_json())
            guards = (guard, absent(key), self._settled())
            txn = Txn(guards, (put, Put(key, record.to_bytes())))
            return TableHandle(number, spec) if self.kv.txn(txn).succeeded else None

        return self._until(f"creating table {spec.name!r}", attempt)

    def drop_table(self, name: str) -> TableHandle:
        """Forget the table; its shards are told by the caller. Raises `NotFound`."""
        handle = self.table(name)
        if handle is None:
            raise NotFound(f"there is no table {name!r}; tables: {', '.join(self.tables()) or '-'}")
        self.kv.txn(Txn((), (Delete(self.keys.table(name)),)))
        return handle

    # -- jobs

    def jobs(self) -> list[JobRecord]:
        """All jobs, by name."""
        items = self.kv.read(self.keys.jobs, prefix=True, deadline_s=self._deadline_s).items
        located = ((item, self.keys.locate(item.key)) for item in items)
        return [
            JobRecord.from_bytes(item.value, item.key)
            for item, at in located
            if at is not None and at.kind == "job"
        ]

    def job(self, name: str) -> JobRecord:
        """The job of this name. Raises `NotFound`."""
        item = self._get(self.keys.job(name))
        if item is None:
            names = ", ".join(job.name for job in self.jobs()) or "-"
            raise NotFound(f"there is no job {name!r}; jobs: {names}")
        return JobRecord.from_bytes(item.value, item.key)

    def open_job(
        self, name: str, ranks: int, consistency: Consistency, evict_after_s: float | None = None
    ) -> JobSpec:
        """The running job of this name: created, or found. Raises `SpecMismatch`.

        `evict_after_s`: None, or 3 s to 30 days.
        """
        mode = consistency_name(consistency)

        def attempt() -> JobSpec | None:
            item = self._get(self.keys.job(name))
            if item is not None:
                found = JobRecord.from_bytes(item.value, item.key)
                return _same_job(found, ranks, mode, evict_after_s)
            number, guard, put = self._draw("jobs")
            key = self.keys.job(name)
            record = JobRecord(number, name, mode, ranks, "running", evict_after_s)
            guards = (guard, absent(key), self._settled())
            txn = Txn(guards, (put, Put(key, record.to_bytes())))
            return job_spec(record) if self.kv.txn(txn).succeeded else None

        if evict_after_s is not None and not (
            isinstance(evict_after_s, int | float)
            and EVICT_LEAST_S <= evict_after_s <= EVICT_MOST_S
        ):
            raise BadInput(
                f"evict_after_s={evict_after_s!r}: choose {EVICT_LEAST_S:g} to {EVICT_MOST_S:g} s, "
                "or None"
            )
        return self._until(f"opening job {name!r}", attempt)

    def set_job_state(self, name: str, state: str) -> JobRecord:
        """Mark a job `running`, `stopped` or `done`. Raises `NotFound`."""

        def attempt() -> JobRecord | None:
            item = self._get(self.keys.job(name))
            record = self.job(name)
            if item is None or record.state == state:
                return record
            changed = replace(record, state=state)  # type: ignore[arg-type]
            txn = Txn(
                (unchanged(item.key, item.mod_revision),), (Put(item.key, changed.to_bytes()),)
            )
            return changed if self.kv.txn(txn).succeeded else None

        return self._until(f"marking job {name!r} as {state}", attempt)

    def remove_job(self, name: str) -> JobRecord:
        """Forget the job, its ranks, and its graph; shards are told by the caller.

        Who waits for a task of it is told. Raises `NotFound`.
        """
        record, keys = self.job(name), self.keys
        parts = (Delete(keys.ranks(name), prefix=True), Delete(keys.data_shards(name)))
        graph = (Delete(keys.graph(name)), Delete(keys.graph_parts(name), prefix=True))
        self.kv.txn(Txn((), (Delete(keys.job(name)), *parts, *graph)))
        return record

    # -- ranks and intents

    def draw_incarnation(self, job: str, rank: int, *, held: int = 0) -> int:
        """The number of a new process of this rank: larger than all before it.

        `held`: that of a process which goes on after a rollback. Raises `Fenced` where another one
        has taken the rank over from it.
        """
        tried: set[int] = set()  # an attempt whose answer was lost may have drawn it

        def attempt() -> int | None:
            leaves = self._leaves(job, rank)
            if any(intent.state == "open" for intent in leaves):
                return None  # the coordinator draws this rank's numbers until it has left
            number, txn = self._incarnation(job, rank)
            own = tried | {intent.incarnation for intent in leaves}
            others = set(range(held + 1, number)) - own
            if held and others:
                raise Fenced(
                    f"rank {rank} of job {job!r} was taken over by another process (incarnation "
                    f"{number - 1}, this one is {held}): end this process"
                )
            tried.add(number)
            return number if self.kv.txn(txn).succeeded else None

        return self._until(f"drawing an incarnation for rank {rank} of job {job!r}", attempt)

    def finish_rank(self, job: str, rank: int, incarnation: int = 0) -> bool:
        """Record that the rank has nothing left to do; is that true of all ranks of the job now?

        It is true until another process takes the rank over. A rank that was taken out of the job
        from outside never says so. `incarnation`: of the cluster, in which that is so (0: in
        whichever). Raises `RolledBack` if it is over.
        """

        def attempt() -> bool | None:
            drawn = self._get(self.keys.rank(job, rank))
            if drawn is None:
                return False  # the job was removed
            put = Put(self.keys.finished(job, rank), drawn.value)
            same = (self._same(incarnation),) if incarnation else ()
            txn = Txn((unchanged(drawn.key, drawn.mod_revision), *same), (put,))
            return self._all_finished(job) if self.kv.txn(txn).succeeded else None

        return self._until(f"recording the end of rank {rank} of job {job!r}", attempt)

    def _same(self, incarnation: int) -> Compare:
        """A guard that holds while the cluster is in this incarnation."""
        config, item = self._config()
        if incarnation != config.incarnation:
            raise RolledBack(
                "the cluster was rolled back, and is at incarnation "
                f"{config.incarnation} now: call resume()"
            )
        return unchanged(item.key, item.mod_revision)

    def _all_finished(self, job: str) -> bool:
        item = self._get(self.keys.job(job))
        if item is None:
            return False
        prefix = self.keys.ranks(job)
        items = self.kv.read(prefix, prefix=True, deadline_s=self._deadline_s).items
        told = {one.key: one.value for one in items}
        located = (self.keys.locate(key) for key in told)
        ranks = {at.number for at in located if at is not None and at.kind == "rank"}
        ranks.update(range(JobRecord.from_bytes(item.value, item.key).ranks))
        return all(
            told.get(self.keys.finished(job, rank), b"-") == told.get(self.keys.rank(job, rank))
            for rank in ranks
        )

    def propose(self, kind: str, job: str, rank: int, incarnation: int = 0) -> IntentRecord:
        """Write an intent (`join` or `leave`) and wait until the coordinator has executed it.

        `incarnation`: of the cluster, in which it is meant (0: in whichever).
        Raises `Reopen` when it was aborted, `RolledBack` when the cluster went back to a checkpoint
        before it was carried out, `DeadlineExceeded` when nobody executes it in time, and
        `FixTheCall` for the leave of a rank that has a data shard in hand.
        """
        number = self._until(
            f"proposing a {kind}", lambda: self._propose(kind, job, rank, incarnation)
        )

        def attempt() -> IntentRecord | None:
            item = self._get(self.keys.intent(number))
            record = None if item is None else IntentRecord.from_bytes(item.value, item.key)
            return record if record is not None and record.state != "open" else None

        record = self._until(f"intent {number} ({kind} of rank {rank} of job {job!r})", attempt)
        if record.state == "aborted" and record.result.get("why") == "rolled back":
            raise RolledBack(
                f"the cluster was rolled back before the {kind} of rank {rank} of job {job!r} was "
                "carried out: call resume()"
            )
        if record.state == "aborted":
            raise Reopen(f"the {kind} of rank {rank} of job {job!r} failed: {record.result}")
        return record

    def _propose(self, kind: str, job: str, rank: int, incarnation: int = 0) -> int | None:
        self.job(job)
        same = (self._same(incarnation),) if incarnation else ()
        number, guard, put = self._draw("intents")
        of_rank, drawn = 0, Txn((), ())
        if kind == "leave":
            of_rank, drawn = self._incarnation(job, rank)
            guards = (*drawn.compares, self._empty_handed(job, rank))
            drawn = Txn(guards, drawn.success)
        record = IntentRecord(number, kind, job, rank, of_rank, "open")  # type: ignore[arg-type]
        key = self.keys.intent(number)
        txn = Txn(
            (guard, absent(key), *same, *drawn.compares),
            (put, Put(key, record.to_bytes()), *drawn.success),
        )
        return number if self.kv.txn(txn).succeeded else None

    def in_hand(self, job: str, rank: int) -> Grant | None:
        """The data shard that the rank works on, if any: see `coordinator.data_shards`."""
        item = self._get(self.keys.data_shards(job))
        return None if item is None else DataShards.from_bytes(item.value, item.key).held(rank)

    def _empty_handed(self, job: str, rank: int) -> Compare:
        """A guard that holds while the rank has no data shard in hand. Raises `FixTheCall`."""
        key = self.keys.data_shards(job)
        item = self._get(key)
        if item is None:
            return absent(key)
        held = DataShards.from_bytes(item.value, key).held(rank)
        if held is not None:
            raise FixTheCall(
                f"rank {rank} of job {job!r} has data shard {held.number} in hand, and samples "
                "would be lost or counted twice if it left: let its program retire it, with "
                "`worker.retire()` or `resilient-ps train ... --retire`"
            )
        return unchanged(key, item.mod_revision)

    def _leaves(self, job: str, rank: int) -> list[IntentRecord]:
        """The rank's intents to leave, open or not."""
        items = self.kv.read(self.keys.intents, prefix=True, deadline_s=self._deadline_s).items
        intents = (IntentRecord.from_bytes(item.value, item.key) for item in items)
        return [i for i in intents if (i.kind, i.job, i.rank) == ("leave", job, rank)]

    def _incarnation(self, job: str, rank: int) -> tuple[int, Txn]:
        key = self.keys.rank(job, rank)
        item = self._get(key)
        number = read_counter(None if item is None else item.value, key) + 1
        guard = unchanged(key, 0 if item is None else item.mod_revision)
        return number, Txn((guard,), (Put(key, counter_bytes(number)),))

    # -- etcd

    def _get(self, key: bytes) -> KeyValue | None:
        items = self.kv.read(key, deadline_s=self._deadline_s).items
        return items[0] if items else None

    def _settled(self) -> Compare:
        """A guard that holds while nothing is being restored. Raises `Unavailable`."""
        key = self.keys.restore
        item = self._get(key)
        if item is None:
            return absent(key)
        if not RestoreRecord.from_bytes(item.value, key).registered:
            raise Unavailable("the cluster is being restored: its tables and jobs come back first")
        return unchanged(key, item.mod_revision)

    def _draw(self, counter: Counter) -> tuple[int, Compare, Put]:
        key = self.keys.counter(counter)
        item = self._get(key)
        number = read_counter(None if item is None else item.value, key) + 1
        guard = unchanged(key, 0 if item is None else item.mod_revision)
        return number, guard, Put(key, counter_bytes(number))

    def _until(self, what: str, attempt: Callable[[], _T | None]) -> _T:
        """Try until it works: others may change the same keys meanwhile.

        An attempt whose outcome is unknown is made again: all of them look first.
        """
        end = time.monotonic() + self._deadline_s
        last: RetryLater | None = None
        while True:
            try:
                result = attempt()
            except RetryLater as error:
                result, last = None, error
            if result is not None:
                return result
            if time.monotonic() >= end:
                raise last or DeadlineExceeded(
                    f"{what} did not end within {self._deadline_s:g} s: is a coordinator running? "
                    "(`resilient-ps status` tells)"
                )
            time.sleep(POLL_S)


def _handle(item: KeyValue) -> TableHandle:
    record = TableRecord.from_bytes(item.value, item.key)
    try:
        return TableHandle(record.table_id, spec_from_json(record.spec_json))
    except BadInput as error:
        raise BadInput(f"etcd key {item.key.decode(errors='replace')}: {error}") from error


def _same_job(
    record: JobRecord, ranks: int, consistency: str, evict_after_s: float | None
) -> JobSpec:
    spec = job_spec(record)
    exists = (spec.ranks, consistency_name(spec.consistency), record.evict_after_s)
    if exists != (ranks, consistency, evict_after_s):
        raise SpecMismatch(
            f"job {record.name!r} exists with {_described(*exists)}; asked for were "
            f"{_described(ranks, consistency, evict_after_s)}. Use another name, or remove it: "
            f"`resilient-ps job rm {record.name}`"
        )
    if record.state != "running":
        raise Reopen(
            f"job {record.name!r} is {record.state}: use another name, or remove it with "
            f"`resilient-ps job rm {record.name}` to run it again"
        )
    return spec


def _described(ranks: int, consistency: str, evict_after_s: float | None) -> str:
    after = "" if evict_after_s is None else f", which are evicted after {evict_after_s:g} s"
    return f"{ranks} ranks under {consistency}{after}"
