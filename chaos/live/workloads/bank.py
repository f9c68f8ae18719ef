"""A bank: its books are compared with its orders, in pulls, in the end, and in every checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resilient_ps.chaos.checkers.bank import ACCOUNTS, check_books, check_statements, orders_of
from resilient_ps.chaos.checkers.cuts import Content
from resilient_ps.chaos.checkers.one_hot import check_one_hot
from resilient_ps.chaos.checkers.verdict import HOLDS, Verdict, judge, together
from resilient_ps.chaos.history import History
from resilient_ps.chaos.live.scene import Scene
from resilient_ps.chaos.live.stores import StoreHere
from resilient_ps.chaos.live.workload import WorkloadSettings
from resilient_ps.chaos.live.workloads.counting import read_numbers
from resilient_ps.chaos.live.workloads.recorded import Recorded
from resilient_ps.client.connection import Client
from resilient_ps.client.content import read_part, tables_of
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.consistency import BSP, JobSpec
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.runtime.open import open_store
from resilient_ps.storage.shard_index import ShardIndex


class Bank(Recorded):
    """`accounts`: the tables that hold them."""

    program = "bank"

    def __init__(
        self, name: str, settings: WorkloadSettings, orders: str, accounts: Sequence[str]
    ) -> None:
        super().__init__(name, settings, (orders, *accounts))
        self._orders = orders
        self.accounts = tuple(accounts)
        self._store = StoreHere()
        self._cluster = ""

    def start(self, scene: Scene) -> None:
        """See where checkpoints are to be found."""
        super().start(scene)
        store = getattr(scene, "store", None)
        if isinstance(store, StoreHere):
            self._store, self._cluster = store, scene.cluster

    def look_into(self, store: StoreHere, cluster: str) -> None:
        """Checkpoints of this cluster in this store are judged too."""
        self._store, self._cluster = store, cluster

    def verdicts(self, history: History, client: Client) -> dict[str, Verdict]:
        """See `checkers.bank`."""
        found: dict[str, Verdict] = {
            "every order is carried out once": self._order_counts(history, client),
            "the books balance in the end": self._in_the_end(client),
        }
        if isinstance(self.mode, BSP):
            statements = check_statements(history, self.accounts, self.ranks)
            found["pulls see whole clocks"] = statements
        if self._store.url:
            found["a checkpoint is a consistent cut"] = self._in_checkpoints()
        return found

    def _order_counts(self, history: History, client: Client) -> Verdict:
        orders = history.of(self._orders)
        keys = sorted({key for push in orders.operations("push") for key in push.invoked.keys})
        held = read_numbers(client, self._orders, np.array(keys, np.uint64))
        return check_one_hot(orders, held, self.mode, at_rest=self.at_rest)

    def _in_the_end(self, client: Client) -> Verdict:
        if not self.at_rest:
            return Verdict("unknown", ("ranks have not ended behind the same clock",))
        ticked = dict(enumerate(self.clocks))
        accounts = np.arange(ACCOUNTS, dtype=np.uint64)
        held = {
            number: read_numbers(client, name, accounts)
            for number, name in enumerate(self.accounts)
        }
        tables = len(self.accounts)
        keys = [
            order.key
            for rank, clocks in ticked.items()
            for clock in range(1, clocks + 1)
            for order in orders_of(rank, clock, tables)
        ]
        held[tables] = read_numbers(client, self._orders, np.array(keys, np.uint64))
        return check_books({"in the end": (held, ticked)}, tables)

    # -- checkpoints

    def _in_checkpoints(self) -> Verdict:
        """All that are there now; that there is none is no violation."""
        states: dict[str, tuple[Content, dict[int, int]]] = {}
        damaged: list[str] = []
        store = open_store(self._store.url, self._store.options)
        with StoredCheckpoints(store, self._cluster) as stored:
            for manifest in _complete(stored):
                try:
                    indexes = stored.indexes(manifest)
                    held = self._content(stored, manifest, indexes)
                    states[f"checkpoint {manifest.id}"] = held, _ticked(indexes, self.job)
                except Damaged as error:
                    if manifest in _complete(stored):  # else it has been deleted meanwhile
                        damaged.append(f"checkpoint {manifest.id} cannot be read: {error}")
        if not states and not damaged:
            return HOLDS
        whole = judge(damaged, checked=1, what="checkpoints")
        return together(whole, check_books(states, len(self.accounts)) if states else HOLDS)

    def _content(
        self, stored: StoredCheckpoints, manifest: Manifest, indexes: Sequence[ShardIndex]
    ) -> Content:
        numbers = {name: n for n, name in enumerate((*self.accounts, self._orders))}
        content: dict[int, dict[int, int]] = {number: {} for number in numbers.values()}
        for table in tables_of(manifest, indexes):
            rows = content.get(numbers.get(table.spec.name, -1))
            if rows is None:
                continue
            for index in indexes:
                part = read_part(stored.blobs, index, table)
                assert part.keys is not None
                pairs = zip(part.keys.tolist(), part.values[:, 0].tolist(), strict=True)
                rows.update({key: value for key, value in pairs if value})
        return content


def _complete(stored: StoredCheckpoints) -> list[Manifest]:
    return [each.manifest for each in stored.listed() if each.manifest is not None]


def _ticked(indexes: Sequence[ShardIndex], job: str) -> dict[int, int]:
    """The last clock of each rank in a checkpoint: all shards say the same."""
    for state in indexes[0].jobs:
        if JobSpec.from_json(state.spec).name == job:
            return {each.rank: each.ticked for each in state.ranks}
    return {}


def transfer(settings: WorkloadSettings) -> Bank:
    """Accounts in one table, on all shards."""
    return Bank("transfer", settings, "transfer/orders", ["transfer/accounts"])


def namespace(settings: WorkloadSettings) -> Bank:
    """Accounts in tables of two namespaces."""
    return Bank("namespace", settings, "b/orders", ["a/accounts", "b/accounts"])
