"""The state of a shard: what its log determines, and nothing else.

Theory of operation. What changes a shard is an entry in its log, a `Command` numbered by `lsn`; its
state (tables, ledgers, barriers) is a deterministic function of the entries. Whether a command is
new, a repeat, out of order, from a fenced process or wrong is decided when it is *applied*, on
every replica alike (`apply`). Where nothing is under way the primary asks first (`check`): what
would change nothing need not become an entry.

The state knows nothing of its log, of other replicas or of its role.

Invariants:

* an operation is applied at most once, whatever is repeated (`JobLedger`);
* a command that is refused changes nothing but the lsn;
* under BSP a clock is applied once, when all live ranks ticked it, in the order (rank, n);
* a task of a graph is applied once, when it ticks: nobody sees a part of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xxhash

from resilient_ps.barrier import BARRIER_BYTES_MAX, Barrier, Update
from resilient_ps.consistency import JobSpec
from resilient_ps.cutting import Cutting
from resilient_ps.errors import BadInput, Bug
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import Epoch, Position, PushId
from resilient_ps.job import Job
from resilient_ps.ledger import JobLedger, RankRecord
from resilient_ps.messages import NO_KEYS, NO_VALUES, Command, Entry, Kind, PartAnswer, Status
from resilient_ps.plain_push import PlainPush
from resilient_ps.shard_answers import Change
from resilient_ps.small_state import digest_of
from resilient_ps.table_part import TablePart
from resilient_ps.tables.spec import spec_from_json

TABLES_MAX = 10_000
JOBS_MAX = 1_000
RANK_RECORDS_MAX = 1 << 20  # of one job on all shards together: one server may hold them all
CURSOR_BYTES_MAX = 4_096
_LANES_STAY = "the job is a graph of tasks: its lanes neither join nor leave"
_new = tuple.__new__  # several times faster than a named tuple's own constructor


class ShardState(Cutting):
    """One replica's state of a shard. `position` is carried by every answer."""

    def __init__(
        self,
        number: int,
        shards: int,
        guards: Guards = ALL_GUARDS,
        *,
        barrier_bytes_max: int = BARRIER_BYTES_MAX,
    ) -> None:
        super().__init__(number, guards)
        self.shards = shards
        self._barrier_bytes_max = barrier_bytes_max

    # -- entries

    def serve_in(self, epoch: Epoch) -> None:
        """From now on answers carry this epoch."""
        self.epoch = epoch
        self.position = Position(epoch, self.lsn)
        self.forget_quick_rows()

    def check(self, command: Command) -> PartAnswer | None:
        """The answer, if applying the command now would change nothing; else None."""
        prepared = self.prepare(command)
        return prepared if isinstance(prepared, PartAnswer) else None

    def apply(self, entry: Entry) -> PartAnswer:
        """Let the next entry of the log take effect; gives the answer for whoever asked for it."""
        self.come_to(entry.at.lsn)
        prepared = self.prepare(entry.command)
        return prepared if isinstance(prepared, PartAnswer) else prepared()

    def prepare(self, command: Command) -> PartAnswer | Change:
        """As `check`, but with the change that `commit` makes: so that it is admitted once."""
        handler = _HANDLERS.get(command.kind)
        if handler is None:
            return self._no(Status.REFUSED, f"a {command.kind.name} cannot be in a log")
        return handler(self, command)

    def commit(self, change: Change, at: Position) -> PartAnswer:
        """`apply` of a command that was prepared after the entry before it was applied."""
        self.come_to(at.lsn)
        return change()

    def come_to(self, lsn: int) -> None:
        """The next entry takes effect."""
        if lsn != self.lsn + 1 and self.guards.log_matching:
            raise Bug(f"shard {self.number} is to apply entry {lsn} after {self.lsn}")
        self.lsn = lsn
        self.position = _new(Position, (self.epoch, lsn))

    def _on_epoch(self, command: Command) -> Change:
        return self._ok

    # -- tables

    def _on_open_table(self, command: Command) -> PartAnswer | Change:
        number, text = command.table, command.text.decode(errors="replace")
        held = self.tables.get(number)
        if held is not None:
            if held.text == text:
                return self._ok()
            return self._no(Status.REFUSED, f"table {number} is {held.text}, not {text}")
        if len(self.tables) >= TABLES_MAX:
            return self._no(Status.REFUSED, f"there are {TABLES_MAX} tables already: drop some")
        try:
            spec = spec_from_json(text)
        except BadInput as error:
            return self._no(Status.REFUSED, str(error))

        def open_table() -> PartAnswer:
            part = self.tables[number] = TablePart(spec, text, self.number, self.shards)
            if self.image is not None:
                self.image.on_open_table(number, part)
            if self.quotas:
                self.forget_quick_rows()
            return self._ok()

        return open_table

    def _on_drop_table(self, command: Command) -> PartAnswer | Change:
        if command.table not in self.tables:
            return self._ok()

        def drop_table() -> PartAnswer:
            if self.image is not None:
                self.image.on_drop_table(command.table)
            del self.tables[command.table]
            for job in self.jobs.values():
                job.barrier.forget_table(command.table)
            self.quotas.reconsider()
            return self._ok()

        return drop_table

    # -- jobs and takeover

    def _on_open_job(self, command: Command) -> PartAnswer | Change:
        text = command.text.decode(errors="replace")
        held = self.jobs.get(command.worker.job)
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
        if spec.job != command.worker.job:
            return self._no(Status.REFUSED, f"job {command.worker.job} calls itself {spec.job}")
        if spec.ranks * self.shards > RANK_RECORDS_MAX:
            return self._no(
                Status.REFUSED,
                f"a job of {spec.ranks} ranks on {self.shards} shards: at most "
                f"{RANK_RECORDS_MAX // self.shards} ranks are possible; remove this job, and use "
                "fewer ranks, or a cluster with fewer shards",
            )

        def open_job() -> PartAnswer:
            barrier = Barrier(bytes_max=self._barrier_bytes_max)
            job = self.jobs[spec.job] = Job(text, JobLedger(spec, self.guards), barrier)
            if self.image is not None:
                self.image.on_open_job(spec.job, job)
            return self._ok()

        return open_job

    def _on_close_job(self, command: Command) -> PartAnswer | Change:
        number = command.worker.job
        if number not in self.jobs:
            return self._ok()

        def close_job() -> PartAnswer:
            del self.jobs[number]
            self._forget_job(number)
            self.quotas.reconsider()
            for table in self.tables.values():
                if table.writer == number:
                    table.writer = 0
            return self._ok()

        return close_job

    def _on_fence(self, command: Command) -> PartAnswer | Change:
        job, worker = self.jobs.get(command.worker.job), command.worker
        if job is None:
            return self._no_job(worker.job)
        ledger = job.ledger
        if ledger.executed(command.n) and worker.rank in ledger.ranks:
            return self._last_tick(ledger.ranks[worker.rank])
        verdict = ledger.check_fence(worker)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        if verdict.repeat:
            return self._last_tick(ledger.ranks[worker.rank])

        def fence() -> PartAnswer:
            ledger.record_fence(worker)
            self.quotas.reconsider()  # the predecessor's pushes are dropped, now or soon
            return self._last_tick(ledger.ranks[worker.rank])

        return fence

    def _last_tick(self, record: RankRecord) -> PartAnswer:
        holds = 1 if record.last else 0
        return self._ok(record.ticked, record.cursor)._replace(count=holds)

    def _on_redo(self, command: Command) -> PartAnswer | Change:
        job, worker = self.jobs.get(command.worker.job), command.worker
        if job is None:
            return self._no_job(worker.job)
        if job.ledger.executed(command.n):
            return self._ok()
        verdict = job.ledger.check_redo(worker, command.clock)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        if verdict.repeat or not self.guards.takeover_redo:
            return self._ok()

        def redo() -> PartAnswer:
            job.ledger.record_redo(worker)
            job.barrier.forget(worker.rank, command.clock)
            return self._ok()

        return redo

    def _on_join(self, command: Command) -> PartAnswer | Change:
        job, rank = self.jobs.get(command.worker.job), command.worker.rank
        if job is None:
            return self._no_job(command.worker.job)
        ledger = job.ledger
        if ledger.is_graph:
            return self._no(Status.REFUSED, _LANES_STAY)
        if ledger.executed(command.n):
            record = ledger.ranks.get(rank)
            return self._ok(record.ticked + 1 if record else 0)
        if not ledger.room_for(rank):
            return self._no(Status.REFUSED, "the job has as many ranks as are possible")

        def join() -> PartAnswer:
            first = ledger.record_join(command.n, rank, self.cuts.start_above(job.spec.job))
            self._close_clocks(job)  # where nobody else is live
            return self._ok(first)

        return join

    def _on_leave(self, command: Command) -> PartAnswer | Change:
        job, worker = self.jobs.get(command.worker.job), command.worker
        if job is None:
            return self._no_job(worker.job)
        if job.ledger.is_graph:
            return self._no(Status.REFUSED, _LANES_STAY)
        if job.ledger.executed(command.n):
            return self._ok()
        verdict = job.ledger.check_worker(worker)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)

        def leave() -> PartAnswer:
            job.ledger.record_leave(command.n, worker.rank)
            self._close_clocks(job)
            self._look_at(job, worker.rank)
            return self._ok()

        return leave

    # -- pushes and ticks

    def plain_push(self, command: Command) -> PlainPush | None:
        """This push, if it is accepted and applied at once, once there is room for its rows; None:
        `prepare` says."""
        worker = command.worker
        table, job = self.tables.get(command.table), self.jobs.get(worker.job)
        if table is None or job is None or table.writer != worker.job:
            return None
        ledger = job.ledger
        if command.kind is not Kind.PUSH or ledger.buffers or table.overlay is not None:
            return None
        if not ledger.accepts(worker, command.clock, command.n, command.prev):
            return None
        keys, values = command.keys, command.values
        if not table.is_pushable(keys, values, values.size):
            return None
        if self.cuts.holds_back(worker.job, command.clock):
            return None
        if not job.barrier.has_room_for(keys.nbytes + values.nbytes):
            return None
        return _new(PlainPush, (self, table, ledger, command))

    def _on_push(self, command: Command) -> PartAnswer | Change:
        digest = xxhash.xxh3_64_intdigest(command.keys.data, command.table)
        update = Update(command.n, command.table, command.keys, command.values)
        return self._write(command, update, digest)

    def _on_tune(self, command: Command) -> PartAnswer | Change:
        digest = xxhash.xxh3_64_intdigest(np.float64(command.rate).tobytes(), command.table)
        update = Update(command.n, command.table, NO_KEYS, NO_VALUES, command.rate)
        return self._write(command, update, digest)

    def _write(self, command: Command, update: Update, digest: int) -> PartAnswer | Change:
        worker = command.worker
        job, table = self.jobs.get(worker.job), self.tables.get(command.table)
        if job is None:
            return self._no_job(worker.job)
        if table is None:
            return self._no_table(command.table)
        push = _new(PushId, (command.clock, command.n, command.prev))
        verdict = job.ledger.check_push(worker, push, digest)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        if verdict.repeat and not verdict.replay:
            return self._ok(push.n)
        refusal = None if verdict.repeat else self._unfit(job, table, command, update)
        if refusal is not None:
            return refusal

        def write() -> PartAnswer:
            if verdict.repeat:
                job.ledger.record_replay(worker.rank, push, digest)
                return self._ok(push.n)
            late = push.clock > self.cuts.clock_of(worker.job)
            table.note_writer(worker.job, late=late)
            if job.ledger.buffers and self.guards.barrier:
                job.barrier.hold(worker.rank, push.clock, update)
            else:
                table.apply(update, late=late)
            job.ledger.record_push(worker.rank, push, digest)
            return self._ok(push.n)

        return write

    def _unfit(
        self, job: Job, table: TablePart, command: Command, update: Update
    ) -> PartAnswer | None:
        """Why this update cannot be made: wrong values, another writer, no room."""
        clock, worker = command.clock, command.worker
        try:
            table.check(update)
            job.check_reduce(table.spec)
        except BadInput as error:
            return self._no(Status.REFUSED, str(error))
        if table.writer in self.jobs and table.writer != job.spec.job:  # one job writes at a time
            other = self.jobs[table.writer].spec.name
            text = (
                f"table {table.spec.name!r} is being written by job {other!r}; wait until it is "
                f"done, or end it with `resilient-ps job rm {other}`"
            )
            return self._no(Status.REFUSED, text)
        # never of tasks: those that the cut waits for may need the processes that would wait here
        if not job.ledger.is_graph and self.cuts.holds_back(job.spec.job, clock):
            text = f"pushes wait for cut {self.cuts.number}: {self.cuts.waits_for(self.jobs)}"
            return self._no(Status.BUSY, text)
        if not job.has_room(worker.rank, clock, update):
            return self._no(Status.BUSY, job.why_full())
        return None

    def _on_tick(self, command: Command) -> PartAnswer | Change:
        job, worker, cursor = self.jobs.get(command.worker.job), command.worker, command.text
        if job is None:
            return self._no_job(worker.job)
        if len(cursor) > CURSOR_BYTES_MAX:
            text = f"a cursor of {len(cursor)} bytes, possible are {CURSOR_BYTES_MAX}"
            return self._no(Status.REFUSED, text)
        push = PushId(command.clock, 0, command.prev)
        verdict = job.ledger.check_tick(worker, push, settled=command.settled)
        if verdict.status is not Status.OK:
            return self._refuse(verdict)
        if verdict.repeat:
            return self._ok(job.ledger.ranks[worker.rank].ticked)

        def tick() -> PartAnswer:
            job.ledger.record_tick(worker.rank, push.clock, cursor)
            if job.ledger.is_graph:
                job.end_task(worker.rank, push.clock, self.tables, self.cuts.clock_of(worker.job))
            else:
                self._close_clocks(job)
            self._look_at(job, worker.rank)
            return self._ok(push.clock)

        return tick

    def _close_clocks(self, job: Job) -> None:
        job.close_clocks(self.tables, self.cuts.clock_of(job.spec.job))

    def digest(self) -> str:
        """Equal for equal logs, and for nothing else: tables, ledgers, held pushes, lsn, cut."""
        return digest_of(self.lsn, self.tables, self.jobs, self.cuts, self.quotas)


# Of the class, not of each shard: a shard that refers to itself is freed, with all its tables, only
# when Python's collector finds it, and takes their memory until then.
_HANDLERS: dict[Kind, Callable[[ShardState, Command], PartAnswer | Change]] = {
    Kind.OPEN_TABLE: ShardState._on_open_table,
    Kind.DROP_TABLE: ShardState._on_drop_table,
    Kind.OPEN_JOB: ShardState._on_open_job,
    Kind.CLOSE_JOB: ShardState._on_close_job,
    Kind.FENCE: ShardState._on_fence,
    Kind.REDO: ShardState._on_redo,
    Kind.PUSH: ShardState._on_push,
    Kind.TUNE: ShardState._on_tune,
    Kind.TICK: ShardState._on_tick,
    Kind.JOIN: ShardState._on_join,
    Kind.LEAVE: ShardState._on_leave,
    Kind.EPOCH: ShardState._on_epoch,
    Kind.CUT: ShardState._on_cut,
    Kind.ABORT: ShardState._on_abort,
    Kind.QUOTA: ShardState._on_quota,
}
