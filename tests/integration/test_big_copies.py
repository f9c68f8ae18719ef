"""A large table is copied to a restarted server while pushes go on, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from crew import hurt_cluster, ranks_at_work

import resilient_ps as ps

ROWS, DIM = 400_000, 64
STEP = 50_000
GROWTH_BYTES = 80 << 20


def test_a_copy_of_much_state_takes_little_memory_and_holds_nobody_up() -> None:
    keys = np.arange(ROWS, dtype=np.uint64)
    with hurt_cluster(2, shards=2) as hurt, hurt.connect() as client:
        with client.worker("fill", 0, 1, "asp") as worker:
            table = worker.sparse_table("big", dim=DIM, dtype="int64", optimiser=ps.Sum())
            for start in range(0, ROWS, STEP):
                part = keys[start : start + STEP]
                table.push(part, np.broadcast_to(part.astype(np.int64)[:, None], (STEP, DIM)))
        with ranks_at_work(hurt) as ranks:
            hurt.processes.kill("s2")
            primary = hurt.processes.server("s1").pid
            forget_peak(primary)
            before = peak_bytes(primary)
            hurt.processes.restart("s2")
            while hurt.records.unsettled():
                ranks[0].wait_for_more()
            assert peak_bytes(primary) - before < GROWTH_BYTES
        hurt.processes.kill("s1")  # what the other one says now is the copy
        found = client.table("big")
        assert isinstance(found, ps.SparseTable)
        for start in range(0, ROWS, STEP):
            part = keys[start : start + STEP]
            assert (found.pull(part) == part.astype(np.int64)[:, None]).all()


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = next(line.split() for line in lines if line.startswith("VmHWM:"))
    return int(fields[1]) * 1024
