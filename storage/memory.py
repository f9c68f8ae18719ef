"""A pure model of an object store: what the real ones do, as a function of request and time.

It holds objects in a dict and is as strict as the strictest of the real stores. What is not one
store's semantics but its weakness is chosen at construction: listings that lag, conditions that
are ignored, a limit on the bytes. Lost answers, outages and slowness are matters of who calls it.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from resilient_ps.storage.blobs import (
    BlobExists,
    BlobGot,
    BlobInfo,
    BlobList,
    BlobMissing,
    BlobPut,
    BlobRequest,
    BlobResult,
    BlobsDeleted,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
    SweepUploads,
)
from resilient_ps.storage.requests import check_request, check_size, decoded, encode


class _Object(NamedTuple):
    data: bytes
    etag: str
    modified_s: int


class MemoryBlobs:
    """Objects by name.

    `list_lag_s`: listings show what there was that long ago. `conditional`: if not, conditions are
    silently ignored, as some stores do. `bytes_max`: more is refused as "full" (0: no limit).
    """

    def __init__(
        self, *, list_lag_s: int = 0, conditional: bool = True, bytes_max: int = 0
    ) -> None:
        self._objects: dict[str, _Object] = {}
        self._list_lag_s = list_lag_s
        self._conditional = conditional
        self._bytes_max = bytes_max
        self._nbytes = 0
        self._past: list[tuple[int, str, _Object | None]] = []  # what names were before, by time

    def apply(self, request: BlobRequest, now_s: int) -> BlobResult:
        """Carry out one request at `now_s`, seconds since 1970. Raises as `Blobs.do` does.

        `Body.encode` and `GetBlob.decode` are called in here.
        """
        check_request(request)
        match request:
            case PutBlob():
                return self._put(request, now_s)
            case GetBlob():
                return self._get(request)
            case ListBlobs():
                return self._list(request, now_s)
            case DeleteBlobs():
                for name in request.names:
                    self._set(name, None, now_s)
                return BlobsDeleted(len(request.names))
            case SweepUploads():
                return BlobsDeleted(0)  # puts are whole, or not at all

    # -------------------------------------------------------------------- for tests and checkers

    def names(self) -> list[str]:
        """All there are, in order, whatever listings show."""
        return sorted(self._objects)

    def peek(self, name: str) -> bytes | None:
        """An object's bytes."""
        found = self._objects.get(name)
        return None if found is None else found.data

    def damage(self, name: str, data: bytes | None) -> None:
        """Replace an object's bytes behind everybody's back, etag and time unchanged; None: lose
        it."""
        if data is None:
            self._set(name, None, self._objects[name].modified_s)
        else:
            self._nbytes += len(data) - len(self._objects[name].data)
            self._objects[name] = self._objects[name]._replace(data=data)

    # ---------------------------------------------------------------------------------- requests

    def _put(self, request: PutBlob, now_s: int) -> BlobPut:
        pieces, info = encode(request.body)
        data = b"".join(pieces)
        sha256 = hashlib.sha256(data).hexdigest()
        if not pieces:
            return BlobPut("", 0, sha256, info)
        old = self._objects.get(request.name)
        if self._conditional:
            _check_condition(request, old)
        grown = len(data) - (0 if old is None else len(old.data))
        if self._bytes_max and self._nbytes + grown > self._bytes_max:
            raise StoreRefused(f"put of {request.name!r}: no space left in the store", why="full")
        etag = sha256[:32]
        self._set(request.name, _Object(data, etag, now_s), now_s)
        return BlobPut(etag, len(data), sha256, info)

    def _get(self, request: GetBlob) -> BlobGot:
        found = self._objects.get(request.name)
        if found is None:
            raise BlobMissing(f"there is no object {request.name!r}")
        end = None if request.length < 0 else request.first + request.length
        data = found.data[request.first : end]
        check_size(request, len(data))
        return decoded(request, BlobGot(data, found.etag, len(found.data)))

    def _list(self, request: ListBlobs, now_s: int) -> BlobList:
        shown = self._shown(now_s)
        names = sorted(
            name for name in shown if name.startswith(request.prefix) and name > request.after
        )
        items = [
            BlobInfo(name, len(shown[name].data), shown[name].etag, shown[name].modified_s)
            for name in names[: request.most]
        ]
        return BlobList(tuple(items), len(names) > request.most)

    def _shown(self, now_s: int) -> dict[str, _Object]:
        """What there was `list_lag_s` ago: what has happened since is taken back, newest first."""
        until_s = now_s - self._list_lag_s
        self._past = [change for change in self._past if change[0] > until_s]
        shown = dict(self._objects) if self._past else self._objects
        for _, name, before in reversed(self._past):
            if before is None:
                shown.pop(name, None)
            else:
                shown[name] = before
        return shown

    def _set(self, name: str, new: _Object | None, now_s: int) -> None:
        old = self._objects.pop(name, None)
        if new is not None:
            self._objects[name] = new
        self._nbytes += (len(new.data) if new else 0) - (len(old.data) if old else 0)
        if self._list_lag_s:
            self._past.append((now_s, name, old))


def _check_condition(request: PutBlob, old: _Object | None) -> None:
    if request.mode == "create" and old is not None:
        raise BlobExists(f"put of {request.name!r}: there is such an object already")
    if request.mode == "if-match" and (old is None or old.etag != request.etag):
        raise BlobExists(f"put of {request.name!r}: there is another object, or none")
