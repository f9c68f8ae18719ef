"""The layout of etcd keys."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.coordinator.keys import ClusterKeys, Located, check_name
from resilient_ps.errors import BadInput

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
TABLES = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
KEYS = ClusterKeys("prod")


def all_keys(cluster: str, name: str, table: str, number: int) -> list[bytes]:
    keys = ClusterKeys(cluster)
    return [
        keys.config,
        keys.coordinator_leader,
        keys.ring,
        keys.drain(name),
        keys.server(name),
        keys.shard(number),
        keys.leader(number),
        keys.table(table),
        keys.namespace(table),
        keys.job(name),
        keys.rank(name, number),
        keys.finished(name, number),
        keys.data_shards(name),
        keys.graph(name),
        keys.lanes(name, number % 256),
        keys.holder(name, "box-17"),
        keys.intent(number),
        keys.checkpoint(number),
        keys.restore,
        keys.counter("tables"),
    ]


@given(NAMES, NAMES, NAMES, TABLES, st.integers(0, 1023))
def test_two_clusters_never_share_a_key(
    one: str, other: str, name: str, table: str, number: int
) -> None:
    outside = ClusterKeys(other)
    for key in all_keys(one, name, table, number):
        assert key.startswith(ClusterKeys(one).prefix)
        assert key.startswith(outside.prefix) == (one == other)
        assert (outside.locate(key) is not None) == (one == other)


@given(NAMES, TABLES, st.integers(0, 1023))
def test_all_keys_are_distinct_and_tell_what_they_are(name: str, table: str, number: int) -> None:
    keys = all_keys("prod", name, table, number)
    assert len(set(keys)) == len(keys)
    assert [KEYS.locate(key) for key in keys] == [
        Located("config"),
        Located("coordinator"),
        Located("ring"),
        Located("drain", name),
        Located("server", name),
        Located("shard", number=number),
        Located("leader", number=number),
        Located("table", table),
        Located("namespace", table),
        Located("job", name),
        Located("rank", name, number),
        Located("finished", name, number),
        Located("data-shards", name),
        Located("graph", name),
        Located("lanes", name, number % 256),
        Located("holder", name, part="box-17"),
        Located("intent", number=number),
        Located("checkpoint", number=number),
        Located("restore"),
        Located("counter", "tables"),
    ]


@given(NAMES, TABLES, st.integers(0, 1023))
def test_each_prefix_covers_its_own_kind_only(name: str, table: str, number: int) -> None:
    covered = {
        KEYS.drains: "drain",
        KEYS.servers: "server",
        KEYS.shards: "shard",
        KEYS.leaders: "leader",
        KEYS.tables: "table",
        KEYS.intents: "intent",
        KEYS.checkpoints: "checkpoint",
    }
    for key in all_keys("prod", name, table, number):
        located = KEYS.locate(key)
        assert located is not None
        for prefix, kind in covered.items():
            assert key.startswith(prefix) == (located.kind == kind)
        assert key.startswith(KEYS.ranks(name)) == (located.kind in ("rank", "finished"))
        assert key.startswith(KEYS.graph_parts(name)) == (located.kind in ("lanes", "holder"))
        assert key.startswith(KEYS.holders(name)) == (located.kind == "holder")


@pytest.mark.parametrize(
    "make", [KEYS.shard, KEYS.leader, KEYS.intent, KEYS.checkpoint, lambda n: KEYS.rank("j", n)]
)
@given(st.integers(0, 1023), st.integers(0, 1023))
def test_the_order_of_keys_is_the_order_of_numbers(
    make: Callable[[int], bytes], a: int, b: int
) -> None:
    assert (make(a) < make(b)) == (a < b)


@pytest.mark.parametrize(
    "name", ["", "a/b", "../x", ".", "..", "-a", "a b", "a\n", "ä", "a\x00", "x" * 101, "prod/"]
)
def test_names_that_could_leave_their_place_are_refused(name: str) -> None:
    for make in (ClusterKeys, KEYS.server, KEYS.job, lambda n: KEYS.rank(n, 0)):
        with pytest.raises(BadInput):
            make(name)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "a/../b", "a b", "x" * 201])
def test_table_names_that_could_leave_their_place_are_refused(name: str) -> None:
    with pytest.raises(BadInput, match="table"):
        KEYS.table(name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: KEYS.shard(-1),
        lambda: KEYS.shard(1024),
        lambda: KEYS.leader(1024),
        lambda: KEYS.rank("j", 65_536),
        lambda: KEYS.intent(10**12),
        lambda: KEYS.lanes("g", 256),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], bytes]) -> None:
    with pytest.raises(BadInput, match="out of range"):
        make()


@given(st.binary(max_size=40))
def test_foreign_keys_below_the_prefix_are_nobody(rest: bytes) -> None:
    assert KEYS.locate(rest) is None
    located = KEYS.locate(KEYS.prefix + b"unknown/" + rest)
    assert located is None


@pytest.mark.parametrize(
    "below",
    [
        b"shards/1",
        b"shards/00001",
        b"servers/",
        b"servers/a/b",
        "shards/\u0660\u0660\u0660\u0661".encode(),
    ],
)
def test_keys_that_are_nearly_right_are_nobody(below: bytes) -> None:
    assert KEYS.locate(KEYS.prefix + below) is None


def test_the_message_names_the_kind_and_the_rule() -> None:
    with pytest.raises(BadInput, match="'a b' cannot name a cluster: begin with a letter"):
        check_name("cluster", "a b")
