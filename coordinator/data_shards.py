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
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from resilient_ps.coordinator.fields import INT64_MAX, Fields, JsonObject
from resilient_ps.coordinator.keys import MAX_RANK, ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, Put, Read, Txn, has_value, unchanged
from resilient_ps.coordinator.records import Record, counter_bytes

MAX_PER_EPOCH = 1_000_000
MAX_IN_HAND = 1_024  # ranks with a data shard in hand: what fits into one record
MAX_RETURNED = 1_024
MAX_CURSOR_CHARS = 4_096
MAX_DATASET_CHARS = 1_024


class Grant(NamedTuple):
    """A data shard in the hands of a rank. `grant` numbers the grants of a job, from 1.

    `start` is the reader's cursor, as JSON, behind which it begins; "" is its very beginning.
    """

    number: int
    rank: int
    grant: int
    start: str = ""


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
    returned: tuple[tuple[int, str], ...] = ()  # (number, start), by number

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
        numbers = [grant.number for grant in self.doing] + [number for number, _ in self.returned]
        return begun - sum(first <= number < end for number in numbers)

    # -- changes

    def take(self, rank: int, epochs: int, clock: int) -> tuple[DataShards, Grant | Wait | Over]:
        """The next data shard of the first `epochs` epochs for a rank that has none in hand.

        What was given back comes first. `clock`: the rank's last ticked clock.
        """
        assert self.held(rank) is None, f"rank {rank} has a data shard in hand"
        end = epochs * self.per_epoch
        returned = [(number, start) for number, start in self.returned if number < end]
        if returned and len(self.doing) < MAX_IN_HAND:
            grant = Grant(returned[0][0], rank, self.grants + 1, returned[0][1])
            left = tuple(entry for entry in self.returned if entry[0] != grant.number)
            return self._granting(grant, clock, returned=left), grant
        if self.following < end and len(self.doing) < MAX_IN_HAND:
            grant = Grant(self.following, rank, self.grants + 1)
            return self._granting(grant, clock, following=self.following + 1), grant
        others = tuple(grant for grant in self.doing if grant.number < end)
        return self, Wait(others) if others else Over(self.clock)

    def finish(self, grant: Grant, clock: int) -> DataShards:
        """The rank has ticked all of it, at last in `clock`."""
        return replace(self, doing=self._without(grant), clock=max(self.clock, clock))

    def give_back(self, grant: Grant, start: str, clock: int) -> DataShards:
        """The settled rank goes on with it no longer; whoever takes it begins behind `start`."""
        returned = tuple(sorted([*self.returned, (grant.number, start)]))
        done = self.finish(grant, clock)
        return replace(done, returned=returned)

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
            "returned": {str(number): start for number, start in self.returned},
        }

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
        )
        numbers = [grant.number for grant in record.doing] + [n for n, _ in record.returned]
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
        if not isinstance(entry, list) or len(entry) != 3:
            fields.fail("doing is not [number, grant, start] by rank")
        number, grant, start = entry
        _check(fields, rank, MAX_RANK)
        if not _is_count(number) or not _is_count(grant) or not _is_start(start):
            fields.fail(f"what rank {int(rank)} has in hand is not [number, grant, start]")
        grants.append(Grant(number, int(rank), grant, start))
    return tuple(sorted(grants, key=lambda grant: grant.rank))


def _returned(fields: Fields) -> tuple[tuple[int, str], ...]:
    returned = fields.object("returned")
    if len(returned) > MAX_RETURNED:
        fields.fail(f"{len(returned)} data shards given back, at most {MAX_RETURNED} are possible")
    for number, start in returned.items():
        _check(fields, number, INT64_MAX)
        if not _is_start(start):
            fields.fail(f"the cursor of data shard {int(number)} is no text of the usual length")
    return tuple(sorted((int(number), start) for number, start in returned.items()))


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
    """Reads the record and the rank's counter of incarnations, both at one moment."""
    return Txn((), (Read(keys.data_shards(job)), Read(keys.rank(job, rank))))


def writing(
    keys: ClusterKeys,
    job: str,
    rank: int,
    incarnation: int,
    read: KeyValue | None,
    record: DataShards,
) -> Txn:
    """Writes the record in place of what was `read`, as this incarnation of the rank."""
    key = keys.data_shards(job)
    guards = (
        unchanged(key, 0 if read is None else read.mod_revision),
        has_value(keys.rank(job, rank), counter_bytes(incarnation)),
    )
    return Txn(guards, (Put(key, record.to_bytes()),))
