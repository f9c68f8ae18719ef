"""What etcd holds of a simulated cluster, read and written as clients do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from resilient_ps.chaos.sim.world import World
from resilient_ps.consistency import JobSpec, consistency_name
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, KeyValue, Put, Read, Txn
from resilient_ps.coordinator.records import (
    ClusterConfig,
    DrainRecord,
    IntentRecord,
    JobRecord,
    RestoreRecord,
    ShardRecord,
    TableRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.routing import Routing, routing_from
from resilient_ps.split import TableHandle


class Entries:
    """The entries below the prefix of a world's cluster."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keys = ClusterKeys(world.cluster)

    # -- reading

    def entries(self, key: bytes) -> tuple[KeyValue, ...]:
        """The entry of this key, if there is one."""
        return self._read(key)

    def _read(self, key: bytes, *, prefix: bool = False) -> tuple[KeyValue, ...]:
        return self.world.kv.apply(Read(key, prefix=prefix), self.world.now_ns).items

    def routing(self) -> Routing | None:
        """The routing as etcd has it now."""
        return routing_from(self._read(self.keys.prefix, prefix=True), self.keys)

    @property
    def incarnation(self) -> int:
        """The cluster's, as etcd has it now; 0: there is no configuration."""
        items = self._read(self.keys.config)
        return ClusterConfig.from_bytes(items[0].value, items[0].key).incarnation if items else 0

    @property
    def is_open(self) -> bool:
        """Does the cluster take workers in? Not while it goes back to a checkpoint."""
        incarnation, items = self.incarnation, self._read(self.keys.restore)
        restored = [RestoreRecord.from_bytes(item.value, item.key) for item in items]
        pending = any(r.incarnation == incarnation and not r.registered for r in restored)
        return incarnation > 0 and not pending

    def records(self) -> dict[int, ShardRecord]:
        """The shards' records, by number."""
        items = self._read(self.keys.shards, prefix=True)
        records = [ShardRecord.from_bytes(item.value, item.key) for item in items]
        return {record.shard: record for record in records}

    def leaders(self) -> dict[int, int]:
        """By shard: the lease that its leader key hangs on."""
        found: dict[int, int] = {}
        for item in self._read(self.keys.leaders, prefix=True):
            located = self.keys.locate(item.key)
            if located is not None:
                found[located.number] = item.lease
        return found

    def open_intents(self) -> list[int]:
        """The numbers of the intents that have not been executed."""
        items = self._read(self.keys.intents, prefix=True)
        records = [IntentRecord.from_bytes(item.value, item.key) for item in items]
        return [record.number for record in records if record.state == "open"]

    # -- writing

    def register(self, job: JobSpec) -> None:
        """Write the job's record to etcd, where the coordinator looks for it."""
        mode = consistency_name(job.consistency)
        record = JobRecord(job.job, job.name, mode, job.ranks, "running")
        self.put(self.keys.job(job.name), record.to_bytes())

    def enter(self, job: JobSpec, tables: Iterable[TableHandle]) -> None:
        """Make a job and its tables known in etcd if they are not, as a worker does that starts."""
        if not self._read(self.keys.job(job.name)):
            self.register(job)
        for table in tables:
            record = TableRecord(table.number, table.spec.to_json())
            self.put_new(self.keys.table(table.spec.name), record.to_bytes())

    def propose(self, kind: Literal["join", "leave"], job: JobSpec, rank: int) -> int:
        """Write an intent to etcd, as clients do; returns its number."""
        incarnation = 0
        if kind == "leave":
            incarnation = self.draw_incarnation(job, rank)
        number = self._count(self.keys.counter("intents"))
        record = IntentRecord(number, kind, job.name, rank, incarnation, "open")
        self.put(self.keys.intent(number), record.to_bytes())
        return number

    def roll_back(self) -> int:
        """Have the newest checkpoint restored, as `resilient-ps checkpoint restore` does.

        Returns the number of the intent.
        """
        number = self._count(self.keys.counter("intents"))
        details = {"checkpoint": "latest", "why": "the simulator wants it"}
        record = IntentRecord(number, "rollback", "", 0, 0, "open", {}, details)
        self.put(self.keys.intent(number), record.to_bytes())
        return number

    def drain(self, name: str) -> None:
        """Ask for a server to hold nothing any more, as `resilient-ps server drain` does."""
        self.put(self.keys.drain(name), DrainRecord(name, "the simulator").to_bytes())

    def cancel_drain(self, name: str) -> None:
        """Take the wish back."""
        txn = Txn((), (Delete(self.keys.drain(name)),))
        self.world.kv.apply(txn, self.world.now_ns)

    def intent(self, number: int) -> IntentRecord:
        """An intent as it stands in etcd."""
        key = self.keys.intent(number)
        (item,) = self._read(key)
        return IntentRecord.from_bytes(item.value, key)

    def draw_incarnation(self, job: JobSpec, rank: int) -> int:
        """The number of a new process of this rank."""
        return self._count(self.keys.rank(job.name, rank))

    def _count(self, key: bytes) -> int:
        """Draw the next number of a counter in etcd."""
        items = self._read(key)
        number = read_counter(items[0].value if items else None, key) + 1
        self.put(key, counter_bytes(number))
        return number

    def put_new(self, key: bytes, value: bytes) -> None:
        """Write to etcd what is not there yet."""
        if not self._read(key):
            self.put(key, value)

    def put(self, key: bytes, value: bytes) -> None:
        """Write to etcd, as a client would."""
        self.world.kv.apply(Txn((), (Put(key, value),)), self.world.now_ns)
