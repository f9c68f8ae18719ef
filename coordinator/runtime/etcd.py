"""The real store: a client of etcd's v3 API (3.4 or later) that survives its members.

It implements `coordinator.kv.Kv`. What it adds to the bare API: several endpoints with failover,
short attempts within a deadline, repeats only where they are safe (`coordinator.repeats`), watches
that resume, logging in again when a token has expired, and noticing a store that was replaced.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator.kv import (
    DEFAULT_DEADLINE_S,
    Leased,
    LeaseGrant,
    OnWatch,
    Read,
    ReadResult,
    Txn,
    TxnResult,
)
from resilient_ps.coordinator.repeats import check_nonce, may_repeat, nonce_puts, writes_nothing
from resilient_ps.coordinator.runtime.calls import Attempt, Call, Caller
from resilient_ps.coordinator.runtime.codec import decode_read, decode_txn, encode_read, encode_txn
from resilient_ps.coordinator.runtime.endpoints import Endpoints, Tls
from resilient_ps.coordinator.runtime.login import Login
from resilient_ps.coordinator.runtime.pin import Pin
from resilient_ps.coordinator.runtime.watcher import SILENCE_LIMIT_S, Watcher
from resilient_ps.errors import BadInput, DeadlineExceeded, Unavailable

MAX_WATCHES = 256


class EtcdKv:
    """A client of the etcd cluster at `endpoints` (`host:port`, a list or comma-separated).

    `ca`, `cert`, `key` are PEM files for TLS; `user` and `password` log in. One attempt at a member
    takes at most `attempt_s` (up to 1.0), a call its own `deadline_s`. A watch leaves a member that
    has been silent for `silence_limit_s`. Connects on first use; safe to use from many threads.

    When an answer is lost: reads, grants, refreshes and revocations are repeated. A transaction is
    repeated if it cannot succeed twice, that is when its success changes a key that it guards by
    `absent` or `unchanged`. If the repeat then finds the guards false, the first attempt may have
    been the reason: given a `nonce` that is part of a value which it writes, the transaction is
    recognised by reading that key (`TxnResult.recognised`); without it, or when the key has been
    overwritten since, `DeadlineExceeded` says that the outcome is unknown. An unguarded write is
    never repeated after a lost answer.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        ca: str | Path | None = None,
        cert: str | Path | None = None,
        key: str | Path | None = None,
        user: str | None = None,
        password: str | None = None,
        attempt_s: float = 1.0,
        silence_limit_s: float = SILENCE_LIMIT_S,
    ) -> None:
        self._login = Login(user, password)
        self._endpoints = Endpoints(endpoints, tls=_tls(ca, cert, key))
        self._pin = Pin()
        self._closing = threading.Event()
        self._caller = Caller(self._endpoints, self._login, self._pin, self._closing, attempt_s)
        self._silence_limit_s = silence_limit_s
        self._lock = threading.Lock()
        self._watchers: list[Watcher] = []

    @property
    def endpoints(self) -> tuple[str, ...]:
        return self._endpoints.addresses

    def txn(
        self, txn: Txn, *, deadline_s: float = DEFAULT_DEADLINE_S, nonce: bytes = b""
    ) -> TxnResult:
        if nonce:
            check_nonce(txn, nonce)
        until_s = time.monotonic() + deadline_s
        message = encode_txn(txn)
        call: Call[Any] = Call(
            _describe_txn(txn),
            lambda attempt: attempt.member.kv.Txn(
                message, timeout=attempt.timeout_s, metadata=attempt.metadata
            ),
            deadline_s,
            repeatable=may_repeat(txn),
            has_effect=not writes_nothing(txn),
            linearizable=True,
        )
        try:
            result = decode_txn(self._caller.run(call))
        except DeadlineExceeded as lost:
            return self._recognise(txn, nonce, until_s, lost)
        if result.succeeded or not (call.doubtful and call.has_effect):
            return result
        refused = DeadlineExceeded(
            f"{call.what} at etcd {self._endpoints}: outcome unknown, the answer was lost and a "
            f"repeat found its guards false ({call.reason}); read the current state and decide "
            "anew, or pass a nonce"
        )
        return self._recognise(txn, nonce, until_s, refused)

    def read(
        self,
        key: bytes,
        *,
        prefix: bool = False,
        limit: int = 0,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> ReadResult:
        message = encode_read(Read(key, prefix=prefix, limit=limit))
        call: Call[Any] = Call(
            f"read of {key!r}",
            lambda attempt: attempt.member.kv.Range(
                message, timeout=attempt.timeout_s, metadata=attempt.metadata
            ),
            deadline_s,
            has_effect=False,
            linearizable=True,
        )
        return decode_read(self._caller.run(call))

    def grant(self, ttl_s: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Leased:
        LeaseGrant(ttl_s)  # validates
        # Our own choice of number makes a repeat recognisable: "already exists" is our own grant.
        lease = secrets.randbelow(2**62) + 1
        message = rpc.LeaseGrantRequest(TTL=ttl_s, ID=lease)

        def send(attempt: Attempt) -> Any:
            try:
                return attempt.member.lease.LeaseGrant(
                    message, timeout=attempt.timeout_s, metadata=attempt.metadata
                )
            except grpc.RpcError as error:
                if attempt.doubtful and "lease already exists" in _details(error):
                    return _keep_alive(attempt, lease)
                raise

        answer = self._caller.run(Call("lease grant", send, deadline_s))
        if not answer.TTL:
            raise DeadlineExceeded(f"lease grant at etcd {self._endpoints}: it ended already")
        return Leased(lease, answer.TTL)

    def refresh(self, lease: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> int:
        call: Call[Any] = Call(
            f"refresh of lease {lease}", lambda attempt: _keep_alive(attempt, lease), deadline_s
        )
        return max(int(self._caller.run(call).TTL), 0)

    def revoke(self, lease: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        message = rpc.LeaseRevokeRequest(ID=lease)

        def send(attempt: Attempt) -> Any:
            try:
                return attempt.member.lease.LeaseRevoke(
                    message, timeout=attempt.timeout_s, metadata=attempt.metadata
                )
            except grpc.RpcError as error:
                if attempt.doubtful and "lease not found" in _details(error):
                    return None  # the attempt whose answer was lost, or time, has ended it
                raise

        self._caller.run(Call(f"revocation of lease {lease}", send, deadline_s))

    def watch(self, prefix: bytes, from_revision: int, on_event: OnWatch) -> Watcher:
        if from_revision < 0:
            raise BadInput(f"watch of {prefix!r} from revision {from_revision}; use 0 for now")
        if not from_revision:
            from_revision = self.read(prefix, prefix=True, limit=1).revision + 1
        with self._lock:
            if self._closing.is_set():
                raise Unavailable(f"watch of {prefix!r}: this client was closed")
            self._watchers = [one for one in self._watchers if not one.is_closed]
            if len(self._watchers) >= MAX_WATCHES:
                raise BadInput(f"more than {MAX_WATCHES} watches on one client: close some")
            watcher = Watcher(
                self._endpoints,
                self._login,
                self._pin,
                lambda under: self.read(under, prefix=True),
                prefix=prefix,
                next_revision=from_revision,
                on_event=on_event,
                silence_limit_s=self._silence_limit_s,
            )
            self._watchers.append(watcher)
        return watcher

    def identity(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> int:
        return int(self._status(deadline_s).header.cluster_id)

    def leads(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> bool:
        """Whether the member that answers is the leader. For clients of a single endpoint."""
        status = self._status(deadline_s)
        return bool(status.leader) and status.leader == status.header.member_id

    def _status(self, deadline_s: float) -> Any:
        call: Call[Any] = Call(
            "status",
            lambda attempt: attempt.member.maintenance.Status(
                rpc.StatusRequest(), timeout=attempt.timeout_s, metadata=attempt.metadata
            ),
            deadline_s,
            has_effect=False,
        )
        return self._caller.run(call)

    def compact(self, revision: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Forgets the history below `revision`. `BadInput` when it is compacted already."""
        message = rpc.CompactionRequest(revision=revision)
        call: Call[Any] = Call(
            f"compaction at {revision}",
            lambda attempt: attempt.member.kv.Compact(
                message, timeout=attempt.timeout_s, metadata=attempt.metadata
            ),
            deadline_s,
        )
        self._caller.run(call)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.close()
        self._endpoints.close()

    def _recognise(
        self, txn: Txn, nonce: bytes, until_s: float, unknown: DeadlineExceeded
    ) -> TxnResult:
        """The success of a transaction whose answer was lost, found by its nonce; else raises."""
        if not nonce:
            raise unknown
        for op in nonce_puts(txn, nonce):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                found = self.read(op.key, deadline_s=left_s)
            except Unavailable:
                break
            for item in found.items:
                if item.value == op.value:
                    nothing = (None,) * len(txn.success)
                    return TxnResult(
                        succeeded=True, revision=item.mod_revision, results=nothing, recognised=True
                    )
        raise unknown


def _keep_alive(attempt: Attempt, lease: int) -> Any:
    """One refresh; etcd has it only as a stream."""
    stream = attempt.member.lease.LeaseKeepAlive(
        iter([rpc.LeaseKeepAliveRequest(ID=lease)]),
        timeout=attempt.timeout_s,
        metadata=attempt.metadata,
    )
    try:
        answer = next(stream, None)
    finally:
        stream.cancel()
    if answer is None:
        raise Unavailable(f"refresh of lease {lease}: {attempt.member.address} closed the stream")
    return answer


def _details(error: Any) -> str:
    return error.details() or ""


def _describe_txn(txn: Txn) -> str:
    keys = [op.key for op in (*txn.success, *txn.failure)]
    shown = ", ".join(repr(key) for key in keys[:3])
    return f"transaction on {shown}{', ...' if len(keys) > 3 else ''}"


def _tls(ca: str | Path | None, cert: str | Path | None, key: str | Path | None) -> Tls | None:
    if ca is None:
        if cert or key:
            raise BadInput("a client certificate for etcd needs `ca` too")
        return None
    return Tls(Path(ca), Path(cert) if cert else None, Path(key) if key else None)
