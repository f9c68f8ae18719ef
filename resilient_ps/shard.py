"""A shard: a fixed part of the key space, and everything that happens to it.

Theory of operation. What changes a shard is an entry in its log, numbered by `lsn`; its state
(tables, ledgers, barriers) is a deterministic function of the entries. A request is *admitted*
against the state first (is it new, a repeat, out of order, from a fenced process?), then becomes an
entry and is applied, then answered. Pulls change nothing: they are answered at once, or wait until
the job's clocks let them.

In this version a shard has one replica, so that an entry is committed when it is appended.

Invariants:

* an operation is applied at most once, whatever is repeated (`JobLedger`);
* no pull is answered before its gate (`Consistency.gate`): asserted at every answer;
* under BSP a clock is applied once, when all live ranks ticked it, in the order (rank, n).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xxhash

from resilient_ps.barrier import BARRIER_BYTES_MAX, Barrier, Update
from resilient_ps.consistency import JobSpec
from resilient_ps.errors import BadInput, Bug
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import READER, Epoch, Position, PushId, WorkerId
from resilient_ps.job import Job
from resilient_ps.ledger import JobLedger, Verdict
from resilient_ps.messages import NO_KEYS, Keys, Kind, Part, PartAnswer, Request, Status, Values
from resilient_ps.replica import TableReplica
from resilient_ps.tables.spec import spec_from_json
from resilient_ps.waiting import Origin, WaitingPull, WaitingPulls

TABLES_MAX = 10_000
JOBS_MAX = 1_000
RANK_RECORDS_MAX = 1 << 20  # of one job on all shards together: one server may hold them all
CURSOR_BYTES_MAX = 4_096
PULL_WAIT_NS_MAX = 3_600 * 10**9


class Reply(NamedTuple):
    """An answer to one part, on its way to whoever asked."""

    origin: Origin
    answer: PartAnswer
    values: Values | None = None


class Shard:
    """The primary replica of a shard."""

    def __init__(
        self,
        number: int,
        shards: int,
        epoch: Epoch,
        guards: Guards = ALL_GUARDS,
        *,
        barrier_bytes_max: int = BARRIER_BYTES_MAX,
    ) -> None:
        self.number = number
        self.epoch = epoch
        self.lsn = 0
        self.position = Position(epoch, 0)  # carried by every answer
        self.tables: dict[int, TableReplica] = {}
        self.jobs: dict[int, Job] = {}
        self.waiting = WaitingPulls()
        self._shards = shards
        self._guards = guards
        self._barrier_bytes_max = barrier_bytes_max
        self._handlers = {
            Kind.OPEN_TABLE: self._on_open_table,
            Kind.DROP_TABLE: self._on_drop_table,
            Kind.OPEN_JOB: self._on_open_job,
            Kind.CLOSE_JOB: self._on_close_job,
            Kind.FENCE: self._on_fence,
            Kind.REDO: self._on_redo,
            Kind.TUNE: self._on_tune,
            Kind.TICK: self._on_tick,
            Kind.JOIN: self._on_join,
            Kind.LEAVE: self._on_leave,
        }

    # -- requests

    def handle(
        self, request: Request, part: Part, keys: Keys, values: Values, origin: Origin, now_ns: int
    ) -> list[Reply]:
        """One part of a request; `keys` and flat `values` are the part's own."""
        if request.kind is Kind.PULL:
            return self._on_pull(request, part, keys, origin, now_ns)
        if request.kind is Kind.PUSH:
            answer = self._on_push(request, part, keys, values)
        else:
            answer = self._handlers[request.kind](request, part)
        reply = Reply(origin, answer)
        if self.waiting and request.kind in _MOVES_CLOCKS:
            return [reply, *self.release(now_ns)]
        return [reply]

    def release(self, now_ns: int) -> list[Reply]:
        """Answer the waiting pulls whose gate or deadline has been reached."""
        replies: list[Reply] = []
        for pull in self.waiting.take_all():
            reply = self._read(pull.origin, pull.worker, pull.clock, pull.table, pull.keys)
            if reply is None and now_ns >= pull.deadline_ns:
                reply = Reply(pull.origin, self._too_late(pull.worker, pull.clock))
            if reply is None:
                self.waiting.add(pull)
            else:
                replies.append(reply)
        return replies

    # -- tables

    def _on_open_table(self, request: Request, part: Part) -> PartAnswer:
        text = request.text.decode(errors="replace")
        held = self.tables.get(request.table)
        if held is not None:
            if held.text == text:
                return self._ok()
            return self._no(Status.REFUSED, f"table {request.table} is {held.text}, not {text}")
        if len(self.tables) >= TABLES_MAX:
            return self._no(Status.REFUSED, f"there are {TABLES_MAX} tables already: drop some")
        try:
            replica = TableReplica(spec_from_json(text), text, self.number, self._shards)
        except BadInput as error:
            return self._no(Status.REFUSED, str(error))
        self._append()
        self.tables[request.table] = replica
        return self._ok()

    def _on_drop_table(self, request: Request, part: Part) -> PartAnswer:
        if request.table in self.tables:
            self._append()
            del self.tables[request.table]
        return self._ok()

    # -- jobs and takeover

    def _on_open_job(self, request: Request, part: Part) -> PartAnswer:
        text = request.text.decode(errors="replace")
        held = self.jobs.get(request.worker.job)
        if held is not None:
            if held.text == text:
                return self._ok()
            return self._no(Status.REFUSED, f"the job is {held.text}, not {text}")
        if len(self.jobs) >= JOBS_MAX:
            return self._no(Status.REFUSED, f"there are {JOBS_MAX} jobs already: remove some")
        try:
            spec = JobSpec.from_json(text)
        except BadInput as error:
            return self._no(Status.REFUSED, str(error))
        if spec.job != request.worker.job:
            return self._no(Status.REFUSED, f"job {request.worker.job} calls itself {spec.job}")
        if spec.ranks * self._shards > RANK_RECORDS_MAX:
            text = (
                f"a job of {spec.ranks} ranks on {self._shards} shards: at most "
                f"{RANK_RECORDS_MAX // self._shards} ranks are possible; remove this job, and use "
                "fewer ranks, or a cluster with fewer shards"
            )
            return self._no(Status.REFUSED, text)
        self._append()
        barrier = Barrier(bytes_max=self._barrier_bytes_max)
        self.jobs[spec.job] = Job(text, JobLedger(spec, self._guards), barrier)
        return self._ok()

    def _on_close_job(self, request: Request, part: Part) -> PartAnswer:
        if request.worker.job in self.jobs:
            self._append()
            del self.jobs[request.worker.job]
            for table in self.tables.values():
                if table.writer == request.worker.job:
                    table.writer = 0
        return self._ok()

    def _on_fence(self, request: Request, part: Part) -> PartAnswer:
        job = self.jobs.get(request.worker.job)
        if job is None:
            return self._no_job(request)
        ranks = job.ledger.ranks
        if not (job.ledger.executed(request.n) and request.worker.rank in ranks):
            verdict = job.ledger.check_fence(request.worker)
            if verdict.status is not Status.OK:
                return self._refuse(verdict)
            if not verdict.repeat:
                self._append()
                job.ledger.record_fence(request.worker)
        record = ranks[request.worker.rank]
        return self._ok(record.ticked, record.cursor)

    def _on_redo(self, request: Request, part: Part) -> PartAnswer:
        job = self.jobs.get(request.worker.job)
        if job is None:
            return self._no_job(request)
        if job.ledger.executed(request.n):
            return self._ok()
        verdict = job.ledger.check_redo(request.worker, request.clock)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        if not verdict.repeat and self._guards.takeover_redo:
            self._append()
            job.ledger.record_redo(request.worker)
            job.barrier.forget(request.worker.rank, request.clock)
        return self._ok()

    def _on_join(self, request: Request, part: Part) -> PartAnswer:
        job = self.jobs.get(request.worker.job)
        if job is None:
            return self._no_job(request)
        rank = request.worker.rank
        if job.ledger.executed(request.n):
            record = job.ledger.ranks.get(rank)
            return self._ok(record.ticked + 1 if record else 0)
        if not job.ledger.room_for(rank):
            return self._no(Status.REFUSED, "the job has as many ranks as are possible")
        self._append()
        return self._ok(job.ledger.record_join(request.n, rank))

    def _on_leave(self, request: Request, part: Part) -> PartAnswer:
        job = self.jobs.get(request.worker.job)
        if job is None:
            return self._no_job(request)
        if job.ledger.executed(request.n):
            return self._ok()
        verdict = job.ledger.check_worker(request.worker)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        self._append()
        job.ledger.record_leave(request.n, request.worker.rank)
        job.close_clocks(self.tables)
        return self._ok()

    # -- pushes and ticks

    def _on_push(self, request: Request, part: Part, keys: Keys, values: Values) -> PartAnswer:
        digest = xxhash.xxh3_64_intdigest(keys.data, request.table)
        return self._write(request, part, Update(request.n, request.table, keys, values), digest)

    def _on_tune(self, request: Request, part: Part) -> PartAnswer:
        digest = xxhash.xxh3_64_intdigest(np.float64(request.rate).tobytes(), request.table)
        update = Update(request.n, request.table, NO_KEYS, _NO_VALUES, request.rate)
        return self._write(request, part, update, digest)

    def _write(self, request: Request, part: Part, update: Update, digest: int) -> PartAnswer:
        job, table = self.jobs.get(request.worker.job), self.tables.get(request.table)
        if job is None:
            return self._no_job(request)
        if table is None:
            return self._no_table(request)
        push = PushId(request.clock, request.n, part.prev)
        verdict = job.ledger.check_push(request.worker, push, digest)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        if verdict.replay:
            self._append()
            job.ledger.record_replay(request.worker.rank, push, digest)
        if verdict.repeat:
            return self._ok(push.n)
        refusal = self._unfit(job, table, push.clock, update)
        if refusal is not None:
            return refusal
        self._append()
        table.writer = job.spec.job
        if job.ledger.buffers and self._guards.barrier:
            job.barrier.hold(request.worker.rank, push.clock, update)
        else:
            table.apply(update)
        job.ledger.record_push(request.worker.rank, push, digest)
        return self._ok(push.n)

    def _unfit(
        self, job: Job, table: TableReplica, clock: int, update: Update
    ) -> PartAnswer | None:
        """Why this update cannot become an entry: wrong values, another writer, no room."""
        try:
            table.check(update)
            job.check_reduce(table.spec)
        except BadInput as error:
            return self._no(Status.REFUSED, str(error))
        if table.writer != job.spec.job and table.writer in self.jobs:  # one job writes at a time
            other = self.jobs[table.writer].spec.name
            text = (
                f"table {table.spec.name!r} is being written by job {other!r}; wait until it is "
                f"done, or end it with `resilient-ps job rm {other}`"
            )
            return self._no(Status.REFUSED, text)
        if not job.barrier.has_room(clock, update):
            return self._no(Status.BUSY, job.waits_for(job.barrier.applied + 1))
        return None

    def _on_tick(self, request: Request, part: Part) -> PartAnswer:
        job = self.jobs.get(request.worker.job)
        if job is None:
            return self._no_job(request)
        if len(request.text) > CURSOR_BYTES_MAX:
            text = f"a cursor of {len(request.text)} bytes, possible are {CURSOR_BYTES_MAX}"
            return self._no(Status.REFUSED, text)
        push = PushId(request.clock, 0, part.prev)
        verdict = job.ledger.check_tick(request.worker, push, settled=request.settled)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        if not verdict.repeat:
            self._append()
            job.ledger.record_tick(request.worker.rank, request.clock, request.text)
            job.close_clocks(self.tables)
        return self._ok(job.ledger.ranks[request.worker.rank].ticked)

    # -- pulls

    def _on_pull(
        self, request: Request, part: Part, keys: Keys, origin: Origin, now_ns: int
    ) -> list[Reply]:
        reply = self._read(origin, request.worker, request.clock, request.table, keys)
        if reply is not None:
            return [reply]
        if request.wait_ns <= 0:
            return [Reply(origin, self._too_late(request.worker, request.clock))]
        if not self.waiting.has_room(keys):
            return [Reply(origin, self._no(Status.BUSY, "too many pulls wait on this shard"))]
        deadline_ns = now_ns + min(request.wait_ns, PULL_WAIT_NS_MAX)
        self.waiting.add(
            WaitingPull(
                origin, request.worker, request.clock, request.table, part, keys, deadline_ns
            )
        )
        return []

    def _read(
        self, origin: Origin, worker: WorkerId, clock: int, number: int, keys: Keys
    ) -> Reply | None:
        """The answer to a pull, or None while it has to wait."""
        table = self.tables.get(number)
        if table is None:
            text = f"shard {self.number} knows no table {number}: it was dropped, or is new"
            return Reply(origin, self._no(Status.UNKNOWN, text))
        if worker != READER:
            job = self.jobs.get(worker.job)
            if job is None:
                text = f"shard {self.number} knows no job {worker.job}: it was removed"
                return Reply(origin, self._no(Status.UNKNOWN, text))
            verdict = job.ledger.check_worker(worker)
            if verdict.status is not Status.OK:
                return Reply(origin, self._refuse(verdict))
            if self._guards.staleness_gate and not self._may_read(job, clock):
                return None
        try:
            values = table.pull(keys)
        except BadInput as error:
            return Reply(origin, self._no(Status.REFUSED, str(error)))
        answer = PartAnswer(self.number, Status.OK, self.position, 0, len(keys), values.size)
        return Reply(origin, answer, values)

    def _may_read(self, job: Job, clock: int) -> bool:
        """Has the job come so far that a pull at `clock` may be answered?"""
        needed = job.spec.consistency.gate(clock)
        if needed > job.reached():
            return False
        if needed > job.ledger.slowest():
            raise Bug(f"shard {self.number} answers clock {clock} before its gate {needed}")
        return True

    def _too_late(self, worker: WorkerId, clock: int) -> PartAnswer:
        job = self.jobs[worker.job]
        needed = job.spec.consistency.gate(clock)
        return self._no(Status.DEADLINE, job.waits_for(needed))

    # -- answers

    def _append(self) -> None:
        """One entry more in the log."""
        self.lsn += 1
        self.position = Position(self.epoch, self.lsn)

    def status(self) -> dict[str, Any]:
        """One line of `resilient-ps status`."""
        return {
            "shard": self.number,
            "epoch": list(self.epoch),
            "lsn": self.lsn,
            "waiting": len(self.waiting),
        }

    def _ok(self, value: int = 0, text: bytes = b"") -> PartAnswer:
        return PartAnswer(self.number, Status.OK, self.position, value, text=text)

    def _no(self, status: Status, text: str) -> PartAnswer:
        return PartAnswer(self.number, status, self.position, text=text.encode()[:TEXT_BYTES_MAX])

    def _refuse(self, verdict: Verdict) -> PartAnswer:
        return self._no(verdict.status, verdict.text)._replace(value=verdict.value)

    def _no_job(self, request: Request) -> PartAnswer:
        text = f"shard {self.number} knows no job {request.worker.job}: it was removed, or is new"
        return self._no(Status.UNKNOWN, text)

    def _no_table(self, request: Request) -> PartAnswer:
        text = f"shard {self.number} knows no table {request.table}: it was dropped, or is new"
        return self._no(Status.UNKNOWN, text)


TEXT_BYTES_MAX = 1_024
_MOVES_CLOCKS = frozenset({Kind.TICK, Kind.LEAVE, Kind.FENCE, Kind.CLOSE_JOB, Kind.DROP_TABLE})
_NO_VALUES: Values = np.empty(0, np.float32)
