"""Taking a server out of service: all that it holds goes to others first.

The mark lies in etcd; the coordinator sees it, and takes the server off the ring. What is left is
read from the shards' records, so it does not matter who asks, or whether anybody waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from resilient_ps.client.inspect import no_such_cluster
from resilient_ps.coordinator.keys import ClusterKeys, check_name
from resilient_ps.coordinator.kv import Delete, Kv, Put, Txn, absent, unchanged
from resilient_ps.coordinator.records import ClusterConfig, DrainRecord
from resilient_ps.coordinator.standing import standing_of
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput, DeadlineExceeded, NotFound

POLL_S = 0.2
TRIES_MAX = 20  # others may change the same key meanwhile

DrainState = Literal["serving", "draining", "drained"]


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a server still holds. `state` is `drained` when it is marked and holds nothing.

    `primary_of`, `member_of` (in-sync copies, those included) and `promised` (copies that it is to
    make) are numbers of shards. `lost`: of its shards, those whose every in-sync member is dead;
    nobody can copy them. `alive`: is it registered? `hints`: what holds the drain up, or is worth
    knowing.
    """

    server: str
    state: DrainState
    alive: bool
    primary_of: int
    member_of: int
    promised: int
    lost: int
    hints: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        """Shards that are still to be given away."""
        return self.member_of + self.promised


class Draining:
    """The drain of one server. Every call may raise `Unavailable`, as etcd is asked."""

    def __init__(self, kv: Kv, cluster: str, server: str, deadline_s: float = 5.0) -> None:
        self._kv = kv
        self._keys = ClusterKeys(cluster)
        self._server = check_name("server", server)
        self._deadline_s = deadline_s

    def begin(self) -> DrainReport:
        """Mark the server; it may be marked already.

        Raises `NotFound` for a server that the cluster does not know, and `BadInput` when no other
        server, or too few of them, would be left.
        """
        key = self._keys.drain(self._server)
        mark = DrainRecord(self._server, f"pid {os.getpid()} on {os.uname().nodename}"[:255])

        def attempt(view: ClusterView) -> Txn | None:
            if self._server in view.drains:
                return None
            self._check(view)
            return Txn((absent(key),), (Put(key, mark.to_bytes()),))

        return self._change(attempt)

    def cancel(self) -> DrainReport:
        """Take the mark away: the server is given shards again. Raises `BadInput` without one."""
        key = self._keys.drain(self._server)

        def attempt(view: ClusterView) -> Txn | None:
            held = view.items.get(key)
            if held is None:
                self._must_exist(view)
                raise BadInput(f"server {self._server!r} is not being drained")
            return Txn((unchanged(key, held.mod_revision),), (Delete(key),))

        return self._change(attempt)

    def report(self) -> DrainReport:
        """What is left."""
        view = self._view()
        self._must_exist(view)
        return self._report(view)

    def wait(self, deadline_s: float) -> Iterator[DrainReport]:
        """What is left, whenever that has changed, until it is drained.

        Raises `DeadlineExceeded` when it is not by then (the mark stays), `BadInput` when somebody
        has taken the mark away meanwhile.
        """
        until_s = time.monotonic() + deadline_s
        last: DrainReport | None = None
        while True:
            report = self._report(self._view())
            if report.state == "serving" and (report.left or report.alive):
                raise BadInput(f"the drain of server {self._server!r} was cancelled")
            if report != last:
                yield report
            if not report.left:
                return
            last = report
            if time.monotonic() >= until_s:
                raise DeadlineExceeded(
                    f"server {self._server!r} still holds {report.left} shards after "
                    f"{deadline_s:g} s; it stays marked. {' '.join(report.hints)}".strip()
                )
            time.sleep(POLL_S)

    # --

    def _change(self, attempt: Callable[[ClusterView], Txn | None]) -> DrainReport:
        for _ in range(TRIES_MAX):
            view = self._view()
            txn = attempt(view)
            if txn is None:
                return self._report(view)
            if self._kv.txn(txn, deadline_s=self._deadline_s).succeeded:
                return self._report(self._view())
        raise DeadlineExceeded(f"the mark of server {self._server!r} changes all the time")

    def _view(self) -> ClusterView:
        result = self._kv.read(self._keys.prefix, prefix=True, deadline_s=self._deadline_s)
        view = ClusterView(self._keys)
        view.load(result.items, result.revision)
        if view.config is None:
            raise no_such_cluster(self._kv, self._keys)
        return view

    def _must_exist(self, view: ClusterView) -> None:
        on_ring = () if view.ring is None else view.ring.members
        known = {*view.processes, *(m.server for m in on_ring)}
        for record in view.shards:
            known.update((*record.desired, *(member.server for member in record.in_sync)))
        if self._server not in known:
            names = ", ".join(sorted(known)) or "none"
            raise NotFound(f"there is no server {self._server!r}; servers: {names}")

    def _check(self, view: ClusterView) -> None:
        self._must_exist(view)
        config = _config(view)
        others = _others(view, self._server)
        if not others:
            raise BadInput(
                f"server {self._server!r} is the last one that is not drained: nobody could take "
                "its shards. Start another server first"
            )
        if len(others) < config.min_in_sync:
            raise BadInput(
                f"without server {self._server!r} there would be {len(others)} servers, and the "
                f"cluster acknowledges nothing that fewer than {config.min_in_sync} hold. Start "
                "another server first"
            )

    def _report(self, view: ClusterView) -> DrainReport:
        me, processes, config = self._server, view.processes, _config(view)
        held = [r for r in view.shards if me in (m.server for m in r.in_sync)]
        promised = [r for r in view.shards if me in r.desired and r not in held]
        lost = [r for r in held if standing_of(r, processes, 1).state == "lost"]
        state: DrainState = "draining" if me in view.drains else "serving"
        if state == "draining" and not held and not promised:
            state = "drained"
        return DrainReport(
            server=me,
            state=state,
            alive=me in processes,
            primary_of=sum(record.primary == me for record in held),
            member_of=len(held),
            promised=len(promised),
            lost=len(lost),
            hints=tuple(_hints(view, config, me, len(lost))) if state == "draining" else (),
        )


def _config(view: ClusterView) -> ClusterConfig:
    assert view.config is not None, "the view was checked when it was read"
    return view.config


def _others(view: ClusterView, server: str) -> list[str]:
    """The living servers that may take its shards."""
    return [name for name in view.processes if name != server and name not in view.drains]


def _hints(view: ClusterView, config: ClusterConfig, server: str, lost: int) -> Iterator[str]:
    others = _others(view, server)
    if view.keys.coordinator_leader not in view.items:
        yield "No coordinator is elected at the moment: is a server running?"
    if not others:
        yield "No other server lives that could take its shards: start one."
    elif len(others) < config.replicas:
        copies = "1 copy" if len(others) == 1 else f"{len(others)} copies"
        yield (
            f"Other servers: {', '.join(sorted(others))}. So shards will have {copies}, "
            f"not {config.replicas}."
        )
    if lost:
        yield f"{lost} of its shards are lost with it: nobody can copy them (see status)."
