"""S3, and what speaks its language: MinIO, SeaweedFS, Ceph, Amazon's own.

One retry layer: ours (tenacity); the client's is switched off, so that attempts are bounded in
number and time, jittered, counted, and cover an answer that breaks off while it is read. What may
have happened in an attempt whose answer was lost stays unknown: a conditional put that is tried
again can meet its own object, and raises `BlobExists`. Callers read back and compare.

One client, made at construction from a session of its own (a session may not be shared by
threads), with as many connections as threads may use it. When the store refuses the
credentials, the next call reads them anew, so renewing them needs no restart.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import boto3.session
import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)
from tenacity.nap import sleep_using_event

from resilient_ps.errors import BadInput
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
    StoreUnavailable,
    SweepUploads,
)
from resilient_ps.storage.requests import (
    LARGE_BYTES,
    check_request,
    check_size,
    decoded,
    encode,
    receiving,
    sha256_of,
    size_of,
)
from resilient_ps.storage.runtime.body import receive
from resilient_ps.storage.runtime.checksum import checksum_of
from resilient_ps.storage.runtime.metrics import StoreMetrics
from resilient_ps.storage.runtime.multipart import Upload, abort_old_uploads
from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.pieces import PieceReader, cut, views_of
from resilient_ps.storage.runtime.plain_gets import PlainGets
from resilient_ps.storage.runtime.s3_errors import code_of, translation
from resilient_ps.storage.runtime.signing import sign_uploads

DEFAULT_REGION = "us-east-1"
RENEW_EVERY_S = 10.0
EMPTY_PAGES_MAX = 1_000

T = TypeVar("T")


@functools.cache
def _descriptions() -> Any:
    """The library's reader of what S3 looks like: that takes it a tenth of a second, once."""
    return botocore.session.get_session().get_component("data_loader")


class S3Blobs:
    """Objects of one bucket. Names are keys."""

    def __init__(
        self,
        bucket: str,
        options: StoreOptions | None = None,
        metrics: StoreMetrics | None = None,
    ) -> None:
        self._bucket = bucket
        self._options = options or StoreOptions()
        self._metrics = metrics or StoreMetrics()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._renewed_s = time.monotonic() - RENEW_EVERY_S
        self._is_refused = False  # the credentials
        self._client, self._plain = self._connect()

    def do(self, request: BlobRequest) -> BlobResult:
        """As `Blobs.do`."""
        check_request(request)
        match request:
            case PutBlob():
                return self._put(request)
            case GetBlob():
                what = self._what("get", request.name)
                return decoded(request, self._tried("get", what, lambda: self._get(request)))
            case ListBlobs():
                what = self._what("list", request.prefix)
                return self._tried("list", what, lambda: self._list(request))
            case DeleteBlobs():
                self._delete(request.names)
                return BlobsDeleted(len(request.names))
            case SweepUploads():
                what = self._what("sweep of uploads", request.prefix)
                return self._tried("sweep", what, lambda: self._sweep(request))

    def close(self) -> None:
        """No further attempt begins; calls under way fail soon."""
        self._closed.set()
        self._client.close()
        self._plain.close()

    # ------------------------------------------------------------------------------- the client

    def _connect(self) -> tuple[Any, PlainGets]:
        options = self._options
        if options.ca_bundle and not os.path.isfile(options.ca_bundle):
            raise BadInput(f"store option ca_bundle: there is no file {options.ca_bundle!r}")
        path_style = bool(options.endpoint) if options.path_style is None else options.path_style
        config = Config(
            max_pool_connections=options.concurrency,
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.read_timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},  # ours is the only layer
            # Uploads are signed with digests of ours (`signing`), and what is read is compared.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if path_style else "auto"},
        )
        try:
            core = botocore.session.get_session()
            core.register_component("data_loader", _descriptions())
            session = boto3.session.Session(botocore_session=core)
            client = session.client(
                "s3",
                endpoint_url=options.endpoint or None,
                region_name=options.region or session.region_name or DEFAULT_REGION,
                verify=(options.ca_bundle or None) if options.verify_tls else False,
                config=config,
            )
            sign_uploads(client)
            return client, PlainGets(self._bucket, options, client, core.get_credentials())
        except Exception as error:
            raise translation(error, f"opening s3://{self._bucket}") from error

    def _renew(self) -> None:
        """Read the credentials anew, if they were refused; not more often than makes sense."""
        with self._lock:
            now_s = time.monotonic()
            if self._is_refused and now_s - self._renewed_s >= RENEW_EVERY_S:
                self._is_refused, self._renewed_s = False, now_s
                self._client, self._plain = self._connect()  # calls under way keep the old ones

    def _what(self, doing: str, name: str) -> str:
        place = self._options.endpoint or "Amazon S3"
        return f"{doing} of s3://{self._bucket}/{name} at {place}"

    def _tried(self, kind: str, what: str, act: Callable[[], T]) -> T:
        """`act`, in as many attempts as it needs and may take; foreign errors are translated."""
        options = self._options

        def once() -> T:
            if self._closed.is_set():
                raise StoreUnavailable(f"{what}: the store was closed")
            try:
                return act()
            except Exception as error:
                translated = translation(error, what)
                if translated is error:
                    raise
                raise translated from error

        def count(state: RetryCallState) -> None:
            self._metrics.retried(kind)

        retrying = Retrying(
            stop=stop_after_attempt(options.attempts)
            | stop_after_delay(options.retry_for_s)
            | stop_when_event_set(self._closed),
            wait=wait_random_exponential(options.backoff_s, max=options.backoff_most_s),
            retry=retry_if_exception_type(StoreUnavailable),
            sleep=sleep_using_event(self._closed),
            before_sleep=count,
            reraise=True,
        )
        if self._is_refused:
            self._renew()
        try:
            return retrying(once)
        except StoreRefused as error:
            if error.why in ("credentials", "expired"):
                self._is_refused = True  # the next call reads them anew
            raise

    # --------------------------------------------------------------------------------------- put

    def _put(self, request: PutBlob) -> BlobPut:
        pieces, info = encode(request.body)
        views = views_of(pieces)
        nbytes, sha256 = size_of(views), sha256_of(views)
        if not pieces:
            return BlobPut("", nbytes, sha256, info)
        condition = {}
        if request.mode == "create":
            condition = {"IfNoneMatch": "*"}
        elif request.mode == "if-match":
            condition = {"IfMatch": f'"{request.etag}"'}
        what = self._what("put", request.name)
        try:
            if nbytes > self._options.multipart_bytes:
                etag = self._put_large(what, request.name, views, condition)
            else:
                etag = self._put_whole(what, request.name, views, sha256, condition)
        except BlobMissing as error:
            if request.mode == "if-match":
                raise BlobExists(f"{what}: there is no object to replace") from error
            raise StoreRefused(
                f"{error}: is this the endpoint of a store?", why="bucket"
            ) from error
        return BlobPut(etag.strip('"'), nbytes, sha256, info)

    def _put_whole(
        self, what: str, name: str, views: list[memoryview], sha256: str, condition: dict[str, str]
    ) -> str:
        nbytes, checksum = size_of(views), checksum_of(views, sha256)

        def put_once() -> str:
            answer = self._client.put_object(
                Bucket=self._bucket,
                Key=name,
                Body=PieceReader(views, self._attempt_deadline_s(nbytes), sha256),
                ContentLength=nbytes,
                **checksum,
                **condition,
            )
            return str(answer["ETag"])

        return self._tried("put", what, put_once)

    def _put_large(
        self, what: str, name: str, views: list[memoryview], condition: dict[str, str]
    ) -> str:
        upload = Upload(
            self._client,
            self._bucket,
            name,
            condition=condition,
            tried=lambda act: self._tried("put", what, act),
            deadline_s=self._attempt_deadline_s,
        )
        return upload.run(cut(views, self._options.part_bytes))

    def _attempt_deadline_s(self, nbytes: int) -> float:
        options = self._options
        return time.monotonic() + options.attempt_s + nbytes / options.slowest_bytes_per_s

    # ------------------------------------------------------------------------------- get and list

    def _get(self, request: GetBlob) -> BlobGot:
        if request.length == 0:
            return self._head(request.name)
        ranged: dict[str, str] = {}
        if request.first or request.length >= 0:
            last = "" if request.length < 0 else request.first + request.length - 1
            ranged = {"Range": f"bytes={request.first}-{last}"}
        answer = None
        if request.length >= LARGE_BYTES and self._plain.possible:
            answer = self._plain.ask(request.name, ranged)
        try:
            answer = answer or self._client.get_object(
                Bucket=self._bucket, Key=request.name, **ranged
            )
        except ClientError as error:
            if code_of(error) not in ("InvalidRange", "416"):
                raise
            return self._head(request.name)  # it ends before the range begins
        with answer["Body"] as body:
            nbytes = int(answer["ContentLength"])
            size = _size_in(answer, nbytes, request)
            check_size(request, nbytes)
            memory = _memory(nbytes, request.into)
            receive(body, memory, self._attempt_deadline_s(nbytes))
        data = memory if nbytes >= LARGE_BYTES else bytes(memory)
        return BlobGot(data, answer["ETag"].strip('"'), size)

    def _head(self, name: str) -> BlobGot:
        try:
            answer = self._client.head_object(Bucket=self._bucket, Key=name)
        except ClientError as error:
            if code_of(error) in ("404", "NoSuchKey", "NotFound"):
                self._check_bucket(name)  # the answer does not tell which of them is missing
            raise
        return BlobGot(b"", answer["ETag"].strip('"'), int(answer["ContentLength"]))

    def _check_bucket(self, name: str) -> None:
        try:
            self._client.head_bucket(Bucket=self._bucket)
        except ClientError as error:
            if code_of(error) in ("404", "NoSuchBucket", "NotFound"):
                what = self._what("get", name)
                raise StoreRefused(
                    f"{what}: there is no such bucket: create it first", why="bucket"
                ) from error

    def _list(self, request: ListBlobs) -> BlobList:
        items: list[BlobInfo] = []
        where: dict[str, str] = {"StartAfter": request.after} if request.after else {}
        for _ in range(EMPTY_PAGES_MAX):
            answer = self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=request.prefix, MaxKeys=request.most, **where
            )
            more = bool(answer.get("IsTruncated"))
            items += [_info(entry) for entry in answer.get("Contents", ())]
            if items or not more:  # a page may be empty, and not the last
                break
            where = {"ContinuationToken": answer["NextContinuationToken"]}
        return BlobList(tuple(items[: request.most]), more or len(items) > request.most)

    # ------------------------------------------------------------------------- delete and sweep

    def _delete(self, names: tuple[str, ...]) -> None:
        if not names:
            return
        what = self._what(f"delete of {len(names)} objects", names[0])
        try:
            self._tried("delete", what, lambda: self._delete_together(names))
        except StoreRefused as error:
            if error.why != "request":
                raise
            for name in names:  # not every store can delete many at once
                self._delete_one(name)

    def _delete_together(self, names: tuple[str, ...]) -> None:
        wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        answer = self._client.delete_objects(Bucket=self._bucket, Delete=wanted)
        for failure in answer.get("Errors", ()):
            if failure.get("Code") != "NoSuchKey":
                raise ClientError({"Error": failure}, "DeleteObjects")

    def _delete_one(self, name: str) -> None:
        def act() -> None:
            self._client.delete_object(Bucket=self._bucket, Key=name)

        with contextlib.suppress(BlobMissing):
            self._tried("delete", self._what("delete", name), act)

    def _sweep(self, request: SweepUploads) -> BlobsDeleted:
        return BlobsDeleted(
            abort_old_uploads(self._client, self._bucket, request.prefix, request.older_than_s)
        )


def _size_in(answer: dict[str, Any], nbytes: int, request: GetBlob) -> int:
    """The whole object's size. A store that ignores ranges is found out here."""
    content_range = answer.get("ContentRange", "")  # bytes 0-9/100
    if content_range:
        return int(content_range.rpartition("/")[2])
    if request.first or 0 <= request.length < nbytes:
        raise StoreRefused(
            f"get of {request.name!r}: the store ignores ranges, and sent {nbytes} bytes instead"
        )
    return nbytes


def _memory(nbytes: int, into: memoryview | None) -> memoryview:
    """For an answer; of a large one, whoever decodes it can use it in place."""
    if nbytes < LARGE_BYTES:
        return memoryview(bytearray(nbytes))
    return receiving(nbytes) if into is None or len(into) < nbytes else into[:nbytes]


def _info(entry: dict[str, Any]) -> BlobInfo:
    etag, modified = entry.get("ETag", ""), entry["LastModified"]
    return BlobInfo(entry["Key"], int(entry["Size"]), etag.strip('"'), int(modified.timestamp()))
