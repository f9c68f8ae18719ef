"""A fault of a schedule, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Planned:
    """At `at_s` of the run, for `lasts_s`. `how`: a number for what is left to chance.

    `target`: names (`s1`, `w0`, `e2`, `store`) or roles (`primary:3`, `coordinator`, `etcd leader`)
    that are looked up when the time comes.
    """

    number: int
    at_s: float
    kind: str
    target: tuple[str, ...] = ()
    lasts_s: float = 0.0
    how: int = 0

    def __str__(self) -> str:
        target = f" {' -> '.join(self.target)}" if self.target else ""
        return f"{self.at_s:6.1f} s  {self.kind}{target}, {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Struck:
    """What came of a planned fault, in seconds of the run.

    `skipped`: why it was not brought about ("" when it was). `struck`: whom, by name, after roles
    were looked up. `evidence`: how it is known that it really happened; "" when it did not.
    """

    planned: Planned
    struck: tuple[str, ...] = ()
    injected_s: float = 0.0
    healed_s: float = 0.0
    evidence: str = ""
    skipped: str = ""
