"""etcd's Watch call over the in-memory model: many watches on one stream, created and cancelled by
requests, with progress on demand and the end of a watch whose history was compacted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator.memory import Compacted
from resilient_ps.coordinator.runtime.codec import decode_range, encode_event
from resilient_ps.coordinator.runtime.servicers import Store
from resilient_ps.errors import ResilientPsError

MAX_WATCHES_PER_STREAM = 1_000
_PROGRESS_ID = -1  # etcd: an answer about the stream, not about one watch


class WatchServicer(rpc.WatchServicer):  # type: ignore[misc]
    def __init__(self, store: Store) -> None:
        self._store = store

    async def Watch(self, requests: AsyncIterator[Any], context: Any) -> None:  # noqa: N802
        stream = _WatchStream(self._store, context)
        reader = asyncio.ensure_future(stream.read(requests))
        try:
            await stream.deliver(reader)
        finally:
            reader.cancel()
            stream.close()


class _Filter:
    """One watch of a stream: its number in the model, and what it wants of the prefix."""

    def __init__(self, number: int, key: bytes, *, is_prefix: bool) -> None:
        self.number = number
        self._key = key
        self._is_prefix = is_prefix

    def wants(self, key: bytes) -> bool:
        return self._is_prefix or key == self._key


class _WatchStream:
    def __init__(self, store: Store, context: Any) -> None:
        self._store = store
        self._context = context
        self._changed = store.listen()
        self._watches: dict[int, _Filter] = {}
        self._next_id = 0
        self._writing = asyncio.Lock()

    async def read(self, requests: AsyncIterator[Any]) -> None:
        """Serves the client's requests until it closes its side."""
        async for request in self._store.until_closing(requests):
            kind = request.WhichOneof("request_union")
            if kind == "create_request":
                await self._create(request.create_request)
            elif kind == "cancel_request":
                await self._cancel(request.cancel_request.watch_id, "")
            elif kind == "progress_request":
                await self._write(rpc.WatchResponse(watch_id=_PROGRESS_ID))

    async def deliver(self, reader: asyncio.Future[None]) -> None:
        """Sends what happens until the call ends; raises what the reader raised."""
        reader.add_done_callback(lambda _: self._changed.set())
        while True:
            self._changed.clear()
            if reader.done() and (reader.exception() or not self._watches):
                return reader.result()
            if self._store.is_closing:
                return None
            for watch_id in sorted(self._watches):
                await self._send_changes(watch_id)
            await self._changed.wait()

    def close(self) -> None:
        self._store.unlisten(self._changed)
        for watch in self._watches.values():
            self._store.model.unwatch(watch.number)
        self._watches.clear()

    async def _create(self, request: Any) -> None:
        watch_id, self._next_id = self._next_id, self._next_id + 1
        try:
            key, is_prefix = decode_range(request.key, request.range_end)
            if request.prev_kv or request.filters or request.progress_notify:
                await self._context.abort(
                    grpc.StatusCode.UNIMPLEMENTED,
                    "prev_kv, filters and progress_notify: this coordination process does not "
                    "offer them; use a real etcd",
                )
            if len(self._watches) >= MAX_WATCHES_PER_STREAM:
                raise ResilientPsError(f"{MAX_WATCHES_PER_STREAM} watches are open on this stream")
            number = self._store.model.watch(key, request.start_revision)
        except ResilientPsError as error:
            await self._write(
                rpc.WatchResponse(
                    watch_id=watch_id, created=True, canceled=True, cancel_reason=str(error)
                )
            )
            return
        await self._write(rpc.WatchResponse(watch_id=watch_id, created=True))
        self._watches[watch_id] = _Filter(number, key, is_prefix=is_prefix)
        self._changed.set()

    async def _cancel(self, watch_id: int, reason: str) -> None:
        watch = self._watches.pop(watch_id, None)
        if watch is None:
            return
        self._store.model.unwatch(watch.number)
        await self._write(rpc.WatchResponse(watch_id=watch_id, canceled=True, cancel_reason=reason))

    async def _send_changes(self, watch_id: int) -> None:
        watch = self._watches.get(watch_id)
        if watch is None:
            return
        polled = self._store.model.poll(watch.number)
        if isinstance(polled, Compacted):
            self._watches.pop(watch_id, None)
            await self._write(
                rpc.WatchResponse(
                    watch_id=watch_id, canceled=True, compact_revision=polled.compact_revision
                )
            )
            return
        for batch in polled:
            events = [encode_event(event) for event in batch.events if watch.wants(event.item.key)]
            if events:
                await self._write(rpc.WatchResponse(watch_id=watch_id, events=events))

    async def _write(self, response: Any) -> None:
        response.header.CopyFrom(self._store.header())
        async with self._writing:
            await self._context.write(response)
