"""Whose process is being struck, and the look that keeps faults from destroying a shard."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.faults.safety import keeps_majority, last_copies
from resilient_ps.chaos.live.records import Records
from resilient_ps.chaos.live.scene import Party, Skipped
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import RetryLater

LOOK_DEADLINE_S = 0.5  # the victim stands still meanwhile
TWICE_S = 0.05


class ClaimedParties:
    """See `scene.Claims`. `parties`: all there are at the moment; `rules`: in force for lines."""

    def __init__(
        self,
        records: Records,
        parties: Callable[[], Sequence[Party]],
        rules: Callable[[], Sequence[Rule]],
    ) -> None:
        self._records = records
        self._parties = parties
        self._rules = rules
        self._lock = threading.Lock()  # of the two sets
        self._looking = threading.Lock()  # one at a time decides who may end
        self._claimed: set[str] = set()
        self._doomed: set[str] = set()

    def claim(self, name: str) -> None:
        """From now on this party is ours. Raises `Skipped` when it is another fault's."""
        with self._lock:
            if name in self._claimed:
                raise Skipped(f"{name} is being struck by another fault")
            self._claimed.add(name)

    def release(self, name: str) -> None:
        """It is nobody's again, and as alive as its process. May be called again."""
        with self._lock:
            self._claimed.discard(name)
            self._doomed.discard(name)

    def doom(self, name: str, *, in_order: bool = False) -> None:
        """Before a claimed party is ended: see `scene.Claims`.

        Raises `Skipped` when a shard would lose its last copy, or etcd its majority.
        """
        party = next(each for each in self._parties() if each.name == name)
        with self._looking:
            if party.role == "server":
                self._check_server(party, in_order=in_order)
            elif party.role == "etcd":
                self._check_member(name)
            with self._lock:
                self._doomed.add(name)

    @property
    def claimed(self) -> frozenset[str]:
        """Those that are some fault's at the moment."""
        with self._lock:
            return frozenset(self._claimed)

    # --

    def _check_server(self, party: Party, *, in_order: bool) -> None:
        """The victim stands still while we look, and until it ends: else it could give up another
        member, and be the last one by then. A transaction of its own may be under way even so:
        therefore we look twice."""
        if in_order and self._rules():
            raise Skipped("lines are bad: it could give up who it does not hear")
        if party.state != "running":
            self._look(party.name, in_order=in_order)
            return
        party.pause()
        try:
            self._look(party.name, in_order=in_order)
            time.sleep(TWICE_S)
            self._look(party.name, in_order=in_order)
        except BaseException:
            party.resume()
            raise

    def _look(self, name: str, *, in_order: bool) -> None:
        try:
            view = self._records.look(LOOK_DEADLINE_S)
        except RetryLater as error:
            raise Skipped(f"etcd does not say whether {name} may end: {error}") from error
        living = self._living(view, freely=in_order)
        if shards := last_copies(view.shards, name, living):
            raise Skipped(f"{name} holds the last copy of shard {shards[0]}")

    def _living(self, view: ClusterView, *, freely: bool) -> dict[str, int]:
        """By server: the process that etcd knows and that is there, and is not to end.

        `freely`: that is not struck in any way, so that it takes over what it is handed.
        """
        with self._lock:
            without = frozenset(self._claimed if freely else self._doomed)
        states = ("running",) if freely else ("running", "paused")
        there = {
            party.name: party.pid
            for party in self._parties()
            if party.role == "server" and party.name not in without and party.state in states
        }
        return {
            record.server: record.process
            for record in view.servers
            if there.get(record.server) == record.pid and not record.stopping
        }

    def _check_member(self, name: str) -> None:
        members = [party for party in self._parties() if party.role == "etcd"]
        with self._lock:
            doomed = frozenset(self._doomed)
        running = [p.name for p in members if p.state == "running" and p.name not in doomed]
        if not keeps_majority(running, name, len(members)):
            raise Skipped(f"without {name} etcd has no majority")
