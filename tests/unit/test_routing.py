"""The routing table: from records in etcd to peers."""

from __future__ import annotations

import pytest
from routings import routing

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue
from resilient_ps.coordinator.records import ClusterConfig, Member, ServerRecord, ShardRecord
from resilient_ps.errors import BadInput
from resilient_ps.ids import Epoch
from resilient_ps.routing import NOBODY, refreshed, routing_from

KEYS = ClusterKeys("c")
CONFIG = ClusterConfig("0123456789abcdef", 3, 2, 1, 1, 1, 64, "s1")
SERVER = ServerRecord("s1", 101, "10.0.0.1", 7000, "/tmp/s", "z", 1.0, 5, "0.1", 1, "host")
SHARD = ShardRecord(1, Epoch(3, 2), "s1", 101, (Member("s1", 101),), ("s1",), 1, "n")


def item(key: bytes, value: bytes) -> KeyValue:
    return KeyValue(key, value, 1, 1, 1)


def items() -> list[KeyValue]:
    return [
        item(KEYS.config, CONFIG.to_bytes()),
        item(KEYS.server("s1"), SERVER.to_bytes()),
        item(KEYS.shard(1), SHARD.to_bytes()),
        item(b"/something/else", b"x"),
    ]


def test_records_make_a_routing() -> None:
    made = routing_from(items(), KEYS)
    assert made is not None
    assert (made.incarnation, made.shards) == (3, 2)
    assert made.owners[0] == NOBODY
    assert made.owners[1] == ("s1", 101, Epoch(3, 2))
    assert made.servers["s1"] == ("10.0.0.1", 7000, "/tmp/s", "host", 101)
    assert made.peer(0) is None
    assert made.peer(1) == "server:s1"


def test_without_configuration_there_is_no_routing() -> None:
    assert routing_from(items()[1:], KEYS) is None


@pytest.mark.parametrize("index", range(3))
def test_an_unreadable_record_is_named(index: int) -> None:
    broken = items()
    broken[index] = item(broken[index].key, b"{")
    with pytest.raises(BadInput, match=broken[index].key.decode()):
        routing_from(broken, KEYS)
    assert refreshed(broken, KEYS) is None


def test_a_server_that_was_restarted_is_not_the_primary_any_more() -> None:
    made = routing("s1 s2")
    stale = made.servers["s2"]._replace(process=999)
    restarted = type(made)(1, made.owners, {**made.servers, "s2": stale})
    assert restarted.peer(0) == "server:s1"
    assert restarted.peer(1) is None
    assert "was restarted, empty" in restarted.describe(1)


def test_a_shards_place_is_described() -> None:
    made = routing("s1 - s2", alive="s1")
    assert made.describe(0) == "shard 0 (at epoch 1.1) on s1 at 127.0.0.1:7000".replace("at e", "e")
    assert made.describe(1) == "shard 1 has no primary yet"
    assert "its primary s2 is gone" in made.describe(2)


def test_the_order_puts_shards_of_one_server_together() -> None:
    made = routing("s2 s1 s2 s1 -")
    assert made.order == (4, 1, 3, 0, 2)
    assert [made.order[rank] for rank in made.rank_of_shard] == [0, 1, 2, 3, 4]
