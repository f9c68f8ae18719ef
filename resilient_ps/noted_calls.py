"""Calls of which somebody keeps a record: what was acknowledged, and where.

For those who check afterwards that nothing was lost or doubled (see `client.receipts`). A call is
told when all of its shards have answered, and none has refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from resilient_ps.calls import Call, Calls, Folded
from resilient_ps.ids import Position, WorkerId
from resilient_ps.machine import Effect
from resilient_ps.messages import Answer, Kind
from resilient_ps.routing import Routing


class Acknowledged(NamedTuple):
    """A call that has succeeded. `places`: by shard, where it stood when it answered."""

    kind: Kind
    worker: WorkerId
    clock: int
    n: int
    begun_ns: int
    places: dict[int, Position]


Note: TypeAlias = Callable[[Acknowledged], None]


class NotedCalls(Calls):
    """As `Calls`; `note` is told of each call that has succeeded."""

    def __init__(self, routing: Routing, prefix: bytes, note: Note) -> None:
        super().__init__(routing, prefix)
        self._note = note

    def on_answer(
        self, answer: Answer, now_ns: int, peer: str = ""
    ) -> tuple[Call | None, list[Effect]]:
        """As in `Calls`."""
        call, effects = super().on_answer(answer, now_ns, peer)
        if call is not None and not self.rolled_back_to and call.failure() is None:
            places = {shard: part.at for shard, part in call.answers.items()}
            place = (call.kind, call.worker, call.clock, call.n)
            self._note(Acknowledged(*place, call.begun_ns, places))
        return call, effects

    def settle(self, folded: Folded) -> None:
        """As in `Calls`."""
        super().settle(folded)
        request = folded.request()
        places = {part.shard: self.seen[part.shard] for part in request.parts}
        place = (request.kind, request.worker, request.clock, request.n)
        self._note(Acknowledged(*place, folded.begun_ns, places))
