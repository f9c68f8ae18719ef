"""Faults that a checkpoint is for, and faults of the object store that it lies in.

What a disaster destroys no replica survives: the cluster has to go back to a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from resilient_ps.chaos.sim.cluster import SimCluster, SimServer
from resilient_ps.chaos.sim.schedule import AnyKind, Fault
from resilient_ps.chaos.sim.workload import Workload

SHARDS = (1, 2, 3, 6)

Undo = Callable[[], None]


class Disasters:
    """Performs these faults; `say` notes them for the story, `restart` starts a dead server."""

    def __init__(
        self,
        cluster: SimCluster,
        load: Workload,
        say: Callable[[str], None],
        restart: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._load = load
        self._say = say
        self._restart = restart
        self.handlers: dict[AnyKind, Callable[[Fault], Undo | None]] = {
            "crash shard": self._crash_shard,
            "crash all": self._crash_all,
            "lose etcd": self._lose_etcd,
            "roll back": self._roll_back,
            "store down": self._store_down,
            "store loses answers": self._store_loses_answers,
            "store slow": self._store_slow,
            "store damage": self._damage,
        }

    # -- what no replica survives

    def _crash_shard(self, fault: Fault) -> Undo | None:
        shard = int(fault.target[0].partition(":")[2])
        record = self._cluster.records().get(shard)
        if record is None:
            return None
        members = {member.process for member in record.in_sync}
        names = [s.name for s in self._living() if s.process_id in members]
        return self._kill(names, f"all that hold shard {shard}")

    def _crash_all(self, fault: Fault) -> Undo | None:
        """Every second time the workers die too; sometimes one server comes back before others."""
        undo = self._kill_servers(fault, "all servers")
        if undo is None or fault.how % 2:
            return undo
        world, load = self._cluster.world, self._load
        dead = {rank: load.worker(rank) for rank in load.ranks}
        for worker in dead.values():
            world.kill(worker.process)
        self._say("and all workers")

        def begin_again() -> None:
            undo()
            for rank, worker in dead.items():
                if load.worker(rank) is worker:
                    load.respawn(rank)

        return begin_again

    def _lose_etcd(self, fault: Fault) -> Undo | None:
        """Sometimes the cluster begins again with another number of shards."""
        undo = self._kill_servers(fault, "etcd, with all that it held, and all servers")
        if undo is not None:
            self._cluster.world.store.wipe()
        if fault.how // 2 % 3 == 0:
            self._cluster.reshape(SHARDS[fault.how // 6 % len(SHARDS)])
        return undo

    def _kill_servers(self, fault: Fault, what: str) -> Undo | None:
        names = [server.name for server in self._living()]
        if self._kill(names, what) is None:
            return None
        alone = fault.how // 20 % 4 == 0
        return partial(self._restart_all, names[:1] if alone else names)

    def _living(self) -> list[SimServer]:
        return [server for server in self._cluster.servers.values() if server.alive]

    def _kill(self, names: list[str], what: str) -> Undo | None:
        if not names or self._leaves_nothing(0):
            return None
        for name in names:
            self._cluster.kill(name)
        self._say(f"lost are {what}: {' '.join(names)}")
        return partial(self._restart_all, names)

    def _restart_all(self, names: Iterable[str]) -> None:
        for name in names:
            self._restart(name)

    def _roll_back(self, fault: Fault) -> Undo | None:
        if not self._cluster.is_open:
            return None
        number = self._cluster.roll_back()
        self._say(f"an operator wants the newest checkpoint back (intent {number})")
        return lambda: None

    # -- the object store

    def _store_down(self, fault: Fault) -> Undo | None:
        bucket = self._cluster.world.bucket
        bucket.stop()
        self._say("the object store answers nobody")

        def undo() -> None:
            bucket.start()
            self._say("the object store is there again")

        return undo

    def _store_loses_answers(self, fault: Fault) -> Undo | None:
        bucket = self._cluster.world.bucket
        bucket.lost_answers = (10 + fault.how % 81) / 100
        self._say(f"{bucket.lost_answers:.0%} of the object store's answers are lost")

        def undo() -> None:
            bucket.lost_answers = 0.0

        return undo

    def _store_slow(self, fault: Fault) -> Undo | None:
        bucket = self._cluster.world.bucket
        bucket.slowness = 2 + fault.how % 50
        self._say(f"the object store is {bucket.slowness} times slower")

        def undo() -> None:
            bucket.slowness = 1

        return undo

    def _damage(self, fault: Fault) -> Undo | None:
        """Of the newest checkpoint some object: the manifest, an index, or chunks."""
        archive, bucket = self._cluster.archive, self._cluster.world.bucket
        good = [] if archive is None else archive.good()
        if archive is None or not good or good[-1].id not in archive.stored:
            return None
        goes_back = not self._cluster.is_open or bool(self._cluster.lost_shards())
        if goes_back and self._leaves_nothing(1):
            return None
        names = sorted(archive.stored[good[-1].id].names & set(bucket.blobs.names()))
        if not names:
            return None
        name = names[fault.how % len(names)]
        self._say(f"{name} {bucket.damage(name, fault.how // 7)}")
        return lambda: None

    def _leaves_nothing(self, whole_most: int) -> bool:
        """Are there checkpoints, and so many whole ones at most? No cluster could come back."""
        archive = self._cluster.archive
        good = [] if archive is None else archive.good()
        if archive is None or not good:
            return False  # before the first one it begins anew
        return sum([not archive.problem(record) for record in good]) <= whole_most
