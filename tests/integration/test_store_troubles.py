"""A real S3 server on bad days: every call ends, says what is wrong and where; nothing is lost."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from resilient_ps.chaos.faults.links import StoreTrouble
from resilient_ps.chaos.live.proxy.store import StoreProxy
from resilient_ps.errors import BadInput, NotFound, ResilientPsError
from resilient_ps.runtime.spawn import free_ports
from resilient_ps.storage.blobs import (
    BlobExists,
    BlobGot,
    BlobList,
    BlobMissing,
    BlobPut,
    BlobRequest,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
    StoreUnavailable,
    SweepUploads,
)
from resilient_ps.storage.runtime.open import OpenedStore, open_store
from resilient_ps.storage.runtime.options import StoreOptions
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

MIB = 1 << 20
HASTY = StoreOptions(
    attempts=3,
    backoff_s=0.01,
    connect_timeout_s=2.0,
    read_timeout_s=2.0,
    multipart_bytes=6 * MIB,
    part_bytes=5 * MIB,
)
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    try:
        find_weed()
    except NotFound as error:
        pytest.skip(str(error))
    with SeaweedFS() as process:
        yield process


@pytest.fixture(autouse=True)
def credentials(server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(server: SeaweedFS) -> Iterator[StoreProxy]:
    with StoreProxy(server.endpoint, credentials=(server.access_key, server.secret_key)) as opened:
        yield opened


@pytest.fixture
def store(server: SeaweedFS, proxy: StoreProxy) -> Iterator[OpenedStore]:
    """Through the proxy, in a place of its own."""
    url = f"{server.url}/t{next(_NUMBERS)}"
    with closing(open_store(url, replace(HASTY, endpoint=proxy.endpoint))) as opened:
        yield opened


def put(store: OpenedStore, name: str, data: bytes, mode: str = "overwrite") -> BlobPut:
    done = store.do(PutBlob(name, data, mode))  # type: ignore[arg-type]
    assert isinstance(done, BlobPut)
    return done


def read(store: OpenedStore, name: str) -> bytes:
    got = store.do(GetBlob(name))
    assert isinstance(got, BlobGot)
    return got.data


def names(store: OpenedStore) -> list[str]:
    page = store.do(ListBlobs(""))
    assert isinstance(page, BlobList)
    return [item.name for item in page.items]


def retries(store: OpenedStore) -> int:
    return sum(count.retries for count in store.metrics.counts().values())


# --------------------------------------------------------------------------- what is wrong for good


def test_wrong_credentials_are_named_and_not_tried_again(
    store: OpenedStore, proxy: StoreProxy, server: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a wrong one")
    with closing(open_store(server.url, replace(HASTY, endpoint=proxy.endpoint))) as other:
        with pytest.raises(StoreRefused) as caught:
            put(other, "x", b"x")
        assert caught.value.why == "credentials"
        for part in (f"s3://{server.bucket}/x", proxy.endpoint, "AWS_SECRET_ACCESS_KEY"):
            assert part in str(caught.value)
        assert len(proxy.requests) == 1
        assert server.secret_key not in str(caught.value)

        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        put(other, "x", b"renewed without a restart")


def test_missing_credentials_are_named(
    server: SeaweedFS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with closing(open_store(server.url, replace(HASTY, endpoint=server.endpoint))) as store:
        with pytest.raises(StoreRefused, match="AWS_ACCESS_KEY_ID") as caught:
            put(store, "x", b"x")
        assert caught.value.why == "credentials"


@pytest.mark.parametrize(
    ("status", "code", "why", "remedy"),
    [
        (400, "ExpiredToken", "expired", "renew them"),
        (403, "RequestTimeTooSkewed", "clock", "NTP"),
        (403, "AccessDenied", "credentials", "bucket's policy"),
        (507, "InsufficientStorage", "full", "make room"),
        (501, "NotImplemented", "request", "doctor"),
    ],
)
def test_a_refusal_is_told_with_its_remedy_and_not_tried_again(
    store: OpenedStore, proxy: StoreProxy, status: int, code: str, why: str, remedy: str
) -> None:
    proxy.plan("status", method="PUT", status=status, code=code)
    with pytest.raises(StoreRefused, match=remedy) as caught:
        put(store, "x", b"x")
    assert caught.value.why == why
    assert code in str(caught.value)
    assert retries(store) == 0


@pytest.mark.parametrize(
    "request_",
    [
        PutBlob("x", b""),
        GetBlob("x"),
        GetBlob("x", length=0),
        ListBlobs(""),
        DeleteBlobs(("x",)),
        SweepUploads("", 0),
    ],
)
def test_an_absent_bucket_is_named(server: SeaweedFS, request_: BlobRequest) -> None:
    options = replace(HASTY, endpoint=server.endpoint)
    with closing(open_store("s3://no-such-bucket/here", options)) as store:
        with pytest.raises(StoreRefused, match=r"no-such-bucket.*create it first") as caught:
            store.do(request_)
        assert caught.value.why == "bucket"


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_a_certificate_must_be_trusted(server: SeaweedFS, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out"]
    command += [str(cert), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    with StoreProxy(server.endpoint, certificate=(cert, key)) as proxy:
        tls = replace(HASTY, endpoint=proxy.endpoint)
        for options in (replace(tls, ca_bundle=str(cert)), replace(tls, verify_tls=False)):
            with closing(open_store(f"{server.url}/tls", options)) as store:
                put(store, "x", os.urandom(8 * MIB))  # in parts
                put(store, "y", b"secret")
                assert read(store, "y") == b"secret"
        with (
            closing(open_store(f"{server.url}/tls", tls)) as store,
            pytest.raises(StoreRefused, match="CA bundle"),
        ):
            read(store, "y")
        assert retries(store) == 0
        missing = replace(tls, ca_bundle=str(tmp_path / "none.pem"))
        with pytest.raises(BadInput, match=r"none\.pem"):
            open_store(f"{server.url}/tls", missing)


def test_an_unreachable_endpoint_is_named_after_a_few_attempts(server: SeaweedFS) -> None:
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    with closing(open_store(server.url, replace(HASTY, endpoint=endpoint))) as store:
        with pytest.raises(StoreUnavailable, match=endpoint):
            put(store, "x", b"x")
        assert retries(store) == HASTY.attempts - 1
        snapshot = store.metrics.snapshot()
        assert snapshot["failures_in_a_row"] == 1
        assert endpoint in snapshot["last_failure"]


# ------------------------------------------------------------------------------- what passes again


@pytest.mark.parametrize("status", [(500, "InternalError"), (503, "SlowDown"), (429, "Busy")])
@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (PutBlob("x", b"new"), "put"),
        (GetBlob("x"), "get"),
        (ListBlobs(""), "list"),
        (DeleteBlobs(("x",)), "delete"),
        (SweepUploads("", 0), "sweep"),
    ],
)
def test_a_busy_store_is_asked_again(
    store: OpenedStore, proxy: StoreProxy, request_: BlobRequest, kind: str, status: tuple[int, str]
) -> None:
    put(store, "x", b"old")
    proxy.plan("status", times=2, status=status[0], code=status[1])
    store.do(request_)
    assert store.metrics.counts()[kind].retries == 2
    assert store.metrics.counts()[kind].failures == 0


def test_a_store_that_stays_busy_is_given_up(store: OpenedStore, proxy: StoreProxy) -> None:
    proxy.plan("status", times=100)
    with pytest.raises(StoreUnavailable, match="503 SlowDown"):
        read(store, "x")
    assert len(proxy.requests) == HASTY.attempts
    assert store.metrics.counts()["get"].failures == 1


def test_a_truncated_answer_is_read_again(store: OpenedStore, proxy: StoreProxy) -> None:
    data = os.urandom(3 * MIB)
    put(store, "x", data)
    proxy.plan("truncate", method="GET", part="/x")
    assert read(store, "x") == data
    assert retries(store) == 1


def test_a_silent_store_is_asked_again_after_the_timeout(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    put(store, "x", b"abc")
    fault = proxy.plan("hang", method="GET")
    assert read(store, "x") == b"abc"
    assert fault.times == 0
    assert retries(store) == 1


@pytest.mark.parametrize("size", [100_000, 8 * MIB])
def test_a_corrupted_upload_is_noticed_by_the_store_and_sent_again(
    store: OpenedStore, proxy: StoreProxy, size: int
) -> None:
    data = os.urandom(size)
    fault = proxy.plan("corrupt upload", method="PUT")
    put(store, "x", data)
    assert fault.happened.is_set()
    assert read(store, "x") == data
    assert retries(store) == 1


def test_a_slow_store_is_no_dead_store(server: SeaweedFS, proxy: StoreProxy) -> None:
    data = os.urandom(14 * MIB)
    whole = replace(HASTY, endpoint=proxy.endpoint, multipart_bytes=64 * MIB)
    whole = replace(whole, connect_timeout_s=3.0, read_timeout_s=3.0)
    with closing(open_store(f"{server.url}/slow", whole)) as store:
        # Longer than any of the timeouts, which are for silence. What the kernel buffers, up to
        # 4 MB, passes within one.
        proxy.trouble = StoreTrouble(bytes_per_s=4 * MIB)
        put(store, "x", data)
        assert read(store, "x") == data
        assert retries(store) == 0


@pytest.mark.parametrize("direction", ["put", "get"])
def test_a_store_that_trickles_is_given_up(
    server: SeaweedFS, proxy: StoreProxy, direction: str
) -> None:
    trickle = replace(
        HASTY, endpoint=proxy.endpoint, attempts=1, attempt_s=0.3, slowest_bytes_per_s=100 * MIB
    )
    data = os.urandom(4 * MIB)
    with closing(
        open_store(f"{server.url}/trickle", replace(HASTY, endpoint=server.endpoint))
    ) as store:
        put(store, "x", data)
    with closing(open_store(f"{server.url}/trickle", trickle)) as store:
        proxy.trouble = StoreTrouble(bytes_per_s=200_000)
        request = GetBlob("x") if direction == "get" else PutBlob("x", data)
        with pytest.raises(StoreUnavailable, match=r"too long|timeout"):
            store.do(request)


def test_a_closed_store_ends_its_attempts(server: SeaweedFS, proxy: StoreProxy) -> None:
    patient = replace(HASTY, endpoint=proxy.endpoint, attempts=100, backoff_s=60.0)
    patient = replace(patient, backoff_most_s=60.0)
    store = open_store(server.url, patient)
    proxy.is_down = True
    failed: list[ResilientPsError] = []

    def act() -> None:
        try:
            read(store, "x")
        except ResilientPsError as error:
            failed.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    begun_s = time.monotonic()
    while not retries(store) and time.monotonic() - begun_s < 20:
        threading.Event().wait(0.01)
    store.close()
    thread.join(20)
    assert [type(error) for error in failed] == [StoreUnavailable]
    with pytest.raises(StoreUnavailable, match="closed"):
        read(store, "x")


# ------------------------------------------------------------------------------- lost answers


def test_an_own_create_whose_answer_was_lost_is_found_there(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    fault = proxy.plan("lose answer", method="PUT", part="/manifest")
    with pytest.raises(BlobExists):
        put(store, "manifest", b"with my nonce", "create")
    assert fault.happened.is_set()
    assert read(store, "manifest") == b"with my nonce"


def test_an_own_replacement_whose_answer_was_lost_is_found_there(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    etag = put(store, "pointer", b"old").etag
    proxy.plan("lose answer", method="PUT", part="/pointer")
    with pytest.raises(BlobExists):
        store.do(PutBlob("pointer", b"new", "if-match", etag))
    assert read(store, "pointer") == b"new"


def test_an_unconditional_put_whose_answer_was_lost_is_done_again(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    proxy.plan("lose answer", method="PUT")
    put(store, "x", b"x")
    assert retries(store) == 1


def test_a_large_put_whose_last_answer_was_lost_is_recognised(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    data = os.urandom(12 * MIB)
    fault = proxy.plan("lose answer", method="POST", part="uploadId=")
    etag = put(store, "x", data).etag
    assert fault.happened.is_set()
    got = store.do(GetBlob("x"))
    assert (got.data, got.etag) == (data, etag)  # type: ignore[union-attr]


def test_a_large_put_that_fails_leaves_no_parts(store: OpenedStore, proxy: StoreProxy) -> None:
    proxy.plan("status", method="PUT", part="partNumber=2", status=403, code="AccessDenied")
    with pytest.raises(StoreRefused):
        put(store, "x", b"x" * (12 * MIB))
    assert any(method == "DELETE" for method, _ in proxy.requests)
    assert store.do(SweepUploads("", 0)).deleted == 0  # type: ignore[union-attr]
    with pytest.raises(BlobMissing):
        read(store, "x")


def test_parts_that_a_dead_process_left_are_swept_when_they_are_old(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    proxy.plan("status", method="PUT", part="partNumber=2", status=403, code="AccessDenied")
    proxy.plan("status", method="DELETE", times=HASTY.attempts)  # it cannot clean up
    with pytest.raises(StoreRefused):
        put(store, "a/x", b"x" * (12 * MIB))
    swept = [
        store.do(SweepUploads(prefix, older_than_s)).deleted  # type: ignore[union-attr]
        for prefix, older_than_s in (("a/", 3600), ("b/", 0), ("a/", 0), ("a/", 0))
    ]
    assert swept == [0, 0, 1, 0]


# ------------------------------------------------------------------------------- other weaknesses


def test_names_that_a_listing_hides_for_a_while_can_be_read(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    put(store, "old", b"")
    proxy.trouble = StoreTrouble(hide_new_s=3600.0)
    proxy.forget_puts()
    put(store, "new", b"new")
    assert names(store) == ["old"]
    assert read(store, "new") == b"new"
    proxy.trouble = StoreTrouble()
    assert names(store) == ["new", "old"]


def test_a_store_that_ignores_conditions_lets_everybody_win(
    store: OpenedStore, proxy: StoreProxy
) -> None:
    proxy.trouble = StoreTrouble(ignore_conditions=True)
    put(store, "x", b"first", "create")
    put(store, "x", b"second", "create")
    assert read(store, "x") == b"second"


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(
    server: SeaweedFS, store: OpenedStore
) -> None:
    acknowledged = [put(store, f"{number}", b"%d" % number * 10_000).etag for number in range(20)]
    server.kill()
    with pytest.raises(StoreUnavailable):
        put(store, "during", b"x")
    server.restart()
    for number, etag in enumerate(acknowledged):
        got = store.do(GetBlob(f"{number}"))
        assert (got.data, got.etag) == (b"%d" % number * 10_000, etag)  # type: ignore[union-attr]


@pytest.mark.soak
def test_a_server_whose_disk_is_full_says_so_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    stored: dict[str, bytes] = {}
    try:
        with SeaweedFS(folder / "s3") as small:
            for name, value in small.environment.items():
                monkeypatch.setenv(name, value)
            with closing(open_store(small.url, replace(HASTY, endpoint=small.endpoint))) as store:

                def fill(name: str) -> bool:
                    data = os.urandom(4 * MIB)
                    put(store, name, data)
                    stored[name] = data
                    return True

                with pytest.raises(StoreUnavailable, match="500 InternalError"):
                    all(fill(f"{number}") for number in range(20))
                assert stored
                assert {name: read(store, name) for name in stored} == stored
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
