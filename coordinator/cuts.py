"""Cuts as the coordinator's intents: what an intent to cut says, and how shards are told of it.

When a checkpoint is made, and what becomes of it, is decided elsewhere (`CutConductor`; it knows
the object store, of which nothing here does). An open intent of kind "cut" is either

* a *wish*: somebody wants a checkpoint; its details have no clocks, and no shard is told of it;
* an *attempt*: its details are a `CutPlan`, written before any shard is told.

A wish is closed as "aborted" with the number of the attempt that serves it in its result
(`retried_as`); so is an attempt that failed, once the next one begins (`retry` says that one is to
come). Numbers are never used again: what shards execute comes in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self

from resilient_ps.coordinator.fields import INT64_MAX, JsonObject
from resilient_ps.coordinator.keys import MAX_NAME_CHARS
from resilient_ps.coordinator.records import IntentRecord
from resilient_ps.cut import Cut
from resilient_ps.errors import BadInput
from resilient_ps.ids import READER
from resilient_ps.machine import Effect
from resilient_ps.messages import Kind, PartAnswer, Told
from resilient_ps.takeover import Script, Settled, Step

JOBS_MOST = 1_000
TIMERS_PREFIX = "coordinator/checkpoints"
"""Timers whose names begin so are those of the `CutConductor`."""


@dataclass(frozen=True, slots=True)
class CutPlan:
    """What an attempt is. `clocks` and `numbers` are by the name of the job.

    `id`: of the checkpoint; `base`: of the one that it builds upon, "" for none. `attempt`: how
    many have failed before, from 0, of which the last `refusals` were refused. `hold`: pushes of
    later clocks wait until it is reached.
    """

    id: str
    clocks: dict[str, int]
    numbers: dict[str, int]
    resting: tuple[str, ...] = ()  # jobs that are done: captured as they stand
    base: str = ""
    attempt: int = 0
    refusals: int = 0
    hold: bool = False
    why: str = ""
    begun_s: int = 0  # wall clock, for people

    def details(self) -> JsonObject:
        """As it stands in the intent."""
        return {**asdict(self), "resting": list(self.resting)}

    @classmethod
    def of(cls, intent: IntentRecord) -> Self | None:
        """The plan of an attempt; None for a wish. Raises `BadInput` for what is neither."""
        details = intent.details
        if "clocks" not in details:
            return None
        plan = cls(
            id=_text(details, "id"),
            clocks=_wholes(details, "clocks"),
            numbers=_wholes(details, "numbers"),
            resting=tuple(_names(details, "resting")),
            base=_text(details, "base"),
            attempt=_whole("attempt", details.get("attempt")),
            refusals=_whole("refusals", details.get("refusals", 0)),
            hold=details.get("hold") is True,
            why=_text(details, "why"),
            begun_s=_whole("begun_s", details.get("begun_s")),
        )
        if set(plan.numbers) != {*plan.clocks, *plan.resting}:
            raise BadInput("the details of a cut give a number for each job, and for no other")
        return plan

    def cut(self, number: int) -> Cut:
        """What shards are told. Raises `BadInput`."""
        clocks = sorted((self.numbers[job], clock) for job, clock in self.clocks.items())
        resting = sorted(self.numbers[job] for job in self.resting)
        return Cut(number, tuple(clocks), hold=self.hold, base=self.base, resting=tuple(resting))


class CutConductor(Protocol):
    """Who decides on cuts, and makes checkpoints of them, as the coordinator sees it."""

    def advance(self, now_ns: int) -> list[Effect]:
        """We are the coordinator, and the view or the time has changed: do what is missing."""
        ...

    def drop(self) -> None:
        """We are not the coordinator (any more): leave the rest to whoever is."""
        ...

    def hear(self, told: Told, now_ns: int) -> list[Effect]:
        """A server has answered a question."""
        ...

    def status(self, now_ns: int) -> JsonObject:
        """What there is to be told of checkpoints, for `resilient-ps status`."""
        ...

    def awaits_telling(self, number: int) -> bool:
        """Is this attempt to be told to the shards now?"""
        ...

    def to_abort(self) -> int:
        """The number of the attempt that is to be aborted on all shards; 0: none is."""
        ...

    def on_cut_told(
        self, number: int, answers: Mapping[int, PartAnswer], now_ns: int
    ) -> list[Effect]:
        """Every shard has answered the cut: by shard."""
        ...

    def on_cut_aborted(self, number: int, now_ns: int) -> list[Effect]:
        """No shard will begin, or go on with, this cut any more."""
        ...


def cut(number: int, told: Cut, shards: tuple[int, ...]) -> Script:
    """Tell all shards; each answers which server makes its image, or refuses."""
    yield [Step(Kind.CUT, shards, READER, n=number, text=told.to_json().encode())]
    return Settled(0, b"")


def abort(number: int, shards: tuple[int, ...]) -> Script:
    """Give the cut up on all shards, whether they have begun it or not."""
    yield [Step(Kind.ABORT, shards, READER, n=number)]
    return Settled(0, b"")


def is_wish(intent: IntentRecord) -> bool:
    """Does it ask for a cut, without being an attempt?"""
    return intent.kind == "cut" and intent.state == "open" and "clocks" not in intent.details


def is_pending(intent: IntentRecord) -> bool:
    """Is an attempt (or another one) to be made because of this intent?"""
    if intent.kind != "cut" or "retried_as" in intent.result:
        return False
    again = intent.state == "aborted" and intent.result.get("retry") is True
    return again or is_wish(intent)


def _text(details: JsonObject, name: str) -> str:
    value = details.get(name, "")
    if not isinstance(value, str):
        raise BadInput(f"the {name} of a cut is a text")
    return value


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise BadInput(f"the {name} of a cut is a whole number from 0")
    return value


def _wholes(details: JsonObject, name: str) -> dict[str, int]:
    value = details.get(name)
    if not isinstance(value, dict) or len(value) > JOBS_MOST:
        raise BadInput(f"the {name} of a cut are an object of at most {JOBS_MOST} jobs")
    if any(not 1 <= len(job) <= MAX_NAME_CHARS for job in value):
        raise BadInput(f"the {name} of a cut are by the name of the job")
    return {job: _whole(name, number) for job, number in value.items()}


def _names(details: JsonObject, name: str) -> list[str]:
    value = details.get(name, [])
    if not isinstance(value, list) or len(value) > JOBS_MOST:
        raise BadInput(f"the {name} jobs of a cut are a list of at most {JOBS_MOST}")
    if not all(isinstance(job, str) for job in value):
        raise BadInput(f"the {name} jobs of a cut are named")
    return value
