"""A shard and somebody who asks it, for the tests of shards."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilient_ps.consistency import Consistency, JobSpec
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import READER, Epoch, Position, WorkerId
from resilient_ps.messages import (
    NO_KEYS,
    NO_VALUES,
    Command,
    Entry,
    Kind,
    Part,
    PartAnswer,
    Request,
    Status,
)
from resilient_ps.shard import Reply, Shard, moves_clocks
from resilient_ps.tables.optimisers import SGD, Sum
from resilient_ps.tables.spec import SparseSpec, TableSpec
from resilient_ps.waiting import Origin

SUMS = SparseSpec("sums", 1, "int64", Sum())
WEIGHTS = SparseSpec("weights", 1, "float32", SGD(1.0))
SECOND_NS = 10**9


def tell(shard: Shard, command: Command) -> PartAnswer:
    """What a shard with one replica does with a command: answer it, or make an entry of it."""
    answer = shard.check(command)
    if answer is not None:
        return answer
    return shard.apply(Entry(Position(shard.epoch, shard.lsn + 1), command))


class Asking:
    """A shard with tables 1 (int64 sums) and 2 (float32, SGD), and somebody who asks it."""

    def __init__(self, mode: Consistency, ranks: int = 2, **options: Any) -> None:
        self.shard = Shard(0, 1, options.pop("guards", ALL_GUARDS), **options)
        self.shard.serve_in(Epoch(1, 1))
        self.now_ns = 0
        self.requests = 0
        self.open_table(1, SUMS)
        self.open_table(2, WEIGHTS)
        self.open_job(1, mode, ranks)
        for rank in range(ranks):
            self.fence(rank, 1)

    def ask(
        self,
        kind: Kind,
        *,
        prev: int = 0,
        keys: Any = NO_KEYS,
        values: Any = NO_VALUES,
        peer: str = "client:1",
        **fields: Any,
    ) -> list[Reply]:
        """All replies, also those to others that waited."""
        self.requests += 1
        keys = np.asarray(keys, np.uint64)
        origin = Origin(peer, self.requests)
        if kind is Kind.PULL:
            part = Part(0, self.shard.position, 0, len(keys))
            request = Request(kind, self.requests, (part,), **fields)
            return self.shard.on_pull(request, part, keys, origin, self.now_ns)
        command = Command(kind, prev=prev, keys=keys, values=values, **fields)
        reply = Reply(origin, tell(self.shard, command))
        return [reply, *(self.shard.release(self.now_ns) if moves_clocks(kind) else [])]

    def one(self, kind: Kind, **fields: Any) -> PartAnswer:
        """The reply to the request itself."""
        replies = self.ask(kind, **fields)
        return next(r.answer for r in replies if r.origin.request == self.requests)

    def open_table(self, table: int, spec: TableSpec) -> PartAnswer:
        return self.one(Kind.OPEN_TABLE, table=table, text=spec.to_json().encode())

    def open_job(self, job: int, mode: Consistency, ranks: int) -> PartAnswer:
        text = JobSpec(job, f"job{job}", ranks, mode).to_json().encode()
        return self.one(Kind.OPEN_JOB, worker=WorkerId(job, 0, 0), text=text)

    def fence(self, rank: int, incarnation: int, job: int = 1, n: int = 0) -> PartAnswer:
        return self.one(Kind.FENCE, worker=WorkerId(job, rank, incarnation), n=n)

    def push(
        self, rank: int, clock: int, n: int, prev: int, keys: Any, values: Any = None, **more: Any
    ) -> PartAnswer:
        table = more.pop("table", 1)
        dtype = np.int64 if table == 1 else np.float32
        values = np.ones(len(keys), dtype) if values is None else np.asarray(values, dtype)
        worker = WorkerId(more.pop("job", 1), rank, more.pop("incarnation", 1))
        return self.one(
            Kind.PUSH, worker=worker, clock=clock, n=n, prev=prev, table=table, keys=keys,
            values=values,
        )  # fmt: skip

    def tick(self, rank: int, clock: int, prev: int = 0, incarnation: int = 1) -> PartAnswer:
        worker = WorkerId(1, rank, incarnation)
        return self.one(Kind.TICK, worker=worker, clock=clock, prev=prev, text=b"at %d" % clock)

    def pull(
        self, rank: int, clock: int, keys: Any, wait_s: float = 0.0, **more: Any
    ) -> list[Reply]:
        worker = WorkerId(1, rank, more.pop("incarnation", 1))
        fields = {"worker": worker, "table": 1, "wait_ns": int(wait_s * SECOND_NS), **more}
        return self.ask(Kind.PULL, clock=clock, keys=keys, **fields)

    def values(self, keys: Any, table: int = 1) -> list[float]:
        """What a reader pulls."""
        (reply,) = self.ask(Kind.PULL, worker=READER, table=table, keys=keys)
        assert reply.answer.status is Status.OK, reply.answer
        assert reply.values is not None
        return reply.values.tolist()
