"""Ranks that count: what tables hold is compared with what was acknowledged."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.sessions import check_sessions
from resilient_ps.chaos.checkers.staleness import check_staleness
from resilient_ps.chaos.checkers.totals import check_totals
from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.history import History
from resilient_ps.chaos.live.programs.counting import row_keys, table_names
from resilient_ps.chaos.live.workload import WorkloadSettings
from resilient_ps.chaos.live.workloads.recorded import Recorded, before_rollbacks
from resilient_ps.client.connection import Client
from resilient_ps.client.tables import SparseTable
from resilient_ps.consistency import BSP
from resilient_ps.errors import NotFound

READ_AT_ONCE = 10_000  # keys


class Counting(Recorded):
    """`rows`: of each rank; `pushes`: with slots of their own, in each clock."""

    program = "counting"

    def __init__(self, name: str, settings: WorkloadSettings, *, rows: int, pushes: int) -> None:
        super().__init__(name, settings, (str(rows), str(pushes)))
        self._rows, self._slots = table_names(self.job)
        self._row_count = rows
        self._push_count = pushes

    def verdicts(self, history: History, client: Client) -> dict[str, Verdict]:
        """Of slots where there are any, of rows, and of what was seen meanwhile."""
        found: dict[str, Verdict] = {}
        if self._push_count:
            found["every push is applied once"] = self._slot_counts(history, client)
        rows = history.of(self._rows)
        return found | {
            "every clock is counted once": self._totals(rows, client),
            "pulls are as fresh as promised": check_staleness(rows, self.mode),
            "what is seen never goes back": check_sessions(before_rollbacks(rows), self.mode),
        }

    def _slot_counts(self, history: History, client: Client) -> Verdict:
        slots = history.of(self._slots)
        keys = sorted({key for push in slots.operations("push") for key in push.invoked.keys})
        held = read_numbers(client, self._slots, np.array(keys, np.uint64))
        return check_one_hot(slots, held, self.mode, at_rest=self.at_rest)

    def _totals(self, rows: History, client: Client) -> Verdict:
        if isinstance(self.mode, BSP) and not self.at_rest:
            return Verdict("unknown", ("ranks have not ended behind the same clock",))
        keys = {rank: row_keys(rank, self._row_count) for rank in range(self.ranks)}
        held = read_numbers(client, self._rows, np.concatenate(list(keys.values())))
        final = [(rank, held.get(int(key), 0)) for rank in keys for key in keys[rank]]
        return check_totals(rows, final, self.mode)


def read_numbers(client: Client, table: str, keys: NDArray[np.uint64]) -> dict[int, int]:
    """What rows of one whole number hold, where it is not 0; of no table, nothing."""
    try:
        held = client.table(table)
    except NotFound:
        return {}
    assert isinstance(held, SparseTable)
    found: dict[int, int] = {}
    for at in range(0, len(keys), READ_AT_ONCE):
        some = keys[at : at + READ_AT_ONCE]
        pairs = zip(some.tolist(), held.pull(some)[:, 0].tolist(), strict=True)
        found.update({key: value for key, value in pairs if value})
    return found


def one_hot(settings: WorkloadSettings) -> Counting:
    """Every push touches slots of its own."""
    return Counting("one-hot", settings, rows=1, pushes=4)


def counter(settings: WorkloadSettings) -> Counting:
    """Many rows of each rank are counted up, on all shards."""
    return Counting("counter", settings, rows=64, pushes=0)


def staleness(settings: WorkloadSettings) -> Counting:
    """What pulls see of every rank is recorded."""
    return Counting("staleness", settings, rows=4, pushes=0)


def barrier(settings: WorkloadSettings) -> Counting:
    """BSP: every pull sees exactly the clocks before."""
    return Counting("barrier", settings, rows=4, pushes=1)
