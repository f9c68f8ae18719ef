"""What all faults of lines have in common: rules for the proxy, from the beginning to the end."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence

from resilient_ps.chaos.faults.links import Effect, Rule
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.scene import Lines, Role, Scene, Skipped


class Ruled(ABC):
    """A fault that is nothing but rules. It happened when something was struck by one of them."""

    done = "pieces held up"
    """What an effect's `pieces` are, in words."""

    def __init__(self, scene: Scene, planned: Planned) -> None:
        self.scene = scene
        self.planned = planned
        self.struck: tuple[str, ...] = ()
        self.chance = random.Random(planned.how)
        self._numbers: list[int] = []
        self._effects: list[Effect] = []

    @abstractmethod
    def rules(self) -> Sequence[Rule]:
        """Sets `struck`, too. Raises `Skipped` when there is nobody to strike."""

    def inject(self) -> None:
        for rule in self.rules():
            self._numbers.append(self.lines.apply(rule))

    def heal(self) -> None:
        while self._numbers:  # one that cannot be lifted is tried again by the next call
            self._effects.append(self.lines.lift(self._numbers[-1]))
            self._numbers.pop()

    def evidence(self) -> str:
        pieces = sum(effect.pieces for effect in self._effects)
        connections = sum(effect.connections for effect in self._effects)
        return f"{pieces} {self.done} on {connections} connections" if pieces else ""

    @property
    def lines(self) -> Lines:
        if self.scene.lines is None:
            raise Skipped("no proxy stands between the parties")
        return self.scene.lines

    def names(self, role: Role, *, least: int = 1) -> tuple[str, ...]:
        """Of all parties of the role. Raises `Skipped` when there are fewer than `least`."""
        names = tuple(party.name for party in self.scene.parties(role))
        if len(names) < least:
            raise Skipped(f"{least} of {role} are needed, and {len(names)} here")
        return names


def deaf(listener: Sequence[str], speaker: Sequence[str]) -> list[Rule]:
    """`listener` hears nothing of `speaker`, whoever of them dialled."""
    return [
        Rule("drop", tuple(speaker), tuple(listener), way="requests"),
        Rule("drop", tuple(listener), tuple(speaker), way="answers"),
    ]


def apart(one: Sequence[str], other: Sequence[str]) -> list[Rule]:
    """Neither hears the other."""
    return [Rule("drop", tuple(one), tuple(other)), Rule("drop", tuple(other), tuple(one))]
