"""A checkpoint is a consistent cut: exactly the updates of clocks <= C from every rank.

Three sources are judged: what tables hold in it, against what the workload's programs push up to
that clock (`check_content`: exact; of a table between whose rows values are moved, the sum is 0
too); slots that single pushes touch, against the recorded history (`check_slots`); and what each
shard says of the ranks (`check_ranks`: all the same).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from resilient_ps.chaos.checkers.clocks import clocks_of
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History

Rows: TypeAlias = Mapping[int, int]
Content: TypeAlias = Mapping[int, Rows]
"""By table and key: what rows of one whole number hold, where that is not 0."""

SHOWN_MOST = 3


class RankStand(NamedTuple):
    """Where a rank stands, as one shard of a checkpoint says."""

    ticked: int
    live: bool
    cursor: bytes


def check_content(compared: Mapping[str, tuple[Content, Content]], *, balanced: int = 0) -> Verdict:
    """`compared`: by the name of a state, what it holds and what it must hold.

    The rows of table `balanced` sum up to 0.
    """
    violations: list[str] = []
    for name, (held, due) in compared.items():
        for table in sorted(held.keys() | due.keys()):
            violations += _differences(f"{name}, table {table}", held.get(table, {}), due[table])
        total = sum(held.get(balanced, {}).values())
        if total:
            violations.append(f"{name}: the total of table {balanced} is {total}")
    return judge(violations, checked=len(compared), what="states")


def check_slots(history: History, cuts: Mapping[str, tuple[int, Rows]]) -> Verdict:
    """`cuts`: by the name of a checkpoint, its clock, and what slots hold in it.

    `history` is that of a workload whose pushes add 1 to slots of their own (see `one_hot`). Slots
    of complete clocks <= C hold 1. Where a clock was not completed by anybody, but was left behind
    by a rank that has left, its slots hold 0 or 1. All others hold 0.
    """
    clocks = clocks_of(history)
    places = {
        slot: (push.invoked.rank, push.invoked.clock)
        for push in history.operations("push")
        for slot in push.invoked.keys
    }
    violations: list[str] = []
    for name, (cut, held) in cuts.items():
        for slot in sorted(places.keys() | held.keys()):
            rank, clock = places.get(slot, (-1, 0))
            within = 0 < clock <= cut
            least = within and clocks.state(rank, clock) == "closed"
            if not least <= held.get(slot, 0) <= within:
                where = f"of rank {rank}, clock {clock}" if clock else "of nobody"
                violations.append(
                    f"{name} (clock {cut}): slot {slot} {where} holds {held.get(slot, 0)}"
                )
    return judge(violations, checked=len(cuts), what="checkpoints")


def check_ranks(
    stands: Mapping[str, tuple[int | None, Mapping[int, Mapping[int, RankStand]]]],
) -> Verdict:
    """`stands`: by the name of a checkpoint, its clock, and by shard what it says of each rank.

    All shards say the same, and live ranks stand exactly at the clock. None: the job was at rest.
    """
    violations: list[str] = []
    for name, (cut, by_shard) in stands.items():
        first = next(iter(by_shard.values()), {})
        for shard, ranks in by_shard.items():
            if ranks != first:
                violations.append(f"{name}: shard {shard} says {ranks}, another one {first}")
        for rank, stand in first.items():
            if stand.live and cut is not None and stand.ticked != cut:
                violations.append(f"{name} (clock {cut}): rank {rank} stands at {stand.ticked}")
    return judge(violations, checked=len(stands), what="checkpoints")


def _differences(where: str, held: Rows, due: Rows) -> Iterator[str]:
    wrong = [key for key in sorted(held.keys() | due.keys()) if held.get(key, 0) != due.get(key, 0)]
    shown = [f"{key} holds {held.get(key, 0)}, not {due.get(key, 0)}" for key in wrong[:SHOWN_MOST]]
    if wrong:
        more = f", and {len(wrong) - SHOWN_MOST} more" if len(wrong) > SHOWN_MOST else ""
        yield f"{where}: key {'; key '.join(shown)}{more}"
