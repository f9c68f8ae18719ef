"""How far a graph of tasks is, and which of its tasks may be granted now: a pure data structure.

A lane's next task is the one after those that are done. It is *ready* when all that it comes after
is done. Who is not ready waits at one place: the first edge that is not satisfied. When what that
edge looks at (a lane, or the slowest lane of a namespace) is far enough, the lane is looked at
again, from that edge on, as done work is never undone. So a task costs as many steps as its lane
has edges, however many lanes there are.

Of a namespace at most one lane is *exposed*: the ready one of the lowest (step, rank), unless
another task of an exclusive group of this namespace is under way.

Invariants:

* after-predecessors: a lane is ready, or taken, only if every edge of its next task is satisfied;
* alone: a group is occupied from when a task of it is taken until that one is finished, or given
  back. A *lost* task, whose holder is gone, still occupies it: its holder may be paused, and tick
  later. It is the only one of its group that can be taken, and whoever takes it fences the holder;
* forward: `done` grows by one at a time. Whoever goes back makes a new `Progress`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from resilient_ps.coordinator.graph import Graph, Namespace
from resilient_ps.coordinator.least_first import LeastFirst


class LaneStage(IntEnum):
    """Where a lane's next task stands."""

    WAITING = 0
    READY = 1
    TAKEN = 2
    OVER = 3  # it has no next task


class _Edge(NamedTuple):
    """`shift` None: the slowest lane of `space` counts."""

    space: int
    lag: int
    shift: int | None


class Progress:
    """See the module. Namespaces are known by their place in `graph.namespaces`.

    `done`: by rank, at the beginning. `taken`: ranks whose next task somebody works on; `lost`:
    those whose holder is gone.
    """

    def __init__(
        self,
        graph: Graph,
        done: Sequence[int],
        taken: Iterable[int] = (),
        lost: Iterable[int] = (),
    ) -> None:
        self.graph = graph
        self.spaces: tuple[Namespace, ...] = graph.namespaces
        self.done = list(done)
        self.space_of = [at for at, space in enumerate(self.spaces) for _ in space.ranks]
        self.open: LeastFirst[tuple[int, int]] = LeastFirst()  # (step, rank) of all exposed lanes
        self.fresh: dict[int, None] = {}  # ranks that became ready, until somebody has seen it
        self.news: LeastFirst[tuple[int, int]] = LeastFirst()  # those of `open`, likewise
        self._over = 0
        self._done_total = sum(done)
        self._edges = self._by_space()
        self._groups = [self._groups_of(space.name) for space in self.spaces]
        self._spaces_of_group = self._by_group()
        self._occupants: list[int | None] = [None] * len(self._spaces_of_group)
        self._exposed: list[tuple[int, int] | None] = [None] * len(self.spaces)
        self._ready: list[LeastFirst[tuple[int, int]]] = [LeastFirst() for _ in self.spaces]
        self._stage = [LaneStage.WAITING] * len(self.done)
        self._waiting: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._at: list[dict[int, dict[int, None]]] = [{} for _ in self.spaces]  # lanes by done
        for rank, steps in enumerate(self.done):
            self._at[self.space_of[rank]].setdefault(steps, {})[rank] = None
        self._least = [min(lanes) for lanes in self._at]
        for rank in range(len(self.done)):
            self._evaluate(rank, 0)
        for rank in taken:
            self._take_again(rank)
        for rank in lost:
            if self._take_again(rank):
                self.lose(rank)

    # -- questions

    @property
    def finished(self) -> bool:
        """Is every task done?"""
        return self._over == len(self.done)

    @property
    def done_total(self) -> int:
        """How many tasks are done."""
        return self._done_total

    @property
    def ready_total(self) -> int:
        """How many lanes are ready; some of them may have to wait for an exclusive group."""
        return sum(len(ready) for ready in self._ready)

    def stage(self, rank: int) -> LaneStage:
        """Where the lane's next task stands."""
        return self._stage[rank]

    def is_taken(self, rank: int) -> bool:
        """Does somebody work on it, as far as anybody knows?"""
        return self._stage[rank] is LaneStage.TAKEN

    def may_take(self, rank: int) -> bool:
        """Is it ready, and is no other task of its groups under way?"""
        if self._stage[rank] is not LaneStage.READY:
            return False
        groups = self._groups[self.space_of[rank]]
        return all(self._occupants[group] in (None, rank) for group in groups)

    def best(self, space: int) -> int | None:
        """The lane of a namespace that is to be granted first; None: there is none."""
        exposed = self._exposed[space]
        return None if exposed is None else exposed[1]

    # -- changes

    def take(self, rank: int) -> None:
        """Its next task was granted."""
        assert self.may_take(rank), f"rank {rank} may not be taken"
        space = self.space_of[rank]
        self._stage[rank] = LaneStage.TAKEN
        self._ready[space].discard((self.done[rank] + 1, rank))
        self.fresh.pop(rank, None)
        self._occupy(space, rank)

    def finish(self, rank: int) -> None:
        """Its next task is done; the one after that is its next."""
        assert self._stage[rank] in (LaneStage.READY, LaneStage.TAKEN), "it was never granted"
        space, steps = self.space_of[rank], self.done[rank] + 1
        self._ready[space].discard((steps, rank))
        self.fresh.pop(rank, None)
        self.done[rank] = steps
        self._done_total += 1
        self._occupy(space, None)
        self._evaluate(rank, 0)
        self._wake((rank, steps))
        self._move(space, rank, steps)

    def lose(self, rank: int) -> None:
        """Its holder is gone, but may still do something: whoever takes it fences the holder."""
        assert self._stage[rank] is LaneStage.TAKEN, "nobody has it"
        self._become_ready(rank)

    def give_back(self, rank: int) -> None:
        """Its holder does nothing for it any more."""
        if self._stage[rank] is LaneStage.TAKEN:
            self._become_ready(rank)
        self._occupy(self.space_of[rank], None)

    # -- for people

    def slowest(self, spaces: Iterable[int]) -> int | None:
        """Of the lanes that are not over in these namespaces, one with the lowest step."""
        least = [(self._least[at], at) for at in spaces if self._least[at] < self.graph.steps]
        if not least:
            return None
        steps, space = min(least)
        return next(iter(self._at[space][steps]))

    def blocker(self, rank: int) -> int | None:
        """A lane whose next task has to be done before this one's can be granted; None: none."""
        space = self.space_of[rank]
        if self._stage[rank] is LaneStage.READY:
            occupants = (self._occupants[group] for group in self._groups[space])
            return next((each for each in occupants if each not in (None, rank)), None)
        step = self.done[rank] + 1
        for edge in self._edges[space] if step <= self.graph.steps else ():
            source, value = self._source(rank, edge)
            if value < step - edge.lag:
                return source if source >= 0 else next(iter(self._at[edge.space][value]))
        return None

    # --

    def _take_again(self, rank: int) -> bool:
        """What was granted before is taken; not what never should have been, whoever wrote it."""
        granted = self.may_take(rank)
        if granted:
            self.take(rank)
        return granted

    def _evaluate(self, rank: int, first_edge: int) -> None:
        """Where its next task stands, edges before the first being satisfied."""
        step = self.done[rank] + 1
        if step > self.graph.steps:
            self._stage[rank] = LaneStage.OVER
            self._over += 1
            return
        edges = self._edges[self.space_of[rank]]
        for number in range(first_edge, len(edges)):
            needed = step - edges[number].lag
            source, value = self._source(rank, edges[number])
            if value < needed:
                self._stage[rank] = LaneStage.WAITING
                self._waiting.setdefault((source, needed), []).append((rank, number))
                return
        self._become_ready(rank)

    def _source(self, rank: int, edge: _Edge) -> tuple[int, int]:
        """What an edge looks at, a rank or ~namespace, and how far that is."""
        if edge.shift is None:
            return ~edge.space, self._least[edge.space]
        own, other = self.spaces[self.space_of[rank]], self.spaces[edge.space]
        source = other.first + (rank - own.first + edge.shift) % other.width
        return source, self.done[source]

    def _become_ready(self, rank: int) -> None:
        space = self.space_of[rank]
        self._stage[rank] = LaneStage.READY
        self._ready[space].add((self.done[rank] + 1, rank))
        self.fresh[rank] = None
        self._expose(space)

    def _move(self, space: int, rank: int, steps: int) -> None:
        """A lane went on to `steps`: so does its namespace, if it was the last of the slowest."""
        lanes = self._at[space]
        lanes.setdefault(steps, {})[rank] = None
        del lanes[steps - 1][rank]
        if lanes[steps - 1]:
            return
        del lanes[steps - 1]
        if self._least[space] == steps - 1:
            self._least[space] = steps
            self._wake((~space, steps))

    def _wake(self, reached: tuple[int, int]) -> None:
        for rank, edge in self._waiting.pop(reached, ()):
            self._evaluate(rank, edge)

    def _occupy(self, space: int, rank: int | None) -> None:
        """The namespace's groups are of this task now; None: of nobody's."""
        for group in self._groups[space]:
            self._occupants[group] = rank
            for other in self._spaces_of_group[group]:
                self._expose(other)
        self._expose(space)

    def _expose(self, space: int) -> None:
        found = self._to_expose(space)
        before = self._exposed[space]
        if found == before:
            return
        if before is not None:
            self.open.discard(before)
            self.news.discard(before)
        self._exposed[space] = found
        if found is not None:
            self.open.add(found)
            self.news.add(found)

    def _to_expose(self, space: int) -> tuple[int, int] | None:
        occupants = {self._occupants[group] for group in self._groups[space]} - {None}
        if not occupants:
            return self._ready[space].first()
        rank = occupants.pop()
        if rank is None or occupants or self.space_of[rank] != space or not self.may_take(rank):
            return None
        return self.done[rank] + 1, rank

    # -- the graph, by numbers

    def _by_space(self) -> list[list[_Edge]]:
        place = {space.name: at for at, space in enumerate(self.spaces)}
        edges: list[list[_Edge]] = [[] for _ in self.spaces]
        for edge in self.graph.edges:
            found = _Edge(place[edge.predecessor], edge.lag, edge.shift)
            edges[place[edge.namespace]].append(found)
        return edges

    def _groups_of(self, name: str) -> list[int]:
        return [number for number, group in enumerate(self.graph.exclusives) if name in group]

    def _by_group(self) -> list[list[int]]:
        place = {space.name: at for at, space in enumerate(self.spaces)}
        return [[place[name] for name in group] for group in self.graph.exclusives]
