"""A server tells what its replicas hold, as digests."""

from __future__ import annotations

import json

from served_node import CLIENT, Served, open_table, serving

from resilient_ps.digests import QUESTION
from resilient_ps.machine import MessageArrived, Send
from resilient_ps.messages import Ask, Told


def _told(served: Served) -> list[dict[str, object]]:
    effects = served.node.handle(MessageArrived(CLIENT, Ask(7, QUESTION)), served.now_ns)
    (answer,) = [e.message for e in effects if isinstance(e, Send)]
    assert isinstance(answer, Told)
    assert answer.request == 7
    replicas: list[dict[str, object]] = json.loads(answer.body)["replicas"]
    return replicas


def test_every_replica_is_told_with_its_log_position_and_a_digest() -> None:
    told = _told(serving())
    assert [each["shard"] for each in told] == [0, 1, 2, 3]
    assert {each["role"] for each in told} == {"primary"}
    assert len({each["digest"] for each in told}) == 1  # all hold nothing yet


def test_what_changes_a_shard_changes_its_digest() -> None:
    served = serving()
    before = _told(served)
    open_table(served, 0, 1, 2, 3)
    after = _told(served)
    for old, new in zip(before, after, strict=True):
        assert old["digest"] != new["digest"]
