"""What a role in etcd may do that was granted the prefix of a namespace, as `ns show` tells it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kv_stores import fast_etcd

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.namespace_report import access
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import EtcdProcess
from resilient_ps.errors import BadInput
from resilient_ps.tables.optimisers import SGD
from resilient_ps.tables.spec import SparseSpec

ETCDCTL = shutil.which("etcdctl")
KEYS = ClusterKeys("prod")
NAMESPACE = "ctr/emb"
Ctl = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.skipif(ETCDCTL is None, reason="no etcdctl to manage users with")


def etcdctl(endpoint: str, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    assert ETCDCTL is not None
    command = [
        ETCDCTL,
        "--endpoints",
        endpoint,
        *(["--user", f"{user}:pw"] if user else []),
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    """What the documentation says an operator does."""
    prefix = access(KEYS, NAMESPACE)["etcd_prefix"]
    assert prefix == "/resilient-ps/prod/tables/ctr/emb/"
    with fast_etcd(1) as process:
        for words in (
            ("user", "add", "root:pw"),
            ("user", "grant-role", "root", "root"),
            ("role", "add", "emb"),
            ("role", "grant-permission", "emb", "read", "--prefix=true", KEYS.prefix.decode()),
            ("role", "grant-permission", "emb", "readwrite", "--prefix=true", prefix),
            ("role", "grant-permission", "emb", "readwrite", KEYS.counter("tables").decode()),
            ("user", "add", "alice:pw"),
            ("user", "grant-role", "alice", "emb"),
            ("auth", "enable"),
        ):
            done = etcdctl(process.endpoints[0], "", *words)
            assert done.returncode == 0, (words, done.stderr)
        yield process


@pytest.fixture
def ctl(etcd: EtcdProcess) -> Ctl:
    return lambda *words, user="alice": etcdctl(etcd.endpoints[0], user, *words)


@pytest.fixture
def catalogue(etcd: EtcdProcess) -> Iterator[Catalogue]:
    with closing(EtcdKv(etcd.endpoints, user="alice", password="pw")) as kv:
        yield Catalogue(kv, "prod", 10)


def spec_of(name: str) -> SparseSpec:
    return SparseSpec(name, 2, "float32", SGD(0.1))


def test_the_role_makes_and_removes_tables_in_its_namespace(catalogue: Catalogue) -> None:
    handle = catalogue.create_table(spec_of("ctr/emb/user"))
    inner = catalogue.create_table(spec_of("ctr/emb/deep/er"))
    assert inner.number == handle.number + 1
    assert sorted(catalogue.tables()) == ["ctr/emb/deep/er", "ctr/emb/user"]
    catalogue.drop_table("ctr/emb/deep/er")
    assert sorted(catalogue.tables()) == ["ctr/emb/user"]


@pytest.mark.parametrize("name", ["ctr/embers/x", "ctr/em/x", "ctr/x", "other/emb/x", "emb"])
def test_the_role_makes_no_table_anywhere_else(catalogue: Catalogue, name: str) -> None:
    with pytest.raises(BadInput, match="permission denied"):
        catalogue.create_table(spec_of(name))


def test_the_role_removes_nothing_elsewhere_and_sees_it(
    catalogue: Catalogue, ctl: Ctl, etcd: EtcdProcess
) -> None:
    with closing(EtcdKv(etcd.endpoints, user="root", password="pw")) as kv:
        Catalogue(kv, "prod", 10).create_table(spec_of("ctr/embers/theirs"))
    assert "ctr/embers/theirs" in catalogue.tables()
    with pytest.raises(BadInput, match="permission denied"):
        catalogue.drop_table("ctr/embers/theirs")
    key = KEYS.table("ctr/embers/theirs").decode()
    assert ctl("del", key).returncode != 0
    assert ctl("get", key, "--print-value-only").stdout


def test_the_role_cannot_change_its_own_quota_nor_what_belongs_to_all(
    catalogue: Catalogue, ctl: Ctl
) -> None:
    with pytest.raises(BadInput, match="permission denied"):
        catalogue.scopes.set(NAMESPACE, 10**12, None)
    for key in (
        access(KEYS, NAMESPACE)["quota_key"],
        KEYS.config.decode(),
        KEYS.job("j").decode(),
        KEYS.shard(0).decode(),
        ClusterKeys("prod2").table("ctr/emb/x").decode(),
    ):
        assert key is not None
        refused = ctl("put", key, "x")
        assert refused.returncode != 0
        assert "permission denied" in refused.stderr
    assert ctl("put", KEYS.tables_in(NAMESPACE).decode() + "raw", "x").returncode == 0
    assert ctl("del", KEYS.tables_in(NAMESPACE).decode() + "raw").returncode == 0
