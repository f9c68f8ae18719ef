"""Large objects in parts: all parts, or nothing that anybody sees.

An upload that fails is aborted; one whose process died leaves parts in no listing, which take
space until somebody sweeps.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, TypeVar

from botocore.exceptions import ClientError

from resilient_ps.errors import ResilientPsError
from resilient_ps.storage.requests import sha256_of, size_of
from resilient_ps.storage.runtime.pieces import PieceReader
from resilient_ps.storage.runtime.s3_errors import code_of

PARTS_MAX = 10_000
PAGES_MAX = 1_000

T = TypeVar("T")


class Tried(Protocol):
    """Runs one request, with attempts and translated errors."""

    def __call__(self, act: Callable[[], T]) -> T: ...


class Upload:
    """One object in parts, one part after the other: concurrency is between objects."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        name: str,
        *,
        condition: dict[str, str],
        tried: Tried,
        deadline_s: Callable[[int], float],
    ) -> None:
        self._client = client
        self._where = {"Bucket": bucket, "Key": name}
        self._condition = condition
        self._tried = tried
        self._deadline_s = deadline_s

    def run(self, parts: Sequence[Sequence[memoryview]]) -> str:
        """The etag. Aborts the upload if anything fails, and raises why."""
        begun = self._tried(
            lambda: self._client.create_multipart_upload(**self._where, ChecksumAlgorithm="SHA256")
        )
        self._where["UploadId"] = begun["UploadId"]
        try:
            sent = [self._send(number, part) for number, part in enumerate(parts, start=1)]
            return str(self._tried(lambda: self._complete(sent))["ETag"])
        except BaseException:
            self._abort()
            raise

    def _send(self, number: int, part: Sequence[memoryview]) -> dict[str, Any]:
        nbytes = size_of(part)
        sha256 = sha256_of(part)
        digest = base64.b64encode(bytes.fromhex(sha256)).decode()
        answer = self._tried(
            lambda: self._client.upload_part(
                **self._where,
                PartNumber=number,
                Body=PieceReader(part, self._deadline_s(nbytes), sha256),
                ContentLength=nbytes,
                ChecksumSHA256=digest,
            )
        )
        return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": digest}

    def _complete(self, sent: list[dict[str, Any]]) -> Any:
        try:
            return self._client.complete_multipart_upload(
                **self._where, MultipartUpload={"Parts": sent}, **self._condition
            )
        except ClientError as error:
            if code_of(error) != "NoSuchUpload":
                raise
            # An earlier attempt may have completed it, and its answer was lost.
            bucket, name = self._where["Bucket"], self._where["Key"]
            found = self._client.head_object(Bucket=bucket, Key=name)
            if found["ETag"] != _etag_of(sent):
                raise
            return found

    def _abort(self) -> None:
        with contextlib.suppress(ResilientPsError):  # sweeping finds what stays
            self._tried(lambda: _abort(self._client, **self._where))


def abort_old_uploads(client: Any, bucket: str, prefix: str, older_than_s: int) -> int:
    """How many uploads below `prefix` were aborted that began so long ago, by the store's clock."""
    aborted = 0
    where: dict[str, str] = {}
    for _ in range(PAGES_MAX):
        page = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, **where)
        now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
        for upload in page.get("Uploads", ()):
            old = (now - upload["Initiated"]).total_seconds() >= older_than_s
            if old and upload["Key"].startswith(prefix):
                _abort(client, Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
                aborted += 1
        if not page.get("IsTruncated"):
            break
        where = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }
    return aborted


def _abort(client: Any, **where: str) -> None:
    try:
        client.abort_multipart_upload(**where)
    except ClientError as error:
        if code_of(error) != "NoSuchUpload":
            raise


def _etag_of(sent: list[dict[str, Any]]) -> str:
    """What S3 makes of the parts' etags; empty where a store has others."""
    try:
        digests = b"".join(bytes.fromhex(part["ETag"].strip('"')) for part in sent)
    except ValueError:
        return ""
    return f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(sent)}"'
