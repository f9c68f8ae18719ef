"""What `checkpoint gc` asks etcd for before it deletes anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from resilient_ps.cli.checkpoint.gc import Plan, known_to, withdraw
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.kv import Put, Txn
from resilient_ps.coordinator.memory import MemoryKv
from resilient_ps.coordinator.records import CheckpointRecord, IntentRecord, RestoreRecord
from resilient_ps.coordinator.runtime.memory_client import MemoryClient
from resilient_ps.errors import FixTheCall
from resilient_ps.storage.names import CheckpointId

ID = CheckpointId(1, 7, "0000abcd")
RECORD = CheckpointRecord(7, str(ID), 1, "m", 1, "0" * 64, {}, 0, 1, 1)
PLAN = Plan((), (ID,), (), 0, 0)
RESTORE = RestoreRecord(2, str(ID), "m", 1, "0" * 64, {}, "an operator", 0)
CUT = IntentRecord(8, "cut", "", 0, 0, "open", {}, {"base": str(ID)})


@pytest.fixture
def catalogue() -> Catalogue:
    catalogue = Catalogue(MemoryClient(MemoryKv()), "prod", deadline_s=1.0)
    config = ClusterWishes().config("0" * 32, "a test")
    puts = (
        Put(catalogue.keys.config, config.to_bytes()),
        Put(catalogue.keys.checkpoint(7), RECORD.to_bytes()),
    )
    catalogue.kv.txn(Txn((), puts))
    return catalogue


def test_what_goes_is_marked_first(catalogue: Catalogue) -> None:
    withdraw(catalogue, known_to(catalogue, 1.0), PLAN, 1.0)
    (item,) = catalogue.kv.read(catalogue.keys.checkpoint(7)).items
    assert CheckpointRecord.from_bytes(item.value, b"") == replace(RECORD, state="deleting")


@pytest.mark.parametrize("use", ["restore", "base"])
def test_what_has_come_into_use_since_is_not_deleted(catalogue: Catalogue, use: str) -> None:
    known, keys = known_to(catalogue, 1.0), catalogue.keys
    put = Put(keys.restore, RESTORE.to_bytes())
    if use == "base":
        put = Put(keys.intent(8), CUT.to_bytes())
    catalogue.kv.txn(Txn((), (put,)))
    with pytest.raises(FixTheCall, match="is in use"):
        withdraw(catalogue, known, PLAN, 1.0)
