"""A cluster that somebody else runs, as a scene for faults.

Servers are found by their records in etcd, workers by their heartbeats. Struck are only those on
this machine whose process is what the record says: one whose command line does not show the
server's name may be another process that has its number by now, and is left alone.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from resilient_ps.chaos.faults.kinds import Need
from resilient_ps.chaos.live.attached_parties import AttachedParty, Found, Guardian
from resilient_ps.chaos.live.claims import ClaimedParties
from resilient_ps.chaos.live.maintenance import granted_ttl_s
from resilient_ps.chaos.live.orders import What
from resilient_ps.chaos.live.probe import JOB as PROBE
from resilient_ps.chaos.live.records import Records
from resilient_ps.chaos.live.running import Running
from resilient_ps.chaos.live.scene import Role, Skipped
from resilient_ps.client.inspect import no_such_cluster
from resilient_ps.client.report import WorkerReport, inspect_cluster
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import BadInput, NotFound

READ_DEADLINE_S = 5.0
ASK_DEADLINE_S = 1.0
HEARD_S = 4.0
"""A worker that was not heard for longer may be over, and its number another process's."""


@dataclass(frozen=True, slots=True)
class Whom:
    """Whom faults may strike. `only`: these names, none: all on this machine. `job`: whose ranks
    are workers; "": there is one. `worker_pids`: of ranks, where heartbeats do not tell."""

    only: frozenset[str] = frozenset()
    job: str = ""
    worker_pids: Mapping[int, int] = field(default_factory=dict)


class AttachedCluster:
    """See `scene.Scene`. A context."""

    def __init__(self, etcd: str, cluster: str, whom: Whom) -> None:
        self.etcd = self.public_etcd = etcd
        self.cluster = cluster
        self.lines = None
        self.offers: frozenset[Need] = frozenset()
        self._keys = ClusterKeys(cluster)
        self._whom = whom
        self._host = socket.gethostname()
        self._stack = ExitStack()
        self._parties: dict[str, AttachedParty] = {}

    def __enter__(self) -> Self:
        try:
            self._attach()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()  # the guardian lets those go on that are still paused by us

    # -- the scene

    @property
    def claims(self) -> ClaimedParties:
        return self._claims

    @property
    def records(self) -> Records:
        return self._records

    def parties(self, role: Role | None = None) -> Sequence[AttachedParty]:
        """All servers of the cluster, and the workers on this machine."""
        return [party for party in self._parties.values() if role in (None, party.role)]

    def party(self, name: str) -> AttachedParty:
        """Raises `NotFound`."""
        if name not in self._parties:
            raise NotFound(f"no party {name!r} here; there are {', '.join(self._parties)}")
        return self._parties[name]

    def names(self, role: Role) -> tuple[str, ...]:
        """Those that faults may strike."""
        return tuple(party.name for party in self.parties(role) if not party.why_not)

    def left_alone(self) -> list[str]:
        """Who is not struck, and why."""
        return [f"{p.name}: {p.why_not}" for p in self._parties.values() if p.why_not]

    def order(self, server: str, what: What, seconds: float) -> NoReturn:
        """Servers of others take no orders."""
        raise Skipped(f"{server} was not started to take orders")

    def add_server(self) -> NoReturn:
        """Servers of others are started by others."""
        raise Skipped("servers of this cluster are started by whoever runs it")

    def remove_server(self, name: str) -> NoReturn:
        """See `add_server`."""
        raise Skipped("servers of this cluster are stopped by whoever runs it")

    # -- finding

    def _attach(self) -> None:
        self._kv = EtcdKv(self.etcd)
        self._stack.callback(self._kv.close)
        folder = tempfile.TemporaryDirectory(prefix="resilient-ps-attached-")
        self.folder = Path(self._stack.enter_context(folder))
        self._guardian = self._stack.enter_context(Guardian())
        items = self._kv.read(self._keys.config, deadline_s=READ_DEADLINE_S).items
        if not items:
            raise no_such_cluster(self._kv, self._keys)
        self._records = Records(self._kv, self.cluster, 1)
        view = self._records.look(READ_DEADLINE_S)
        assert view.config is not None, "it was there a moment ago"
        self.shards = view.config.shards
        self.copies = min(view.config.replicas, max(1, len(view.servers)))
        self._records = Records(self._kv, self.cluster, self.copies)
        leases = [record.lease for record in view.servers if record.lease]
        if not leases:
            raise BadInput(f"no server of cluster {self.cluster!r} is alive: there is none to hurt")
        self.lease_ttl_s = granted_ttl_s(self.etcd, leases[0])
        self._claims = ClaimedParties(self._records, self.parties, lambda: ())
        for record in view.servers:
            self._add(record.server, "server")
        for rank in self._ranks():
            self._add(f"w{rank}", "worker")
        self._check_only()

    def _add(self, name: str, role: Role) -> None:
        def find() -> Found:
            found = self._server(name) if role == "server" else self._worker(int(name[1:]))
            if self._whom.only and name not in self._whom.only and found.process is not None:
                return Found(None, found.pid, "--on does not name it")
            return found

        self._parties[name] = AttachedParty(name, role, find, self._guardian)

    def _check_only(self) -> None:
        unknown = sorted(self._whom.only - self._parties.keys())
        if unknown:
            raise BadInput(f"--on {unknown[0]}: there are {', '.join(self._parties)}")

    def _server(self, name: str) -> Found:
        items = self._kv.read(self._keys.server(name), deadline_s=READ_DEADLINE_S).items
        if not items:
            return Found()
        record = ServerRecord.from_bytes(items[0].value, items[0].key)
        if record.hostname != self._host:
            return Found(None, record.pid, f"it runs on {record.hostname}, this is {self._host}")
        process = Running.look(record.pid)
        if process is None:
            return Found(None, record.pid)
        return _checked(process, "" if _shows(process, record) else "shows another command line")

    def _ranks(self) -> list[int]:
        heard = {worker.rank for worker in self._heard() if worker.host == self._host}
        return sorted(heard | self._whom.worker_pids.keys())

    def _worker(self, rank: int) -> Found:
        if pid := self._whom.worker_pids.get(rank, 0):
            process = Running.look(pid)
            return Found(None, pid) if process is None else _checked(process, "")
        for worker in self._heard():
            if worker.rank == rank and worker.host == self._host and worker.silent_s <= HEARD_S:
                process = Running.look(worker.pid)
                return Found(None, worker.pid) if process is None else _checked(process, "")
        return Found()

    def _heard(self) -> list[WorkerReport]:
        """The workers of the job that the coordinator has heard of."""
        report = inspect_cluster(self._kv, self.cluster, deadline_s=ASK_DEADLINE_S)
        workers = [worker for worker in report.workers if worker.job != PROBE]
        jobs = sorted({worker.job for worker in workers})
        if not self._whom.job and len(jobs) > 1:
            raise BadInput(f"workers of several jobs are here: name one with --job {jobs[0]}")
        return [worker for worker in workers if worker.job == (self._whom.job or worker.job)]


def _checked(process: Running, doubt: str) -> Found:
    """May we signal it, and is it certain that it is the one?"""
    if doubt:
        return Found(None, process.pid, f"process {process.pid} {doubt}")
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return Found(None, process.pid)
    except PermissionError:
        return Found(None, process.pid, f"process {process.pid} belongs to another user")
    return Found(process, process.pid)


def _shows(process: Running, record: ServerRecord) -> bool:
    """Does its command line name the server? One without a name is called by host and port."""
    name = record.server
    if any(word == name or word.endswith(f"={name}") for word in process.command):
        return True
    is_server = "server" in process.command and any("resilient" in w for w in process.command)
    return is_server and name == f"{record.hostname}:{record.port}"
