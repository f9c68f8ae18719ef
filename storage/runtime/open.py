"""Opens a store by its URL.

s3://bucket/prefix          S3, or with an endpoint among the options what speaks its language
file:///mnt/checkpoints     a folder, as is /mnt/checkpoints or checkpoints/here
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from resilient_ps.errors import BadInput, ResilientPsError
from resilient_ps.storage.blobs import (
    BlobExists,
    BlobGot,
    BlobMissing,
    BlobPut,
    BlobRequest,
    BlobResult,
    Blobs,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    SweepUploads,
)
from resilient_ps.storage.prefixed import PrefixedBlobs
from resilient_ps.storage.requests import check_name
from resilient_ps.storage.runtime.apart import BlobsApart
from resilient_ps.storage.runtime.arena import SHARES_MEMORY
from resilient_ps.storage.runtime.directory import DirectoryBlobs
from resilient_ps.storage.runtime.metrics import StoreMetrics
from resilient_ps.storage.runtime.options import StoreOptions, options_from

PREFIX_CHARS_MAX = 200
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_KINDS: dict[type[BlobRequest], str] = {
    PutBlob: "put",
    GetBlob: "get",
    ListBlobs: "list",
    DeleteBlobs: "delete",
    SweepUploads: "sweep",
}


class OpenedStore:
    """A store by its URL, with counts of what it does. For many threads at once."""

    def __init__(self, url: str, blobs: Blobs, metrics: StoreMetrics) -> None:
        self.url = url
        self.metrics = metrics
        self._blobs = blobs

    def do(self, request: BlobRequest) -> BlobResult:
        """As `Blobs.do`."""
        kind, begun_s = _KINDS[type(request)], time.monotonic()
        try:
            result = self._blobs.do(request)
        except (BlobMissing, BlobExists):
            self.metrics.answered(kind, time.monotonic() - begun_s)
            raise
        except ResilientPsError as error:
            self.metrics.failed(kind, time.monotonic() - begun_s, str(error))
            raise
        sent = result.nbytes if isinstance(result, BlobPut) else 0
        got = len(result.data) if isinstance(result, BlobGot) else 0
        self.metrics.succeeded(kind, time.monotonic() - begun_s, sent=sent, got=got)
        return result

    def close(self) -> None:
        """Give connections back. May be called again."""
        self._blobs.close()


def open_store(
    url: str, options: StoreOptions | None = None, *, apart: bool = False
) -> OpenedStore:
    """The store at `url`; nothing is asked of S3 yet. Without `options`: see `options_from`.

    A folder is made if there is none. `BadInput` for what is no such URL. `apart`: a process of its
    own transfers what is large, for a process that must not be disturbed; not of a folder.
    """
    metrics, options = StoreMetrics(), options or options_from(os.environ)
    if url.startswith("s3:"):
        bucket, prefix = parse_s3(url)
        from resilient_ps.storage.runtime.s3 import S3Blobs  # half a second, for those who need it

        blobs: Blobs = S3Blobs(bucket, options, metrics)
        if apart and SHARES_MEMORY:
            blobs = BlobsApart(blobs, bucket, options, metrics)
        if prefix:
            blobs = PrefixedBlobs(blobs, f"{prefix}/")
        return OpenedStore(url, blobs, metrics)
    return OpenedStore(url, DirectoryBlobs(parse_folder(url)), metrics)


def parse_s3(url: str) -> tuple[str, str]:
    """Bucket and prefix (without a slash at its end; may be empty)."""
    found = urlsplit(url)
    bucket, prefix = found.netloc, found.path.strip("/")
    if "@" in bucket:
        raise BadInput(
            "store s3://...@...: credentials do not belong there: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or use ~/.aws"
        )
    if found.scheme != "s3" or not _BUCKET.fullmatch(bucket) or found.query or found.fragment:
        raise BadInput(
            f"store {url!r}: use s3://bucket/prefix; a bucket's name has 2 to 63 letters, "
            "digits and . _ -. Where the store is, and how it is reached, is said by the endpoint "
            "option or by RESILIENT_PS_S3_ENDPOINT"
        )
    if prefix:
        check_name(prefix)
    if len(prefix) > PREFIX_CHARS_MAX:
        raise BadInput(f"store {url[:80]!r}...: a prefix has at most {PREFIX_CHARS_MAX} characters")
    return bucket, prefix


def parse_folder(url: str) -> Path:
    """The folder that a path or a file URL names."""
    if url.startswith("file:"):
        found = urlsplit(url)
        if found.netloc not in ("", "localhost") or not found.path.startswith("/"):
            raise BadInput(f"store {url!r}: a file URL looks like file:///mnt/checkpoints")
        return Path(unquote(found.path))
    if not url or _SCHEME.match(url):
        raise BadInput(f"store {url!r}: use s3://bucket/prefix, file:///folder, or a folder's path")
    return Path(url).expanduser()
