"""Parties that do not hear each other: connections stand, and nothing passes."""

from __future__ import annotations

from collections.abc import Sequence

from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.live.faults.ruled import Ruled, apart, deaf
from resilient_ps.chaos.live.scene import Skipped

STORE = "store"


class Partition(Ruled):
    """Two servers do not hear each other."""

    def rules(self) -> list[Rule]:
        one, other = self.struck = self.planned.target[:2]
        return apart([one], [other])


class OneWay(Ruled):
    """The first does not hear the second, who hears the first."""

    def rules(self) -> list[Rule]:
        listener, speaker = self.struck = self.planned.target[:2]
        return deaf([listener], [speaker])


class Halves(Ruled):
    """A minority of the servers is cut off from the others; all reach etcd, and are reached."""

    def rules(self) -> list[Rule]:
        names = self.names("server", least=2)
        minority = self.chance.sample(names, max(1, (len(names) - 1) // 2))
        self.struck = tuple(sorted(minority))
        return apart(self.struck, [name for name in names if name not in minority])


class Bridge(Ruled):
    """Two halves of the servers hear each other through one server only, which hears all."""

    def rules(self) -> list[Rule]:
        names = list(self.names("server", least=3))
        self.chance.shuffle(names)
        _, *rest = names
        middle = len(rest) // 2
        self.struck = tuple(sorted(rest))
        return apart(rest[:middle], rest[middle:])


class Isolate(Ruled):
    """A server is cut off from everybody."""

    def rules(self) -> list[Rule]:
        self.struck = self.planned.target[:1]
        return [Rule("drop", sources=self.struck), Rule("drop", targets=self.struck)]


class ServerEtcd(Ruled):
    """A server is cut off from all members of etcd."""

    def rules(self) -> list[Rule]:
        self.struck = self.planned.target[:1]
        return [Rule("drop", self.struck, self.names("etcd"))]


class ServerStore(Ruled):
    """A server is cut off from the store."""

    def rules(self) -> list[Rule]:
        if "s3" not in self.scene.offers:
            raise Skipped("no store behind the proxy")
        self.struck = self.planned.target[:1]
        return [Rule("drop", self.struck, (STORE,))]


class WorkerServer(Ruled):
    """A worker is cut off from a server."""

    def rules(self) -> list[Rule]:
        worker, server = self.struck = self.planned.target[:2]
        return [Rule("drop", (worker,), (server,))]


class EtcdMember(Ruled):
    """A member of etcd is cut off from the other members, though not from those who ask it."""

    def rules(self) -> list[Rule]:
        (member,) = self.struck = self.planned.target[:1]
        others: Sequence[str] = [e for e in self.names("etcd", least=3) if e != member]
        return apart([member], others)


FAULTS = {
    "partition": Partition,
    "one-way": OneWay,
    "halves": Halves,
    "bridge": Bridge,
    "isolate": Isolate,
    "server-etcd": ServerEtcd,
    "server-store": ServerStore,
    "worker-server": WorkerServer,
    "etcd-member": EtcdMember,
}
