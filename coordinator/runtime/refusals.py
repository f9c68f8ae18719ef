"""What a failed gRPC call means: may it be tried again, may it have taken effect, what to tell.

Only what is *known* not to have taken effect counts as such; every doubt is `LOST`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any

import grpc

from resilient_ps.errors import BadInput, NotFound, ResilientPsError, Unavailable


class Verdict(Enum):
    NOT_APPLIED = auto()  # it had no effect; another member may do it
    LOST = auto()  # it may have had an effect, or may still have it
    LOGIN = auto()  # it had no effect: the token is too old; log in again and repeat
    FINAL = auto()  # it had no effect, and a repeat would be refused as well


_NOT_SENT = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "DNS resolution failed",
    "etcdserver: no leader",
    "etcdserver: not capable",
)
_OLD_TOKEN = ("invalid auth token", "auth: revision in header is old")
_FINAL_CODES = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


def judge(error: Any) -> Verdict:
    """`error`: a `grpc.RpcError` that a call raised."""
    code, text = error.code(), error.details() or ""
    if any(phrase in text for phrase in _OLD_TOKEN):
        return Verdict.LOGIN
    if code is grpc.StatusCode.UNAVAILABLE and any(phrase in text for phrase in _NOT_SENT):
        return Verdict.NOT_APPLIED
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "too many requests" in text:
        return Verdict.NOT_APPLIED
    return Verdict.FINAL if code in _FINAL_CODES else Verdict.LOST


def describe(error: Any) -> str:
    return f"{error.code().name}: {error.details() or 'no details'}"


def translate(what: str, where: str, error: Any) -> ResilientPsError:
    """A `FINAL` error in our words: what was asked, of whom, why not, and what to do."""
    code, text = error.code(), error.details() or ""
    place = f"{what} at etcd {where}: {text}"
    if "lease not found" in text or code is grpc.StatusCode.NOT_FOUND:
        return NotFound(f"{place}; the lease has expired or was revoked: grant a new one")
    if "database space exceeded" in text:
        return Unavailable(f"{place}; etcd is full: compact and defragment it, disarm its alarm")
    if code is grpc.StatusCode.PERMISSION_DENIED:
        return BadInput(f"{place}; grant this user the key prefix, or use another user")
    if "authentication failed" in text or "user name is empty" in text:
        return BadInput(f"{place}; check the user and password for etcd")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return BadInput(f"{place}; this address does not speak etcd's API version 3")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return BadInput(f"{place}; ask for less in one call")
    return BadInput(place)
