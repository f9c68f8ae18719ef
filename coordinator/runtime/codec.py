"""Between the key-value vocabulary and etcd's protobuf messages, in both directions.

The client encodes requests and decodes answers; the embedded coordination process does the
opposite. A message that the vocabulary cannot express is refused by name (`Unsupported`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from etcd3 import etcdrpc as rpc
from etcd3.etcdrpc import kv_pb2

from resilient_ps.coordinator.kv import (
    Compare,
    Delete,
    Event,
    KeyValue,
    Op,
    Operator,
    OpResult,
    Put,
    Read,
    ReadResult,
    Target,
    Txn,
    TxnResult,
    WatchBatch,
)
from resilient_ps.errors import BadInput

_TARGETS: dict[str, int] = {"version": 0, "create": 1, "mod": 2, "value": 3, "lease": 4}
_TARGET_FIELDS: dict[str, str] = {
    "version": "version",
    "create": "create_revision",
    "mod": "mod_revision",
    "value": "value",
    "lease": "lease",
}
_OPERATORS: dict[str, int] = {"=": 0, ">": 1, "<": 2, "!=": 3}
_TARGET_NAMES = {number: name for name, number in _TARGETS.items()}
_OPERATOR_NAMES = {number: name for name, number in _OPERATORS.items()}
_EVENT_KINDS = ("put", "delete")
_ALL_KEYS = b"\0"


class Unsupported(BadInput):
    """A request of etcd's API that the embedded coordination process does not offer."""


def prefix_end(prefix: bytes) -> bytes:
    """The `range_end` that makes a range of all keys with this prefix."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return _ALL_KEYS  # in etcd: no upper end
    return stripped[:-1] + bytes([stripped[-1] + 1])


def encode_range(key: bytes, *, prefix: bool) -> tuple[bytes, bytes]:
    """(key, range_end) of etcd."""
    return (key or _ALL_KEYS, prefix_end(key)) if prefix else (key, b"")


def decode_range(key: bytes, range_end: bytes) -> tuple[bytes, bool]:
    """(key, prefix) of the vocabulary."""
    if not range_end:
        return key, False
    if key == range_end == _ALL_KEYS:
        return b"", True
    if range_end == prefix_end(key):
        return key, True
    raise Unsupported(
        f"the range {key!r} to {range_end!r}: this coordination process knows single keys and "
        "prefixes; use those, or a real etcd"
    )


# --- as a client -------------------------------------------------------------------------------


def encode_read(read: Read) -> Any:
    key, range_end = encode_range(read.key, prefix=read.prefix)
    return rpc.RangeRequest(key=key, range_end=range_end, limit=read.limit)


def encode_txn(txn: Txn) -> Any:
    return rpc.TxnRequest(
        compare=[_encode_compare(compare) for compare in txn.compares],
        success=[_encode_op(op) for op in txn.success],
        failure=[_encode_op(op) for op in txn.failure],
    )


def decode_read(message: Any) -> ReadResult:
    return ReadResult(tuple(decode_item(kv) for kv in message.kvs), message.header.revision)


def decode_txn(message: Any) -> TxnResult:
    results = tuple(_decode_result(response) for response in message.responses)
    return TxnResult(message.succeeded, message.header.revision, results)


def decode_item(kv: Any) -> KeyValue:
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def decode_events(events: Sequence[Any]) -> list[WatchBatch]:
    """One batch per revision; etcd sends them in order and never splits a revision."""
    batches: dict[int, list[Event]] = {}
    for event in events:
        item = decode_item(event.kv)
        batches.setdefault(item.mod_revision, []).append(
            Event("delete" if event.type else "put", item)
        )
    return [WatchBatch(revision, tuple(group)) for revision, group in batches.items()]


def _encode_compare(compare: Compare) -> Any:
    message = rpc.Compare(
        key=compare.key, target=_TARGETS[compare.target], result=_OPERATORS[compare.op]
    )
    setattr(message, _TARGET_FIELDS[compare.target], compare.operand)
    return message


def _encode_op(op: Op) -> Any:
    if isinstance(op, Put):
        return rpc.RequestOp(request_put=rpc.PutRequest(key=op.key, value=op.value, lease=op.lease))
    if isinstance(op, Delete):
        key, range_end = encode_range(op.key, prefix=op.prefix)
        return rpc.RequestOp(
            request_delete_range=rpc.DeleteRangeRequest(key=key, range_end=range_end)
        )
    return rpc.RequestOp(request_range=encode_read(op))


def _decode_result(response: Any) -> OpResult:
    kind = response.WhichOneof("response")
    if kind == "response_range":
        return decode_read(response.response_range)
    return int(response.response_delete_range.deleted) if kind == "response_delete_range" else None


# --- as a server -------------------------------------------------------------------------------


def decode_range_request(message: Any) -> Read:
    """`serializable` is accepted: a single member's reads are always linearizable."""
    for name in ("revision", "sort_order", "min_mod_revision", "max_mod_revision"):
        _refuse(message, name)
    for name in ("min_create_revision", "max_create_revision"):
        _refuse(message, name)
    key, prefix = decode_range(message.key, message.range_end)
    return Read(key, prefix=prefix, limit=message.limit)


def decode_put_request(message: Any) -> Put:
    for name in ("prev_kv", "ignore_value", "ignore_lease"):
        _refuse(message, name)
    return Put(message.key, message.value, message.lease)


def decode_delete_request(message: Any) -> Delete:
    _refuse(message, "prev_kv")
    key, prefix = decode_range(message.key, message.range_end)
    return Delete(key, prefix=prefix)


def decode_txn_request(message: Any) -> Txn:
    return Txn(
        tuple(_decode_compare(compare) for compare in message.compare),
        tuple(_decode_op(op) for op in message.success),
        tuple(_decode_op(op) for op in message.failure),
    )


def encode_item(item: KeyValue) -> Any:
    return kv_pb2.KeyValue(
        key=item.key,
        value=item.value,
        create_revision=item.create_revision,
        mod_revision=item.mod_revision,
        version=item.version,
        lease=item.lease,
    )


def encode_event(event: Event) -> Any:
    return kv_pb2.Event(type=_EVENT_KINDS.index(event.kind), kv=encode_item(event.item))


def encode_result(op: Op, result: OpResult, header: Any) -> Any:
    if isinstance(result, ReadResult):
        found = rpc.RangeResponse(
            header=rpc.ResponseHeader(revision=result.revision),
            kvs=[encode_item(item) for item in result.items],
            count=len(result.items),
        )
        return rpc.ResponseOp(response_range=found)
    if isinstance(op, Put):
        return rpc.ResponseOp(response_put=rpc.PutResponse(header=header))
    deleted = rpc.DeleteRangeResponse(header=header, deleted=result)
    return rpc.ResponseOp(response_delete_range=deleted)


def _decode_compare(message: Any) -> Compare:
    _refuse(message, "range_end")
    target, op = _TARGET_NAMES.get(message.target), _OPERATOR_NAMES.get(message.result)
    if target is None or op is None:
        raise Unsupported(f"a compare of target {message.target}, result {message.result}")
    operand = getattr(message, _TARGET_FIELDS[target])
    return Compare(message.key, cast(Target, target), cast(Operator, op), operand)


def _decode_op(message: Any) -> Op:
    kind = message.WhichOneof("request")
    if kind == "request_put":
        return decode_put_request(message.request_put)
    if kind == "request_delete_range":
        return decode_delete_request(message.request_delete_range)
    if kind == "request_range":
        return decode_range_request(message.request_range)
    raise Unsupported("a nested or empty operation in a transaction")


def _refuse(message: Any, name: str) -> None:
    if getattr(message, name):
        raise Unsupported(
            f"`{name}` in {message.DESCRIPTOR.name}: this coordination process does not offer it; "
            "use a real etcd"
        )
