"""Real etcd with users: logging in, tokens that expire, and what a user may not do."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from etcd3 import etcdrpc as rpc
from etcd3.etcdrpc import auth_pb2
from kv_stores import NO_ETCD, Recorder, eventually, fast_etcd

from resilient_ps.coordinator.kv import put
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import EtcdProcess, find_etcd
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.runtime.spawn import free_ports, spawn


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with fast_etcd(1, "--auth-token-ttl", "1") as process:
        with grpc.insecure_channel(process.endpoints[0]) as channel:
            auth = rpc.AuthStub(channel)
            auth.RoleAdd(rpc.AuthRoleAddRequest(name="ours"))
            permission = auth_pb2.Permission(
                permType=auth_pb2.Permission.READWRITE, key=b"ours/", range_end=b"ours0"
            )
            auth.RoleGrantPermission(
                rpc.AuthRoleGrantPermissionRequest(name="ours", perm=permission)
            )
            for user, role in (("root", "root"), ("alice", "ours")):
                auth.UserAdd(rpc.AuthUserAddRequest(name=user, password="secret"))
                auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=role))
            auth.AuthEnable(rpc.AuthEnableRequest())
        yield process


@pytest.fixture
def kv(etcd: EtcdProcess) -> Iterator[EtcdKv]:
    with closing(EtcdKv(etcd.endpoints, user="alice", password="secret")) as client:
        yield client


def test_a_user_works_under_the_granted_prefix_only(kv: EtcdKv) -> None:
    put(kv, b"ours/k", b"v")
    assert [item.value for item in kv.read(b"ours/", prefix=True).items] == [b"v"]
    with pytest.raises(BadInput, match="permission denied"):
        put(kv, b"theirs/k", b"v")


def test_a_wrong_password_fails_at_once(etcd: EtcdProcess) -> None:
    with (
        closing(EtcdKv(etcd.endpoints, user="alice", password="wrong")) as kv,
        pytest.raises(BadInput, match="check the user and password"),
    ):
        kv.read(b"ours/k", deadline_s=3600)


def test_a_missing_password_fails_at_once(etcd: EtcdProcess) -> None:
    with (
        closing(EtcdKv(etcd.endpoints)) as kv,
        pytest.raises(BadInput, match="user"),
    ):
        kv.read(b"ours/k", deadline_s=3600)
    with pytest.raises(BadInput, match="both a user and a password"):
        EtcdKv(etcd.endpoints, user="alice")


def test_an_expired_token_is_renewed_without_a_lost_event(etcd: EtcdProcess, kv: EtcdKv) -> None:
    seen = Recorder()
    watch = kv.watch(b"ours/w/", 0, seen)
    put(kv, b"ours/w/1", b"")
    seen.wait_for_key("put", b"ours/w/1")
    old = kv._login._token
    eventually(lambda: is_refused(etcd, old), "the end of the token")
    put(kv, b"ours/w/2", b"")
    seen.wait_for_key("put", b"ours/w/2")
    assert kv._login._token != old
    # A restarted member knows no token at all, and ends the watch.
    etcd.kill(0)
    etcd.restart(0)
    put(kv, b"ours/w/3", b"")
    seen.wait_for_key("put", b"ours/w/3")
    watch.close()
    assert seen.names() == [("put", b"ours/w/%d" % number) for number in (1, 2, 3)]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates with")
def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    ca, cert, key = (str(files[name]) for name in ("ca", "cert", "key"))
    client, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    options = ["--listen-client-urls", f"https://{client}", "--cert-file", cert, "--key-file", key]
    options += ["--advertise-client-urls", f"https://{client}", "--listen-peer-urls"]
    options += [f"http://{peer}", "--client-cert-auth", "--trusted-ca-file", ca]
    binary = find_etcd()
    if binary is None:
        pytest.skip(NO_ETCD)
    command = [binary, "--data-dir", str(tmp_path / "data"), *options]
    process = spawn(command, tmp_path / "log")
    try:
        with closing(EtcdKv(client, ca=ca, cert=cert, key=key)) as kv:
            eventually(lambda: reaches(kv), "the member to answer over TLS")
            put(kv, b"k", b"v")
            assert kv.read(b"k").items[0].value == b"v"
        with closing(EtcdKv(client, ca=ca)) as kv, pytest.raises(Unavailable, match=client):
            kv.read(b"k", deadline_s=0.5)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(BadInput, match="needs both"):
        EtcdKv(client, ca=ca, cert=cert)
    with pytest.raises(BadInput, match="cannot read the PEM file"):
        EtcdKv(client, ca=tmp_path / "missing.pem")


def make_certificates(folder: Path) -> dict[str, Path]:
    """A self-signed certificate that is its own authority, for both sides."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key), "-out"]
    command += [str(cert), "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(command, check=True, capture_output=True)
    return {"ca": cert, "cert": cert, "key": key}


def reaches(kv: EtcdKv) -> bool:
    try:
        kv.read(b"k", deadline_s=1)
    except Unavailable:
        return False
    return True


def is_refused(etcd: EtcdProcess, token: str | None) -> bool:
    assert token
    request = rpc.RangeRequest(key=b"ours/k")
    # Each use prolongs a token, so look seldom.
    threading.Event().wait(1.5)
    with grpc.insecure_channel(etcd.endpoints[0]) as channel:
        try:
            rpc.KVStub(channel).Range(request, metadata=(("token", token),), timeout=5)
        except grpc.RpcError as error:
            return "invalid auth token" in str(error)
    return False
