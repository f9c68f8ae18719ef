"""What one worker sees never goes back, and contains what it wrote (Terry et al. 1994).

The workload is that of `staleness`: the number that a pull sees in rank r's row tells how many of
r's clocks it contains. Each such number is

* own (SSP, ASP): at least the pushes of the puller's rank that were acknowledged before;
* monotone: not less than an earlier pull of the same process saw there;
* causal: not more clocks than r had begun to push when the pull ended.

`check_views` judges the positions of the shards that a process has seen: they only grow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from resilient_ps.chaos.checkers.staleness import describe
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History, Operation
from resilient_ps.consistency import BSP, Consistency
from resilient_ps.ids import Position


def check_sessions(history: History, mode: Consistency) -> Verdict:
    """`history`: pushes whose keys are all their own rank, and pulls whose keys are ranks."""
    pushes = [push for push in history.operations("push") if _is_own(push)]
    pulls = [pull for pull in history.operations("pull") if pull.outcome == "ok"]
    acknowledged, begun = _acknowledged(pushes), _begun(pushes)
    violations: list[str] = []
    earlier: dict[str, list[Operation]] = {}
    for pull in pulls:
        violations += [] if isinstance(mode, BSP) else _own(pull, acknowledged)
        violations += _causal(pull, begun)
        before = earlier.setdefault(pull.invoked.process, [])
        violations += _monotone(pull, before)
        before.append(pull)
    return judge(violations, checked=len(pulls), what="pulls that were answered")


def check_views(history: History) -> Verdict:
    """No process sees an epoch or an lsn of a shard that is below one that it saw before."""
    seen: dict[str, tuple[Position, ...]] = {}
    violations: list[str] = []
    for sight in history.sights():
        before = seen.get(sight.process, sight.shards)
        for shard, (old, new) in enumerate(zip(before, sight.shards, strict=True)):
            if new < old:
                violations.append(
                    f"{sight.process} saw shard {shard} at {_at(new)} after {_at(old)}"
                )
        seen[sight.process] = tuple(map(max, before, sight.shards))
    return judge(violations, checked=len(seen), what="answers with positions")


def check_clocks(history: History) -> Verdict:
    """A rank's clocks only grow: no process runs a clock that was complete when it began."""
    complete: dict[int, list[tuple[int, int]]] = {}
    for tick in history.operations("tick", "open", "leave"):
        if tick.outcome == "ok" and tick.ended_ns is not None:
            clock = tick.invoked.clock if tick.invoked.action == "tick" else tick.values[0]
            complete.setdefault(tick.invoked.rank, []).append((tick.ended_ns, clock))
    violations: list[str] = []
    opened = [taken for taken in history.operations("open") if taken.outcome == "ok"]
    for taken in opened:
        rank, ticked = taken.invoked.rank, taken.values[0]
        known = [c for ended, c in complete.get(rank, []) if ended <= taken.invoked.at_ns]
        if known and max(known) > ticked:
            violations.append(
                f"{taken.invoked.process} began behind clock {ticked} of rank {rank}, "
                f"of which clock {max(known)} was complete"
            )
    return judge(violations, checked=len(opened), what="processes that took their rank")


def _is_own(push: Operation) -> bool:
    return bool(push.invoked.keys) and set(push.invoked.keys) == {push.invoked.rank}


def _acknowledged(pushes: Iterable[Operation]) -> dict[int, list[int]]:
    """By rank: when each of its clocks was acknowledged for the first time, in order."""
    return _firsts((p, p.ended_ns) for p in pushes if p.outcome == "ok" and p.ended_ns is not None)


def _begun(pushes: Iterable[Operation]) -> dict[int, list[int]]:
    """By rank: when each of its clocks was pushed for the first time, in order."""
    return _firsts((push, push.invoked.at_ns) for push in pushes)


def _firsts(pushes: Iterable[tuple[Operation, int]]) -> dict[int, list[int]]:
    first: dict[tuple[int, int], int] = {}
    for push, at_ns in pushes:
        place = push.invoked.rank, push.invoked.clock
        first[place] = min(first.get(place, at_ns), at_ns)
    by_rank: dict[int, list[int]] = {}
    for (rank, _), at_ns in first.items():
        by_rank.setdefault(rank, []).append(at_ns)
    return {rank: sorted(moments) for rank, moments in by_rank.items()}


def _own(pull: Operation, acknowledged: dict[int, list[int]]) -> Iterator[str]:
    rank = pull.invoked.rank
    due = bisect_right(acknowledged.get(rank, []), pull.invoked.at_ns)
    for key, seen in zip(pull.invoked.keys, pull.values, strict=True):
        if key == rank and seen < due:
            yield f"{describe(pull)} saw {seen} of its own {due} acknowledged pushes"


def _causal(pull: Operation, begun: dict[int, list[int]]) -> Iterator[str]:
    assert pull.ended_ns is not None
    for rank, seen in zip(pull.invoked.keys, pull.values, strict=True):
        most = bisect_right(begun.get(rank, []), pull.ended_ns)
        if seen > most:
            yield f"{describe(pull)} saw {seen} clocks of rank {rank}, which had begun {most}"


def _monotone(pull: Operation, before: list[Operation]) -> Iterator[str]:
    """Against the last pull of the same rows that was over before this one began."""
    for earlier in reversed(before):
        over = earlier.ended_ns is not None and earlier.ended_ns <= pull.invoked.at_ns
        if over and earlier.invoked.keys == pull.invoked.keys:
            break
    else:
        return
    pairs = zip(pull.invoked.keys, pull.values, earlier.values, strict=True)
    for rank, seen, saw in pairs:
        if seen < saw:
            yield f"{describe(pull)} saw {seen} clocks of rank {rank} after it had seen {saw}"


def _at(position: Position) -> str:
    incarnation, counter = position.epoch
    return f"epoch {incarnation}.{counter} lsn {position.lsn}"
