"""A shard as it is asked: a fixed part of the key space, its state, and the pulls that wait for it.

`ShardState` says what commands do. Pulls change nothing: they are answered at once, or wait until
the job's clocks let them. Where a rank stands is told at once.

Invariant: no pull is answered before its gate (`Consistency.gate`): asserted at every answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from resilient_ps.barrier import BARRIER_BYTES_MAX
from resilient_ps.errors import BadInput, Bug
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import READER, WorkerId
from resilient_ps.job import Job
from resilient_ps.ledger import ACCEPT
from resilient_ps.messages import Keys, Kind, Part, PartAnswer, Request, Status, Values
from resilient_ps.shard_answers import Change
from resilient_ps.shard_state import CURSOR_BYTES_MAX, ShardState
from resilient_ps.table_part import TablePart
from resilient_ps.waiting import Origin, WaitingPull, WaitingPulls

__all__ = ["CURSOR_BYTES_MAX", "Change", "Reply", "Shard", "moves_clocks"]

PULL_WAIT_NS_MAX = 3_600 * 10**9
_MOVES_CLOCKS = frozenset({Kind.TICK, Kind.LEAVE, Kind.FENCE, Kind.CLOSE_JOB, Kind.DROP_TABLE})


class Reply(NamedTuple):
    """An answer to one part, on its way to whoever asked."""

    origin: Origin
    answer: PartAnswer
    values: Values | None = None


def moves_clocks(kind: Kind) -> bool:
    """May a command of this kind let waiting pulls be answered? Call `release` after it."""
    return kind in _MOVES_CLOCKS


class Shard(ShardState):
    """The state of a shard, and the pulls that wait for it."""

    def __init__(
        self,
        number: int,
        shards: int,
        guards: Guards = ALL_GUARDS,
        *,
        barrier_bytes_max: int = BARRIER_BYTES_MAX,
    ) -> None:
        super().__init__(number, shards, guards, barrier_bytes_max=barrier_bytes_max)
        self.waiting = WaitingPulls()

    def on_pull(
        self, request: Request, part: Part, keys: Keys, origin: Origin, now_ns: int
    ) -> list[Reply]:
        """Answer a pull of `keys`, or let it wait: then the list is empty."""
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

    def stand(self, worker: WorkerId) -> PartAnswer:
        """The last tick of a rank and its cursor, as FENCE answers them; nothing changes."""
        job = self.jobs.get(worker.job)
        if job is None:
            return self._no_job(worker.job)
        record = job.ledger.ranks.get(worker.rank)
        if record is None or not record.live:
            return self._refuse(job.ledger.check_worker(worker))
        return self._last_tick(record)

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

    def _read(
        self, origin: Origin, worker: WorkerId, clock: int, number: int, keys: Keys
    ) -> Reply | None:
        """The answer to a pull, or None while it has to wait."""
        table = self.tables.get(number)
        if table is None:
            return Reply(origin, self._no_table(number))
        if worker != READER:
            job = self.jobs.get(worker.job)
            if job is None:
                return Reply(origin, self._no_job(worker.job))
            verdict = job.ledger.check_worker(worker)
            if verdict.status is not Status.OK:
                return Reply(origin, self._refuse(verdict))
            if self.guards.staleness_gate and not self._may_read(job, clock):
                return None
        try:
            values = table.pull(keys)
        except BadInput as error:
            return Reply(origin, self._no(Status.REFUSED, str(error)))
        answer = PartAnswer(self.number, Status.OK, self.position, 0, len(keys), values.size)
        return Reply(origin, answer, values)

    def readable(self, worker: WorkerId, clock: int, number: int) -> TablePart | None:
        """The table, if a pull of this worker at its `clock` may be answered right now."""
        table = self.tables.get(number)
        if table is None or worker == READER:
            return table
        job = self.jobs.get(worker.job)
        if job is None or job.ledger.check_worker(worker) is not ACCEPT:
            return None
        return table if self._may_read(job, clock) else None

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

    def status(self) -> dict[str, Any]:
        """One line of `resilient-ps status`."""
        return {
            "shard": self.number,
            "epoch": list(self.epoch),
            "lsn": self.lsn,
            "waiting": len(self.waiting),
        }
