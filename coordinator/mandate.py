"""The coordinator's mandate: the key that says who is elected, and what only the elected may write.

Every transaction of the coordinator compares that key, so that a deposed one changes nothing,
however late its transaction arrives. Of each kind of transaction one is under way at a time: its
answer, or the watch, brings the view on which the next one is made.
"""

from __future__ import annotations

from resilient_ps.coordinator.kv import Compare, KvCall, Op, Put, Txn, absent, unchanged
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.machine import Effect

CAMPAIGN_REF = 21


class Mandate:
    """A candidate's part in it. `lease` is its own; 0 while it has none."""

    def __init__(self, view: ClusterView, server: str, process: int) -> None:
        self.lease = 0
        self.server = server
        self._view = view
        self._me = f'{{"process": {process}, "server": "{server}"}}'.encode()
        self._busy: set[int] = set()  # refs of calls to etcd under way

    @property
    def elected(self) -> bool:
        """Are we the coordinator, as far as we know? Every transaction checks it again."""
        held = self._view.items.get(self._view.keys.coordinator_leader)
        return held is not None and held.value == self._me and held.lease == self.lease

    def campaign(self) -> list[Effect]:
        """Try to be elected, where nobody is."""
        key = self._view.keys.coordinator_leader
        if key in self._view.items:
            return []
        txn = Txn((absent(key),), (Put(key, self._me, self.lease),))
        return self.ask(CAMPAIGN_REF, txn, self._me)

    def order(self, *ops: Op, guards: tuple[Compare, ...] = ()) -> Txn:
        """A transaction that only the present coordinator can make."""
        assert self.elected, "only the coordinator writes with the coordinator's guard"
        key = self._view.keys.coordinator_leader
        elected = unchanged(key, self._view.items[key].mod_revision)
        return Txn((elected, *guards), ops)

    def ask(self, ref: int, txn: Txn, nonce: bytes = b"") -> list[Effect]:
        """Send a transaction, unless one of its kind is under way."""
        if ref in self._busy:
            return []
        self._busy.add(ref)
        return [KvCall(ref, txn, nonce)]

    def busy(self, ref: int) -> bool:
        """Is a transaction of this kind under way?"""
        return ref in self._busy

    def answered(self, ref: int) -> None:
        """The transaction of this kind has ended, one way or the other."""
        self._busy.discard(ref)
