"""Which clocks of a rank are complete: what a tick whose answer was lost came to.

A tick of clock c that was acknowledged closed c, and all earlier clocks of that process. One of
unknown outcome is decided by the next takeover of the rank: it makes up for a tick that any shard
holds, and it fences off one that none holds. So the takeover's answer (the rank's last complete
clock) says whether c is closed; while no takeover has followed, it is undecided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilient_ps.chaos.history import History, Operation

State: TypeAlias = Literal["closed", "undecided", "void"]
_STRONGEST: tuple[State, ...] = ("closed", "undecided", "void")


@dataclass(frozen=True, slots=True)
class Clocks:
    """By (rank, clock): what its ticks came to. A clock that nobody ended is `void`."""

    states: dict[tuple[int, int], State]

    def state(self, rank: int, clock: int) -> State:
        """Is this clock complete?"""
        return self.states.get((rank, clock), "void")

    def of(self, rank: int, state: State) -> list[int]:
        """The rank's clocks in this state, in order."""
        return sorted(c for (r, c), held in self.states.items() if r == rank and held == state)


def clocks_of(history: History) -> Clocks:
    """What became of the clocks that were ended in this history."""
    takeovers = [
        taken
        for taken in history.operations("open", "leave")
        if taken.outcome == "ok" and taken.ended_ns is not None
    ]
    takeovers.sort(key=lambda taken: taken.ended_ns or 0)
    ticks = history.operations("tick")
    latest: dict[str, int] = {}  # by process: the last clock that it knows to be complete
    for tick in ticks:
        if tick.outcome == "ok":
            process, clock = tick.invoked.process, tick.invoked.clock
            latest[process] = max(latest.get(process, 0), clock)
    states: dict[tuple[int, int], State] = {}
    for tick in ticks:
        place = tick.invoked.rank, tick.invoked.clock
        late = tick.invoked.clock <= latest.get(tick.invoked.process, 0)
        state = "closed" if late else _outcome(tick, takeovers)
        states[place] = min(states.get(place, "void"), state, key=_STRONGEST.index)
    return Clocks(states)


def _outcome(tick: Operation, takeovers: list[Operation]) -> State:
    if tick.outcome == "fail":
        return "void"
    for taken in takeovers:
        assert taken.ended_ns is not None
        same_rank = taken.invoked.rank == tick.invoked.rank
        another = taken.invoked.process != tick.invoked.process
        if same_rank and another and taken.ended_ns > tick.invoked.at_ns:
            return "closed" if taken.values[0] >= tick.invoked.clock else "void"
    return "undecided"
