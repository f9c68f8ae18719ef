"""A cut: for every job a clock. What is of that clock or an earlier one is before the cut.

Cuts are numbered as the intents are that ask for them; a shard learns of one by an entry of its
log, and decides when that is applied whether it can still be made (`cuts`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from resilient_ps.errors import BadInput

CLOCK_MAX = (1 << 53) - 1  # whole numbers that every reader of JSON keeps
CUT_JOBS_MAX = 1_000
NAME_BYTES_MAX = 512
CUT_TEXT_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Cut:
    """See the module. Raises `BadInput`.

    `clocks`: pairs (job number, clock), ascending; a job that is not named is cut at clock 0.
    `resting`: numbers, ascending, of jobs that nobody works on: all that is here of them when the
    cut begins is before it, nothing that comes later is, and nobody waits for their ranks. `by`:
    the server whose replica makes the image; the shard's primary fills it in. `hold`: pushes behind
    the cut wait until it is reached. `base`: id of the checkpoint that this one builds upon.
    """

    number: int
    clocks: tuple[tuple[int, int], ...]
    by: str = ""
    hold: bool = False
    base: str = ""
    resting: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not _is_whole(self.number) or self.number < 1:
            raise BadInput(f"a cut's number is from 1 to {CLOCK_MAX}, not {self.number!r}")
        if len(self.clocks) + len(self.resting) > CUT_JOBS_MAX:
            raise BadInput(f"cut {self.number} names more than {CUT_JOBS_MAX} jobs")
        if not all(_is_whole(job) and _is_whole(clock) for job, clock in self.clocks):
            raise BadInput(f"cut {self.number}: jobs and clocks are whole numbers")
        jobs = [job for job, _ in self.clocks]
        resting = list(self.resting)
        if not all(map(_is_whole, resting)) or jobs != sorted(jobs) or resting != sorted(resting):
            raise BadInput(f"cut {self.number}: jobs are whole numbers in ascending order")
        if len({*jobs, *resting}) != len(jobs) + len(resting):
            raise BadInput(f"cut {self.number} names a job twice")
        for noun, text in (("server", self.by), ("base", self.base)):
            if not isinstance(text, str) or len(text.encode(errors="replace")) > NAME_BYTES_MAX:
                raise BadInput(f"cut {self.number}: {noun} is no text of {NAME_BYTES_MAX} bytes")
        if not isinstance(self.hold, bool):
            raise BadInput(f"cut {self.number}: hold is neither true nor false")

    def to_json(self) -> str:
        """Canonical JSON."""
        fields = {
            "number": self.number,
            "clocks": [list(pair) for pair in self.clocks],
            "by": self.by,
            "hold": self.hold,
            "base": self.base,
            "resting": list(self.resting),
        }
        return json.dumps(fields, sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Cut:
        """Raises `BadInput` for anything that `to_json` has not written."""
        if len(text) > CUT_TEXT_BYTES_MAX:
            raise BadInput(f"a cut of {len(text)} bytes, possible are {CUT_TEXT_BYTES_MAX}")
        try:
            fields: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"a cut is no JSON ({error})") from error
        match fields:
            case {
                "number": number,
                "clocks": [*pairs],
                "by": by,
                "hold": hold,
                "base": base,
                "resting": [*resting],
                **others,
            } if not others:
                if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                    clocks = tuple((job, clock) for job, clock in pairs)
                    return Cut(number, clocks, by, hold, base, tuple(resting))
        raise BadInput(f"not a cut: {text[:200]!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= CLOCK_MAX
