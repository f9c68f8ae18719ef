"""Holders that wait for a task of one graph: who is to get a task of a namespace, first come first.

Invariants:

* once: a holder waits at most once;
* in-order: among those who want a namespace, who came first is served first.
"""

from __future__ import annotations

from dataclasses import dataclass

from resilient_ps.coordinator.least_first import LeastFirst
from resilient_ps.coordinator.task_asks import TaskAsk
from resilient_ps.machine import Peer


@dataclass(slots=True, eq=False)
class Waiter:
    """A question that is not answered yet. `number`: they are counted as they come.

    `spaces`: the namespaces that it wants a task of, by their place in the graph; None: any.
    `reports`: it says something of a task, which is not in etcd yet.
    """

    number: int
    peer: Peer
    request: int
    ask: TaskAsk
    deadline_ns: int
    reports: bool
    spaces: frozenset[int] | None = None
    expired: bool = False  # its time is over: it is answered as soon as it may be
    gone: bool = False  # nobody listens any more

    @property
    def holder(self) -> str:
        """Who asks."""
        return self.ask.holder

    @property
    def only_reports(self) -> bool:
        """Is no task to be granted to it?"""
        return self.gone or self.ask.namespaces == ()

    def wants(self, space: int) -> bool:
        """Would it take a task of this namespace?"""
        return self.spaces is None or space in self.spaces


class Waiters:
    """See the module."""

    def __init__(self) -> None:
        self._by_number: dict[int, Waiter] = {}
        self._by_holder: dict[str, Waiter] = {}
        self._any: LeastFirst[int] = LeastFirst()
        self._of_space: dict[int, LeastFirst[int]] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def all(self) -> list[Waiter]:
        """In the order in which they came."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    def add(self, waiter: Waiter) -> None:
        """It waits from now on."""
        assert waiter.holder not in self._by_holder, "it waits already"
        self._by_number[waiter.number] = waiter
        self._by_holder[waiter.holder] = waiter
        for queue in self._queues(waiter):
            queue.add(waiter.number)

    def remove(self, waiter: Waiter) -> bool:
        """It waits no longer. Did it?"""
        if self._by_number.pop(waiter.number, None) is None:
            return False
        del self._by_holder[waiter.holder]
        for queue in self._queues(waiter):
            queue.discard(waiter.number)
        for space in waiter.spaces or ():
            if not self._of_space[space]:
                del self._of_space[space]
        return True

    def of(self, holder: str) -> Waiter | None:
        """Where this holder waits."""
        return self._by_holder.get(holder)

    def first(self, space: int) -> Waiter | None:
        """Who is to get a task of this namespace."""
        queue = self._of_space.get(space)
        heads = [self._any.first(), None if queue is None else queue.first()]
        numbers = [number for number in heads if number is not None]
        return self._by_number[min(numbers)] if numbers else None

    def _queues(self, waiter: Waiter) -> list[LeastFirst[int]]:
        if waiter.spaces is None:
            return [self._any]
        return [self._of_space.setdefault(space, LeastFirst()) for space in waiter.spaces]
