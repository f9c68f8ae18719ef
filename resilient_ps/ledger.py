"""Who has pushed and ticked what: exactly-once and clocks of one job on one shard.

Invariants, per rank:

* `ticked` only grows; the open clock is `ticked + 1`, and only its pushes are accepted.
* `last` is the largest push number of the open clock that this shard holds. A push with n <= last
  is a repeat, one with prev > last has lost a predecessor (a gap), all others are new.
* `digest` rolls over (n, keys) of the open clock's pushes. A process that took the rank over under
  SSP or ASP repeats the clock; `replayed` and `replay_digest` follow it, in order and without
  gaps, and must meet `last` and `digest` when they get there: otherwise the worker program is not
  repeatable.
* `incarnation` only grows: what carries a smaller one is fenced off.

Memory is O(ranks): no window of remembered pushes exists that could overflow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from resilient_ps.consistency import BSP, RANKS_MAX, JobSpec, Tasks
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import PushId, WorkerId
from resilient_ps.messages import Status


class Verdict(NamedTuple):
    """What is to become of an operation. OK with `repeat`: answer it, but do not apply it.

    `replay`: a repeat by a process that runs the clock again, to be followed by `record_replay`.
    """

    status: Status
    repeat: bool = False
    replay: bool = False
    value: int = 0
    text: str = ""


ACCEPT = Verdict(Status.OK)
REPEAT = Verdict(Status.OK, repeat=True)
REPLAY = Verdict(Status.OK, repeat=True, replay=True)


@dataclass(slots=True)
class RankRecord:
    """One rank's place in its job, on one shard."""

    incarnation: int = 0
    ticked: int = 0
    last: int = 0
    digest: int = 0
    replayed: int = 0
    replay_digest: int = 0
    redone: int = 0  # the incarnation whose redo has been executed
    cursor: bytes = b""
    live: bool = True
    started: int = 1  # the first clock, for ranks that joined


@dataclass(slots=True)
class JobLedger:
    """The clocks and the deduplication of one job on one shard."""

    spec: JobSpec
    guards: Guards = ALL_GUARDS
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    intent: int = 0  # number of the last join or leave that was executed here
    _slowest: int | None = None  # kept, because every pull asks for it
    together: bool = field(init=False)  # clocks are applied when all live ranks ticked them (BSP)
    buffers: bool = field(init=False)  # pushes are held until then, or until their rank's own tick

    def __post_init__(self) -> None:
        self.together = isinstance(self.spec.consistency, BSP)
        self.buffers = self.spec.holds_pushes
        if not self.ranks:
            self.ranks = {rank: RankRecord() for rank in range(self.spec.ranks)}

    # -- questions

    @property
    def is_graph(self) -> bool:
        """Are the ranks the lanes of a graph, and their clocks its tasks?"""
        return isinstance(self.spec.consistency, Tasks)

    def slowest(self) -> int:
        """The smallest tick of a live rank (the largest of all when none is live)."""
        if self._slowest is None:
            self._slowest = self._find_slowest()
        return self._slowest

    def _find_slowest(self) -> int:
        live = [record.ticked for record in self.ranks.values() if record.live]
        if live:
            return min(live)
        return max((record.ticked for record in self.ranks.values()), default=0)

    def behind(self, clock: int) -> list[int]:
        """The live ranks that have not ticked `clock`, in order."""
        ranks = self.ranks
        return [rank for rank in sorted(ranks) if ranks[rank].live and ranks[rank].ticked < clock]

    def has_reached(self, clock: int) -> bool:
        """Have all live ranks ticked this clock?"""
        return self.slowest() >= clock or not self.behind(clock)

    def furthest(self) -> int:
        """The largest clock of which anything is here: a push or a tick, of any rank."""
        return max((r.ticked + bool(r.last) for r in self.ranks.values()), default=0)

    def taking_part(self, clock: int) -> int:
        """How many ranks a clock is made of: live ones, and those that left after it."""
        return sum(
            record.started <= clock and (record.live or record.ticked >= clock)
            for record in self.ranks.values()
        )

    def live_ranks(self) -> list[int]:
        """Ranks that joined and have not left, in order."""
        return [rank for rank in sorted(self.ranks) if self.ranks[rank].live]

    def check_worker(self, worker: WorkerId) -> Verdict:
        """Is this the rank's present incarnation?"""
        record = self.ranks.get(worker.rank)
        if record is None:
            text = f"rank {worker.rank} is not in job {self.spec.name!r}; it must join first"
            return Verdict(Status.UNKNOWN, text=text)
        if not record.live:
            text = f"rank {worker.rank} has left job {self.spec.name!r}; it must join again"
            return Verdict(Status.LEFT, text=text)
        if worker.incarnation < record.incarnation and self.guards.fencing:
            return Verdict(Status.FENCED, value=record.incarnation)
        if worker.incarnation > record.incarnation:
            text = f"incarnation {worker.incarnation} of rank {worker.rank} has not fenced yet"
            return Verdict(Status.REFUSED, text=text)
        return ACCEPT

    def check_push(self, worker: WorkerId, push: PushId, digest: int) -> Verdict:
        """A push or a change of rate; `digest` is that of its content (see `roll`)."""
        verdict = self.check_worker(worker)
        if verdict is not ACCEPT:
            return verdict
        record = self.ranks[worker.rank]
        if push.clock != record.ticked + 1:
            text = (
                f"a push of clock {push.clock} while clock {record.ticked + 1} is open "
                f"for rank {worker.rank}"
            )
            return Verdict(Status.REFUSED, value=record.ticked, text=text)
        if push.n < 1 or push.prev >= push.n:
            return Verdict(Status.REFUSED, text=f"push {push.n} after {push.prev}")
        if push.prev > record.replayed:
            return Verdict(Status.GAP, value=record.replayed)
        if not self.guards.deduplication:
            return ACCEPT
        if push.n <= record.last:
            return self._check_repeat(record, worker.rank, push, digest)
        if push.prev < record.last:
            return _not_repeatable(worker.rank, push, f"push {record.last} was left out")
        return ACCEPT

    def accepts(self, worker: WorkerId, clock: int, n: int, prev: int) -> bool:
        """Does `check_push` give `ACCEPT`, whatever the content? With all rules."""
        record = self.ranks.get(worker.rank)
        if record is None or not record.live or worker.incarnation != record.incarnation:
            return False
        return clock == record.ticked + 1 and prev == record.last == record.replayed and n > prev

    def _check_repeat(self, record: RankRecord, rank: int, push: PushId, digest: int) -> Verdict:
        if push.n <= record.replayed:
            return REPEAT  # a retry: this incarnation has been there already
        if push.n == record.last and roll(record.replay_digest, push.n, digest) != record.digest:
            return _not_repeatable(rank, push, "its keys differ from those of the first time")
        return REPLAY

    def check_tick(self, worker: WorkerId, push: PushId, *, settled: bool) -> Verdict:
        """A tick of `push.clock`; `settled` ticks of a takeover carry no `prev`."""
        verdict = self.check_worker(worker)
        if verdict is not ACCEPT:
            return verdict
        record = self.ranks[worker.rank]
        if push.clock <= record.ticked:
            return REPEAT
        if push.clock != record.ticked + 1:
            text = f"a tick of clock {push.clock} while clock {record.ticked + 1} is open"
            return Verdict(Status.REFUSED, value=record.ticked, text=text)
        if settled or push.prev == record.last:
            return ACCEPT
        if push.prev > record.replayed:
            return Verdict(Status.GAP, value=record.replayed)
        return _not_repeatable(worker.rank, push, f"push {record.last} was left out")

    def check_fence(self, worker: WorkerId) -> Verdict:
        """Takeover (i). The present incarnation's repeated fence is answered."""
        verdict = self.check_worker(worker)
        if verdict.status is Status.REFUSED:  # a larger incarnation: that is what a fence is for
            return ACCEPT
        return REPEAT if verdict is ACCEPT else verdict

    def check_redo(self, worker: WorkerId, clock: int) -> Verdict:
        """Takeover (iii), once per incarnation."""
        verdict = self.check_worker(worker)
        if verdict is not ACCEPT:
            return verdict
        record = self.ranks[worker.rank]
        if record.redone == worker.incarnation:
            return REPEAT
        if clock != record.ticked + 1:
            text = f"a redo of clock {clock} while clock {record.ticked + 1} is open"
            return Verdict(Status.REFUSED, text=text)
        return ACCEPT

    def executed(self, number: int) -> bool:
        """Has the join or leave of this number been executed here? They come in order, from 1."""
        return 0 < number <= self.intent

    # -- changes, each made by an entry of the shard's log

    def record_push(self, rank: int, push: PushId, digest: int) -> None:
        """The shard holds push n."""
        record = self.ranks[rank]
        record.digest = roll(record.digest, push.n, digest)
        record.last = push.n
        record.replayed, record.replay_digest = record.last, record.digest

    def record_replay(self, rank: int, push: PushId, digest: int) -> None:
        """The process that repeats the open clock has come to push n, which the shard holds."""
        record = self.ranks[rank]
        record.replayed = push.n
        record.replay_digest = roll(record.replay_digest, push.n, digest)

    def record_tick(self, rank: int, clock: int, cursor: bytes) -> None:
        """The rank's open clock is complete; the next one opens, with nothing in it."""
        record = self.ranks[rank]
        record.ticked = clock
        self._slowest = None
        record.cursor = cursor
        _forget_clock(record)

    def record_fence(self, worker: WorkerId) -> None:
        """The rank belongs to this incarnation; it will repeat the open clock."""
        record = self.ranks[worker.rank]
        record.incarnation = worker.incarnation
        record.replayed = record.replay_digest = 0

    def record_redo(self, worker: WorkerId) -> None:
        """The open clock begins again, empty."""
        record = self.ranks[worker.rank]
        record.redone = worker.incarnation
        _forget_clock(record)

    def record_join(self, number: int, rank: int, above: int = 0) -> int:
        """The rank is live from the lowest safe clock on, which is returned; it is above `above`.

        A rank that is live already, or that left beyond that clock, goes on where it was.
        """
        self.intent = number
        ticked = max(self.slowest(), above)
        record = self.ranks.get(rank)
        if record is None or (record.ticked < ticked and not record.live):
            incarnation, cursor = (
                (0, b"") if record is None else (record.incarnation, record.cursor)
            )
            record = RankRecord(incarnation, ticked, cursor=cursor, started=ticked + 1)
            self.ranks[rank] = record
        record.live = True
        self._slowest = None
        return record.ticked + 1

    def record_leave(self, number: int, rank: int) -> None:
        """Nobody waits for the rank any more."""
        self.intent = number
        self.ranks[rank].live = False
        self._slowest = None

    def forget_pushes(self) -> None:
        """Lose what recognises repeats: for a negative control only."""
        for record in self.ranks.values():
            _forget_clock(record)

    def room_for(self, rank: int) -> bool:
        """May this rank join without the table of ranks growing past its bound?"""
        return rank in self.ranks or len(self.ranks) < RANKS_MAX


def roll(digest: int, n: int, content: int) -> int:
    """The digest of a clock's pushes, one push further (64 bits)."""
    mixed = (digest ^ n) * 0x9E3779B97F4A7C15 + content
    mixed &= 0xFFFFFFFFFFFFFFFF
    return mixed ^ (mixed >> 29)


def _forget_clock(record: RankRecord) -> None:
    record.last = record.digest = record.replayed = record.replay_digest = 0


def _not_repeatable(rank: int, push: PushId, how: str) -> Verdict:
    text = (
        f"rank {rank} repeats clock {push.clock} differently (push {push.n}: {how}). A worker "
        "program must push the same keys when a clock is run again"
    )
    return Verdict(Status.NOT_REPEATABLE, text=text)
