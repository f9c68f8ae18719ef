"""The vocabulary of the coordination store: etcd's key-value model as plain data.

Keys and values are `bytes`. Every change of the store makes one *revision*, a number that only
grows; a transaction is one revision however many keys it writes. A *lease* is a promise to be
alive: keys that are attached to it disappear when it is not refreshed within its TTL. A *watch*
delivers every change of the keys under a prefix, in order, from a revision on.

Nothing here does I/O, so state machines may use it: they emit `KvCall` and `KvWatch` as effects
and take `KvAnswered`, `KvFailed`, `KvChanged` and `KvReset` as events. Blocking code uses `Kv`,
which the in-memory model's client and the etcd client implement, and the four functions over it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from resilient_ps.errors import BadInput, ResilientPsError

MAX_TXN_OPS = 128
"""Most compares, and most operations in one branch, of a transaction (etcd's default)."""
MAX_TXN_BYTES = 1_572_864
"""Largest transaction, encoded (etcd's default of 1.5 MiB)."""
MAX_LEASE_TTL_S = 9_000_000_000
MIN_NONCE_BYTES = 8
DEFAULT_DEADLINE_S = 5.0

_BYTES_PER_OP = 40  # at least what the encoding adds to keys and values: never too few
_BYTES_PER_TXN = 128

Target: TypeAlias = Literal["value", "version", "create", "mod", "lease"]
Operator: TypeAlias = Literal["=", "!=", "<", ">"]


# --- what is stored, and what is asked ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A stored key. In a delete event only `key` and `mod_revision` (of the deletion) are set."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """A guard: `target of key op operand`. `value` takes bytes, all other targets an int.

    A missing key has version, revisions and lease 0; comparing its value is always false.
    """

    key: bytes
    target: Target
    op: Operator
    operand: bytes | int

    def __post_init__(self) -> None:
        _check_key(self.key)
        if isinstance(self.operand, bytes) != (self.target == "value"):
            raise BadInput(
                f"compare of {self.key!r}: target {self.target!r} does not take "
                f"{self.operand!r}; 'value' takes bytes, every other target an int"
            )


def absent(key: bytes) -> Compare:
    """True when the key does not exist."""
    return Compare(key, "create", "=", 0)


def unchanged(key: bytes, mod_revision: int) -> Compare:
    """True when the key was last written at `mod_revision` (0: it never was)."""
    return Compare(key, "mod", "=", mod_revision)


def has_value(key: bytes, value: bytes) -> Compare:
    """True when the key exists with this value."""
    return Compare(key, "value", "=", value)


@dataclass(frozen=True, slots=True)
class Put:
    key: bytes
    value: bytes
    lease: int = 0

    def __post_init__(self) -> None:
        _check_key(self.key)


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes one key, or with `prefix` all keys that begin with `key`."""

    key: bytes
    prefix: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_key(self.key, may_be_empty=self.prefix)


@dataclass(frozen=True, slots=True)
class Read:
    """Reads one key, or with `prefix` all that begin with `key`, in key order.

    `limit` is the largest number of keys in the answer; 0 means all.
    """

    key: bytes
    prefix: bool = field(default=False, kw_only=True)
    limit: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        _check_key(self.key, may_be_empty=self.prefix)
        if self.limit < 0:
            raise BadInput(f"read of {self.key!r}: limit {self.limit} is negative; 0 means all")


Op: TypeAlias = Put | Delete | Read


@dataclass(frozen=True, slots=True)
class Txn:
    """All `compares` true: do `success`, else do `failure`; atomically, as one revision.

    Refused with `BadInput`: more than `MAX_TXN_OPS` entries in one of the three lists, more than
    `MAX_TXN_BYTES`, and a branch that puts a key twice or puts a key that it also deletes.
    """

    compares: tuple[Compare, ...]
    success: tuple[Op, ...]
    failure: tuple[Op, ...] = ()

    def __post_init__(self) -> None:
        for name, entries in (
            ("compares", self.compares),
            ("success", self.success),
            ("failure", self.failure),
        ):
            if len(entries) > MAX_TXN_OPS:
                raise BadInput(
                    f"transaction with {len(entries)} entries in `{name}`; at most {MAX_TXN_OPS} "
                    "are allowed: split it"
                )
        _check_branch(self.success)
        _check_branch(self.failure)
        size = txn_bytes(self)
        if size > MAX_TXN_BYTES:
            raise BadInput(
                f"transaction of about {size} bytes; at most {MAX_TXN_BYTES} are allowed: "
                "split it, or store less per key"
            )


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """Asks for a lease of `ttl_s` seconds; the store may grant a longer one."""

    ttl_s: int

    def __post_init__(self) -> None:
        if not 1 <= self.ttl_s <= MAX_LEASE_TTL_S:
            raise BadInput(f"lease TTL of {self.ttl_s} s; use 1 to {MAX_LEASE_TTL_S}")


@dataclass(frozen=True, slots=True)
class LeaseRefresh:
    lease: int


@dataclass(frozen=True, slots=True)
class LeaseRevoke:
    lease: int


Request: TypeAlias = Txn | Read | LeaseGrant | LeaseRefresh | LeaseRevoke


# --- what is answered --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`items` in key order, as of the store's `revision`."""

    items: tuple[KeyValue, ...]
    revision: int


OpResult: TypeAlias = ReadResult | int | None
"""Of a read its result, of a delete the number of deleted keys, of a put nothing.

A delete's number is None too when the transaction's own answer was lost (see `TxnResult`).
"""


@dataclass(frozen=True, slots=True)
class TxnResult:
    """`results` belongs to the branch that ran. `recognised`: the answer of the first attempt was
    lost and the transaction was found applied by its nonce."""

    succeeded: bool
    revision: int
    results: tuple[OpResult, ...]
    recognised: bool = False


@dataclass(frozen=True, slots=True)
class Leased:
    """A granted lease and its real TTL, which may be longer than the one asked for."""

    lease: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class LeaseTtl:
    """The answer to `LeaseRefresh`: seconds until it ends; 0 means that the lease is lost."""

    lease: int
    ttl_s: int


@dataclass(frozen=True, slots=True)
class LeaseRevoked:
    lease: int


Answer: TypeAlias = TxnResult | ReadResult | Leased | LeaseTtl | LeaseRevoked


# --- watches -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    kind: Literal["put", "delete"]
    item: KeyValue


@dataclass(frozen=True, slots=True)
class WatchBatch:
    """The events of exactly one revision under the watched prefix, in the order of their ops."""

    revision: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """The history that a watch needed was compacted away: this is all that exists under the prefix
    at `revision`. What the consumer knows and `items` lacks has been deleted. Batches after it
    have larger revisions."""

    items: tuple[KeyValue, ...]
    revision: int


OnWatch: TypeAlias = Callable[[WatchBatch | Reset], None]


class WatchHandle(Protocol):
    def close(self) -> None:
        """Ends the watch. No callback begins after it has returned."""


# --- effects and events of state machines ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvCall:
    """Effect: ask the store; the answer comes as `KvAnswered` or `KvFailed` with the same ref.

    A non-empty `nonce` has the meaning that it has in `Kv.txn`.
    """

    ref: int
    request: Request
    nonce: bytes = b""


@dataclass(frozen=True, slots=True)
class KvWatch:
    """Effect: deliver changes under `prefix` from `from_revision` on, as `KvChanged`/`KvReset`."""

    ref: int
    prefix: bytes
    from_revision: int


@dataclass(frozen=True, slots=True)
class KvAnswered:
    ref: int
    result: Answer


@dataclass(frozen=True, slots=True)
class KvFailed:
    """`unknown`: the request may have taken effect, or still may."""

    ref: int
    error: ResilientPsError
    unknown: bool


@dataclass(frozen=True, slots=True)
class KvChanged:
    ref: int
    batch: WatchBatch


@dataclass(frozen=True, slots=True)
class KvReset:
    """As `Reset`: the consumer compares with what it knows."""

    ref: int
    items: tuple[KeyValue, ...]
    revision: int


# --- the blocking interface --------------------------------------------------------------------


class Kv(Protocol):
    """A client of the store. Every method may be called from any thread, blocks for at most
    `deadline_s`, and raises

    * `Unavailable`: the store could not be reached; the call had no effect;
    * `DeadlineExceeded`: the call may have had its effect, or may still have it;
    * `BadInput`, `NotFound`: the call is wrong, or names a lease that does not exist;
    * `Reopen`: the store is not the one that this client was opened on (its data was replaced).
    """

    def txn(
        self, txn: Txn, *, deadline_s: float = DEFAULT_DEADLINE_S, nonce: bytes = b""
    ) -> TxnResult:
        """Runs a transaction. `nonce`: unique bytes (at least `MIN_NONCE_BYTES`) inside a value
        that the success branch puts; by it a transaction whose answer was lost is recognised."""

    def read(
        self,
        key: bytes,
        *,
        prefix: bool = False,
        limit: int = 0,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> ReadResult:
        """A linearizable read: it shows everything that was acknowledged before it began."""

    def grant(self, ttl_s: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> Leased: ...

    def refresh(self, lease: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> int:
        """Extends the lease by its TTL, counted from some moment after this call began. Returns
        the seconds until it ends; 0 means that the lease is lost for good."""

    def revoke(self, lease: int, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Ends the lease and deletes its keys at once. `NotFound` when it had ended already."""

    def watch(self, prefix: bytes, from_revision: int, on_event: OnWatch) -> WatchHandle:
        """Delivers every change under `prefix` since `from_revision` (0: from now), each once and
        in order, on a thread of the client. `on_event` should return soon."""

    def identity(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> int:
        """The cluster id: another one means another store."""

    def close(self) -> None:
        """Ends all watches and calls, promptly. The client cannot be used afterwards."""


def put(kv: Kv, key: bytes, value: bytes, *, lease: int = 0) -> int:
    """Writes whatever was there before; returns the new revision."""
    return kv.txn(Txn((), (Put(key, value, lease),))).revision


def create(kv: Kv, key: bytes, value: bytes, *, lease: int = 0, nonce: bytes = b"") -> int | None:
    """Writes if the key is absent; returns the new revision, or None when the key exists."""
    result = kv.txn(Txn((absent(key),), (Put(key, value, lease),)), nonce=nonce)
    return result.revision if result.succeeded else None


def replace(
    kv: Kv, key: bytes, value: bytes, mod_revision: int, *, lease: int = 0, nonce: bytes = b""
) -> int | None:
    """Writes if the key was last written at `mod_revision`; the new revision, or None if not."""
    result = kv.txn(Txn((unchanged(key, mod_revision),), (Put(key, value, lease),)), nonce=nonce)
    return result.revision if result.succeeded else None


def delete(kv: Kv, key: bytes, *, prefix: bool = False) -> int:
    """Deletes the key, or all under the prefix; returns how many there were."""
    (count,) = kv.txn(Txn((), (Delete(key, prefix=prefix),))).results
    assert isinstance(count, int)
    return count


# --- validation --------------------------------------------------------------------------------


def covers(op: Delete | Read, key: bytes) -> bool:
    """Whether the delete or read includes the key."""
    return key.startswith(op.key) if op.prefix else key == op.key


def txn_bytes(txn: Txn) -> int:
    """An upper bound of the transaction's encoded size."""
    total = _BYTES_PER_TXN
    for compare in txn.compares:
        operand = len(compare.operand) if isinstance(compare.operand, bytes) else 0
        total += _BYTES_PER_OP + len(compare.key) + operand
    for op in (*txn.success, *txn.failure):
        total += _BYTES_PER_OP + len(op.key) + (len(op.value) if isinstance(op, Put) else 0)
    return total


def _check_key(key: bytes, *, may_be_empty: bool = False) -> None:
    if not key and not may_be_empty:
        raise BadInput("an empty key; only a prefix may be empty, which then means all keys")


def _check_branch(branch: tuple[Op, ...]) -> None:
    puts = [op.key for op in branch if isinstance(op, Put)]
    deletes = [op for op in branch if isinstance(op, Delete)]
    if len(set(puts)) != len(puts):
        twice = min(key for key in puts if puts.count(key) > 1)
        raise BadInput(f"key {twice!r} is put twice in one transaction: put it once")
    for key in puts:
        if any(covers(op, key) for op in deletes):
            raise BadInput(f"key {key!r} is put and deleted in one transaction: do one of both")
