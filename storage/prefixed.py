"""A store within a store: all names get a prefix, and lose it in what comes back."""

from __future__ import annotations

from dataclasses import replace

from resilient_ps.errors import Bug
from resilient_ps.storage.blobs import (
    BlobList,
    BlobRequest,
    BlobResult,
    Blobs,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    SweepUploads,
)


class PrefixedBlobs:
    """`prefix` is put before every name, as it is: end it with `/`."""

    def __init__(self, inner: Blobs, prefix: str) -> None:
        self._inner = inner
        self._prefix = prefix

    def do(self, request: BlobRequest) -> BlobResult:
        """As `Blobs.do`; errors speak of the full names."""
        result = self._inner.do(self._longer(request))
        if not isinstance(result, BlobList):
            return result
        items = (item._replace(name=self._shorter(item.name)) for item in result.items)
        return result._replace(items=tuple(items))

    def close(self) -> None:
        self._inner.close()

    def _longer(self, request: BlobRequest) -> BlobRequest:
        match request:
            case PutBlob() | GetBlob():
                return replace(request, name=self._prefix + request.name)
            case ListBlobs():
                after = self._prefix + request.after if request.after else ""
                return replace(request, prefix=self._prefix + request.prefix, after=after)
            case DeleteBlobs():
                return DeleteBlobs(tuple(self._prefix + name for name in request.names))
            case SweepUploads():
                return replace(request, prefix=self._prefix + request.prefix)

    def _shorter(self, name: str) -> str:
        if not name.startswith(self._prefix):
            raise Bug(f"the store lists {name!r} below {self._prefix!r}")
        return name[len(self._prefix) :]
