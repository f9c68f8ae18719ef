"""What all stores do alike with a request: look whether it can be, and encode what it carries.

Names are restricted to what S3, a file system and a URL all take without quoting: parts of ASCII
letters, digits and `!#$%&'()+,-.=@^_~`, none of which begins with a full stop.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import numpy as np

from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import (
    DELETE_MOST,
    LIST_MOST,
    NAME_CHARS_MAX,
    BlobGot,
    BlobRequest,
    Body,
    Bytes,
    DeleteBlobs,
    Encoded,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
    SweepUploads,
)

PART_CHARS_MAX = 200
LARGE_BYTES = 1 << 20  # from here on, an answer is not `bytes` but in a buffer
_PART = r"[A-Za-z0-9!#$%&'()+,\-=@^_~][A-Za-z0-9!#$%&'()+,\-.=@^_~]*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")


def check_request(request: BlobRequest) -> None:
    """`BadInput` for what no store would do."""
    match request:
        case PutBlob():
            check_name(request.name)
            if request.mode not in ("overwrite", "create", "if-match"):
                raise BadInput(f"put of {request.name!r}: there is no mode {request.mode!r}")
            if request.mode == "if-match" and not request.etag:
                raise BadInput(f"put of {request.name!r}: the mode if-match needs an etag")
        case GetBlob():
            check_name(request.name)
            if request.first < 0 or request.length < -1 or request.most < 0:
                raise BadInput(
                    f"get of {request.name!r}: first {request.first}, length {request.length}, "
                    f"most {request.most}: use first >= 0, length >= 0 (or -1: to the end), "
                    "most >= 0"
                )
            check_size(request, max(request.length, 0))
        case ListBlobs():
            check_prefix(request.prefix)
            check_prefix(request.after)
            if not 1 <= request.most <= LIST_MOST:
                raise BadInput(f"list of {request.most} names: use 1 to {LIST_MOST}")
        case DeleteBlobs():
            if len(request.names) > DELETE_MOST:
                raise BadInput(f"delete of {len(request.names)} names: at most {DELETE_MOST}")
            for name in request.names:
                check_name(name)
        case SweepUploads():
            check_prefix(request.prefix)
            if request.older_than_s < 0:
                raise BadInput(f"sweep of uploads: an age of {request.older_than_s} s")


def check_name(name: str) -> None:
    """`BadInput` for a name that a store cannot, or must not, use."""
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name) or _has_long_part(name):
        raise BadInput(
            f"object name {name[:80]!r}: use up to {NAME_CHARS_MAX} letters, digits and "
            f"!#$%&'()+,-.=@^_~ in parts of up to {PART_CHARS_MAX} with / between; no part begins "
            "with a full stop"
        )


def check_prefix(prefix: str) -> None:
    """`BadInput` for what no name can begin with."""
    if len(prefix) > NAME_CHARS_MAX or not _PREFIX.fullmatch(prefix) or _has_long_part(prefix):
        raise BadInput(f"beginning of object names {prefix[:80]!r}: no name can begin so")


def check_size(request: GetBlob, nbytes: int) -> None:
    """`StoreRefused` if that many bytes are more than the caller is ready for."""
    if nbytes > request.most:
        raise StoreRefused(
            f"get of {request.name!r}: {nbytes} bytes, of which at most {request.most} were "
            "expected: the object is damaged, or was not written by this program"
        )


def receiving(nbytes: int) -> memoryview:
    """Memory for a large answer. Decoded arrays can stay in it: it is aligned, and writable."""
    return np.empty(nbytes, np.uint8).data  # in huge pages, and nothing is zeroed first


def encode(body: Bytes | Body) -> Encoded:
    """The body in pieces; `Body.encode` is called here."""
    if isinstance(body, bytes | bytearray | memoryview):
        return Encoded((body,))
    return body.encode()


def size_of(pieces: Iterable[Bytes]) -> int:
    """Bytes in all pieces."""
    return sum(memoryview(piece).nbytes for piece in pieces)


def sha256_of(pieces: Iterable[Bytes]) -> str:
    """In hexadecimal."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def decoded(request: GetBlob, got: BlobGot) -> BlobGot:
    """The answer with what `decode` makes of the bytes."""
    return got if request.decode is None else got._replace(decoded=request.decode(got.data))


def _has_long_part(name: str) -> bool:
    return any(len(part) > PART_CHARS_MAX for part in name.split("/"))
