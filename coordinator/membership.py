"""A server's place in the cluster: its lease, its record, and how long it may answer.

Theory of operation. The server is granted a lease and writes its record under it, guarded by the
record's absence: of two processes with one name, the second waits until the first one's lease is
gone. It renews at a third of the TTL. The lease is *provably* valid for one TTL from the moment at
which the last good renewal was sent, on the monotonic clock; past that moment the server refuses
(`may_answer`), without having to be told; of each kind of call at most one is under way, so that an
answer belongs to the last one sent. A renewal answered with TTL 0 is a lost lease: the server
starts over with a new one.

States: `granting` -> `registering` -> `member` (-> `granting` when the lease is lost).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    Compare,
    KvAnswered,
    KvCall,
    KvFailed,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseTtl,
    Put,
    Read,
    ReadResult,
    Request,
    Txn,
    TxnResult,
    absent,
)
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.errors import BadInput
from resilient_ps.machine import Effect, Log, SetTimer

GRANT_REF, REGISTER_REF, REFRESH_REF, REVOKE_REF, STOPPING_REF = 10, 11, 12, 13, 14
REFS = frozenset({GRANT_REF, REGISTER_REF, REFRESH_REF, REVOKE_REF, STOPPING_REF})
TIMER = "membership"
RETRY_NS = 300_000_000
SECOND_NS = 10**9
RATE_MARGIN = 20  # clocks may differ in rate by one part in so many

State = Literal["granting", "registering", "member", "left"]


@dataclass(slots=True)
class Membership:
    """The machine of one server's lease and record."""

    keys: ClusterKeys
    record: ServerRecord  # `lease` is filled in
    lease_ttl_s: int
    state: State = "granting"
    deadline_ns: int = 0  # until when the lease is provably valid
    _sent_ns: dict[int, int] = field(default_factory=dict)  # by ref: when the last call was sent
    _ttl_ns: int = 0
    _busy: set[int] = field(default_factory=set)  # refs of the calls under way

    @property
    def lease(self) -> int:
        """The lease that everything of this server hangs on; 0 while there is none."""
        return self.record.lease

    @property
    def _valid_ns(self) -> int:
        return self._ttl_ns - self._ttl_ns // RATE_MARGIN

    def may_answer(self, now_ns: int) -> bool:
        """Is the lease provably valid?"""
        return self.state == "member" and now_ns < self.deadline_ns

    def start(self, now_ns: int) -> list[Effect]:
        """Ask for a lease."""
        self.state = "granting"
        return self._call(GRANT_REF, LeaseGrant(self.lease_ttl_s), now_ns)

    def announce_end(self) -> list[Effect]:
        """Let others know that this server is stopping, so that nothing is handed to it."""
        self.record = replace(self.record, stopping=True)
        if self.state != "member":
            return []
        key = self.keys.server(self.record.server)
        ours = Compare(key, "lease", "=", self.lease)
        return [KvCall(STOPPING_REF, Txn((ours,), (Put(key, self.record.to_bytes(), self.lease),)))]

    def leave(self) -> list[Effect]:
        """Orderly end: everything under the lease disappears at once."""
        self.state = "left"
        return [KvCall(REVOKE_REF, LeaseRevoke(self.lease))] if self.lease else []

    def on_timer(self, now_ns: int) -> list[Effect]:
        """Renew, or try again what has failed."""
        if self.state == "member":
            return self._refresh(now_ns)
        if self.state == "registering":
            return self._register(now_ns)
        return self.start(now_ns) if self.state == "granting" else []

    def on_answer(self, event: KvAnswered | KvFailed, now_ns: int) -> list[Effect]:
        """What became of a call of ours."""
        self._busy.discard(event.ref)
        if self.state == "left" or event.ref in (STOPPING_REF, REVOKE_REF):
            return []
        if isinstance(event, KvFailed):
            why = {"error": str(event.error)}
            return [Log("warning", "etcd call failed", why), self._timer(now_ns + RETRY_NS)]
        match event.result:
            case Leased(lease, ttl_s):
                self.record = replace(self.record, lease=lease)
                self._ttl_ns = ttl_s * SECOND_NS
                self.deadline_ns = self._sent_ns[GRANT_REF] + self._valid_ns
                self.state = "registering"
                return self._register(now_ns)
            case TxnResult() as result if self.state == "registering":
                return self._on_registered(result, now_ns)
            case LeaseTtl(lease) if lease != self.lease:  # one that we have given up
                return [self._timer(now_ns + RETRY_NS)]
            case LeaseTtl(_, ttl_s) if ttl_s > 0:
                self.deadline_ns = self._sent_ns[REFRESH_REF] + self._valid_ns
                return [self._timer(now_ns + self._ttl_ns // 3)]
            case LeaseTtl():
                lost = Log("error", "lease lost", {"lease": self.lease})
                return [lost, *self.start(now_ns)]
            case _:
                return []

    def _register(self, now_ns: int) -> list[Effect]:
        key = self.keys.server(self.record.server)
        value = self.record.to_bytes()
        txn = Txn((absent(key),), (Put(key, value, self.lease),), (Read(key),))
        nonce = str(self.record.process).encode()
        return [*self._call(REGISTER_REF, txn, now_ns, nonce), *self._refresh(now_ns)]

    def _refresh(self, now_ns: int) -> list[Effect]:
        return self._call(REFRESH_REF, LeaseRefresh(self.lease), now_ns)

    def _call(self, ref: int, request: Request, now_ns: int, nonce: bytes = b"") -> list[Effect]:
        if ref in self._busy:
            return []  # its answer sets the timer
        self._busy.add(ref)
        self._sent_ns[ref] = now_ns
        return [KvCall(ref, request, nonce)]

    def _on_registered(self, result: TxnResult, now_ns: int) -> list[Effect]:
        held = _held(result)
        ours = held is not None and held.process == self.record.process
        if result.succeeded or (held is not None and ours and held.lease == self.lease):
            self.state = "member"  # perhaps by an earlier attempt that was carried out late
            return [
                Log("info", "registered", {"server": self.record.server, "lease": self.lease}),
                self._timer(now_ns + self._ttl_ns // 3),
            ]
        if held is not None and ours:  # under a lease that we have given up
            return [KvCall(REVOKE_REF, LeaseRevoke(held.lease)), self._timer(now_ns + RETRY_NS)]
        waiting = Log(
            "warning",
            "name taken",
            {
                "server": self.record.server,
                "remedy": "another process with this name holds a lease; waiting until it ends "
                "(if that one is to stay, start this one with another --name)",
            },
        )
        return [waiting, self._timer(now_ns + RETRY_NS)]

    def _timer(self, at_ns: int) -> SetTimer:
        return SetTimer(TIMER, at_ns)


def _held(result: TxnResult) -> ServerRecord | None:
    """The record that a refused registration has found under our name, if it can be read."""
    if result.succeeded or not result.results or not isinstance(result.results[0], ReadResult):
        return None
    for item in result.results[0].items:
        try:
            return ServerRecord.from_bytes(item.value, item.key)
        except BadInput:
            return None
    return None
