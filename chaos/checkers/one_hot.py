"""Exactly once: a slot that pushes of one identity add 1 to ends as 1, or never changes.

Workload: every push adds 1 to slots (keys) of its own in a table of integers that sums. A process
that takes a rank over repeats pushes into the same slots. In the end, when all clocks have been
ended, the table is read:

* a slot of a complete clock holds 1 (see `clocks`: a tick proves that all shards hold the clock):
  less was lost, more was applied twice;
* so does a slot with an acknowledged push, but not under BSP, where a push lasts with its clock;
* other slots with pushes of unknown outcome hold 0 or 1; under BSP a clock that nobody ended holds
  0, and one whose tick is undecided is there as a whole or not at all;
* all others hold 0: a refused push must not have been applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from resilient_ps.chaos.checkers.clocks import Clocks, clocks_of
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History
from resilient_ps.consistency import ASP, BSP, Consistency

_Place = tuple[int, int]  # rank and clock


@dataclass(slots=True)
class _Slots:
    """Which slots were pushed to, and by the pushes of which clock."""

    acknowledged: set[int] = field(default_factory=set)
    attempted: dict[int, _Place] = field(default_factory=dict)


def check_one_hot(
    history: History,
    final: Mapping[int, int],
    mode: Consistency | None = None,
    *,
    at_rest: bool = True,
) -> Verdict:
    """`final`: what was read of each slot after all processes had ended. Default mode: ASP.

    Not `at_rest`: some ranks have not ended their clocks, so that under BSP anything may still be
    held back.
    """
    slots, clocks = _slots_of(history), clocks_of(history)
    bsp = isinstance(mode or ASP(), BSP)
    violations: list[str] = []
    for slot in sorted(final.keys() | slots.attempted.keys()):
        held, allowed = final.get(slot, 0), _allowed(slot, slots, clocks, bsp=bsp)
        if bsp and not at_rest and allowed == (1,):
            allowed = (0, 1)
        if held not in allowed:
            violations.append(
                f"slot {slot}{_of(slots.attempted.get(slot))} holds {held}, "
                f"allowed is {' or '.join(map(str, allowed))}"
            )
    if bsp and at_rest:
        violations += _mixtures(slots, clocks, final)
    return judge(violations, checked=len(slots.attempted), what="pushes")


def _slots_of(history: History) -> _Slots:
    slots = _Slots()
    for push in history.operations("push"):
        if push.outcome == "ok":
            slots.acknowledged.update(push.invoked.keys)
        if push.outcome != "fail":
            place = push.invoked.rank, push.invoked.clock
            slots.attempted.update(dict.fromkeys(push.invoked.keys, place))
    return slots


def _allowed(slot: int, slots: _Slots, clocks: Clocks, *, bsp: bool) -> tuple[int, ...]:
    place = slots.attempted.get(slot)
    if place is None:
        return (0,)
    state = clocks.state(*place)
    if state == "closed" or (slot in slots.acknowledged and not bsp):
        return (1,)
    return (0,) if bsp and state == "void" else (0, 1)


def _mixtures(slots: _Slots, clocks: Clocks, final: Mapping[int, int]) -> Iterator[str]:
    """BSP: undecided clocks of which a part is there."""
    held: dict[_Place, set[int]] = {}
    for slot, place in slots.attempted.items():
        if clocks.state(*place) == "undecided":
            held.setdefault(place, set()).add(final.get(slot, 0))
    for place in sorted(held):
        if len(held[place]) > 1:
            yield f"of{_of(place)} only a part was applied"


def _of(place: _Place | None) -> str:
    return "" if place is None else f" of rank {place[0]}, clock {place[1]}"
