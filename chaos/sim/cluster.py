"""A cluster in a world: nodes built by the production builder, tables, jobs and workers.

A restarted server is a new process with a new process id under the old name, as everywhere.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from resilient_ps.chaos.sim.archive import Archive
from resilient_ps.chaos.sim.entries import Entries
from resilient_ps.chaos.sim.holder import SimHolder
from resilient_ps.chaos.sim.process import Process
from resilient_ps.chaos.sim.worker import Operation, Program, Pull, SimWorker
from resilient_ps.chaos.sim.world import World
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.consistency import JobSpec
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.kv import Delete, Txn
from resilient_ps.coordinator.records import ServerRecord, ShardRecord
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.machine import StopAsked
from resilient_ps.messages import Kind
from resilient_ps.node import Node, NodeSettings, build_node
from resilient_ps.shard import Shard
from resilient_ps.split import TableHandle
from resilient_ps.tables.spec import DenseSpec, SparseSpec
from resilient_ps.takeover import Step

FIRST_PROCESS_ID = 1 << 40
FIRST_PORT = 7_000
COME_UP_S = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class SimServer:
    """One life of a server. The node of a dead one is kept, to be looked at."""

    name: str
    process_id: int
    port: int
    node: Node
    process: Process

    @property
    def alive(self) -> bool:
        """Does the process run? It may be paused, or cut off."""
        return not self.process.killed


class Held(NamedTuple):
    """A replica of a shard, on a living server."""

    server: str
    process_id: int
    role: str  # primary, leading, backup or learner
    shard: Shard


def _idle(worker: SimWorker) -> Generator[Operation, Any, None]:
    return
    yield  # a program needs a yield to be a generator


class SimCluster(Entries):
    """Servers, tables, jobs and workers in one world.

    `store`: there is an object store, and this is what servers are told of checkpoints.
    """

    def __init__(
        self,
        seed: int,
        *,
        servers: int = 2,
        shards: int = 4,
        replicas: int = 1,
        min_in_sync: int = 1,
        lease_ttl_s: int = 2,
        grace_s: float = 60.0,
        guards: Guards = ALL_GUARDS,
        wire: bool = False,
        come_up: bool = True,
        store: CheckpointSettings | None = None,
        list_lag_s: int = 0,
    ) -> None:
        world = World(seed, wire=wire, list_lag_s=list_lag_s)
        archive = None if store is None else Archive(world)
        super().__init__(world)
        self.archive = archive
        self.lease_ttl_s = lease_ttl_s
        self.servers: dict[str, SimServer] = {}
        self.lives: list[SimServer] = []
        self.workers: list[SimWorker] = []
        self._guards = guards
        self._checkpoints = store
        self._wishes = ClusterWishes(servers, shards, replicas, min_in_sync, grace_s=grace_s)
        self._spawned = 0
        for index in range(servers):
            self.start_server(f"s{index + 1}")
        if come_up and not self.world.wait_for(self._placed, COME_UP_S):
            raise AssertionError("the cluster did not come up")

    # -- servers

    def start_server(
        self, name: str, *, port: int = 0, wishes: ClusterWishes | None = None
    ) -> SimServer:
        """Start a process of this name. The one before it, if any, must be dead."""
        before = self.servers.get(name)
        assert before is None or not before.alive, f"{name} is running"
        number = len(self.lives)
        process_id = FIRST_PROCESS_ID + number
        port = port or FIRST_PORT + number
        record = ServerRecord(
            name, process_id, "127.0.0.1", port, "", "", 1.0, 0, "sim", number, "sim"
        )
        settings = NodeSettings(
            self.world.cluster,
            record,
            self.lease_ttl_s,
            wishes or self._wishes,
            self._guards,
            checkpoints=self._checkpoints,
        )
        node = build_node(settings, self.world.draw_bits, wall_s=self.world.wall_s)
        process = Process(self.world, name, node, clock=self.world.draw_clock())
        process.process_id = process_id
        self.world.add(process, serves_as=name, port=port)
        server = SimServer(name, process_id, port, node, process)
        self.servers[name] = server
        self.lives.append(server)
        return server

    def restart_server(self, name: str, *, same_port: bool = False) -> SimServer:
        """Start a dead server again: empty, with another process id."""
        return self.start_server(name, port=self.servers[name].port if same_port else 0)

    def kill(self, name: str) -> None:
        """SIGKILL for a server."""
        self.world.kill(self.servers[name].process)

    def stop(self, name: str) -> None:
        """SIGTERM for a server."""
        self.servers[name].process.step(StopAsked())

    def pause(self, name: str, ns: int, *, mid_step: bool = False) -> None:
        """SIGSTOP for a server, for so long; with `mid_step` between a step and its effects."""
        self.servers[name].process.pause(ns, mid_step=mid_step)

    def reshape(self, shards: int) -> None:
        """Servers that are started from now on would create a cluster with so many shards."""
        self._wishes = replace(self._wishes, shards=shards)

    @property
    def replicas_wanted(self) -> int:
        """How many replicas a shard is to have."""
        return self._wishes.replicas

    @property
    def min_in_sync(self) -> int:
        """How many members have to hold an entry at least."""
        return self._wishes.min_in_sync

    @property
    def nodes(self) -> list[Node]:
        """The machines of living servers."""
        return [server.node for server in self.servers.values() if server.alive]

    def add_spare(self, name: str) -> Process:
        """One more server, which serves no shard, and is the coordinator when this returns."""
        self.drain(name)
        server = self.start_server(name, wishes=ClusterWishes())
        controller, key = server.node.controller, self.keys.coordinator_leader

        def elected() -> bool:
            held = self._read(key)
            if held and not controller.elected and f'"{name}"'.encode() not in held[0].value:
                self.world.kv.apply(Txn((), (Delete(key),)), self.world.now_ns)
            return controller.elected

        assert self.world.run_until(elected), "the spare server was not elected"
        return server.process

    def _placed(self) -> bool:
        """Does every shard have a primary that serves it?"""
        routing = self.routing()
        if routing is None:
            return False
        serving = {
            (held.process_id, number)
            for number in range(routing.shards)
            for held in self.replicas(number)
            if held.role == "primary"
        }
        return all((owner.process, n) in serving for n, owner in enumerate(routing.owners))

    def coordinator(self) -> str:
        """The name of the coordinator; "" while there is none."""
        elected = [s.name for s in self.servers.values() if s.alive and s.node.controller.elected]
        return elected[0] if elected else ""

    # -- replicas

    def replicas(self, number: int) -> list[Held]:
        """What living servers hold of a shard."""
        found = []
        for server in self.servers.values():
            replica = server.node.replicas.get(number) if server.alive else None
            if replica is not None and replica.shard is not None:
                role = str(replica.role)
                found.append(Held(server.name, server.process_id, role, replica.shard))
        return found

    def lost_shards(self) -> tuple[int, ...]:
        """The shards all of whose in-sync members are dead."""
        return self.would_lose("")

    def would_lose(self, name: str) -> tuple[int, ...]:
        """The shards that have no living in-sync member but, at most, this server."""
        alive = {s.process_id for s in self.servers.values() if s.alive and s.name != name}
        return tuple(
            shard
            for shard, record in self.records().items()
            if record.in_sync and not any(member.process in alive for member in record.in_sync)
        )

    def is_back(self) -> bool:
        """Has every shard a primary, and has every in-sync member its state?"""
        if not self.is_open or not self._placed():
            return False
        held = {(h.process_id, n) for n in self.records() for h in self.replicas(n)}
        return all(
            (member.process, shard) in held
            for shard, record in self.records().items()
            for member in record.in_sync
        )

    def settled(self) -> bool:
        """Has every shard all its replicas, in the same state, and a primary with its key?"""
        return not self.unsettled()

    def unsettled(self) -> list[str]:
        """What is missing for the cluster to be at rest, by shard."""
        leaders = self.leaders()
        leases = {s.process_id: s.node.membership.lease for s in self.servers.values() if s.alive}
        found = []
        for shard, record in self.records().items():
            lease = leaders.get(shard, 0)
            why = self._why_unsettled(record, held=lease, own=leases.get(record.primary_process, 0))
            if why:
                members = " ".join(f"{m.server}({m.process})" for m in record.in_sync)
                epoch = f"{record.epoch.incarnation}.{record.epoch.counter}"
                at = f"epoch {epoch}, primary {record.primary or '-'}, in sync {members}"
                found.append(f"shard {shard}: {why} ({at})")
        return found

    def _why_unsettled(self, record: ShardRecord, *, held: int, own: int) -> str:
        """`held`: the lease that the leader key hangs on, `own`: the primary's."""
        members = {member.process for member in record.in_sync}
        replicas = [h for h in self.replicas(record.shard) if h.process_id in members]
        if not any(
            h.role == "primary" and h.process_id == record.primary_process for h in replicas
        ):
            return "no primary is at work"
        if not held or held != own:
            return "its primary does not hold the leader key"
        if len(replicas) != len(members):
            return "an in-sync member is dead"
        if {member.server for member in record.in_sync} != set(record.desired):
            return f"it should be on {' '.join(record.desired)}"
        if len({h.shard.lsn for h in replicas}) != 1:
            return f"its replicas stand at {[h.shard.lsn for h in replicas]}"
        return ""

    def digests(self, table: int) -> list[str]:
        """The table's digest on every shard's primary, in the order of shards."""
        primaries = [
            held.shard
            for number in sorted(self.records())
            for held in self.replicas(number)
            if held.role == "primary"
        ]
        return [shard.tables[table].digest() for shard in primaries]

    # -- tables, jobs and workers

    def create_table(self, number: int, spec: SparseSpec | DenseSpec) -> TableHandle:
        """Make a table known to all shards."""
        return self.create_tables({number: spec})[0]

    def create_tables(self, specs: Mapping[int, SparseSpec | DenseSpec]) -> list[TableHandle]:
        """Make tables known to all shards, by their numbers."""
        client = self._client("creator", _idle)
        shards, nobody = client.session.routing.order, client.session.worker
        for number, spec in specs.items():
            text = spec.to_json().encode()
            client.broadcast(Step(Kind.OPEN_TABLE, shards, nobody, table=number, text=text))
        assert self.world.run_until(lambda: client.finished), "the tables were not created"
        assert client.error is None, client.error
        return [TableHandle(number, spec) for number, spec in specs.items()]

    def spawn(self, job: JobSpec, rank: int, incarnation: int, program: Program) -> SimWorker:
        """Start a worker process."""
        worker = self._client(f"worker-{rank}", program)
        worker.start(job, rank, incarnation)
        self.workers.append(worker)
        return worker

    def hold(self, job: JobSpec, seat: int, program: Program) -> SimHolder:
        """Start a holder of the tasks of a graph, whose job this is."""
        routing = self.routing()
        assert routing is not None
        self._spawned += 1
        host = f"worker-{seat}"
        holder = SimHolder(self.world, routing, f"{host}-{self._spawned}", program, job, host)
        self.workers.append(holder)
        holder.begin()
        return holder

    def _client(self, host: str, program: Program) -> SimWorker:
        routing = self.routing()
        assert routing is not None
        self._spawned += 1
        return SimWorker(self.world, routing, f"{host}-{self._spawned}", program, host=host)

    def read(self, table: TableHandle, keys: Any = None, limit_s: float = 600.0) -> Any:
        """What a client that is no worker pulls."""
        found: list[Any] = []

        def program(worker: SimWorker) -> Generator[Operation, Any, None]:
            found.append((yield Pull(table, keys)))

        client = self._client("reader", program)
        client.read()
        assert self.run([client], limit_s), "the table cannot be read"
        assert client.error is None, client.error
        return found[0]

    def run(self, workers: list[SimWorker], limit_s: float = 600.0) -> bool:
        """Run until these workers are done; False when time is over."""
        done = lambda: all(worker.finished or worker.process.killed for worker in workers)  # noqa: E731
        return self.world.run_until(done, limit_s)
