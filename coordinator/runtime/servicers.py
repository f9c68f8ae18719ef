"""etcd's gRPC API, the part that this project and `etcdctl` use, over the in-memory model.

Everything runs on one asyncio loop, so the model needs no lock. What is not offered is refused with
`UNIMPLEMENTED` and the name of the field or call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator import kv
from resilient_ps.coordinator.memory import NS_PER_S, MemoryKv
from resilient_ps.coordinator.runtime.codec import (
    Unsupported,
    decode_delete_request,
    decode_put_request,
    decode_range_request,
    decode_txn_request,
    encode_item,
    encode_result,
)
from resilient_ps.errors import BadInput, NotFound, ResilientPsError, Unavailable

MEMBER_ID = 1
MAX_REQUEST_BYTES = kv.MAX_TXN_BYTES + 512 * 1024
"""Larger messages are refused before they are read (etcd's margin for its own overhead)."""

_LONGEST_WAIT_S = 3600.0


class Store:
    """The model, the clock, and who is to be told of changes."""

    def __init__(self, model: MemoryKv) -> None:
        self.model = model
        self._listeners: set[asyncio.Event] = set()
        self._leases_changed = asyncio.Event()
        self._closing = asyncio.Event()

    def header(self) -> Any:
        return rpc.ResponseHeader(
            cluster_id=self.model.cluster_id,
            member_id=MEMBER_ID,
            revision=self.model.revision,
            raft_term=1,
        )

    def listen(self) -> asyncio.Event:
        """An event that is set at every change; give it back with `unlisten`."""
        event = asyncio.Event()
        self._listeners.add(event)
        return event

    def unlisten(self, event: asyncio.Event) -> None:
        self._listeners.discard(event)

    def announce(self) -> None:
        """The model may have changed."""
        self._leases_changed.set()
        for event in self._listeners:
            event.set()

    @property
    def is_closing(self) -> bool:
        return self._closing.is_set()

    def close(self) -> None:
        """Ends all streams in order; unary calls are short."""
        self._closing.set()
        self.announce()

    async def until_closing(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """A stream's requests, until the client has no more or this process stops."""
        incoming = aiter(requests)
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while True:
                request = asyncio.ensure_future(anext(incoming, None))
                try:
                    await asyncio.wait({request, closing}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not request.done():
                        request.cancel()
                if request.cancelled() or not request.done() or request.result() is None:
                    return
                yield request.result()
        finally:
            closing.cancel()

    async def expire_for_ever(self) -> None:
        """Ends leases when they are due, also while nobody calls."""
        while True:
            revision = self.model.revision
            self.model.expire(time.monotonic_ns())
            if self.model.revision != revision:
                self.announce()
            expiry_ns = self.model.next_expiry_ns()
            wait_s = _LONGEST_WAIT_S
            if expiry_ns is not None:
                wait_s = max(expiry_ns - time.monotonic_ns(), 0) / NS_PER_S
            self._leases_changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._leases_changed.wait()
            except TimeoutError:
                pass


async def refuse(context: Any, error: ResilientPsError) -> NoReturn:
    """Ends the call with the status and words that etcd uses, so that clients understand."""
    if isinstance(error, Unsupported):
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(error))
    if isinstance(error, NotFound):
        await context.abort(
            grpc.StatusCode.NOT_FOUND, f"etcdserver: requested lease not found ({error})"
        )
    if isinstance(error, Unavailable):
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"etcdserver: mvcc: database space exceeded ({error})",
        )
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"etcdserver: {error}")
    raise AssertionError("abort raises")


class KvServicer(rpc.KVServicer):  # type: ignore[misc]
    """Range, Put, DeleteRange, Txn, Compact."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def Range(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            read = decode_range_request(request)
            found = self._read(kv.Read(read.key, prefix=read.prefix))
        except ResilientPsError as error:
            await refuse(context, error)
        shown = found.items[: read.limit] if read.limit else found.items
        answer = rpc.RangeResponse(
            header=self._store.header(), count=len(found.items), more=len(shown) < len(found.items)
        )
        if not request.count_only:
            answer.kvs.extend(encode_item(item) for item in shown)
        if request.keys_only:
            for item in answer.kvs:
                item.value = b""
        return answer

    async def Put(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._run(context, lambda: kv.Txn((), (decode_put_request(request),)))
        return rpc.PutResponse(header=self._store.header())

    async def DeleteRange(self, request: Any, context: Any) -> Any:  # noqa: N802
        _, results = await self._run(context, lambda: kv.Txn((), (decode_delete_request(request),)))
        return rpc.DeleteRangeResponse(header=self._store.header(), deleted=results[0][1])

    async def Txn(self, request: Any, context: Any) -> Any:  # noqa: N802
        succeeded, results = await self._run(context, lambda: decode_txn_request(request))
        header = self._store.header()
        return rpc.TxnResponse(
            header=header,
            succeeded=succeeded,
            responses=[encode_result(op, result, header) for op, result in results],
        )

    async def Compact(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            self._store.model.compact(request.revision)
        except BadInput as error:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, f"etcdserver: mvcc: {error}")
        self._store.announce()
        return rpc.CompactionResponse(header=self._store.header())

    def _read(self, read: kv.Read) -> kv.ReadResult:
        return self._store.model.apply(read, time.monotonic_ns())

    async def _run(
        self, context: Any, decode: Callable[[], kv.Txn]
    ) -> tuple[bool, list[tuple[kv.Op, kv.OpResult]]]:
        """Whether the transaction succeeded, and each executed operation with its result."""
        try:
            txn = decode()
            result = self._store.model.apply(txn, time.monotonic_ns())
        except ResilientPsError as error:
            await refuse(context, error)
        self._store.announce()
        branch = txn.success if result.succeeded else txn.failure
        return result.succeeded, list(zip(branch, result.results, strict=True))


class LeaseServicer(rpc.LeaseServicer):  # type: ignore[misc]
    """LeaseGrant, LeaseKeepAlive, LeaseRevoke, LeaseTimeToLive."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def LeaseGrant(self, request: Any, context: Any) -> Any:  # noqa: N802
        model = self._store.model
        try:
            kv.LeaseGrant(request.TTL)  # validates
            leased = model.grant(request.TTL, time.monotonic_ns(), lease=request.ID)
        except BadInput as error:
            if "already exists" not in str(error):
                await refuse(context, error)
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"etcdserver: lease already exists ({error})"
            )
        except ResilientPsError as error:
            await refuse(context, error)
        self._store.announce()
        return rpc.LeaseGrantResponse(
            header=self._store.header(), ID=leased.lease, TTL=leased.ttl_s
        )

    async def LeaseKeepAlive(  # noqa: N802
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        async for request in self._store.until_closing(requests):
            left = self._store.model.apply(kv.LeaseRefresh(request.ID), time.monotonic_ns())
            self._store.announce()
            yield rpc.LeaseKeepAliveResponse(
                header=self._store.header(), ID=request.ID, TTL=left.ttl_s
            )

    async def LeaseRevoke(self, request: Any, context: Any) -> Any:  # noqa: N802
        try:
            self._store.model.apply(kv.LeaseRevoke(request.ID), time.monotonic_ns())
        except ResilientPsError as error:
            await refuse(context, error)
        self._store.announce()
        return rpc.LeaseRevokeResponse(header=self._store.header())

    async def LeaseTimeToLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        status = self._store.model.lease_status(request.ID, time.monotonic_ns())
        answer = rpc.LeaseTimeToLiveResponse(header=self._store.header(), ID=request.ID, TTL=-1)
        if status is not None:
            answer.TTL, answer.grantedTTL = status.remaining_s, status.granted_s
            if request.keys:
                answer.keys.extend(status.keys)
        return answer


class MaintenanceServicer(rpc.MaintenanceServicer):  # type: ignore[misc]
    """Status only."""

    def __init__(self, store: Store, version: str) -> None:
        self._store = store
        self._version = version

    async def Status(self, request: Any, context: Any) -> Any:  # noqa: N802
        return rpc.StatusResponse(
            header=self._store.header(),
            version=self._version,
            dbSize=self._store.model.stored_bytes,
            leader=MEMBER_ID,
            raftIndex=self._store.model.revision,
            raftTerm=1,
        )
