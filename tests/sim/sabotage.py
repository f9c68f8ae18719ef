"""Sessions that break a rule of the workers' side, for negative controls."""

from __future__ import annotations

import types
from typing import Any

from resilient_ps.calls import Call, Calls
from resilient_ps.chaos.sim.worker import SimWorker
from resilient_ps.ids import NOWHERE, Position
from resilient_ps.messages import Kind
from resilient_ps.routing import Routing
from resilient_ps.session import Session


class _Forgetful(list[Position]):
    """What was seen of each shard, for nobody who asks by number."""

    def __getitem__(self, shard: Any) -> Any:
        return NOWHERE


class _WanderingCalls(Calls):
    """Pulls go to where the shards were before they moved for the last time."""

    _new: Routing
    _old: Routing | None = None
    _wanders = False

    @property
    def routing(self) -> Routing:  # type: ignore[override]
        return self._old if self._wanders and self._old is not None else self._new

    @routing.setter
    def routing(self, routing: Routing) -> None:
        known = self.__dict__.get("_new")
        if known is not None and known.owners != routing.owners:
            self._old = known
        self._new = routing

    def start(self, call: Call, now_ns: int) -> list[Any]:
        self._wanders = call.kind is Kind.PULL
        try:
            return super().start(call, now_ns)
        finally:
            self._wanders = False


def wander(worker: SimWorker) -> None:
    """The worker pulls by an old routing."""
    calls = worker.session.calls
    routing = calls.__dict__.pop("routing")
    calls.__class__ = _WanderingCalls
    calls.routing = routing


def wander_and_forget(worker: SimWorker) -> None:
    """As `wander`; and it neither says nor remembers what it has seen of a shard."""
    wander(worker)
    worker.session.calls.seen = _Forgetful(worker.session.calls.seen)


def tick_at_once(worker: SimWorker) -> None:
    """The worker's ticks do not wait until its pushes are acknowledged."""

    def pump(session: Session, now_ns: int) -> list[Any]:
        effects: list[Any] = []
        while session._queue and session._ticking is None:
            call = session._queue.popleft()
            if call.kind is Kind.TICK:
                session._ticking = call.number
            else:
                session._pushes.add(call.number)
            effects += session.calls.start(call, now_ns)
        return effects

    worker.session._pump = types.MethodType(pump, worker.session)  # type: ignore[method-assign]
