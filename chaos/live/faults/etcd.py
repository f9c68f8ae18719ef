"""Faults on what etcd keeps: its history, its file, its room, its leases, and all members at once.

Members are reached past the proxies. What needs etcd and does not find it is skipped: another fault
has it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults.logs import LogTail
from resilient_ps.chaos.live.faults.resources import record_of, running_server
from resilient_ps.chaos.live.maintenance import Maintenance
from resilient_ps.chaos.live.patience import patiently
from resilient_ps.chaos.live.scene import Party, Scene, Skipped
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Delete, Put, Txn
from resilient_ps.coordinator.records import DrainRecord
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import NotFound, ResilientPsError, RetryLater, Unavailable

REACH_S = 3.0
HEAL_DEADLINE_S = 30.0
NOTICED_DEADLINE_S = 20.0
POLL_S = 0.05
NOBODY = "chaos-nobody"  # no server's name; marks of its drain come and go
READ_ANEW = "history compacted, read anew"
NO_SPACE = "database space exceeded"


@dataclass
class Compact:
    """A server is cut off from etcd; what it watches changes, and the history is forgotten.

    It must notice that it missed something, read everything anew, and see what has gone: a mark
    that was there before is not there after.
    """

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _rule: int | None = None
    _log: LogTail | None = None
    _revision: int = 0

    def inject(self) -> None:
        lines = self.scene.lines
        if lines is None:
            raise Skipped("no proxy stands between servers and etcd")
        party = running_server(self.scene, self.planned.target[0])
        members = tuple(member.name for member in self.scene.parties("etcd"))
        self.struck = (party.name,)
        with _reached(self.scene) as kv:
            self._mark(kv, "before")
            self._log = LogTail(party.log)
            self._rule = lines.apply(Rule("drop", (party.name,), members))
            self._mark(kv, "meanwhile")
            self._remove_marks(kv)
            self._revision = kv.read(b"ready").revision
            kv.compact(self._revision, deadline_s=REACH_S)

    def heal(self) -> None:
        rule, self._rule = self._rule, None
        if rule is None:
            return
        assert self.scene.lines is not None, "the rule came from there"
        self.scene.lines.lift(rule)
        with closing(EtcdKv(self.scene.etcd)) as kv:
            self._remove_marks(kv)

    def evidence(self) -> str:
        if self._log is None or not self._revision:
            return ""
        if not self._log.wait_for(READ_ANEW, NOTICED_DEADLINE_S):
            return ""
        return f"compacted at {self._revision}; {self.struck[0]} noticed, and read everything anew"

    def _mark(self, kv: EtcdKv, when: str) -> None:
        name = self._name(when)
        key = ClusterKeys(self.scene.cluster).drain(name)
        kv.txn(Txn((), (Put(key, DrainRecord(name, "chaos").to_bytes()),)), deadline_s=REACH_S)

    def _remove_marks(self, kv: EtcdKv) -> None:
        keys = ClusterKeys(self.scene.cluster)
        gone = tuple(Delete(keys.drain(self._name(when))) for when in ("before", "meanwhile"))
        # nobody else writes them: where an answer was lost they are simply deleted again
        patiently(lambda: kv.txn(Txn((), gone), deadline_s=REACH_S), HEAL_DEADLINE_S)

    def _name(self, when: str) -> str:
        return f"{NOBODY}-{self.planned.number}-{when}"


@dataclass
class Defragment:
    """A member of etcd writes its file anew, and serves nobody meanwhile."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _told: str = ""

    def inject(self) -> None:
        name = self.planned.target[0]
        self.struck = (name,)
        try:
            with Maintenance(address_of_member(self.scene, name)) as member:
                before = member.status(REACH_S).db_bytes
                begun_s = time.monotonic()
                member.defragment()
                took_s = time.monotonic() - begun_s
                after = member.status(REACH_S).db_bytes
        except Unavailable as error:
            raise Skipped(str(error)) from error
        self._told = f"{name} was defragmented in {took_s:.2f} s, from {before} to {after} bytes"

    def heal(self) -> None:
        """Nothing of it stays."""

    def evidence(self) -> str:
        return self._told


@dataclass
class NoSpace:
    """The alarm NOSPACE is raised, as if a member's file had outgrown its quota: etcd refuses
    writes and grants no leases until it is disarmed; it renews leases, and reads."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _is_raised: bool = False
    _refused: str = ""

    def inject(self) -> None:
        with _reached(self.scene) as kv, ExitStack() as stack:
            member = stack.enter_context(_first_that_answers(self.scene))
            self.struck = tuple(each.name for each in self.scene.parties("etcd"))
            self._is_raised = True
            member.raise_no_space(member.status(REACH_S).member)
            self._refused = _write_refused(kv)

    def heal(self) -> None:
        if not self._is_raised:
            return
        until_s = time.monotonic() + HEAL_DEADLINE_S
        while True:
            try:
                with _first_that_answers(self.scene) as member:
                    for each in member.out_of_space():
                        member.disarm_no_space(each)
                    self._is_raised = bool(member.out_of_space())
            except (Skipped, Unavailable) as error:
                if time.monotonic() > until_s:
                    raise Unavailable(
                        f"the alarm NOSPACE of etcd {self.scene.etcd} could not be disarmed "
                        f"({error}): do it with `etcdctl alarm disarm`"
                    ) from error
            if not self._is_raised:
                return
            time.sleep(POLL_S)

    def evidence(self) -> str:
        return f"etcd said to a write: {self._refused}" * bool(self._refused)


@dataclass
class RevokeLease:
    """A server's lease is revoked under it: all that hangs on it is gone, and it lives."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _lease: int = 0
    _revoked_s: float = 0.0

    def inject(self) -> None:
        party = running_server(self.scene, self.planned.target[0])
        self.struck = (party.name,)
        with _reached(self.scene) as kv:
            lease = record_of(self.scene, party.name).lease
            try:
                kv.revoke(lease, deadline_s=REACH_S)
            except NotFound as error:
                raise Skipped(f"the lease of {party.name} has ended already") from error
            self._revoked_s = time.monotonic()
            self._lease = lease if kv.refresh(lease, deadline_s=REACH_S) == 0 else 0

    def heal(self) -> None:
        """The server comes back by itself."""

    def evidence(self) -> str:
        if not self._lease:
            return ""
        told = f"lease {self._lease} of {self.struck[0]} was revoked"
        until_s = time.monotonic() + NOTICED_DEADLINE_S
        while time.monotonic() < until_s:
            with contextlib.suppress(Skipped, RetryLater):
                if record_of(self.scene, self.struck[0]).lease != self._lease:
                    after_s = time.monotonic() - self._revoked_s
                    return f"{told}; {after_s:.1f} s later it had another one"
            time.sleep(POLL_S)
        return told


@dataclass
class Restart:
    """All members of etcd are killed, and started again on what is on their disks."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _claimed: list[Party] = field(default_factory=list)
    _killed: dict[str, int] = field(default_factory=dict)
    _told: str = ""

    def inject(self) -> None:
        members = self.scene.parties("etcd")
        if not members:
            raise Skipped("no member of etcd is ours")
        for member in members:
            self.scene.claims.claim(member.name)
            self._claimed.append(member)
        self.struck = tuple(member.name for member in members)
        for member in members:
            self._killed[member.name] = member.pid
            member.kill()

    def heal(self) -> None:
        errors: list[ResilientPsError] = []
        for member in self._claimed:
            try:
                if member.state in ("dead", "ended"):
                    member.restart()
            except ResilientPsError as error:  # the others are to come back all the same
                errors.append(error)
        self._told = self._told or self._seen()
        while self._claimed and not errors:
            self.scene.claims.release(self._claimed.pop().name)
        if errors:
            raise errors[0]

    def evidence(self) -> str:
        return self._told

    def _seen(self) -> str:
        pids = {member.name: member.pid for member in self._claimed}
        if not self._killed or any(pids[name] == pid for name, pid in self._killed.items()):
            return ""
        return f"{', '.join(pids)} were killed, and are other processes now"


def address_of_member(scene: Scene, name: str) -> str:
    """Where a member of etcd listens, past the proxies."""
    names = [member.name for member in scene.parties("etcd")]
    return scene.etcd.split(",")[names.index(scene.party(name).name)]


@contextmanager
def _reached(scene: Scene) -> Iterator[EtcdKv]:
    """A client of etcd, when that answers. Raises `Skipped`."""
    with closing(EtcdKv(scene.etcd)) as kv:
        try:
            kv.read(b"ready", deadline_s=REACH_S)
        except RetryLater as error:
            raise Skipped(f"etcd does not answer: {error}") from error
        yield kv


@contextmanager
def _first_that_answers(scene: Scene) -> Iterator[Maintenance]:
    """A member that knows a leader. Raises `Skipped`."""
    for address in scene.etcd.split(","):
        with Maintenance(address) as member:
            if _knows_a_leader(member):
                yield member
                return
    raise Skipped("no member of etcd knows a leader")


def _knows_a_leader(member: Maintenance) -> bool:
    try:
        return bool(member.status(REACH_S).leader)
    except Unavailable:
        return False


def _write_refused(kv: EtcdKv) -> str:
    """What etcd says to a write that would change nothing; "" when it does it."""
    try:
        kv.txn(Txn((), (Put(f"/{NOBODY}".encode(), b""),)), deadline_s=REACH_S)
    except ResilientPsError as error:
        return NO_SPACE if NO_SPACE in str(error) else ""
    kv.txn(Txn((), (Delete(f"/{NOBODY}".encode()),)), deadline_s=REACH_S)
    return ""


FAULTS = {
    "etcd-compact": Compact,
    "etcd-defrag": Defragment,
    "etcd-no-space": NoSpace,
    "lease-revoke": RevokeLease,
    "etcd-restart": Restart,
}
