"""One call of a machine to the blocking coordination client, and what its outcome means."""

from __future__ import annotations

from resilient_ps.coordinator.kv import (
    Answer,
    Kv,
    KvAnswered,
    KvCall,
    KvFailed,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseRevoked,
    LeaseTtl,
    Read,
    Txn,
)
from resilient_ps.errors import BadInput, NotFound, ResilientPsError, Unavailable


def outcome(kv: Kv, call: KvCall, deadline_s: float) -> KvAnswered | KvFailed:
    """Perform `call`. A failure is `unknown` unless it is certain that nothing has changed.

    Only errors of the client are failures; what else it raises is a bug, and passes through.
    """
    try:
        return KvAnswered(call.ref, _perform(kv, call, deadline_s))
    except ResilientPsError as error:
        harmless = isinstance(error, (Unavailable, BadInput, NotFound))
        return KvFailed(call.ref, error, unknown=not harmless)


def _perform(kv: Kv, call: KvCall, deadline_s: float) -> Answer:
    request = call.request
    match request:
        case Txn():
            return kv.txn(request, deadline_s=deadline_s, nonce=call.nonce)
        case Read():
            return kv.read(
                request.key, prefix=request.prefix, limit=request.limit, deadline_s=deadline_s
            )
        case LeaseGrant():
            return kv.grant(request.ttl_s, deadline_s=deadline_s)
        case LeaseRefresh():
            return LeaseTtl(request.lease, kv.refresh(request.lease, deadline_s=deadline_s))
        case LeaseRevoke():
            kv.revoke(request.lease, deadline_s=deadline_s)
            return LeaseRevoked(request.lease)
