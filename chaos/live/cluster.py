"""A whole cluster of real processes on this machine, made to be hurt.

Members of etcd, an object store, servers and workers, each behind a proxy (`network`) that alone is
dialled, on ports that stay theirs while they are dead. The harness itself goes past the proxies.

Everything goes away with it: on leaving the context, on an exception, on Ctrl-C at any moment, at
the end of this process. What is made is remembered for its end in the same step (`_hold`).
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from resilient_ps.chaos.faults.kinds import Need
from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.live.audit import AUDIT_VARIABLE
from resilient_ps.chaos.live.claims import ClaimedParties
from resilient_ps.chaos.live.evidence import AUDIT_FOLDER
from resilient_ps.chaos.live.faults.clocks import find_faketime
from resilient_ps.chaos.live.leaving import leave
from resilient_ps.chaos.live.network import Network
from resilient_ps.chaos.live.orders import Order, What
from resilient_ps.chaos.live.parties import (
    EtcdParty,
    ProcessParty,
    ServerParty,
    StoreParty,
    WorkerParty,
    unbroken,
)
from resilient_ps.chaos.live.plan import (
    ETCD_ELECTION_MS,
    ETCD_HEARTBEAT_MS,
    SEAWEEDFS,
    ClusterPlan,
)
from resilient_ps.chaos.live.records import POLL_S, Records
from resilient_ps.chaos.live.scene import Role
from resilient_ps.chaos.live.server import server_program
from resilient_ps.chaos.live.stores import NAME, StoreHere, start_seaweedfs, store_here
from resilient_ps.client.draining import Draining
from resilient_ps.client.waiting import wait_for_cluster
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import (
    Coordination,
    EtcdProcess,
    MemberAt,
    start_embedded,
    start_etcd,
)
from resilient_ps.errors import BadInput, NotFound, Unavailable
from resilient_ps.runtime.listening import MAX_UNIX_PATH_BYTES
from resilient_ps.runtime.spawn import ReservedPorts

CLUSTER = "chaos"
PLACED_DEADLINE_S = 60.0
QUORUM = 3
SOCKET_NAME_BYTES = 32  # of the longest name of a socket in the folder
_ROLES: tuple[Role, ...] = ("server", "worker", "etcd", "store")
_ORDERS, _TEMPORARY = "orders", "tmp"
_COMPILED = threading.Event()
"""A server has been up: its kernels lie in the cache since then."""

T = TypeVar("T")


class ChaosCluster:
    """See `scene.Scene` for what faults see of it. A context; or call `start` and `stop`."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.cluster = CLUSTER
        self.store = StoreHere()
        self.network: Network | None = None
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._parties: dict[str, ProcessParty] = {}
        self._ports = ReservedPorts()
        self._folder: Path | None = None
        self._coordination: Coordination | None = None
        self._public_etcd = ""
        self._records: Records | None = None
        self._claims: ClaimedParties | None = None
        self._shards = 0
        self._servers = 0  # names given

    # -- the whole

    def start(self) -> None:
        """Start everything; return when each shard has its copies where they should be.

        Raises `NotFound` with the remedy where a program is missing, `Unavailable` with the end of
        a log when something does not start. Nothing is left then.
        """
        if self._folder is not None:
            raise BadInput("this cluster runs already")
        atexit.register(self._stack.close)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, and remove what was made. May be called again."""
        unbroken(self._stack.close)  # also where Ctrl-C comes twice
        atexit.unregister(self._stack.close)
        self._folder = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- the scene

    @property
    def folder(self) -> Path:
        """It goes away at the end."""
        return _running(self._folder)

    @property
    def logs_folder(self) -> Path:
        """One file for each party; kept where the plan says so."""
        return self.plan.keep or self.folder / "logs"

    @property
    def logs(self) -> dict[str, Path]:
        """By party, and that of the network."""
        with self._lock:
            logs = {name: party.log for name, party in sorted(self._parties.items())}
        network = self.logs_folder / "network.log"
        return {**logs, "network": network} if network.exists() else logs

    @property
    def etcd(self) -> str:
        """Endpoints for the harness, past all proxies: of e0, e1, ... in this order."""
        return ",".join(_running(self._coordination).endpoints)

    @property
    def public_etcd(self) -> str:
        """Endpoints as workers and servers are told them."""
        return self._public_etcd

    @property
    def lease_ttl_s(self) -> int:
        return self.plan.lease_ttl_s

    @property
    def shards(self) -> int:
        """How many there are."""
        return self._shards

    @property
    def records(self) -> Records:
        """What etcd says of the cluster, read past the proxies."""
        return _running(self._records)

    @property
    def lines(self) -> Network | None:
        """The proxy between all parties."""
        return self.network

    @property
    def claims(self) -> ClaimedParties:
        return _running(self._claims)

    @property
    def offers(self) -> frozenset[Need]:
        """What is here of that which kinds of faults need."""
        there: dict[Need, bool] = {
            "network": self.network is not None,
            "etcd": self.plan.etcd > 0,
            "quorum": self.plan.etcd >= QUORUM,
            "s3": self.store.proxied,
            "store process": self.store.process is not None,
            "root": os.geteuid() == 0,
            "faketime": find_faketime() is not None,
        }
        return frozenset(need for need, is_there in there.items() if is_there)

    def parties(self, role: Role | None = None) -> list[ProcessParty]:
        """In the order of their names: servers, workers, members of etcd, the store."""
        with self._lock:
            found = [each for each in self._parties.values() if role in (None, each.role)]
        return sorted(found, key=lambda each: (_ROLES.index(each.role), len(each.name), each.name))

    def party(self, name: str) -> ProcessParty:
        """Raises `NotFound`."""
        with self._lock:
            found = self._parties.get(name)
        if found is None:
            names = ", ".join(each.name for each in self.parties())
            raise NotFound(f"no party {name!r} here; there are {names}")
        return found

    def order(self, server: str, what: What, seconds: float) -> Order:
        """Have a server hang; returns at once."""
        return Order(self.folder / _ORDERS, server, what, seconds)

    # -- what comes and goes

    def add_worker(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> WorkerParty:
        """Start a worker, `w<rank>`. It is told the cluster and its rank, as users' programs are.

        `command` begins with an absolute path. `environment` is set beside ours.
        """
        told = {
            "RESILIENT_PS_ETCD": self.public_etcd,
            "RESILIENT_PS_CLUSTER": self.cluster,
            "RESILIENT_PS_RANK": name[1:],
            "RESILIENT_PS_RANKS": str(self.plan.workers),
            **(environment or {}),
        }
        party = WorkerParty(name, self._log_of(name), self._started, command, told)
        self._add(party)
        party.start()
        return party

    def add_server(self) -> ServerParty:
        """One more; it is among the parties when it serves, and then this returns."""
        party = self._new_server()
        self._stack.callback(party.close)
        try:
            party.restart()
        except BaseException:
            self._let_go(party)
            raise
        self._add(party)
        return party

    def remove_server(self, name: str) -> None:
        """Drain it, stop it in order, and forget it.

        Raises what hinders it when it cannot give away what it holds in time: then it stays.
        """
        party = self.party(name)
        if party.runs:
            with closing(EtcdKv(self.etcd)) as kv:
                leave(Draining(kv, self.cluster, name), party)
        self._let_go(party)

    def wait_settled(self, deadline_s: float) -> None:
        """Until all servers that run are registered, and all shards are where they should be.

        A server that was started anew is not registered before the lease of its predecessor has
        ended: until then shards look as they were. Raises `Unavailable`, naming what lacks.
        """
        until_s = time.monotonic() + deadline_s
        while missing := self._unregistered():
            if time.monotonic() > until_s:
                raise Unavailable(f"after {deadline_s:g} s {missing[0]} is not registered in etcd")
            time.sleep(POLL_S)
        self.records.wait_settled(max(until_s - time.monotonic(), POLL_S))

    def _unregistered(self) -> list[str]:
        registered = {record.pid for record in self.records.look().servers}
        return [p.name for p in self.parties("server") if p.runs and p.pid not in registered]

    def fallen(self) -> list[ProcessParty]:
        """Those that are dead though nobody asked them to end."""
        return [each for each in self.parties() if each.state == "dead" and not each.asked_to_end]

    # -- starting

    def _hold(self, make: Callable[[], T], end: Callable[[T], object]) -> T:
        """Make something that has to be ended, and remember it, in one step."""

        def both() -> T:
            made = make()
            self._stack.callback(end, made)
            return made

        return unbroken(both)

    def _start(self) -> None:
        plan = self.plan
        self._folder = self._hold(_make_folder, partial(shutil.rmtree, ignore_errors=True))
        self._ports = self._hold(ReservedPorts, ReservedPorts.close)
        for name in (_ORDERS, _TEMPORARY):
            (self._folder / name).mkdir()
        self.logs_folder.mkdir(parents=True, exist_ok=True)
        if plan.network:
            self.network = self._hold(lambda: Network(self.logs_folder), Network.stop)
        with ThreadPoolExecutor(2) as pool:  # they are slow to start
            starting = [pool.submit(self._start_coordination), pool.submit(self._start_store)]
            for each in starting:
                each.result()  # interrupted here, the pool waits for both before that goes on
        kv = self._hold(lambda: EtcdKv(self.etcd), EtcdKv.close)
        self._records = Records(kv, self.cluster, plan.copies)
        self._claims = ClaimedParties(self._records, self.parties, self._rules)
        self._stack.callback(self._close_parties)  # before all that was started earlier
        self._start_servers()
        self._shards = wait_for_cluster(kv, self.cluster, PLACED_DEADLINE_S).shards
        self.wait_settled(PLACED_DEADLINE_S)

    def _start_coordination(self) -> None:
        if not self.plan.etcd:
            self._coordination = self._hold(start_embedded, lambda each: each.stop())
            self._public_etcd = ",".join(self._coordination.endpoints)
            return
        places = [self._place(number) for number in range(self.plan.etcd)]
        try:
            etcd = self._hold(lambda: self._start_etcd(places), lambda each: each.stop())
        except NotFound as error:
            raise NotFound(f"{error} with --etcd 0, without faults of etcd") from error
        self._coordination = etcd
        self._public_etcd = ",".join(place.public_clients for place in places)
        for number, place in enumerate(places):
            self._add(EtcdParty(place.name, place.log, self._started, etcd, number))

    def _start_etcd(self, places: Sequence[MemberAt]) -> EtcdProcess:
        return start_etcd(
            places=places,
            folder=self.folder / "etcd",
            heartbeat_ms=ETCD_HEARTBEAT_MS,
            election_ms=ETCD_ELECTION_MS,
        )

    def _place(self, number: int) -> MemberAt:
        name = f"e{number}"
        clients, peers = self._address(), self._address()
        public = [self._public(name, clients), self._public(name, peers)]
        return MemberAt(name, self._log_of(name), clients, peers, *public)

    def _start_store(self) -> None:
        process = None
        if self.plan.store == SEAWEEDFS:
            log = self._log_of(NAME)
            process = self._hold(
                lambda: start_seaweedfs(self.folder / SEAWEEDFS, log), lambda each: each.stop()
            )
            self._add(StoreParty(NAME, log, self._started, process))
        self.store = store_here(self.plan.store, self.folder, self.network, process)
        if not self.store.is_ours:
            self.cluster = f"{CLUSTER}-{secrets.token_hex(4)}"  # nobody else's objects
            self._stack.callback(self.store.sweep, self.cluster)

    def _start_servers(self) -> None:
        parties = [self._new_server() for _ in range(self.plan.servers)]
        for party in parties:
            self._add(party)
        with ThreadPoolExecutor(len(parties)) as pool:
            try:
                alone = 0 if _COMPILED.is_set() else 1  # compiles what the others then load
                for some in (parties[:alone], parties[alone:]):
                    for each in [pool.submit(party.start) for party in some]:
                        each.result()
            except BaseException:
                for party in parties:
                    party.close()  # so that nothing goes on waiting for it
                raise
        _COMPILED.set()

    def _new_server(self) -> ServerParty:
        with self._lock:
            self._servers += 1
            name = f"s{self._servers}"
        address = self._address()
        command = [*server_program(self.folder / _ORDERS), "--name", name]
        command += ["--cluster", self.cluster, "--etcd", self.public_etcd]
        public = self._public(name, address)
        command += ["--listen", address, "--advertise", public]
        command += ["--log-format", "json", *self.plan.server_flags(self.store.url)]
        temporary = self.folder / _TEMPORARY / name
        temporary.mkdir()
        audit = {AUDIT_VARIABLE: str(self.folder / AUDIT_FOLDER)}
        environment = {"TMPDIR": str(temporary), **audit, **self.store.environment}
        return ServerParty(name, self._log_of(name), self._started, command, environment, public)

    # --

    def _add(self, party: ProcessParty) -> None:
        with self._lock:
            if party.name in self._parties:
                raise BadInput(f"there is a party {party.name} already")
            self._parties[party.name] = party

    def _let_go(self, party: ProcessParty) -> None:
        party.close()
        if self.network is not None and isinstance(party, ServerParty):
            self.network.close_address(party.public)
        with self._lock:
            self._parties.pop(party.name, None)

    def _started(self, name: str, pid: int) -> None:
        if self.network is not None:
            self.network.know(name, pid)

    def _address(self) -> str:
        return f"127.0.0.1:{self._ports.take()}"

    def _public(self, name: str, address: str) -> str:
        return address if self.network is None else self.network.open(name, address)

    def _rules(self) -> tuple[Rule, ...]:
        return () if self.network is None else self.network.rules

    def _log_of(self, name: str) -> Path:
        return self.logs_folder / f"{name}.log"

    def _close_parties(self) -> None:
        for party in self.parties():
            with suppress(Unavailable):
                party.close()
        with self._lock:
            self._parties.clear()


def _running(value: T | None) -> T:
    if value is None:
        raise BadInput("the cluster is not running: call start first")
    return value


def _make_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="resilient-ps-chaos-"))
    room = MAX_UNIX_PATH_BYTES - SOCKET_NAME_BYTES
    if len(os.fsencode(folder)) > room:
        folder.rmdir()
        raise BadInput(f"{folder} is too long for sockets in it: set TMPDIR to a shorter path")
    return folder
