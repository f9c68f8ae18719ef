"""The bench of recoveries: faults on a cluster of real processes under load, one after the other.

After each fault the cluster is brought back to full strength: the server is restarted, is given
copies of its shards, and leads its share of them again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from resilient_ps.chaos.live.load import Load
from resilient_ps.chaos.live.outages import Row, rows_for
from resilient_ps.chaos.live.plan import ETCD_ELECTION_MS, ETCD_HEARTBEAT_MS
from resilient_ps.chaos.live.prober import Probers, key_of
from resilient_ps.chaos.live.records import Records
from resilient_ps.chaos.live.straight import StraightWriter, stale
from resilient_ps.client.connection import Client, connect
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import EtcdProcess, start_etcd
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.runtime.local import LocalCluster

SHARDS_PER_SERVER = 2
CLIENT_DEADLINE_S = 60.0
SETTLED_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
STRAIGHT_PUSHES = 5  # to a paused server: before it is replaced, and after that, and once it runs
STRAIGHT_PAUSE_S = 0.02
ETCD_LEADERLESS_S = 10.0
MEMBERS_TO_LOSE_ONE = 3

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How many faults of each kind, and on what. `etcd`: members; 0: the embedded process."""

    kills: int = 30
    stops: int = 10
    etcd_kills: int = 5
    pauses: int = 3
    servers: int = 3
    replicas: int = 2
    lease_ttl_s: int = 2
    etcd: int = 3
    workers: int = 2

    def check(self) -> None:
        """Raises `BadInput` for what cannot be measured."""
        if self.replicas < 2 or self.servers < 2:
            raise BadInput(
                f"--servers {self.servers} --replicas {self.replicas}: what nobody else holds "
                "cannot be taken over; give both at least 2"
            )
        if self.etcd_kills and self.etcd < MEMBERS_TO_LOSE_ONE:
            kind = f"an etcd of {self.etcd}" if self.etcd else "the embedded coordination process"
            raise BadInput(
                f"--etcd-kills {self.etcd_kills}: {kind} does not survive the loss of a member; "
                "use --etcd 3, or leave this kind of fault away with --etcd-kills 0"
            )

    @property
    def faults(self) -> int:
        """How many in all."""
        return self.kills + self.stops + self.etcd_kills + self.pauses

    def cluster(self) -> LocalCluster:
        """The cluster to be hurt; not started."""
        flags = ["--lease-ttl", str(self.lease_ttl_s)]
        flags += ["--shards", str(SHARDS_PER_SERVER * self.servers), "--log-level", "warning"]
        return LocalCluster(
            self.servers,
            replicas=self.replicas,
            cluster="chaos",
            prefer="auto" if self.etcd else "embedded",
            coordinate=self._start_etcd if self.etcd else None,
            flags=flags,
        )

    def _start_etcd(self) -> EtcdProcess:
        return start_etcd(
            members=self.etcd, heartbeat_ms=ETCD_HEARTBEAT_MS, election_ms=ETCD_ELECTION_MS
        )


@dataclass(slots=True)
class Findings:
    """What came of it. `miscounted`: pushes that were lost, or applied twice."""

    rows: dict[str, Row]
    pushes: int = 0
    miscounted: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Were all bars reached, and was every push applied exactly once?"""
        return not self.miscounted and all(row.holds is not False for row in self.rows.values())


def measure(plan: Plan, processes: LocalCluster, say: Say, done: Callable[[], None]) -> Findings:
    """Hurt the running cluster according to plan. `done` is called after each fault."""
    findings = Findings(rows_for(plan.lease_ttl_s))
    endpoints = ",".join(processes.endpoints)
    folder = processes.folder
    assert folder is not None, "the cluster is running"
    with (
        connect(endpoints, processes.cluster, deadline_s=CLIENT_DEADLINE_S) as client,
        closing(EtcdKv(endpoints)) as kv,
    ):
        shards = client.routing().shards
        load = Load(endpoints, processes.cluster, plan.workers, folder)
        probers = Probers(client, shards)
        records = Records(kv, processes.cluster, plan.replicas)
        with load, probers:
            records.wait_settled(SETTLED_DEADLINE_S)
            faults = Faults(plan, processes, client, records, probers, shards, findings.rows)
            for text in faults.all():
                say(text)
                done()
        findings.pushes = load.pushed
        findings.miscounted = [*probers.miscounted(), *load.miscounted(client)]
    return findings


@dataclass(frozen=True)
class Faults:
    """The faults, and what is needed to bring them about."""

    plan: Plan
    processes: LocalCluster
    client: Client
    records: Records
    probers: Probers
    shards: int
    rows: dict[str, Row]

    def all(self) -> Iterator[str]:
        """One after the other; each yields what was seen of it."""
        plan = self.plan
        for number in range(plan.kills):
            yield f"kill -9 of {self._kill(self._victim(number))}"
        for number in range(plan.stops):
            yield f"SIGTERM of {self._stop(self._victim(number))}"
        for _ in range(plan.etcd_kills):
            yield f"kill -9 of etcd's leader: {self._kill_etcd_leader()}"
        for number in range(plan.pauses):
            yield f"SIGSTOP of {self._pause(self._victim(number))}"

    def _victim(self, number: int) -> str:
        """Each server in turn, but one that leads a shard."""
        names = [server.name for server in self.processes.servers]
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            if self.records.led_by(name):
                return name
        raise Unavailable("no server leads a shard")

    def _kill(self, name: str) -> str:
        led = self.records.led_by(name)
        os.kill(self.processes.server(name).pid, signal.SIGKILL)
        at_s = time.monotonic()
        outage_s, others_s = self._recovered(at_s, set(led))
        self.rows["kill"].add(outage_s, others_s)
        self.processes.kill(name)  # it is dead; this waits for its end
        return f"{name}, {_seconds(outage_s, others_s)}, {self._restart(name)}"

    def _stop(self, name: str) -> str:
        led = self.records.led_by(name)
        at_s = time.monotonic()
        code = self.processes.stop_server(name, STOP_DEADLINE_S)
        if code:
            raise Unavailable(f"server {name} ended with exit code {code} on SIGTERM")
        ended_s = time.monotonic()
        self._recovered(ended_s, set(led))
        outage_s = self.probers.longest_stall(at_s, time.monotonic(), led)
        others = self._others(set(led))
        others_s = self.probers.longest_stall(at_s, time.monotonic(), others)
        self.rows["stop"].add(outage_s, others_s)
        text = f"{_seconds(outage_s, others_s)}, ended after {ended_s - at_s:.2f} s"
        return f"{name}, {text}, {self._restart(name)}"

    def _kill_etcd_leader(self) -> str:
        etcd = self.processes.coordination
        assert isinstance(etcd, EtcdProcess), "the plan was checked"
        before = self.records.epochs()
        leader = _leader_of(etcd)
        os.kill(etcd.pids[leader], signal.SIGKILL)
        at_s = time.monotonic()
        everything = set(range(self.shards))
        self.probers.wait_behind(at_s, everything, CLIENT_DEADLINE_S)
        # A lease that could not be renewed would be seen to end by then.
        _wait_until(at_s + self.plan.lease_ttl_s + 1)
        self.probers.wait_behind(time.monotonic(), everything, CLIENT_DEADLINE_S)
        stall_s = self.probers.longest_stall(at_s, time.monotonic(), everything)
        etcd.kill(leader)  # it is dead; this waits for its end
        etcd.restart(leader)
        after = self.records.epochs()
        failovers = sum(after[shard] != before[shard] for shard in before)
        self.rows["etcd"].add(stall_s, wrongs=failovers)
        self.records.wait_settled(SETTLED_DEADLINE_S)
        return f"stalled {stall_s:.2f} s, {failovers} failovers"

    def _pause(self, name: str) -> str:
        led = self.records.led_by(name)
        with self._straight_to(name, set(led)) as writer:
            self.processes.pause(name)
            at_s = time.monotonic()
            try:
                pushes = _push_some(writer)
                outage_s, others_s = self._recovered(at_s, set(led))
                pushes += _push_some(writer)
                _wait_until(at_s + 3 * self.plan.lease_ttl_s)
            finally:
                self.processes.resume(name)
            pushes += _push_some(writer)
            accepted = stale(writer.answers(pushes), led)
        self.rows["pause"].add(outage_s, others_s, wrongs=accepted)
        self.records.wait_settled(SETTLED_DEADLINE_S)
        return f"{name}, {_seconds(outage_s, others_s)}, {accepted} stale acceptances"

    # --

    def _others(self, shards: set[int]) -> set[int]:
        return set(range(self.shards)) - shards

    def _recovered(self, at_s: float, shards: set[int]) -> tuple[float, float]:
        """When the last of these shards acknowledged a push again, and the last of the others."""
        seen = self.probers.wait_behind(at_s, range(self.shards), CLIENT_DEADLINE_S)
        others = [seconds for shard, seconds in seen.items() if shard not in shards]
        return max(seen[shard] for shard in shards), max(others, default=0.0)

    def _restart(self, name: str) -> str:
        """Start it again, and wait until it is what it was before."""
        self.processes.restart(name)
        ready_s = time.monotonic()
        self.records.wait_settled(SETTLED_DEADLINE_S)
        settled_s = time.monotonic()
        everything = range(self.shards)
        self.probers.wait_behind(settled_s, everything, CLIENT_DEADLINE_S)
        stall_s = self.probers.longest_stall(ready_s, time.monotonic(), everything)
        self.rows["return"].add(stall_s)
        return f"returned in {settled_s - ready_s:.1f} s, which stalled {stall_s:.2f} s"

    @contextmanager
    def _straight_to(self, name: str, shards: set[int]) -> Iterator[StraightWriter]:
        """A writer whose pushes the server accepts, for now."""
        keys = {shard: key_of(shard, self.shards) for shard in shards}
        address = self.processes.server(name).address
        own_name = f"straight-{time.monotonic_ns()}"
        with closing(StraightWriter(self.client, address, own_name, keys)) as writer:
            writer.begin()
            yield writer


def _push_some(writer: StraightWriter) -> int:
    for _ in range(STRAIGHT_PUSHES):
        try:
            writer.push()
        except OSError:  # it has closed the connection: that refuses all of them
            break
        time.sleep(STRAIGHT_PAUSE_S)
    return STRAIGHT_PUSHES


def _leader_of(etcd: EtcdProcess) -> int:
    until_s = time.monotonic() + ETCD_LEADERLESS_S
    while True:
        try:
            return etcd.leader()
        except Unavailable:
            if time.monotonic() > until_s:
                raise


def _wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


def _seconds(outage_s: float, others_s: float) -> str:
    return f"its shards after {outage_s:.2f} s, others {others_s:.2f} s"
