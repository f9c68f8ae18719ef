"""Which checkpoint somebody wants: the newest, that of a clock, of a time, or one by its id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Self, TypeAlias

from resilient_ps.errors import BadInput
from resilient_ps.storage.names import CheckpointId

WishKind: TypeAlias = Literal["latest", "clock", "time", "id"]
MAX_CHARS = 400
HOW = "latest, clock:N (or clock:JOB=N), time:2026-07-01T23:30 (UTC, or with +02:00), or an id"

_CLOCK = re.compile(r"clock:(?:(?P<job>.+)=)?(?P<clock>[0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Wish:
    """`accepts` says whether a checkpoint will do; the newest of those that do is meant.

    "clock": no job (or not the job that is named) has gone further than `clock`. "time": made no
    later than `at_s`, seconds since 1970.
    """

    kind: WishKind
    clock: int = 0
    job: str = ""
    at_s: int = 0
    id: CheckpointId | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `BadInput`, with what can be wished for."""
        if len(text) > MAX_CHARS:
            raise BadInput(f"a checkpoint is named in {MAX_CHARS} characters at most: {HOW}")
        if text == "latest":
            return cls("latest")
        if found := _CLOCK.fullmatch(text):
            return cls("clock", clock=int(found["clock"]), job=found["job"] or "")
        if text.startswith("time:"):
            return cls("time", at_s=_seconds(text.removeprefix("time:")))
        try:
            return cls("id", id=CheckpointId.parse(text))
        except BadInput:
            raise BadInput(f"{text!r} is no checkpoint: use {HOW}") from None

    def accepts(self, id: CheckpointId, clocks: Mapping[str, int], created_s: int) -> bool:
        """Will this checkpoint do?"""
        match self.kind:
            case "latest":
                return True
            case "clock" if self.job:
                return self.job in clocks and clocks[self.job] <= self.clock
            case "clock":
                return bool(clocks) and all(at <= self.clock for at in clocks.values())
            case "time":
                return created_s <= self.at_s
            case "id":
                return id == self.id

    def __str__(self) -> str:
        match self.kind:
            case "clock":
                return f"clock:{self.job}={self.clock}" if self.job else f"clock:{self.clock}"
            case "time":
                return f"time:{datetime.fromtimestamp(self.at_s, UTC).isoformat()}"
            case "id":
                return str(self.id)
            case "latest":
                return "latest"


def _seconds(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,11}", text):
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError) as error:
        raise BadInput(f"time:{text} is no time ({error}): use {HOW}") from None
