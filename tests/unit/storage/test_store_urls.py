"""Where a store is, and how it is reached: what is said wrongly is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import BlobList, ListBlobs, PutBlob
from resilient_ps.storage.runtime.open import open_store, parse_folder, parse_s3
from resilient_ps.storage.runtime.options import StoreOptions, options_from


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://models", "models", ""),
        ("s3://models/", "models", ""),
        ("s3://my.models-2/a/b", "my.models-2", "a/b"),
        ("s3://models/a/b/", "models", "a/b"),
    ],
)
def test_a_bucket_and_a_prefix(url: str, bucket: str, prefix: str) -> None:
    assert parse_s3(url) == (bucket, prefix)


@pytest.mark.parametrize(
    "url",
    [
        *("s3://", "s3:models", "s3:///a", "s3://a b/c", "s3://models/a?x=1", "s3://models/a#b"),
        *("s3://key:secret@host/a", "s3://models/a//b", "s3://models/../x"),
        "s3://models/" + "x" * 201,
    ],
)
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(BadInput) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///mnt/check%20points", "/mnt/check points"),
        ("file://localhost/mnt/x", "/mnt/x"),
        ("/mnt/x", "/mnt/x"),
        ("here/below", "here/below"),
    ],
)
def test_folders(url: str, path: str) -> None:
    assert parse_folder(url) == Path(path)


@pytest.mark.parametrize(
    "url", ["", "file://host/x", "file:x", "http://x/y", "gs://bucket", "S3://x"]
)
def test_what_is_no_folder_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="store"):
        open_store(url)


def test_a_relative_folder_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("here")
    monkeypatch.chdir("/")
    store.do(PutBlob("x", b""))
    assert (tmp_path / "here/x").exists()


def test_options_come_from_the_environment() -> None:
    assert options_from({}) == StoreOptions()
    ours = {
        "RESILIENT_PS_S3_ENDPOINT": "http://127.0.0.1:9000",
        "RESILIENT_PS_S3_REGION": "eu-1",
        "RESILIENT_PS_S3_PATH_STYLE": "1",
        "RESILIENT_PS_S3_CA_BUNDLE": "/etc/ca.pem",
        "RESILIENT_PS_S3_VERIFY_TLS": "no",
        "AWS_ENDPOINT_URL": "http://elsewhere",
    }
    assert options_from(ours) == StoreOptions(
        endpoint="http://127.0.0.1:9000",
        region="eu-1",
        path_style=True,
        ca_bundle="/etc/ca.pem",
        verify_tls=False,
    )
    assert options_from({"AWS_ENDPOINT_URL": "http://a"}).endpoint == "http://a"


@pytest.mark.parametrize(
    "wrong",
    [
        {"RESILIENT_PS_S3_ENDPOINT": "127.0.0.1:9000"},
        {"RESILIENT_PS_S3_PATH_STYLE": "perhaps"},
    ],
)
def test_wrong_variables_are_told(wrong: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        options_from(wrong)


def test_limits_of_options_are_told() -> None:
    for wrong in ({"concurrency": 0}, {"attempts": 101}, {"part_bytes": 1000}, {"attempt_s": 0.0}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            StoreOptions(**wrong)


def test_what_a_store_did_is_counted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.do(PutBlob("x", b"12345"))
    page = store.do(ListBlobs(""))
    assert isinstance(page, BlobList)
    counts = store.metrics.counts()
    assert (counts["put"].requests, counts["put"].bytes_out) == (1, 5)
    assert (counts["list"].requests, counts["get"].requests) == (1, 0)
    assert sorted(store.metrics.snapshot()["requests"]) == ["list", "put"]
    figures = {(each.name, each.labels): each.value for each in store.metrics.figures()}
    assert figures["resilient_ps_store_bytes_out_total", (("kind", "put"),)] == 5
