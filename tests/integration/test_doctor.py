"""`resilient-ps doctor`: it finds out what a store can do, says what that means, and cleans up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_process import Ended, Shell

from resilient_ps.chaos.faults.links import StoreTrouble
from resilient_ps.chaos.live.proxy.store import StoreProxy
from resilient_ps.errors import NotFound
from resilient_ps.runtime.spawn import free_ports
from resilient_ps.storage.blobs import BlobList, ListBlobs
from resilient_ps.storage.runtime.examination import LAG_PATIENCE_S, Examination
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.storage.runtime.options import options_from
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

QUICK = ("--rounds", "1", "--mib", "16")


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    try:
        find_weed()
    except NotFound as error:
        pytest.skip(str(error))
    with SeaweedFS() as process:
        yield process


@pytest.fixture
def s3(server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def verdicts(ended: Ended) -> dict[str, str]:
    return {finding["item"]: finding["verdict"] for finding in ended.json["findings"]}


def finding(ended: Ended, item: str) -> dict[str, Any]:
    return next(each for each in ended.json["findings"] if each["item"] == item)


def names(url: str) -> list[str]:
    store = open_store(url)
    page = store.do(ListBlobs(""))
    store.close()
    assert isinstance(page, BlobList)
    return [item.name for item in page.items]


def test_a_folder_can_do_everything_and_stays_as_it_was(shell: Shell, tmp_path: Path) -> None:
    ended = shell("doctor", "--store", str(tmp_path / "store"), *QUICK, "--json")
    assert ended.code == 0
    assert ended.json["verdict"] == "good"
    assert set(verdicts(ended).values()) == {"good"}
    assert "objects in parts" not in verdicts(ended)
    assert names(str(tmp_path / "store")) == []


def test_a_real_s3_server_can_do_everything_and_stays_as_it_was(
    shell: Shell, s3: SeaweedFS
) -> None:
    ended = shell("doctor", "--store", f"{s3.url}/good", *QUICK, "--json")
    assert ended.code == 0, ended
    assert finding(ended, "create only")["figures"]["winners"] == [1]
    assert finding(ended, "objects in parts")["verdict"] == "good"
    assert names(f"{s3.url}/good") == []


def test_ignored_conditions_are_found_and_their_meaning_is_told(
    shell: Shell, s3: SeaweedFS
) -> None:
    with StoreProxy(s3.endpoint, credentials=(s3.access_key, s3.secret_key)) as proxy:
        proxy.trouble = StoreTrouble(ignore_conditions=True)
        place = ("--store", f"{s3.url}/lax", "--s3-endpoint", proxy.endpoint)
        ended = shell("doctor", *place, *QUICK, "--json")
    assert ended.code == 1
    assert ended.json["verdict"] == "limited"
    create = finding(ended, "create only")
    assert create["verdict"] == "limited"
    assert create["found"].startswith("16 winners among 16")
    assert "the record in etcd is the authority" in create["means"]
    assert "a wrong etag and no object" in finding(ended, "replace if unchanged")["found"]
    assert finding(ended, "ranged reads")["verdict"] == "good"
    assert names(f"{s3.url}/lax") == []


def test_wrong_bytes_are_worse_than_refused_conditions(shell: Shell, s3: SeaweedFS) -> None:
    with StoreProxy(s3.endpoint) as proxy:
        proxy.plan("status", part="/create-", times=1000, status=501, code="NotImplemented")
        proxy.plan("corrupt answer", method="GET", part="/ranges", times=1000)
        place = ("--store", f"{s3.url}/bad", "--s3-endpoint", proxy.endpoint)
        ended = shell("doctor", *place, *QUICK)
    assert ended.code == 2
    lines = [line.split() for line in ended.out.splitlines()]
    assert lines[2][:3] == ["read", "after", "write"]
    assert lines[3][:3] == ["ranged", "reads", "bad"]
    assert lines[4][:4] == ["create", "only", "limited", "refused:"]
    assert "checkpoints cannot be restored" in ended.out
    assert "the record in etcd is the authority" in ended.out
    assert "the store cannot be used" in ended.out


def test_listings_that_lag_are_measured(s3: SeaweedFS) -> None:
    options = replace(options_from(os.environ), concurrency=16)
    with StoreProxy(s3.endpoint) as proxy:
        proxy.trouble = StoreTrouble(hide_new_s=1.5)
        store = open_store(f"{s3.url}/late", replace(options, endpoint=proxy.endpoint))
        with closing(store):
            examination = Examination(store)
            found = examination.listing()
            examination.clean_up()
    assert found.verdict == "limited"
    assert 1.0 < found.figures["new_after_s"] < LAG_PATIENCE_S
    assert "sweeping is late" in found.means


def test_wrong_credentials_and_an_absent_bucket_are_told_at_once(
    shell: Shell, s3: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = shell("doctor", "--store", "s3://no-such-bucket/x", *QUICK)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a wrong one")
    wrong = shell("doctor", "--store", s3.url, *QUICK)
    assert (absent.code, wrong.code) == (2, 2)
    assert absent.err.count("no such bucket") == 1
    assert wrong.err.count("AWS_SECRET_ACCESS_KEY") == 1
    assert absent.out == wrong.out == ""


def test_an_unreachable_store_is_told_with_its_endpoint(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    ended = shell("doctor", "--store", "s3://bucket/x", "--s3-endpoint", endpoint)
    assert ended.code == 3
    assert endpoint in ended.err


def test_a_store_must_be_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESILIENT_PS_STORE", raising=False)
    for arguments, said in ((), "name the store"), (("--store", "ftp://x"), "s3://bucket/prefix"):
        ended = shell("doctor", *arguments)
        assert ended.code == 2
        assert said in ended.err
    assert not os.path.exists("ftp:")
