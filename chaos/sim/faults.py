"""Faults, performed: what a schedule says is done to a cluster when its time comes, and undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from resilient_ps.chaos.sim.bucket import BUCKET
from resilient_ps.chaos.sim.cluster import SimCluster, SimServer
from resilient_ps.chaos.sim.disasters import Disasters
from resilient_ps.chaos.sim.process import Process
from resilient_ps.chaos.sim.schedule import AnyKind, Fault, Schedule
from resilient_ps.chaos.sim.store import ETCD
from resilient_ps.chaos.sim.workload import Workload
from resilient_ps.chaos.sim.world import World

MS_NS = 1_000_000
SERVERS_MOST = 5
CUTS_PER_FAULT = 8
FAULTS_LEAST = 10
"""So many are performed, where a schedule has as many: others are then not just left out."""
CUTS_LEAST_MS = 100
LOOK_NS = 100 * MS_NS  # how often somebody looks whether a server has stopped
STOPS_WITHIN_S = 30.0  # with its last checkpoint, and handing over

Undo = Callable[[], None]


class Struck(NamedTuple):
    """Something that was done to the cluster, for the story of a run."""

    world_ns: int
    text: str


def break_connections(world: World, seed: int, *, every_ns: int, until_ns: int) -> None:
    """Cut a random connection every `every_ns` on average, up to `until_ns`.

    Either end may notice first. What is under way towards the other one may still arrive, so that
    requests are repeated that have been executed, and old ones come after newer ones.
    """
    rng = np.random.Generator(np.random.PCG64(seed))

    def strike() -> None:
        open_ones = world.connections()
        if open_ones:
            chosen = open_ones[int(rng.integers(len(open_ones)))]
            world.cut(chosen, first=int(rng.integers(2)))
        at_ns = world.now_ns + int(rng.exponential(every_ns)) + 1
        if at_ns < until_ns:
            world.at(at_ns, strike)

    world.after(int(rng.exponential(every_ns)), strike)


class Faults:
    """Performs faults, each once, and ends them when their time is over or all is to be healed.

    `careful`: whatever would destroy the last living in-sync member of a shard is left out. Where
    so many are left out that fewer than `FAULTS_LEAST` would be performed, connections break in
    their stead.
    """

    def __init__(self, cluster: SimCluster, load: Workload, *, careful: bool = True) -> None:
        self.cluster = cluster
        self.load = load
        self.struck: list[Struck] = []
        self.performed = 0
        self.skipped = 0
        self._careful = careful
        self._open: dict[int, Undo] = {}
        self._stopping: list[SimServer] = []  # those that may not have ended yet
        self._begun = 0
        self._planned = self._due = 0  # faults: all, and those that have not had their time
        self._over = False
        disasters = Disasters(cluster, load, self.say, self._restart)
        self._handlers: dict[AnyKind, Callable[[Fault], Undo | None]] = {
            **disasters.handlers,
            "crash": self._crash,
            "crash worker": self._crash_worker,
            "supersede": self._supersede,
            "pause": self._pause,
            "pause mid-step": self._pause,
            "partition": self._partition,
            "one-way": self._one_way,
            "isolate": self._isolate,
            "refuse": self._refuse,
            "slow": self._slow,
            "cut": self._cut,
            "long steps": self._long_steps,
            "etcd down": self._etcd_down,
            "etcd leader": self._etcd_leader,
            "etcd loses answers": self._etcd_loses_answers,
            "etcd lags": self._etcd_lags,
            "etcd compacts": self._etcd_compacts,
            "stop": self._stop,
            "join": self._join,
            "drain": self._drain,
        }

    def plan(self, schedule: Schedule, *, before_ms: int | None = None) -> None:
        """All of a schedule, or what comes before a moment, counted from now."""
        world = self.cluster.world
        faults = [f for f in schedule if before_ms is None or f.at_ms < before_ms]
        self._planned = self._due = len(faults)
        for fault in faults:
            world.after(fault.at_ms * MS_NS, partial(self._strike, fault))

    def heal(self) -> None:
        """End all faults, start what is dead, and let nothing begin any more.

        Servers that were told to stop have stopped when this returns, and run again.
        """
        self._over = True
        self.say("all faults end")
        for number in list(self._open):
            self._end(number)
        for server in list(self.cluster.servers.values()):
            server.process.wake()
        self.cluster.world.wait_for(self._nobody_is_stopping, STOPS_WITHIN_S)
        for server in list(self.cluster.servers.values()):
            if not server.alive:
                self._restart(server.name)
        for rank in self.load.ranks:
            worker = self.load.worker(rank)
            worker.process.wake()
            if worker.killed:
                self.load.respawn(rank)

    def cut_off(self, name: str, others: Iterable[str]) -> Undo:
        """Block both directions between a host and others."""
        pairs = [(name, other) for other in others if other != name]
        return self._block([*pairs, *[(other, name) for _, other in pairs]])

    def hosts(self) -> list[str]:
        """All hosts of the cluster, with those of etcd and of the object store, if it has one."""
        workers = sorted({worker.process.host for worker in self.cluster.workers})
        stores = [ETCD] if self.cluster.archive is None else [ETCD, BUCKET]
        return [*self.cluster.servers, *workers, *stores]

    # -- one fault

    def _strike(self, fault: Fault) -> None:
        if self._over:
            return
        self._due -= 1
        undo = self._handlers[fault.kind](fault)
        if undo is None:
            self.say(f"left out: {fault.kind} {' '.join(fault.target)}")
            if not self.performed + self._due < FAULTS_LEAST <= self._planned:
                self.skipped += 1
                return
            duration_ms = max(fault.duration_ms, CUTS_LEAST_MS)
            undo = self._cut(replace(fault, kind="cut", duration_ms=duration_ms))
        self.performed += 1
        self._begun += 1
        self._open[self._begun] = undo
        self.cluster.world.after(fault.duration_ms * MS_NS, partial(self._end, self._begun))

    def _end(self, number: int) -> None:
        undo = self._open.pop(number, None)
        if undo is not None:
            undo()

    def say(self, text: str) -> None:
        """Note for the story what has been done."""
        self.struck.append(Struck(self.cluster.world.now_ns, text))

    def _host(self, target: str) -> str:
        """The host that a fault names by its role; "" when there is none at the moment."""
        kind, _, number = target.partition(":")
        if kind == "coordinator":
            return self.cluster.coordinator()
        if kind == "primary":
            record = self.cluster.records().get(int(number))
            return "" if record is None else record.primary
        if kind == "backup":
            return self._backup(int(number))
        if kind == "rank":
            return self.load.worker(int(number)).process.host
        return target

    def _backup(self, shard: int) -> str:
        """The first living member of a shard that is not its primary."""
        record, servers = self.cluster.records().get(shard), self.cluster.servers
        if record is None:
            return ""
        alive = {server.process_id for server in servers.values() if server.alive}
        others = [m for m in record.in_sync if m != record.leader and m.process in alive]
        return others[0].server if others else ""

    def _process(self, target: str) -> Process | None:
        kind, _, number = target.partition(":")
        if kind == "rank":
            process = self.load.worker(int(number)).process
        else:
            server = self.cluster.servers.get(self._host(target))
            if server is None:
                return None
            process = server.process
        return None if process.killed else process

    def _block(self, pairs: list[tuple[str, str]]) -> Undo:
        network = self.cluster.world.network
        for source, target in pairs:
            network.block(source, target)

        def unblock() -> None:
            for source, target in pairs:
                network.unblock(source, target)

        return unblock

    # -- processes

    def _may_end(self, process: Process | None) -> bool:
        """May this server's process end, for what it alone holds?"""
        if process is None:
            return False
        lost = set(self.cluster.lost_shards())
        return not self._careful or set(self.cluster.would_lose(process.host)) <= lost

    def _crash(self, fault: Fault) -> Undo | None:
        process = self._process(fault.target[0])
        if process is None or not self._may_end(process):
            return None
        name = process.host
        self.cluster.kill(name)
        self.say(f"{name} is killed")
        return lambda: self._restart(name, same_port=fault.how % 2 == 0)

    def _restart(self, name: str, *, same_port: bool = False) -> None:
        if not self.cluster.servers[name].alive:
            server = self.cluster.restart_server(name, same_port=same_port)
            self.say(f"{name} is started again, as process {server.process_id}")

    def _stop(self, fault: Fault) -> Undo | None:
        process = self._process(fault.target[0])
        if process is None or process.paused or not self._may_end(process):
            return None
        stopped = self.cluster.servers[process.host]
        self.say(f"{stopped.name} gets SIGTERM")
        self.cluster.stop(stopped.name)
        self._stopping.append(stopped)
        return lambda: self._start_when_stopped(stopped, same_port=fault.how % 2 == 0)

    def _start_when_stopped(self, stopped: SimServer, *, same_port: bool) -> None:
        """An orderly end may take longer than the fault."""
        if stopped.alive:
            look = partial(self._start_when_stopped, stopped, same_port=same_port)
            self.cluster.world.after(LOOK_NS, look)
        elif self.cluster.servers[stopped.name] is stopped:
            self._restart(stopped.name, same_port=same_port)

    def _nobody_is_stopping(self) -> bool:
        self._stopping = [server for server in self._stopping if server.alive]
        return not self._stopping

    def _join(self, fault: Fault) -> Undo | None:
        if len(self.cluster.servers) >= SERVERS_MOST:
            return None
        name = f"s{len(self.cluster.servers) + 1}"
        self.cluster.start_server(name)
        self.say(f"{name} joins")
        return lambda: None

    def _drain(self, fault: Fault) -> Undo | None:
        name = self._host(fault.target[0])
        if not name:
            return None
        self.cluster.drain(name)
        self.say(f"{name} is to be drained")
        return partial(self.cluster.cancel_drain, name)

    def _pause(self, fault: Fault) -> Undo | None:
        process = self._process(fault.target[0])
        if process is None:
            return None
        mid_step = fault.kind == "pause mid-step"
        process.pause(fault.duration_ms * MS_NS, mid_step=mid_step)
        where = " between a step and its effects" if mid_step else ""
        self.say(f"{process.name} stops{where}, for {fault.duration_ms} ms")
        return lambda: None

    def _crash_worker(self, fault: Fault) -> Undo | None:
        process = self._process(fault.target[0])
        if process is None:
            return None
        self.cluster.world.kill(process)
        self.say(f"{process.name} is killed")
        return partial(self._take_over, fault.target[0], process)

    def _supersede(self, fault: Fault) -> Undo | None:
        process = self._process(fault.target[0])
        if process is None:
            return None
        process.pause(fault.duration_ms * MS_NS)
        self.say(f"{process.name} stops for {fault.duration_ms} ms, and is taken over")
        self._take_over(fault.target[0], process)
        return lambda: None

    def _take_over(self, target: str, before: Process) -> None:
        rank = int(target.partition(":")[2])
        if self.load.worker(rank).process is before:
            self.load.respawn(rank)
            self.say(f"{self.load.worker(rank).process.name} takes over from {before.name}")

    # -- the network

    def _ends(self, fault: Fault) -> tuple[str, str] | None:
        first, second = self._host(fault.target[0]), self._host(fault.target[1])
        return (first, second) if first and second and first != second else None

    def _partition(self, fault: Fault) -> Undo | None:
        ends = self._ends(fault)
        if ends is None:
            return None
        self.say(f"{ends[0]} and {ends[1]} are cut off from each other")
        return self._saying(self._block([ends, (ends[1], ends[0])]), f"{ends[0]} - {ends[1]}")

    def _one_way(self, fault: Fault) -> Undo | None:
        ends = self._ends(fault)
        if ends is None:
            return None
        self.say(f"nothing gets from {ends[0]} to {ends[1]}")
        return self._saying(self._block([ends]), f"{ends[0]} -> {ends[1]}")

    def _isolate(self, fault: Fault) -> Undo | None:
        name = self._host(fault.target[0])
        if not name:
            return None
        self.say(f"{name} is cut off from everybody")
        return self._saying(self.cut_off(name, self.hosts()), name)

    def _saying(self, undo: Undo, what: str) -> Undo:
        def end() -> None:
            undo()
            self.say(f"connected again: {what}")

        return end

    def _refuse(self, fault: Fault) -> Undo | None:
        ends = self._ends(fault)
        if ends is None or {ETCD, BUCKET} & set(ends):
            return None
        network = self.cluster.world.network
        network.refuse(*ends)
        for connection in network.connections():  # those that the other one has made break too
            if connection.route(0) == ends:
                network.cut(connection, first=1)
        self.say(f"connections from {ends[0]} to {ends[1]} break, and new ones are refused")
        return self._saying(lambda: network.accept(*ends), f"{ends[0]} -> {ends[1]}")

    def _slow(self, fault: Fault) -> Undo | None:
        ends = self._ends(fault)
        if ends is None:
            return None
        network = self.cluster.world.network
        factor, jitter_ns = 2 + fault.how % 100, fault.how // 100 % 100 * MS_NS
        both = [ends, (ends[1], ends[0])]
        for pair in both:
            network.slow(*pair, factor, jitter_ns)
        self.say(f"{ends[0]} - {ends[1]} is {factor} times slower")

        def undo() -> None:
            for pair in both:
                network.slow(*pair, 1)

        return undo

    def _cut(self, fault: Fault) -> Undo:
        world = self.cluster.world
        every_ns = fault.duration_ms * MS_NS // CUTS_PER_FAULT
        until_ns = world.now_ns + fault.duration_ms * MS_NS
        break_connections(world, fault.how, every_ns=every_ns, until_ns=until_ns)
        self.say(f"connections break, for {fault.duration_ms} ms")
        return lambda: None

    def _long_steps(self, fault: Fault) -> Undo | None:
        name, world = self._host(fault.target[0]), self.cluster.world
        if not name:
            return None
        share = (1 + fault.how % 20) / 100
        most_ns = (10 + fault.how // 100 % 1_000) * MS_NS
        world.long_steps[name] = (share, most_ns)
        self.say(f"steps of {name} take up to {most_ns // MS_NS} ms")
        return partial(_forget, world.long_steps, name)

    # -- etcd

    def _etcd_down(self, fault: Fault) -> Undo | None:
        store = self.cluster.world.store
        store.stop()
        self.say("etcd answers nobody")

        def undo() -> None:
            store.start()
            self.say("etcd is there again")

        return undo

    def _etcd_leader(self, fault: Fault) -> Undo | None:
        self.cluster.world.store.change_leader(fault.duration_ms * MS_NS)
        self.say(f"etcd has no leader for {fault.duration_ms} ms")
        return lambda: None

    def _etcd_loses_answers(self, fault: Fault) -> Undo | None:
        name, store = self._host(fault.target[0]), self.cluster.world.store
        if not name:
            return None
        store.lost_answers[name] = share = (20 + fault.how % 81) / 100
        self.say(f"{share:.0%} of etcd's answers to {name} are lost")
        return partial(_forget, store.lost_answers, name)

    def _etcd_lags(self, fault: Fault) -> Undo | None:
        name, store = self._host(fault.target[0]), self.cluster.world.store
        if not name:
            return None
        store.lags[name] = lag_ms = 50 + fault.how % 2_500
        store.lags[name] *= MS_NS
        self.say(f"{name} hears of changes in etcd {lag_ms} ms late")
        return partial(_forget, store.lags, name)

    def _etcd_compacts(self, fault: Fault) -> Undo | None:
        name = self._host(fault.target[0])
        if not name:
            return None
        connect = self._block([(name, ETCD), (ETCD, name)])
        self.say(f"{name} is cut off from etcd, which will compact")

        def undo() -> None:
            self.cluster.world.store.compact()
            connect()

        return undo


def _forget(held: dict[str, Any], name: str) -> None:
    held.pop(name, None)
