"""What a worker's pushes and ticks were acknowledged with, in a file: for checkers of whole runs.

Switched on by the environment variable `RESILIENT_PS_LEDGER`, which names a folder; looked at once,
when a client is made. Every worker writes a file of its own, one line for each call that succeeded,
at once and unbuffered. Each line is a JSON array, with times in nanoseconds of the monotonic clock:

    ["push" or "tick", job, rank, incarnation, clock, n, begun, ended, [[shard, i, c, lsn], ...]]
    ["pull", job, rank, incarnation, clock, 0, begun, ended, [[shard, i, c, lsn], ...]]

`i`, `c` and `lsn` are where the shard stood: the cluster's incarnation, the counter of the epoch,
the position in the log.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from resilient_ps.errors import BadInput
from resilient_ps.messages import Kind
from resilient_ps.noted_calls import Acknowledged

LEDGER_VARIABLE = "RESILIENT_PS_LEDGER"
SUFFIX = ".receipts"
_NAMES = {Kind.PUSH: "push", Kind.TUNE: "push", Kind.TICK: "tick", Kind.PULL: "pull"}


class Receipts:
    """The file of one worker."""

    def __init__(self, folder: Path, rank: int) -> None:
        path = folder / f"{rank}.{time.monotonic_ns():020d}.{os.getpid()}{SUFFIX}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            raise BadInput(
                f"{LEDGER_VARIABLE}={folder}: no file can be made there ({error}); unset it, or "
                "name a folder that is yours"
            ) from error

    def note(self, done: Acknowledged) -> None:
        """A call has succeeded."""
        times = done.begun_ns, time.monotonic_ns()
        if done.kind in _NAMES:
            places = [[shard, *at.epoch, at.lsn] for shard, at in done.places.items()]
            self._write(_NAMES[done.kind], *done.worker, done.clock, done.n, *times, places)

    def _write(self, *line: Any) -> None:
        self._file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())


def receipts_of(rank: int) -> Receipts | None:
    """Those of a new worker, where the environment asks for them."""
    folder = os.environ.get(LEDGER_VARIABLE, "")
    return Receipts(Path(folder), rank) if folder else None
