"""Batches that go on by themselves when the cluster went back to a checkpoint: loudly.

A program that loops over batches hears of a rollback where it calls a table (`RolledBack`), or
where the next batch is asked for. It is there that the worker resumes: it waits until the shards
have been restored, takes its rank over, and reads on behind the cursor that the checkpoint has.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from resilient_ps.errors import ResilientPsError, RetryLater, RolledBack

if TYPE_CHECKING:
    from resilient_ps.client.worker import Worker

Batch = TypeVar("Batch")

PATIENCE_S = 1_800.0
"""For how long the restored shards are waited for."""
PAUSE_S = 0.5
LOGGER = logging.getLogger("resilient_ps")


class _BegunAgain(Exception):  # no error: the program has called `resume` itself
    """The worker lives in another incarnation than when the batch was given out."""


def resuming(worker: Worker, walk: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
    """What `walk()` yields, begun anew after each rollback."""
    while True:
        try:
            yield from walk()
            worker.check_incarnation()  # what was ticked last may be undone
        except RolledBack as error:
            resume_loudly(worker, error)
        except _BegunAgain:
            pass
        else:
            return


def check_life(worker: Worker, resumed: int) -> None:
    """A batch is ticked in the incarnation in which it was given out only."""
    if worker.resumed != resumed:
        raise _BegunAgain


def resume_loudly(worker: Worker, error: RolledBack) -> None:
    """Resume, and say so. Raises what `Worker.resume` does, after `PATIENCE_S`."""
    last_clock, until_s = worker.clock - 1, time.monotonic() + PATIENCE_S
    say(f"rank {worker.rank}: {error}. Resuming (it had ticked clock {last_clock})")
    while True:
        try:
            worker.resume()
            break
        except (RetryLater, RolledBack) as late:
            if time.monotonic() >= until_s:
                raise
            _say_why(worker, late)
            time.sleep(PAUSE_S)
    again = max(0, last_clock - (worker.clock - 1))
    say(
        f"rank {worker.rank}: resumed behind clock {worker.clock - 1}, in incarnation "
        f"{worker.incarnation} of the cluster: {again} clocks are run again"
    )


def _say_why(worker: Worker, error: ResilientPsError) -> None:
    say(f"rank {worker.rank}: cannot resume yet: {error}")


def say(text: str) -> None:
    """To whoever looks: a warning in the log, and a line on stderr."""
    if LOGGER.hasHandlers():
        LOGGER.warning(text)
    print(f"resilient-ps: {text}", file=sys.stderr, flush=True)
