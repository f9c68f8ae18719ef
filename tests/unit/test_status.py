"""A server's own account of itself keeps within a frame, however much the server holds."""

from __future__ import annotations

import json
from typing import Any

from shard_asking import tell

from resilient_ps.consistency import ASP, JobSpec
from resilient_ps.engine import ENGINE
from resilient_ps.ids import WorkerId
from resilient_ps.messages import Command, Kind, Status, Told
from resilient_ps.shard import Shard
from resilient_ps.status import JOBS_TOLD, RANKS_TOLD, TABLES_TOLD, holdings
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.wire import FrameReader, encode


def say(shard: Shard, kind: Kind, *, job: int = 0, rank: int = 0, **more: Any) -> None:
    answer = tell(shard, Command(kind, WorkerId(job, rank, 1), **more))
    assert answer.status is Status.OK


def shards(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(count)]


def open_table(shard: Shard, number: int, name: str) -> None:
    say(
        shard,
        Kind.OPEN_TABLE,
        table=number,
        text=SparseSpec(name, 1, "int64", Sum()).to_json().encode(),
    )


def open_job(shard: Shard, number: int, ranks: int, name: str) -> None:
    say(
        shard,
        Kind.OPEN_JOB,
        job=number,
        text=JobSpec(number, name, ranks, ASP()).to_json().encode(),
    )


def tick(shard: Shard, rank: int, *clocks: int) -> None:
    say(shard, Kind.FENCE, job=1, rank=rank)
    for clock in clocks:
        say(shard, Kind.TICK, job=1, rank=rank, clock=clock)


def test_tables_and_jobs_are_summed_up_over_the_shards() -> None:
    held = shards(3)
    for shard in held:
        open_table(shard, 4, "t")
        open_job(shard, 1, 2, "j")
        tick(shard, 0, 1, 2)
    tick(held[2], 1, 1)
    told = holdings(held)
    assert told["kernels"] == ENGINE
    assert [shard["shard"] for shard in told["shards"]] == [0, 1, 2]
    (table,), (job,) = told["tables"], told["jobs"]
    assert (table["table"], table["shards"], table["rows"]) == ("t", 3, 0)
    assert (job["job"], job["live"], job["slowest"]) == ("j", 2, 0)
    assert job["ticked"] == {"0": 2, "1": 0}
    assert told["tables_left_out"] == told["jobs_left_out"] == 0


def test_what_a_very_full_server_says_fits_into_one_frame() -> None:
    held = shards(1024)
    for shard in held:
        shard.lsn = 10**12
        open_job(shard, 1, 1000, "j" * 100)
    for number in range(1, JOBS_TOLD + 3):
        open_table(held[0], number, f"{number:0200d}")
        open_job(held[0], number, 1000, f"{number:0100d}" if number > 1 else "j" * 100)
    for number in range(JOBS_TOLD + 3, TABLES_TOLD + 8):
        open_table(held[0], number, f"{number:0200d}")
    told = holdings(held)
    assert len(told["shards"]) == 1024
    assert (len(told["tables"]), told["tables_left_out"]) == (TABLES_TOLD, 7)
    assert (len(told["jobs"]), told["jobs_left_out"]) == (JOBS_TOLD, 2)
    assert (told["jobs"][0]["live"], len(told["jobs"][0]["ticked"])) == (1000, RANKS_TOLD)
    assert (told["jobs"][2]["live"], len(told["jobs"][2]["ticked"])) == (1000, 0)
    message = Told(1, json.dumps(told))
    reader, received = FrameReader(), []
    for piece in encode(message):
        unsent = memoryview(piece).cast("B")
        while unsent:
            buffer = reader.get_buffer()
            count = min(len(buffer), len(unsent))
            buffer[:count] = unsent[:count]
            received += reader.received(count)
            unsent = unsent[count:]
    assert received == [message]
