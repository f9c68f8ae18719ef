"""Where shards are after quiescence: every one served, replicated, and primaries spread evenly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.coordinator.records import Member, ShardRecord


def check_layout(
    records: Sequence[ShardRecord],
    living: Collection[Member],
    *,
    replicas: int,
    lost: Collection[int] = (),
    uneven_most: int = 1,
) -> Verdict:
    """`living`: the processes that serve. `lost`: shards that no in-sync member survived.

    Every shard has a living primary and min(`replicas`, living servers) members, all living and all
    of them desired. No server is primary of more than `uneven_most` shards more than another one.
    Judged is nothing when a shard was lost: then some servers have nothing to be primary of.
    """
    if lost:
        named = ", ".join(map(str, sorted(lost)))
        return Verdict("unknown", (f"shards were lost: {named}",))
    violations: list[str] = []
    for record in records:
        violations += _members(record, living, min(replicas, len(living)))
    violations += _spread(records, living, uneven_most)
    return judge(violations, checked=len(records), what="shards")


def _members(record: ShardRecord, living: Collection[Member], due: int) -> Iterator[str]:
    where = f"shard {record.shard}: "
    if not record.primary or record.leader not in living:
        yield where + f"the primary is {record.primary or 'nobody'}, which does not live"
    dead = [member.server for member in record.in_sync if member not in living]
    if dead:
        yield where + f"in sync are the dead {', '.join(dead)}"
    if len(record.in_sync) != due:
        yield where + f"{len(record.in_sync)} members are in sync, due are {due}"
    undesired = sorted({member.server for member in record.in_sync} - set(record.desired))
    if undesired:
        yield where + f"in sync but not desired are {', '.join(undesired)}"


def _spread(
    records: Sequence[ShardRecord], living: Collection[Member], uneven_most: int
) -> Iterator[str]:
    primaries = Counter({member.server: 0 for member in living})
    primaries.update(record.primary for record in records if record.leader in living)
    if primaries and max(primaries.values()) - min(primaries.values()) > uneven_most:
        told = ", ".join(f"{server} of {primaries[server]}" for server in sorted(primaries))
        yield f"primaries are spread unevenly: {told}"
