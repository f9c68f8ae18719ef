"""What a run tells while it goes on, to whoever looks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.result import Sample


@dataclass(frozen=True, slots=True)
class Active:
    """A fault that is under way since `since_s`. `struck`: whom, as far as is known."""

    planned: Planned
    struck: tuple[str, ...]
    since_s: float


@dataclass(frozen=True, slots=True)
class Now:
    """A run at one moment. `shards`: how many are in which state; `parties`: by name its state.

    `rates`: pushes of each second so far; `faults`: so many have been brought about, of so many.
    """

    at_s: float
    duration_s: float
    active: tuple[Active, ...]
    faults: tuple[int, int]
    sample: Sample | None
    rates: tuple[int, ...]
    shards: dict[str, int]
    parties: dict[str, str]


class Onlooker(Protocol):
    """Called by the thread that runs the run."""

    def phase(self, doing: str) -> None:
        """From now on the run is doing this."""
        ...

    def say(self, text: str) -> None:
        """Something has happened."""
        ...

    def show(self, now: Now) -> None:
        """How things stand, some times a second while faults happen."""
        ...


@contextmanager
def own_log(path: Path) -> Iterator[None]:
    """What the harness's own clients log goes there: a run is looked at meanwhile."""
    logger, handler = logging.getLogger("resilient_ps"), logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = before
        logger.removeHandler(handler)
        handler.close()
