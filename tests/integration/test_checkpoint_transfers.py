"""Transfers between keys of different shards at full rate: no checkpoint shows one by half."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from standby import CLUSTER, PATIENCE_S, cold_standby

import resilient_ps as ps
from resilient_ps.chaos.faults.links import StoreTrouble
from resilient_ps.chaos.live.proxy.store import StoreProxy
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.client.connection import connect
from resilient_ps.client.content import read_part, tables_of
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.errors import NotFound
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.storage.runtime.seaweedfs import SeaweedFS, find_weed

ACCOUNTS = 60_000
DIM = 2
RANKS = 2
SLOW_BYTES_PER_S = 1_000_000
OFTEN = CheckpointSettings(every_s=0.5, keep_last=100, cut_deadline_s=10)


@pytest.fixture(scope="module")
def seaweedfs() -> Iterator[SeaweedFS]:
    try:
        find_weed()
    except NotFound as error:
        pytest.skip(str(error))
    with SeaweedFS() as process:
        yield process


class Teller(threading.Thread):
    """A rank that moves amounts between random accounts, with a push for each side."""

    def __init__(self, worker: ps.Worker, ending: threading.Event) -> None:
        super().__init__(daemon=True)
        self.error: BaseException | None = None
        self._worker = worker
        self._ending = ending
        self._table = worker.sparse_table("accounts", dim=DIM, dtype="int64", optimiser=ps.Sum())
        self._random = np.random.default_rng(worker.rank)

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._transfer()
                self._worker.tick()
        except BaseException as error:
            self.error = error

    def _transfer(self) -> None:
        both = self._random.choice(ACCOUNTS, 2 * 500, replace=False).astype(np.uint64)
        amounts = self._random.integers(1, 1_000, (500, DIM))
        self._table.push_async(both[:500], amounts)
        self._table.push_async(both[500:], -amounts)


def total(stored: StoredCheckpoints, manifest: Manifest) -> tuple[int, list[int]]:
    """How many accounts there are, and what is in all of them."""
    indexes = stored.indexes(manifest)
    (table,) = tables_of(manifest, indexes)
    parts = [read_part(stored.blobs, index, table) for index in indexes]
    return sum(len(part) for part in parts), sum(p.values.sum(axis=0) for p in parts).tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [pytest.param("ssp:2", marks=pytest.mark.soak), "asp"])
def test_the_total_is_constant_in_every_checkpoint(
    seaweedfs: SeaweedFS, mode: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{seaweedfs.url}/{mode.replace(':', '')}"
    keys = (seaweedfs.access_key, seaweedfs.secret_key)
    with (
        StoreProxy(seaweedfs.endpoint, credentials=keys) as proxy,
        cold_standby(url, 2, settings=OFTEN, endpoint=proxy.endpoint) as running,
    ):
        proxy.trouble = StoreTrouble(bytes_per_s=SLOW_BYTES_PER_S)
        etcd = ",".join(running.processes.endpoints)
        with connect(etcd, CLUSTER, deadline_s=PATIENCE_S) as client:
            ending = threading.Event()
            workers = [client.worker("move", rank, RANKS, mode) for rank in range(RANKS)]
            table = workers[0].sparse_table("accounts", dim=DIM, dtype="int64", optimiser=ps.Sum())
            table.push(np.arange(ACCOUNTS, dtype=np.uint64), np.full((ACCOUNTS, DIM), 1_000))
            tellers = [Teller(worker, ending) for worker in workers]
            for teller in tellers:
                teller.start()
            running.wait_for_checkpoints(3)
            ending.set()
            for teller in tellers:
                teller.join(PATIENCE_S)
                assert teller.error is None, teller.error
            clocks = [worker.clock for worker in workers]
    with StoredCheckpoints(open_store(url), CLUSTER) as stored:
        made = [each.manifest for each in stored.listed() if each.manifest is not None]
        assert len(made) >= 3
        for manifest in made:
            assert 0 < manifest.clocks["move"] < max(clocks)
            assert total(stored, manifest) == (ACCOUNTS, [ACCOUNTS * 1_000] * DIM), manifest.id
        # While money moved: those made after the last transfer are of one clock.
        assert len({manifest.clocks["move"] for manifest in made}) > 1
