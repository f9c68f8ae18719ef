"""The questions that holders of tasks have put to the coordinator, until they are answered."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from resilient_ps.coordinator.task_asks import TaskAsk
from resilient_ps.coordinator.waiters import Waiter
from resilient_ps.machine import Peer

NS_PER_S = 10**9
SLACK = 64  # reminders of closed questions that may be kept


class OpenQuestions:
    """Who asked, over which connection, and until when it is to be answered.

    The last one of a holder is found by its name.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._numbers = 0
        self._open: dict[int, Waiter] = {}
        self._of_holder: dict[tuple[str, str], Waiter] = {}
        self._of_peer: dict[Peer, dict[int, Waiter]] = {}
        self._due: list[tuple[int, int]] = []  # heap of (time, number), some of closed ones

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Waiter]:
        """As they came."""
        return list(self._open.values())

    def open(self, peer: Peer, request: int, ask: TaskAsk, now_ns: int) -> Waiter:
        """A new one."""
        self._numbers += 1
        deadline_ns = now_ns + int(ask.wait_s * NS_PER_S)
        waiter = Waiter(self._numbers, peer, request, ask, deadline_ns, ask.report is not None)
        self._open[waiter.number] = waiter
        self._of_holder[ask.graph, ask.holder] = waiter
        self._of_peer.setdefault(peer, {})[waiter.number] = waiter
        self.remind(waiter, deadline_ns)
        return waiter

    def close(self, waiter: Waiter) -> bool:
        """It is answered. Was it open?"""
        if self._open.pop(waiter.number, None) is None:
            return False
        at = (waiter.ask.graph, waiter.holder)
        if self._of_holder.get(at) is waiter:
            del self._of_holder[at]
        others = self._of_peer[waiter.peer]
        del others[waiter.number]
        if not others:
            del self._of_peer[waiter.peer]
        return True

    def of_holder(self, graph: str, holder: str) -> Waiter | None:
        """The last question of a holder."""
        return self._of_holder.get((graph, holder))

    def of_peer(self, peer: Peer) -> list[Waiter]:
        """What was asked over a connection."""
        return list(self._of_peer.get(peer, {}).values())

    def remind(self, waiter: Waiter, at_ns: int) -> None:
        """It is due then, too."""
        heappush(self._due, (at_ns, waiter.number))
        if len(self._due) > 3 * len(self._open) + SLACK:
            self._due = [due for due in self._due if due[1] in self._open]
            heapify(self._due)

    def due(self, now_ns: int) -> Iterator[Waiter]:
        """Those that are due and open, each once."""
        self.now_ns = now_ns
        while self._due and self._due[0][0] <= now_ns:
            waiter = self._open.get(heappop(self._due)[1])
            if waiter is not None:
                yield waiter

    @property
    def next_due_ns(self) -> int | None:
        """When the next one is due."""
        while self._due and self._due[0][1] not in self._open:
            heappop(self._due)
        return self._due[0][0] if self._due else None
