"""Standing for primary of one shard: whose turn it is, and the claim under way.

Members stand in the order in which they are desired, one step after another, so that mostly the
first of them is alone. It makes no difference to safety: a claim succeeds only over the record and
the leader key that it was made of. Where its outcome is unknown it is sent again, unchanged, until
a later record settles it.
"""

from __future__ import annotations

from resilient_ps.coordinator.kv import KvAnswered, KvCall, KvFailed
from resilient_ps.replication import claims
from resilient_ps.replication.claims import Claim, Known
from resilient_ps.replication.home import Home

STEP_NS = 50_000_000
RETRY_NS = 200_000_000


class Candidacy:
    """See the module."""

    def __init__(self, number: int, home: Home) -> None:
        self._number = number
        self._home = home
        self._claim: Claim | None = None
        self._asked = False  # the claim's call to etcd is under way
        self._at_ns = 0  # not before this is it sent; 0: we do not stand

    @property
    def at_rest(self) -> bool:
        """Is there nothing that only time brings forward?"""
        return self._claim is None and not self._at_ns

    def on_known(self, known: Known) -> None:
        """A record later than the one that the claim is made of settles it."""
        if self._claim is not None and known.revision > self._claim.over:
            self.end()

    def withdraw(self) -> None:
        """There is a leader: do not wait for a turn. A claim under way has to be settled still."""
        if self._claim is None:
            self._at_ns = 0

    def end(self) -> None:
        """It is settled."""
        self._claim, self._asked, self._at_ns = None, False, 0

    def stand(self, known: Known, now_ns: int) -> list[KvCall]:
        """Campaign, after those that are to be preferred had their chance."""
        home = self._home
        if home.stopping or self._asked:
            return []
        if self._claim is not None and self._claim.lease != home.lease:
            self._claim = None  # under a lease that is lost: it cannot succeed any more
        if not self._at_ns:
            self._at_ns = now_ns + self._turn(known) * STEP_NS
        if now_ns < self._at_ns:
            return []
        if self._claim is None:
            self._claim = claims.campaign(
                home.keys, known, home.me, home.lease, home.min_in_sync, home.nonce()
            )
        self._asked = True
        return [home.ask(self._number, self._claim)]

    def _turn(self, known: Known) -> int:
        """How many candidates come before us: in the order in which they are desired."""
        record, leases, me = known.record, self._home.leases, self._home.me
        dead = known.leader_lease if known.leader_revision else 0
        standing = [m for m in record.in_sync if m in leases and leases[m] != dead]
        order = {server: place for place, server in enumerate(record.desired)}
        standing.sort(key=lambda m: (order.get(m.server, len(order)), m))
        return standing.index(me) if me in standing else len(standing)

    def on_kv(self, claim: Claim, event: KvAnswered | KvFailed, now_ns: int) -> bool:
        """What became of a claim; False if it is none of ours, or settled already."""
        if claim is not self._claim:
            return False
        self._asked, self._at_ns = False, now_ns + RETRY_NS
        if not (isinstance(event, KvFailed) and event.unknown):
            self._claim = None  # the next one is made of what is known then
        return True
