"""What a server says of itself, in an answer that fits into one frame however much it holds.

Each shard is one short line; tables and jobs are summed up over the server's shards. Of many
tables, jobs and ranks the first are told, and how many were left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from resilient_ps.engine import ENGINE
from resilient_ps.job import Job
from resilient_ps.shard import Shard
from resilient_ps.table_part import TablePart

TABLES_TOLD = 300
JOBS_TOLD = 100
RANKS_TOLD = 1_000  # of one job
ALL_RANKS_TOLD = 2_000  # of all jobs together
SHARDS_SEARCHED = 16  # for the clock of each rank: all shards are told each tick

_T = TypeVar("_T")


def holdings(shards: Collection[Shard]) -> dict[str, Any]:
    """The shards, tables and jobs of one server, for `resilient-ps status`."""
    tables = _by_number((number, table) for s in shards for number, table in s.tables.items())
    jobs = _by_number((number, job) for s in shards for number, job in s.jobs.items())
    return {
        "kernels": ENGINE,
        "shards": [shard.status() for shard in shards],
        "tables": [_table(tables[n]) for n in itertools.islice(tables, TABLES_TOLD)],
        "tables_left_out": max(0, len(tables) - TABLES_TOLD),
        "jobs": _jobs(jobs),
        "jobs_left_out": max(0, len(jobs) - JOBS_TOLD),
    }


def _by_number(items: Iterable[tuple[int, _T]]) -> dict[int, list[_T]]:
    grouped: dict[int, list[_T]] = {}
    for number, item in items:
        grouped.setdefault(number, []).append(item)
    return dict(sorted(grouped.items()))


def _table(parts: list[TablePart]) -> dict[str, Any]:
    return {
        "table": parts[0].spec.name,
        "shards": len(parts),
        "rows": sum([part.rows for part in parts]),
        "bytes": sum([part.bytes_held for part in parts]),
        "counted": list(map(sum, zip(*[part.size_with(part.rows) for part in parts], strict=True))),
        "writer": max([part.writer for part in parts]),
    }


def _jobs(jobs: Mapping[int, list[Job]]) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = []
    room = ALL_RANKS_TOLD
    for number in itertools.islice(jobs, JOBS_TOLD):
        told.append(_job(jobs[number], min(room, RANKS_TOLD)))
        room -= len(told[-1]["ticked"])
    return told


def _job(parts: list[Job], ranks_told: int) -> dict[str, Any]:
    """`ticked`: by rank, the lowest of what the shards have seen."""
    live = parts[0].ledger.live_ranks()
    ticked: dict[str, int] = {}
    for rank in live[:ranks_told]:
        records = [part.ledger.ranks.get(rank) for part in parts[:SHARDS_SEARCHED]]
        ticked[str(rank)] = min([record.ticked for record in records if record is not None])
    return {
        "job": parts[0].spec.name,
        "live": len(live),
        "slowest": min([part.ledger.slowest() for part in parts]),
        "reached": min([part.reached() for part in parts]),
        "held_bytes": sum([part.barrier.held_bytes for part in parts]),
        "ticked": ticked,
    }
