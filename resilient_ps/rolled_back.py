"""A client whose cluster was rolled back: it finds out what it was rolled back to, and stops.

Nothing of what was under way is delivered any more: it belongs to an incarnation of the cluster
that is over. Who waits for it, or begins anything else, is told `RolledBack` as soon as it is known
where the rank stands now: its clock and its cursor, which a shard of the new incarnation says
(`STAND`). A reader has neither. Until then operations are kept; one that is given up at its
deadline is told what is known by then.
"""

from __future__ import annotations

from resilient_ps.calls import RESEND_TIMER, ROUTING_REF, Call, Calls
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import KeyValue, KvAnswered, KvCall, KvFailed, Read, ReadResult
from resilient_ps.coordinator.records import RestoreRecord
from resilient_ps.errors import BadInput, RolledBack
from resilient_ps.ids import READER, WorkerId
from resilient_ps.machine import Drop, Effect, Event, MessageArrived, PeerLost, SetTimer, TimerFired
from resilient_ps.messages import Answer, Kind, Status
from resilient_ps.routing import PEER_PREFIX, Routing, refreshed

LOOK_NS = 200_000_000


class Aftermath:
    """See the module. `error` is what every operation is to raise; None while that is not known."""

    def __init__(
        self,
        worker: WorkerId,
        keys: ClusterKeys,
        before: Routing,
        incarnation: int,
        last_number: int,
    ) -> None:
        self.error: RolledBack | None = None
        self.ops: list[int] = []  # who waits to be told
        self.last_number = last_number
        self._worker = worker
        self._keys = keys
        self._before = before
        self._incarnation = incarnation
        self._restore: RestoreRecord | None = None
        self._calls: Calls | None = None

    @property
    def routing(self) -> Routing | None:
        """That of the new incarnation, once it is known."""
        return None if self._calls is None else self._calls.routing

    def start(self) -> list[Effect]:
        """Look into etcd."""
        return [KvCall(ROUTING_REF, Read(self._keys.prefix, prefix=True))]

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """What came of it."""
        calls = self._calls
        match event:
            case KvAnswered(ref, ReadResult() as result) if ref == ROUTING_REF:
                return self._on_read(result, now_ns)
            case KvFailed(ref) if ref == ROUTING_REF:
                return self._again(now_ns)
            case TimerFired(name) if name == RESEND_TIMER:
                return self.start() if calls is None else calls.on_timer(now_ns)
            case MessageArrived(_, Answer() as answer) if calls is not None:
                return self._on_answer(calls, answer, now_ns)
            case PeerLost(peer) if calls is not None:
                return calls.on_peer_lost(peer, now_ns)
            case _:
                return []

    def so_far(self) -> RolledBack:
        """What is known, for who does not wait any longer."""
        clock, why = self._aligned(), self._why()
        text = f"{why}; where {self._me} stands is not known yet: {self._waits_for()}"
        return RolledBack(f"{text}. Call resume()", clock=clock)

    # --

    def _on_read(self, result: ReadResult, now_ns: int) -> list[Effect]:
        routing = refreshed(result.items, self._keys)
        if routing is None or routing.incarnation < self._incarnation:
            return self._again(now_ns)
        self._restore = restore_of(result.items, self._keys, routing.incarnation)
        if self._worker == READER:
            return self._tell(0, b"")
        if self._calls is not None and routing.same_cluster(self._calls.routing):
            return self._calls.on_routing(routing, now_ns)
        if self._restore is not None and not self._restore.registered:
            return self._again(now_ns)
        self._incarnation = routing.incarnation
        self._calls = Calls(routing, self._keys.prefix, self.last_number)
        stand = Call(self._calls.next_number(), Kind.STAND, (0,), self._worker)
        self.last_number = self._calls.last_number
        gone, self._before = drops(self._before, routing), routing
        return [*gone, *self._calls.start(stand, now_ns)]

    def _again(self, now_ns: int) -> list[Effect]:
        """Nothing new could be read. Calls that wait for the routing must not wait for ever."""
        if self._calls is not None:
            return self._calls.on_routing(None, now_ns)
        return [SetTimer(RESEND_TIMER, now_ns + LOOK_NS)]

    def _on_answer(self, calls: Calls, answer: Answer, now_ns: int) -> list[Effect]:
        call, effects = calls.on_answer(answer, now_ns)
        if call is None:
            return effects
        told = call.answers[0]
        if told.status is Status.ROLLED_BACK:
            self._incarnation, self._calls = calls.rolled_back_to, None
            return [*effects, *self.start()]
        if told.status is not Status.OK:  # the job, or the rank, has begun later than the cut
            return [*effects, *self._tell(0, b"")]
        return [*effects, *self._tell(told.value, told.text)]

    def _tell(self, clock: int, cursor: bytes) -> list[Effect]:
        text = self._why()
        if self._worker != READER:
            text += f"; {self._me} stands behind clock {clock}"
        self.error = RolledBack(f"{text}. Call resume() to go on", clock=clock, cursor=cursor)
        return []

    @property
    def _me(self) -> str:
        return f"rank {self._worker.rank}"

    def _aligned(self) -> int:
        clocks = {} if self._restore is None else self._restore.clocks
        return int(clocks.get(str(self._worker.job), 0))

    def _why(self) -> str:
        told = f"the cluster was rolled back, and is at incarnation {self._incarnation} now"
        if self._restore is None:
            return told
        to = self._restore.checkpoint
        what = f"checkpoint {to}" if to else "its initial state"
        return f"{told}: it began with {what} ({self._restore.why})"

    def _waits_for(self) -> str:
        if self._calls is None:
            return "its tables and jobs are being registered"
        return "; ".join(self._calls.waits_for(call) for call in self._calls.open.values())


def drops(before: Routing, now: Routing) -> list[Drop]:
    """Connections to processes that are gone: they may stand for ever."""
    gone = [name for name, at in before.servers.items() if now.servers.get(name) != at]
    return [Drop(PEER_PREFIX + name, "its process is gone") for name in sorted(gone)]


def restore_of(
    items: tuple[KeyValue, ...], keys: ClusterKeys, incarnation: int
) -> RestoreRecord | None:
    """What this incarnation began with, if etcd says so."""
    item = next((item for item in items if item.key == keys.restore), None)
    if item is None:
        return None
    try:
        record = RestoreRecord.from_bytes(item.value, item.key)
    except BadInput:
        return None
    return record if record.incarnation == incarnation else None
