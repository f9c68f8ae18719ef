"""Data shards: which rank works on which part of a data set, where that is decided as ranks get on.

Theory of operation. Every epoch of a data set is cut into `per_epoch` *data shards*; number n is
the part n % per_epoch of epoch n // per_epoch. One record per job in etcd says who works on what:
`following` is the first number that nobody has had, `doing` is what ranks have in hand, `returned`
what was given back unfinished. All other numbers below `following` are done. So the record takes
O(ranks), however many data shards there are, and says todo, doing and done of every epoch.

Ranks change the record themselves, each by a transaction with two guards: the record is as it was
read, and the rank's counter of incarnations still names this process. That is all the leasing there
is. No server and no coordinator takes part, so nothing but etcd has to be alive, there is nothing
to hand over when a coordinator dies, and a process that was superseded changes nothing. The lease
has no time limit: a dead rank's data shard may not go to others before the rank is settled anyhow.

Sample-exactness. The one place that knows what of a data shard has been trained on is the cursor of
the rank's last *tick*: what was ticked is on all shards, what was not has to be run again. Hence

1. A rank ticks each batch with the cursor behind it and the number of its grant. A new process of
   the rank first takes it over (which fences the old one, and gives the last tick's cursor), and
   only then reads the record. If the cursor is of the present grant, it continues there; otherwise
   nothing of the grant has been ticked, and it begins at the grant's `start`. Either way it runs
   the open clock with the same batch as its predecessor: what the shards keep of that clock's
   pushes (SSP, ASP) makes them repeats, and under BSP they have been dropped.
2. A data shard is finished after the tick of its last batch only, by whichever process of the rank.
3. A data shard goes to another rank only from a rank that is *settled*: of what was pushed in its
   open clock, nothing is kept. A living process is settled between a tick and its next push. A
   process that has just taken the rank over is settled under BSP, where the takeover drops the open
   clock. Under SSP and ASP it cannot know what its predecessor had pushed: it runs the open clock's
   batch again, ticks it, and is settled then. So it takes the worker program to be the heir of a
   rank that died under SSP or ASP (`Worker.retire`, `resilient-ps train --retire`).
4. A rank that has a data shard in hand cannot leave its job: the transaction that proposes a leave
   is guarded by this record too. And as it draws the rank's next incarnation, no older process of
   the rank can take a data shard afterwards. So no rank that left has a data shard in hand.

Checkpoints. A consistent cut has every rank's ticks up to one clock, and nothing later; what was
done with data shards later has to be undone when the job goes back to it (`as_of`).

5. While a cut is open the record says at which clock (`cut`), and keeps what ranks end later than
   that (`ended`). Before a shard accepts a cut nobody has ticked a later clock, so this is all that
   is needed, and it is forgotten when the cut is closed. Past a bound the cut is given up instead.
6. A data shard that was given back carries the clock at which that was (`after`). Who takes it
   ticks empty clocks up to there first: so of what several ranks did of one data shard, what is not
   in a cut is always the rest of it.
7. Transactions of ranks are also guarded by the cluster's configuration: a rank that has not heard
   of a rollback yet changes nothing in what was restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from resilient_ps.coordinator.fields import INT64_MAX, Fields, JsonObject
from resilient_ps.coordinator.keys import MAX_RANK, ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, Put, Read, Txn, has_value, unchanged
from resilient_ps.coordinator.records import Record, counter_bytes
from resilient_ps.errors import BadInput
from resilient_ps.ids import WorkerId

MAX_PER_EPOCH = 1_000_000
MAX_IN_HAND = 1_024  # ranks with a data shard in hand: what fits into one record
MAX_ENDED = 1_024  # while one cut is open, if they all fit:
ENTRY_BYTES = 48  # of a grant, without its start
ROOM_BYTES = 48 * 1024  # that entries may take before a cut is given up
MAX_RETURNED = MAX_IN_HAND + MAX_ENDED + 1_024
NO_CUT = -1
MAX_CURSOR_CHARS = 4_096
MAX_DATASET_CHARS = 1_024


class Grant(NamedTuple):
    """A data shard in the hands of a rank. `grant` numbers the grants of a job, from 1.

    `start` is the reader's cursor, as JSON, behind which it begins; "" is its very beginning.
    Nothing of it is ticked in clocks up to `after`.
    """

    number: int
    rank: int
    grant: int
    start: str = ""
    after: int = 0


class Returned(NamedTuple):
    """A data shard that was given back: what is behind `start` is to be done after that clock."""

    number: int
    start: str = ""
    after: int = 0


class Ended(NamedTuple):
    """A grant that was finished or given back; the rank's last tick of it was in `clock`."""

    grant: Grant
    clock: int


class Over(NamedTuple):
    """No data shard is left, and nobody has one in hand. `clock`: the last that any rank ticked."""

    clock: int


class Wait(NamedTuple):
    """No data shard is left, but these ranks may still give theirs back."""

    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class DataShards(Record):
    """Who works on what in one job; see the module. Every change is a new value."""

    WHAT: ClassVar[str] = "record of data shards"

    job_id: int  # a job of the same name that was removed had another one
    dataset: str  # what identifies the data
    per_epoch: int
    following: int = 0
    grants: int = 0  # the number of the last grant
    clock: int = 0  # the highest that any rank had ticked when it took or finished something
    doing: tuple[Grant, ...] = ()
    returned: tuple[Returned, ...] = ()  # by number
    cut: int = NO_CUT  # the clock of the cut that is open
    ended: tuple[Ended, ...] = ()  # after the cut

    # -- questions

    def epoch(self, number: int) -> int:
        """Of which pass over the data this data shard is a part, from 0."""
        return number // self.per_epoch

    def place(self, number: int) -> int:
        """Which part of its epoch it is: 0 .. per_epoch - 1."""
        return number % self.per_epoch

    def held(self, rank: int) -> Grant | None:
        """What the rank has in hand."""
        return next((grant for grant in self.doing if grant.rank == rank), None)

    def done(self, epoch: int) -> int:
        """How many data shards of an epoch are finished."""
        first, end = epoch * self.per_epoch, (epoch + 1) * self.per_epoch
        begun = min(max(self.following - first, 0), self.per_epoch)
        numbers = [grant.number for grant in self.doing] + [each.number for each in self.returned]
        return begun - sum(first <= number < end for number in numbers)

    # -- changes

    def take(self, rank: int, epochs: int, clock: int) -> tuple[DataShards, Grant | Wait | Over]:
        """The next data shard of the first `epochs` epochs for a rank that has none in hand.

        What was given back comes first. `clock`: the rank's last ticked clock.
        """
        assert self.held(rank) is None, f"rank {rank} has a data shard in hand"
        end = epochs * self.per_epoch
        returned = [each for each in self.returned if each.number < end]
        if returned and len(self.doing) < MAX_IN_HAND:
            number, start, after = returned[0]
            grant = Grant(number, rank, self.grants + 1, start, after)
            left = tuple(each for each in self.returned if each.number != number)
            return self._granting(grant, clock, returned=left), grant
        if self.following < end and len(self.doing) < MAX_IN_HAND:
            grant = Grant(self.following, rank, self.grants + 1)
            return self._granting(grant, clock, following=self.following + 1), grant
        others = tuple(grant for grant in self.doing if grant.number < end)
        return self, Wait(others) if others else Over(self.clock)

    def finish(self, grant: Grant, clock: int) -> DataShards:
        """The rank has ticked all of it, at last in `clock`."""
        done = replace(self, doing=self._without(grant), clock=max(self.clock, clock))
        if self.cut == NO_CUT or clock <= self.cut:
            return done
        if not self._has_room:  # then this cut cannot be used
            return replace(done, cut=NO_CUT, ended=())
        ended = sorted([*self.ended, Ended(grant, clock)], key=_by_grant)
        return replace(done, ended=tuple(ended))

    @property
    def _has_room(self) -> bool:
        starts = [e.grant.start for e in self.ended] + [g.start for g in self.doing]
        starts += [each.start for each in self.returned]
        nbytes = ENTRY_BYTES * len(starts) + sum(len(start) for start in starts)
        return len(self.ended) < MAX_ENDED and nbytes < ROOM_BYTES

    def give_back(self, grant: Grant, start: str, clock: int) -> DataShards:
        """The settled rank goes on with it no longer; whoever takes it begins behind `start`."""
        back = Returned(grant.number, start, max(grant.after, clock))
        done = self.finish(grant, clock)
        return replace(done, returned=tuple(sorted([*self.returned, back])))

    def at_cut(self, clock: int) -> DataShards:
        """A cut at this clock is open now, instead of any other; `NO_CUT`: none is."""
        ended = tuple(each for each in self.ended if NO_CUT != clock < each.clock)
        return replace(self, cut=clock, ended=ended)

    def as_of(self, clock: int, cursors: Mapping[int, Any]) -> DataShards:
        """The record as it was at the cut that is open at `clock`.

        `cursors`: what each rank's tick of that clock said, by rank. A rank keeps in hand what it
        had ticked something of; what was not begun is there to be taken. Raises `BadInput` where
        what happened since was not kept: then the cut is of no use.
        """
        if self.cut != clock:
            raise BadInput(
                f"what became of the data shards of job {self.job_id} after clock {clock} was not "
                "kept: the cut has to be made again"
            )
        undone: dict[int, Grant] = {}  # the first grant of each number that was not over
        for grant in sorted([*[e.grant for e in self.ended], *self.doing], key=lambda g: g.grant):
            undone.setdefault(grant.number, grant)
        doing = tuple(g for g in undone.values() if _is_of(cursors.get(g.rank), g))
        idle = [Returned(g.number, g.start, g.after) for g in undone.values() if g not in doing]
        idle += [each for each in self.returned if each.number not in undone]
        following, left = self.following, {each.number: each for each in idle}
        while left.get(following - 1) == Returned(following - 1):  # as if nobody had had it
            following -= 1
            del left[following]
        return replace(
            self,
            following=following,
            clock=min(self.clock, clock),
            doing=tuple(sorted(doing, key=lambda each: each.rank)),
            returned=tuple(left[number] for number in sorted(left)),
            cut=NO_CUT,
            ended=(),
        )

    def _granting(self, grant: Grant, clock: int, **changes: Any) -> DataShards:
        doing = tuple(sorted([*self.doing, grant], key=lambda each: each.rank))
        clock = max(self.clock, clock)
        return replace(self, grants=grant.grant, doing=doing, clock=clock, **changes)

    def _without(self, grant: Grant) -> tuple[Grant, ...]:
        assert grant in self.doing, f"{grant} is not in hand"
        return tuple(each for each in self.doing if each != grant)

    # -- as JSON

    def _fields(self) -> JsonObject:
        return {
            "job_id": self.job_id,
            "dataset": self.dataset,
            "per_epoch": self.per_epoch,
            "following": self.following,
            "grants": self.grants,
            "clock": self.clock,
            "doing": {str(grant.rank): [*grant[:1], *grant[2:]] for grant in self.doing},
            "returned": {str(each.number): list(each[1:]) for each in self.returned},
            "cut": self.cut,
            "ended": {
                str(grant.grant): [*grant[:2], *grant[3:], clock] for grant, clock in self.ended
            },
        }

    def to_json(self) -> JsonObject:
        """As a JSON object, for a manifest."""
        return self._fields()

    @classmethod
    def _read(cls, fields: Fields) -> DataShards:
        record = cls(
            job_id=fields.integer("job_id", 1, 2**32 - 1),
            dataset=fields.text("dataset", most=MAX_DATASET_CHARS),
            per_epoch=fields.integer("per_epoch", 1, MAX_PER_EPOCH),
            following=fields.integer("following", 0, INT64_MAX),
            grants=fields.integer("grants", 0, INT64_MAX),
            clock=fields.integer("clock", 0, INT64_MAX),
            doing=_grants(fields),
            returned=_returned(fields),
            cut=fields.integer("cut", NO_CUT, INT64_MAX),
            ended=_ended(fields),
        )
        numbers = [grant.number for grant in record.doing] + [e.number for e in record.returned]
        if len(set(numbers)) != len(numbers):
            fields.fail("a data shard is in hand twice, or in hand and given back")
        if any(number >= record.following for number in numbers):
            fields.fail(f"data shard {max(numbers)} is not below following {record.following}")
        if any(grant.grant > record.grants for grant in record.doing):
            fields.fail(f"a grant is above the last, {record.grants}")
        return record


def _grants(fields: Fields) -> tuple[Grant, ...]:
    held = fields.object("doing")
    if len(held) > MAX_IN_HAND:
        fields.fail(f"{len(held)} data shards in hand, at most {MAX_IN_HAND} are possible")
    grants = []
    for rank, entry in held.items():
        _check(fields, rank, MAX_RANK)
        match entry:
            case [number, grant, start, after] if _is_grant(number, grant, start, after):
                grants.append(Grant(number, int(rank), grant, start, after))
            case _:
                fields.fail(f"rank {int(rank)} does not have [number, grant, start, after] in hand")
    return tuple(sorted(grants, key=lambda grant: grant.rank))


def _returned(fields: Fields) -> tuple[Returned, ...]:
    returned = fields.object("returned")
    if len(returned) > MAX_RETURNED:
        fields.fail(f"{len(returned)} data shards given back, at most {MAX_RETURNED} are possible")
    found = []
    for number, entry in returned.items():
        _check(fields, number, INT64_MAX)
        match entry:
            case [start, after] if _is_start(start) and _is_count(after):
                found.append(Returned(int(number), start, after))
            case _:
                fields.fail(f"the rest of data shard {int(number)} is not [start, after]")
    return tuple(sorted(found))


def _ended(fields: Fields) -> tuple[Ended, ...]:
    ended = fields.object("ended")
    if len(ended) > MAX_ENDED:
        fields.fail(f"{len(ended)} data shards have ended, at most {MAX_ENDED} are possible")
    found = []
    for grant, entry in ended.items():
        _check(fields, grant, INT64_MAX)
        match entry:
            case [number, rank, start, after, clock] if _is_grant(
                number, rank, start, after
            ) and _is_count(clock):
                found.append(Ended(Grant(number, rank, int(grant), start, after), clock))
            case _:
                fields.fail(f"grant {int(grant)} is not [number, rank, start, after, clock]")
    return tuple(sorted(found, key=_by_grant))


def _is_grant(number: object, grant: object, start: object, after: object) -> bool:
    return _is_count(number) and _is_count(grant) and _is_start(start) and _is_count(after)


def _by_grant(ended: Ended) -> int:
    return ended.grant.grant


def _is_of(cursor: Any, grant: Grant) -> bool:
    """Was this cursor ticked with a batch of that grant?"""
    return isinstance(cursor, dict) and cursor.get("grant") == grant.grant


def _check(fields: Fields, name: str, most: int) -> None:
    plain = name.isascii() and name.isdigit() and len(name) <= 19 and name == str(int(name))
    if not plain or int(name) > most:
        fields.fail(f"a name in it is not a whole number from 0 to {most}")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= INT64_MAX


def _is_start(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and len(value) <= MAX_CURSOR_CHARS


# --- transactions --------------------------------------------------------------------------------


def reading(keys: ClusterKeys, job: str, rank: int) -> Txn:
    """Reads the record, the rank's counter of incarnations, and the configuration, all at once."""
    reads = (keys.data_shards(job), keys.rank(job, rank), keys.config)
    return Txn((), tuple(Read(key) for key in reads))


def writing(
    keys: ClusterKeys,
    job: str,
    worker: WorkerId,
    read: KeyValue | None,
    config: KeyValue,
    record: DataShards,
) -> Txn:
    """Writes the record in place of what was `read`, as this incarnation of the rank and while the
    configuration is as it was read."""
    key = keys.data_shards(job)
    guards = (
        unchanged(key, 0 if read is None else read.mod_revision),
        has_value(keys.rank(job, worker.rank), counter_bytes(worker.incarnation)),
        unchanged(keys.config, config.mod_revision),
    )
    return Txn(guards, (Put(key, record.to_bytes()),))
