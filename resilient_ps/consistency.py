"""When a pull may be answered, and when pushes take effect: BSP, SSP, ASP, and tasks.

A worker at clock c has ticked c-1. Its pull at clock c is answered once the slowest live rank has
ticked `gate(c)`:

* BSP (bulk synchronous, Valiant 1990): c-1; pushes are applied together when all ranks ticked;
* SSP (stale synchronous, Ho et al. 2013) with staleness s: c-s-1; pushes are applied on arrival;
* ASP (asynchronous): there is no bound;
* tasks: nor is there one, because who may run when is the coordinator's to say. A rank is a lane of
  a graph, its clocks are the lane's tasks; a task's pushes are applied together when it ticks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from resilient_ps.errors import BadInput

RANKS_MAX = 65_536
STALENESS_MAX = 1_000_000

Reduce: TypeAlias = Literal["sum", "mean"]


@dataclass(frozen=True, slots=True)
class BSP:
    """Every clock sees exactly the state after the clock before, from all ranks.

    `reduce="sum"` adds the ranks' gradients; "mean" divides each by the number of live ranks.
    """

    reduce: Reduce = "sum"

    def __post_init__(self) -> None:
        if self.reduce not in ("sum", "mean"):
            raise BadInput(f"BSP(reduce={self.reduce!r}): reduce is 'sum' or 'mean'")

    def gate(self, clock: int) -> int:
        """The clock that every live rank must have ticked before a pull at `clock`."""
        return clock - 1


@dataclass(frozen=True, slots=True)
class SSP:
    """A pull at clock c contains all updates of clocks <= c - staleness - 1 from every rank."""

    staleness: int = 3

    def __post_init__(self) -> None:
        whole = isinstance(self.staleness, int) and not isinstance(self.staleness, bool)
        if not whole or not 0 <= self.staleness <= STALENESS_MAX:
            raise BadInput(
                f"SSP(staleness={self.staleness!r}): a whole number from 0 to {STALENESS_MAX}"
            )

    def gate(self, clock: int) -> int:
        """The clock that every live rank must have ticked before a pull at `clock`."""
        return max(0, clock - self.staleness - 1)


@dataclass(frozen=True, slots=True)
class ASP:
    """No bound: a pull sees what has arrived."""

    def gate(self, clock: int) -> int:
        """Nothing to wait for."""
        return 0


@dataclass(frozen=True, slots=True)
class Tasks:
    """Of jobs that are graphs of tasks: made by `client.tasks`, and by nobody else."""

    def gate(self, clock: int) -> int:
        """Nothing to wait for: a task is granted when all that it depends on is there."""
        return 0


Consistency: TypeAlias = BSP | SSP | ASP | Tasks


def parse_consistency(text: str) -> Consistency:
    """`bsp`, `bsp:mean`, `ssp:3`, `asp`, `tasks` -> the mode. Raises `BadInput`."""
    name, _, argument = text.strip().lower().partition(":")
    if name == "bsp" and argument in ("", "sum", "mean"):
        return BSP("mean" if argument == "mean" else "sum")
    if name == "ssp" and (not argument or _is_count(argument)):
        return SSP(int(argument)) if argument else SSP()
    if name == "asp" and not argument:
        return ASP()
    if name == "tasks" and not argument:
        return Tasks()
    raise BadInput(f"consistency {text!r} is none of: bsp, bsp:mean, ssp:<staleness>, asp")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(STALENESS_MAX))


def consistency_name(mode: Consistency) -> str:
    """The inverse of `parse_consistency`."""
    match mode:
        case BSP("mean"):
            return "bsp:mean"
        case BSP():
            return "bsp"
        case SSP(staleness):
            return f"ssp:{staleness}"
        case ASP():
            return "asp"
        case Tasks():
            return "tasks"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What all shards must know of a job. `ranks` are live from clock 1; others join later."""

    job: int
    name: str
    ranks: int
    consistency: Consistency

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= RANKS_MAX:
            raise BadInput(f"job {self.name!r}: {self.ranks} ranks, possible are 1 to {RANKS_MAX}")

    @property
    def holds_pushes(self) -> bool:
        """Do shards hold what is pushed in a clock until the clock has ended?"""
        return isinstance(self.consistency, BSP | Tasks)

    def to_json(self) -> str:
        """Canonical JSON."""
        mode = consistency_name(self.consistency)
        fields = {"job": self.job, "name": self.name, "ranks": self.ranks, "consistency": mode}
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> JobSpec:
        """Raises `BadInput` for anything that `to_json` has not written."""
        try:
            fields = json.loads(text)
            mode = parse_consistency(str(fields["consistency"]))
            return JobSpec(int(fields["job"]), str(fields["name"]), int(fields["ranks"]), mode)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise BadInput(f"not the specification of a job: {text[:200]!r} ({error})") from error
