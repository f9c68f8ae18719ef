"""A bit of everything, in whole numbers, so that what is read in the end is exact.

In each clock a worker pulls what all ranks have counted, in the sparse table `rows` (on every shard
one row per rank) and in the small dense table `board` (one number per rank); pushes 1 to its own
rows and its own place on the board; pushes 1 to slots that only this push touches; now and then
trains a few float weights at a learning rate that it changes; and ticks with the clock as cursor,
in some clocks before its pushes are acknowledged (the session holds the tick back until they are).
Rows and board are for `staleness` and `sessions`, slots for `one_hot`, weights for the replicas.

The program is repeatable: what a push covers depends on (rank, clock, n) only. One more rank may
join in the middle and leave again (`guest`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilient_ps.chaos.checkers.cuts import check_slots
from resilient_ps.chaos.checkers.incarnations import rollbacks_of
from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.sessions import check_clocks, check_sessions, check_views
from resilient_ps.chaos.checkers.staleness import check_staleness, lives_of
from resilient_ps.chaos.checkers.totals import check_totals
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.checkers.waits import check_waits
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.outcome import Finding, RunRecord
from resilient_ps.chaos.sim.worker import Pull, Push, SimWorker, Tick, Tune, Wait
from resilient_ps.chaos.sim.world import SKEW_MOST_PPM
from resilient_ps.chaos.workloads.crew import Crew, Prepared
from resilient_ps.chaos.workloads.guest import Guest, Visit
from resilient_ps.chaos.workloads.journal import Journal, Noted, Running
from resilient_ps.chaos.workloads.pace import Pace
from resilient_ps.chaos.workloads.survival import judge_survival
from resilient_ps.consistency import BSP, Consistency, JobSpec
from resilient_ps.hashing import shard_of
from resilient_ps.messages import Keys
from resilient_ps.split import TableHandle
from resilient_ps.tables.optimisers import SGD, Sum
from resilient_ps.tables.spec import DenseSpec, SparseSpec

RANKS = 3
GUEST_RANK = RANKS
JOB, SLOTS_TABLE = 1, 2
SLOT_PUSHES = 8  # of a clock
SLOTS_PER_PUSH = 1
CLOCKS_MAX = 1_000
CLOCKS_LEAST = 7
PUSHES_LEAST = 67  # of a rank, that are acknowledged in time: 200 of all
WEIGHTS = 6
TUNE_EVERY = 7  # clocks
IN_A_HURRY_EVERY = 3  # clocks
WAIT_SLACK_NS = 100_000_000
LAST_DEADLINE_NS = 60 * 10**9
READ_WITHIN_S = 10.0
NOT_AT_REST = Verdict("unknown", ("the cluster has not come to rest",))


@dataclass(frozen=True, slots=True)
class Flavour:
    """What a seed decides: the mode, the pace, how patient workers are, and who visits."""

    mode: Consistency
    deadline_ns: int
    pace: Pace = field(default_factory=Pace)
    visit: Visit | None = None


class Mixed:
    """The workload: three ranks, and a guest if the flavour has one."""

    name = "mixed"
    ranks = tuple(range(RANKS))

    def __init__(self, flavour: Flavour, prepared: Prepared | None = None) -> None:
        self.flavour = flavour
        self.journal = Journal(flavour.deadline_ns)
        self._prepared = prepared
        self._everybody = tuple(range(RANKS + (flavour.visit is not None)))
        self._last: int | None = None  # after `stop`: the clock in which all end
        self._ending = 0  # the largest clock whose tick has been begun
        self._further: dict[int, int] = {}  # by rank: the further pushes of its last clock
        self._guest: Guest | None = None

    def prepare(self, cluster: SimCluster) -> None:
        """Create tables and job."""
        self._cluster = cluster
        self._rows, self._slots, self._board, self._weights = tables = cluster.create_tables(
            {
                1: SparseSpec("rows", 1, "int64", Sum()),
                SLOTS_TABLE: SparseSpec("slots", 1, "int64", Sum()),
                3: DenseSpec("board", (RANKS + 1,), "int64", Sum()),
                4: SparseSpec("weights", 2, "float32", SGD(0.5)),
            }
        )
        self._row_keys = [_keys_on_every_shard(rank, cluster) for rank in self._everybody]
        self._all_rows = np.concatenate(self._row_keys)
        shards = len(self._row_keys[0])
        self._row_ranks = tuple(rank for rank in self._everybody for _ in range(shards))
        job = JobSpec(JOB, "mixed", RANKS, self.flavour.mode)
        cluster.enter(job, tables)
        self._crew = Crew(cluster, job, self._program, self.journal.history)
        if cluster.archive is not None:
            self._crew.tables = tuple(tables)
        if self._prepared is not None:
            self._crew.prepared = self._prepared

    def start(self) -> None:
        """The first process of every rank."""
        self._start_ns = self._cluster.world.now_ns
        for rank in self.ranks:
            self._crew.spawn(rank)
        if self.flavour.visit is not None:
            self._guest = Guest(self._crew, GUEST_RANK, self.flavour.visit)
            self._guest.invite()
        if self._cluster.archive is not None:
            self._crew.watch()

    def worker(self, rank: int) -> SimWorker:
        """The rank's present process."""
        return self._crew.present(rank)

    def respawn(self, rank: int) -> None:
        """A new process takes the rank over."""
        self._crew.respawn(rank)

    def stop(self) -> None:
        """All ranks go on, without waiting, to the end of the largest clock that is open.

        That is `CLOCKS_LEAST` at least, however much time faults have cost; and in it each rank
        pushes until `PUSHES_LEAST` are acknowledged, however many it has had to give up.
        """
        self._last = max(self._crew.top(), self._ending + 1, CLOCKS_LEAST)
        if self._guest is not None:
            self._guest.stay()

    @property
    def finished(self) -> bool:
        """After `stop`: has everybody ended?"""
        gone = self._guest is None or self._guest.finished
        return gone and all(self._crew.over(rank) for rank in self.ranks)

    def acknowledged(self, rank: int) -> int:
        """How many pushes of the rank were acknowledged."""
        return self.journal.acknowledged.get(rank, 0)

    # -- the program

    def _program(self, worker: SimWorker) -> Running:
        while self._last is None or worker.clock <= self._last:
            clock = worker.clock
            yield from self._observe(worker)
            yield from self._rest(worker, clock, 0.4)
            counts, slots = self._counts(worker), self._slot_pushes(worker, clock)
            if clock % IN_A_HURRY_EVERY == 0:
                yield from self._tick(worker, clock, *counts, *slots)
                continue
            half = SLOT_PUSHES // 2
            yield from self._push(worker, clock, [*counts, *slots[:half]])
            if clock % TUNE_EVERY == worker.rank:
                yield from self._train(worker, clock)
            yield from self._rest(worker, clock, 1.0)
            yield from self._push(worker, clock, slots[half:])
            yield from self._glance(worker)
            yield from self._tick(worker, clock)

    def _rest(self, worker: SimWorker, clock: int, part: float) -> Running:
        """Wait until this part of the clock is due; after a stall, or after `stop`: do not."""
        if self._last is not None:
            return
        due_ns = self._start_ns + self.flavour.pace.due_ns(worker.rank, clock, part)
        if due_ns > worker.world.now_ns:
            yield Wait(due_ns - worker.world.now_ns)

    def _observe(self, worker: SimWorker) -> Running:
        pull = Pull(self._rows, self._all_rows)
        yield from self.journal.do(worker, Noted("pull", pull, "rows", self._row_ranks, _flat))

    def _glance(self, worker: SimWorker) -> Running:
        ranks = tuple(range(RANKS + 1))
        yield from self.journal.do(worker, Noted("pull", Pull(self._board), "board", ranks, _flat))

    def _counts(self, worker: SimWorker) -> tuple[Noted, Noted]:
        rank, keys = worker.rank, self._row_keys[worker.rank]
        place = np.zeros(RANKS + 1, np.int64)
        place[rank] = 1
        rows = Push(self._rows, keys, np.ones((len(keys), 1), np.int64))
        return (
            Noted("push", rows, "rows", (rank,)),
            Noted("push", Push(self._board, None, place), "board", (rank,)),
        )

    def _slot_pushes(self, worker: SimWorker, clock: int) -> list[Noted]:
        return [self._slot_push(slot_keys(worker.rank, clock, n)) for n in range(SLOT_PUSHES)]

    def _slot_push(self, keys: Keys) -> Noted:
        push = Push(self._slots, keys, np.ones((len(keys), 1), np.int64))
        return Noted("push", push, "slots", tuple(keys.tolist()))

    def _push(self, worker: SimWorker, clock: int, pushes: list[Noted]) -> Running:
        if clock % IN_A_HURRY_EVERY == 1:
            yield from self.journal.do(worker, *pushes)  # all at once
            return
        for push in pushes:
            yield from self.journal.do(worker, push)

    def _train(self, worker: SimWorker, clock: int) -> Running:
        keys = np.arange(WEIGHTS, dtype=np.uint64) + np.uint64(worker.rank)
        grads = np.full((WEIGHTS, 2), 1 / (1 + clock), np.float32)
        push, tune = Push(self._weights, keys, grads), Tune(self._weights, 1 / (1 + clock))
        yield from self.journal.do(
            worker, Noted("push", push, "weights"), Noted("tune", tune, "weights")
        )

    def _tick(self, worker: SimWorker, clock: int, *pushes: Noted) -> Running:
        """End the clock; `pushes` are begun together with its tick, which waits for them."""
        journal = self.journal
        self._ending = max(self._ending, clock)
        if clock == self._last:
            journal = Journal(LAST_DEADLINE_NS, journal.history, journal.acknowledged)
            if worker.rank in self.ranks:
                pushes = (*pushes, *self._further_pushes(worker.rank, len(pushes)))
        yield from journal.do(worker, *pushes, Noted("tick", Tick(str(clock).encode())))

    def _further_pushes(self, rank: int, begun: int) -> list[Noted]:
        """What is missing when `begun` are acknowledged; whoever takes the rank over repeats it."""
        missing = PUSHES_LEAST - self.acknowledged(rank) - begun
        count = self._further.setdefault(rank, max(missing, 0))
        return [self._slot_push(further_slots(rank, n)) for n in range(count)]

    # -- the verdicts

    def judge(self, run: RunRecord) -> list[Finding]:
        """What the history and the tables' contents say about each promise."""
        self._crew.close_history()
        archive = self._cluster.archive
        if archive is not None and rollbacks_of(archive.configured):
            return judge_survival(self._crew, archive)  # what was acknowledged need not be there
        history, mode = self.journal.history, self.flavour.mode
        rows, board = history.of("rows"), history.of("board")
        lives, undecided = lives_of(history), lives_of(history, "undecided")
        lives.setdefault(GUEST_RANK, [])
        return [
            *self._checkpoints(),
            Finding("no worker fails", self._no_errors()),
            Finding("no push is lost or applied twice", self._exactly_once(run)),
            Finding("all clocks are counted", self._totals(run)),
            Finding("staleness bound (rows)", check_staleness(rows, mode, lives, undecided)),
            Finding("staleness bound (board)", check_staleness(board, mode, lives, undecided)),
            Finding("a worker's view never goes back (rows)", check_sessions(rows, mode)),
            Finding("a worker's view never goes back (board)", check_sessions(board, mode)),
            Finding("positions only grow", check_views(history)),
            Finding("clocks only grow", check_clocks(history)),
            Finding("every call ends", self._waits(run.end_ns)),
        ]

    def _checkpoints(self) -> list[Finding]:
        archive = self._cluster.archive
        if archive is None:
            return []
        cuts = {
            f"checkpoint {stored.id}": (stored.clocks[JOB], stored.rows.get(SLOTS_TABLE, {}))
            for stored in archive.stored.values()
            if JOB in stored.clocks
        }
        found = judge_survival(self._crew, archive)
        if cuts:
            verdict = check_slots(self.journal.history.of("slots"), cuts)
            found.append(Finding("a checkpoint is a consistent cut", verdict))
        return found

    def _waits(self, end_ns: int) -> Verdict:
        return check_waits(
            self.journal.history,
            slack_ns=WAIT_SLACK_NS,
            end_ns=end_ns,
            skew_ppm=2 * SKEW_MOST_PPM,
            paused_ns=self._crew.paused_ns(),
        )

    def _no_errors(self) -> Verdict:
        guests = (GUEST_RANK,) if self._guest is not None else ()
        errors = self._crew.errors(may_leave=guests)
        return judge(errors, checked=len(self._crew.lives), what="workers")

    def _exactly_once(self, run: RunRecord) -> Verdict:
        slots = [
            slot_keys(rank, clock, n)
            for rank in self._everybody
            for clock in range(1, self._crew.top() + 2)
            for n in range(SLOT_PUSHES)
        ]
        for rank, count in self._further.items():
            slots += [further_slots(rank, n) for n in range(count)]
        keys = np.concatenate(slots)
        held = self._read(run, self._slots, keys)
        if isinstance(held, Verdict):
            return held
        final = dict(zip(keys.tolist(), held[:, 0].tolist(), strict=True))
        history = self.journal.history.of("slots")
        return check_one_hot(history, final, self.flavour.mode, at_rest=run.healed)

    def _totals(self, run: RunRecord) -> Verdict:
        if not run.healed and isinstance(self.flavour.mode, BSP):
            return NOT_AT_REST
        rows = self._read(run, self._rows, self._all_rows)
        board = self._read(run, self._board)
        if isinstance(rows, Verdict) or isinstance(board, Verdict):
            return NOT_AT_REST
        seen = [*zip(self._row_ranks, rows[:, 0].tolist(), strict=True), *enumerate(board.tolist())]
        return check_totals(self.journal.history, seen, self.flavour.mode)

    def _read(self, run: RunRecord, table: TableHandle, keys: Keys | None = None) -> Any:
        """What the table holds in the end, or the verdict when that cannot be read."""
        if run.lost_shards:
            named = ", ".join(map(str, run.lost_shards))
            return Verdict("unknown", (f"shards were lost: {named}",))
        if run.healed:
            return self._cluster.read(table, keys)
        try:
            return self._cluster.read(table, keys, limit_s=READ_WITHIN_S)
        except AssertionError:
            return NOT_AT_REST


def slot_keys(rank: int, clock: int, n: int) -> Keys:
    """The slots of one push."""
    first = ((rank * CLOCKS_MAX + clock) * SLOT_PUSHES + n) * SLOTS_PER_PUSH
    return np.arange(first, first + SLOTS_PER_PUSH, dtype=np.uint64)


def further_slots(rank: int, n: int) -> Keys:
    """The slots of one of a rank's further pushes: behind those of all clocks."""
    return slot_keys(GUEST_RANK + 1 + rank, 0, n)


def _keys_on_every_shard(rank: int, cluster: SimCluster) -> Keys:
    routing = cluster.routing()
    assert routing is not None
    found: dict[int, int] = {}
    key = rank * CLOCKS_MAX
    while len(found) < routing.shards:
        found.setdefault(shard_of(key, routing.shards), key)
        key += 1
    return np.array(sorted(found.values()), np.uint64)


def _flat(result: Any) -> tuple[int, ...]:
    return tuple(result.reshape(-1).tolist())
