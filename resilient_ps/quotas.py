"""What of the quotas of namespaces a shard may use: part of the state that its log determines.

Theory of operation (escrow: O'Neil, "The Escrow Transactional Method", 1986). A quota bounds what
all tables in a namespace and below it hold together, on all shards. Each shard has an *allowance*
of it, and admits what stays within (`quota_admission`). The coordinator divides a quota in rounds
(`coordinator.quotas`) of two entries in each shard's log, of kind QUOTA:

* *settle*: the allowance becomes what is used here. The primary writes that figure into the entry
  when it appends it, so that replicas need not count (a learner could not). It is answered.
* *give*: every shard gets an equal share of what is free, and who waits for more gets that.

What goes beyond the allowance waits (BUSY), unless the last round has shown that there is not so
much left in the whole quota (`short`): then it is refused. Entries are of one round, and a shard
refuses those of an earlier one, so that a deposed coordinator gives nothing away twice.

Invariants: on every shard what is used is at most the allowance; the sum of all allowances is at
most the quota (where more was used already when the quota was set: at most what was used).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from resilient_ps.coordinator.keys import check_namespace
from resilient_ps.errors import BadInput
from resilient_ps.strict_json import loads_strictly

QUOTAS_MAX = 32  # namespaces with a quota, in one cluster
WITHOUT_END = (1 << 63) - 1
TEXT_BYTES_MAX = 128 * 1024


class Size(NamedTuple):
    """Of tables. Rows are those of sparse tables; bytes those of rows or elements with their state.

    A sparse row counts with its key: 8 + (dim + columns of state) x bytes of a value.
    """

    rows: int
    nbytes: int

    def plus(self, other: Size) -> Size:
        """Both together."""
        rows, nbytes = self.rows + other.rows, self.nbytes + other.nbytes
        return Size(min(rows, WITHOUT_END), min(nbytes, WITHOUT_END))

    def less(self, other: Size) -> Size:
        """What this has more than the other: not below nothing."""
        return Size(max(0, self.rows - other.rows), max(0, self.nbytes - other.nbytes))

    def __bool__(self) -> bool:
        return self.rows > 0 or self.nbytes > 0


NOTHING = Size(0, 0)
NO_END = Size(WITHOUT_END, WITHOUT_END)


@dataclass(slots=True)
class Quota:
    """One quota as a shard knows it.

    `most`: of all shards together; `allowed`: of this one. `used`: what all shards used when
    the last round began. `short`: who lacks so much cannot get it (0: that is not known).
    """

    most: Size
    allowed: Size = NOTHING
    used: Size = NOTHING
    short: Size = NOTHING


@dataclass(frozen=True, slots=True)
class Settle:
    """The first entry of a round: all quotas that there are, by namespace in order.

    `used`: what this shard uses of each. Only entries have it, not what the coordinator sends.
    """

    most: dict[str, Size]
    used: tuple[Size, ...] = ()

    def to_json(self) -> bytes:
        """The text of the command."""
        most = {path: _bounds(size) for path, size in sorted(self.most.items())}
        return json.dumps({"settle": most, "used": self.used}, separators=(",", ":")).encode()


class Given(NamedTuple):
    """What a round gives of one quota: to each shard, and to single ones more."""

    used: Size  # by all shards
    share: Size
    more: dict[int, Size] = {}  # noqa: RUF012  # never changed
    short: dict[int, Size] = {}  # noqa: RUF012  # what these still lack, and cannot get


@dataclass(frozen=True, slots=True)
class Give:
    """The second entry of a round: for each quota, in the order of namespaces."""

    given: tuple[Given, ...]

    def to_json(self) -> bytes:
        """The text of the command."""
        return json.dumps({"give": self.given}, separators=(",", ":")).encode()


Said: TypeAlias = Settle | Give


def said_in(text: bytes) -> Said:
    """What a QUOTA says. Raises `BadInput`."""
    if len(text) > TEXT_BYTES_MAX:
        raise BadInput(f"quotas of {len(text)} bytes; at most {TEXT_BYTES_MAX}")
    try:
        match loads_strictly(text.decode()):
            case {"settle": dict(most), "used": list(used)} if len(most) <= QUOTAS_MAX:
                bounds = {check_namespace(path): _bounded(size) for path, size in most.items()}
                return Settle(dict(sorted(bounds.items())), tuple(map(size_of, used)))
            case {"give": list(given)} if len(given) <= QUOTAS_MAX:
                return Give(tuple(map(_given, given)))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"what is said of quotas cannot be read: {error}") from error
    raise BadInput(f"what is said of quotas is neither a settling nor a giving: {text[:80]!r}")


class Quotas:
    """Of one shard. `given`: has the round been brought to its end?

    `wants` is not determined by the log: what the primary has put off since the last round, as the
    sizes that the namespaces would have had here.
    """

    def __init__(self) -> None:
        self.round = 0
        self.given = True
        self.by_path: dict[str, Quota] = {}
        self.wants: dict[str, Size] = {}

    def __bool__(self) -> bool:
        return bool(self.by_path)

    def settle(self, number: int, said: Settle) -> None:
        """A round begins: nothing may grow before it ends."""
        assert len(said.used) == len(said.most), "the primary has written down what is used"
        held = self.by_path
        self.by_path = {}
        for (path, most), used in zip(said.most.items(), said.used, strict=True):
            quota = held.get(path) or Quota(most)
            quota.most, quota.allowed, quota.short = most, used, NOTHING
            self.by_path[path] = quota
        self.round, self.given = number, False

    def give(self, said: Give, shard: int) -> None:
        """The round ends: this shard may use so much more."""
        for quota, given in zip(self.by_path.values(), said.given, strict=True):
            more = given.share.plus(given.more.get(shard, NOTHING))
            quota.allowed = quota.allowed.plus(more)
            quota.used, quota.short = given.used, given.short.get(shard, NOTHING)
        self.given = True
        self.wants.clear()

    def reconsider(self) -> None:
        """Something has become less: who lacks something waits for the next round again."""
        for quota in self.by_path.values():
            quota.short = NOTHING

    def items(self) -> Iterator[list[Any]]:
        """All that the log determines, for copies and digests: see `small_state`."""
        if self.round:
            yield ["quotas", self.round, self.given]
        for path, quota in self.by_path.items():
            yield ["quota", path, quota.most, quota.allowed, quota.used, quota.short]

    def restore(self, item: list[Any]) -> None:
        """One of these items. Raises `BadInput`."""
        match item:
            case ["quotas", int(number), bool(given)] if number > 0:
                self.round, self.given = number, given
            case ["quota", str(path), *sizes] if len(sizes) == 4 and len(self) < QUOTAS_MAX:
                self.by_path[check_namespace(path)] = Quota(*map(size_of, sizes))
            case _:
                raise BadInput(f"a copy holds the quota {str(item)[:80]}, which is none")

    def __len__(self) -> int:
        return len(self.by_path)


def size_of(value: object) -> Size:
    """Two whole numbers. Raises `BadInput`."""
    if not isinstance(value, list) or len(value) != 2:
        raise BadInput(f"{str(value)[:40]!r} is no size")
    for bound in value:
        if type(bound) is not int or not 0 <= bound <= WITHOUT_END:
            raise BadInput(f"{str(bound)[:40]!r} is no number of rows or bytes")
    return Size(*value)


def _bounds(size: Size) -> list[int | None]:
    return [None if bound == WITHOUT_END else bound for bound in size]


def _bounded(value: object) -> Size:
    if not isinstance(value, list):
        raise BadInput(f"{str(value)[:40]!r} is no quota")
    return size_of([WITHOUT_END if bound is None else bound for bound in value])


def _given(value: object) -> Given:
    match value:
        case [used, share, dict(more), dict(short)]:
            return Given(size_of(used), size_of(share), _by_shard(more), _by_shard(short))
        case _:
            raise BadInput(f"{str(value)[:40]!r} gives nothing")


def _by_shard(value: dict[str, Any]) -> dict[int, Size]:
    return {int(shard): size_of(size) for shard, size in value.items()}
