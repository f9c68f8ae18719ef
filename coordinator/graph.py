"""A graph of tasks: which parts of a model are trained, in how many steps, and what waits for what.

A graph has *namespaces*, each of a *width*: so many *lanes*, numbered from 0. A lane does one task
for each *step*, from 1 to the graph's `steps`, in that order. Lanes are the ranks of a job that
has the graph's name: namespaces in the order in which they were added, the lanes of each in turn.

    graph = Graph("ctr", steps=20)
    graph.add("features", width=4)
    graph.add("tower")
    graph.after("tower", "features")           # tower's step t after step t of all four lanes
    graph.after("features", "tower", lag=2)    # features' step t after tower's step t - 2
    graph.check()

Dependencies are between namespaces, for every step alike. So a graph can be run to its end exactly
if its edges without lag have no cycle: that is what `check` looks for. Lanes that are joined by
`shift` make no difference to this: going round such a cycle of edges comes back to the lane where
it began, sooner or later.

One format describes a graph in etcd (as canonical JSON) and in files (TOML, YAML): `from_mapping`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from resilient_ps.coordinator.graph_reader import GraphReader
from resilient_ps.coordinator.keys import check_name, check_namespace
from resilient_ps.errors import BadInput
from resilient_ps.strict_json import loads_strictly, short

if TYPE_CHECKING:
    from os import PathLike

LANES_MAX = 16_384
NAMESPACES_MAX = 1_000
EDGES_MAX = 10_000
EXCLUSIVE_MAX = 1_000  # groups
STEPS_MAX = 1_000_000
JSON_BYTES_MAX = 256 * 1024


class Lane(NamedTuple):
    """Number `n` of a namespace's lanes, and the job's rank that it is."""

    rank: int
    namespace: str
    n: int


class Namespace(NamedTuple):
    """A part of the model, with the rank of its first lane."""

    name: str
    width: int
    first: int

    @property
    def ranks(self) -> range:
        """Its lanes."""
        return range(self.first, self.first + self.width)


class Edge(NamedTuple):
    """Step t of `namespace` comes after step t - `lag` of `predecessor`.

    `shift` None: of all its lanes. Else of one: lane n waits for lane (n + shift) mod width.
    """

    namespace: str
    predecessor: str
    lag: int = 0
    shift: int | None = None


class Graph:
    """Which parts of a model are trained, in how many steps, and what waits for what.

    `name` is that of the job, too: letters, digits and `. _ : -`. `steps`: 1 to 1,000,000, for
    every lane. Limits: 1,000 namespaces, 16,384 lanes, 10,000 dependencies, 256 KiB as JSON.
    """

    def __init__(self, name: str, steps: int) -> None:
        self.name = check_name("graph", name)
        self.steps = _whole(f"graph {name!r}: steps", steps, 1, STEPS_MAX)
        self._widths: dict[str, int] = {}
        self._edges: list[Edge] = []
        self._exclusive: list[tuple[str, ...]] = []
        self._checked: _Checked | None = None

    # -- describing it

    def add(self, namespace: str, width: int = 1) -> None:
        """A namespace of `width` lanes. Names are those of tables: `ctr/features`."""
        check_namespace(namespace)
        if namespace in self._widths:
            raise BadInput(f"graph {self.name!r}: namespace {namespace!r} is added twice")
        what = f"graph {self.name!r}: the width of {namespace!r}"
        self._widths[namespace] = _whole(what, width, 1, LANES_MAX)
        self._checked = None

    def after(
        self, namespace: str, predecessor: str, lag: int = 0, shift: int | None = None
    ) -> None:
        """Step t of `namespace` comes after step t - `lag` of `predecessor`.

        What would wait for a step before the first does not wait. `shift` None: after all lanes of
        `predecessor`; else lane n comes after lane (n + shift) mod width alone, where both
        namespaces are equally wide.
        """
        what = f"graph {self.name!r}: {namespace!r} after {predecessor!r}"
        _names(what, namespace, predecessor)
        _whole(f"{what}: lag", lag, 0, STEPS_MAX)
        if shift is not None:
            _whole(f"{what}: shift", shift, -LANES_MAX, LANES_MAX)
        self._edges.append(Edge(namespace, predecessor, lag, shift))
        self._checked = None

    def exclusive(self, *namespaces: str) -> None:
        """At most one task of these namespaces is under way at a time, whichever it is.

        With one namespace: at most one of its lanes.
        """
        what = f"graph {self.name!r}: exclusive()"
        if not namespaces:
            raise BadInput(f"{what} names no namespace")
        _names(what, *namespaces)
        self._exclusive.append(namespaces)
        self._checked = None

    def check(self) -> None:
        """Raises `BadInput` for what cannot be run: a cycle (shown), an unknown namespace, .."""
        self._check()

    # -- what it says

    @property
    def namespaces(self) -> tuple[Namespace, ...]:
        """In the order in which they were added. This and all below raise `BadInput` as `check`."""
        return self._check().namespaces

    @property
    def edges(self) -> tuple[Edge, ...]:
        """What waits for what, in a fixed order; shifts are from 0 to width - 1."""
        return self._check().edges

    @property
    def exclusives(self) -> tuple[tuple[str, ...], ...]:
        """The groups of namespaces of which one task is under way at a time, in a fixed order."""
        return self._check().exclusives

    @property
    def lanes_total(self) -> int:
        """How many lanes it has: the ranks of its job."""
        last = self.namespaces[-1]
        return last.first + last.width

    @property
    def tasks_total(self) -> int:
        """How many tasks it has."""
        return self.lanes_total * self.steps

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes, by rank."""
        return tuple(
            Lane(space.first + n, space.name, n)
            for space in self.namespaces
            for n in range(space.width)
        )

    def lane(self, rank: int) -> Lane:
        """The lane of this rank. Raises `BadInput` where there is none."""
        if not 0 <= rank < self.lanes_total:
            raise BadInput(f"graph {self.name!r} has lanes 0 to {self.lanes_total - 1}, not {rank}")
        checked = self._check()
        space = checked.namespaces[bisect_right(checked.firsts, rank) - 1]
        return Lane(rank, space.name, rank - space.first)

    def serial_order(self) -> Iterator[tuple[int, int]]:
        """All tasks as (rank, step), in an order in which one process could do them.

        Step after step; within one, namespaces come after what they depend on, and otherwise in
        the order in which they were added, lane by lane.
        """
        order = self._check().order
        for step in range(1, self.steps + 1):
            for space in order:
                for rank in space.ranks:
                    yield rank, step

    # -- as text

    def to_json(self) -> str:
        """Canonical: graphs that say the same have the same text."""
        return self._check().text

    @classmethod
    def from_json(cls, text: str) -> Graph:
        """What `to_json` gave. Raises `BadInput`."""
        if len(text) > JSON_BYTES_MAX:
            raise BadInput(f"a graph of {len(text)} characters; at most {JSON_BYTES_MAX}")
        try:
            fields = loads_strictly(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"a graph that is no JSON: {error}") from error
        return cls.from_mapping(fields, "the graph's JSON")

    @classmethod
    def from_mapping(cls, fields: object, source: str) -> Graph:
        """From what a TOML, YAML or JSON file holds, checked. `source` is what errors name."""
        return GraphReader(cls, source).graph(fields)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Graph:
        """The graph that a `.toml`, `.yaml` or `.yml` file describes, checked.

        name = "ctr"
        steps = 20
        exclusive = [["forward", "backward"]]
        [namespaces.features]
        width = 4
        [namespaces.forward]
        after = [{ namespace = "features" }]
        [namespaces.backward]
        after = [{ namespace = "forward", lag = 0 }]

        Raises `BadInput` naming the file, the table and the remedy; `NotFound` for no file.
        """
        from resilient_ps.client.graph_files import read_graph  # only who has files needs it

        return read_graph(path)

    def __repr__(self) -> str:
        spaces = ", ".join(f"{name} x {width}" for name, width in self._widths.items())
        return f"<Graph {self.name!r}: {self.steps} steps of {short(spaces)[1:-1] or 'nothing'}>"

    def _check(self) -> _Checked:
        if self._checked is None:
            self._checked = _Checked(
                self.name, self.steps, dict(self._widths), self._edges, self._exclusive
            )
        return self._checked


class _Checked:
    """A graph that can be run, and what follows from it. Raises `BadInput`."""

    def __init__(
        self,
        name: str,
        steps: int,
        widths: dict[str, int],
        edges: Sequence[Edge],
        exclusives: Sequence[tuple[str, ...]],
    ) -> None:
        self._name = name
        self._steps = steps
        self._widths = widths
        self.namespaces = self._placed()
        self.firsts = [space.first for space in self.namespaces]
        self.edges = self._fitting(edges)
        self.exclusives = self._groups(exclusives)
        self.order = self._topological()
        self.text = self._text()

    def _fail(self, reason: str) -> BadInput:
        return BadInput(f"graph {self._name!r}: {reason}")

    def _placed(self) -> tuple[Namespace, ...]:
        if not self._widths:
            raise self._fail("it has no namespace: add one, graph.add('features', width=4)")
        if len(self._widths) > NAMESPACES_MAX:
            raise self._fail(f"{len(self._widths)} namespaces; at most {NAMESPACES_MAX}")
        first, placed = 0, []
        for name, width in self._widths.items():
            placed.append(Namespace(name, width, first))
            first += width
        if first > LANES_MAX:
            raise self._fail(f"{first} lanes in all; at most {LANES_MAX}: make widths smaller")
        return tuple(placed)

    def _fitting(self, edges: Sequence[Edge]) -> tuple[Edge, ...]:
        if len(edges) > EDGES_MAX:
            raise self._fail(f"{len(edges)} dependencies; at most {EDGES_MAX}")
        fitting = [self._fit(edge) for edge in edges]
        seen: set[Edge] = set()
        for edge in fitting:
            if edge in seen:
                raise self._fail(f"{_told(edge)} is said twice: say it once")
            seen.add(edge)
        return tuple(sorted(fitting, key=_by_names))

    def _fit(self, edge: Edge) -> Edge:
        self._known(_told(edge), edge.namespace, edge.predecessor)
        if edge.shift is None:
            return edge
        width, other = self._widths[edge.namespace], self._widths[edge.predecessor]
        if width != other:
            raise self._fail(
                f"{_told(edge)} joins single lanes, but {edge.namespace!r} has {width} and "
                f"{edge.predecessor!r} has {other}: make them equally wide, or leave shift out"
            )
        return edge._replace(shift=edge.shift % width)

    def _known(self, what: str, *names: str) -> None:
        for name in names:
            if name not in self._widths:
                known = ", ".join(list(self._widths)[:10])
                raise self._fail(
                    f"{what} names {name!r}, which is no namespace of it: add it, or use one of "
                    f"{known}"
                )

    def _groups(self, groups: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
        if len(groups) > EXCLUSIVE_MAX:
            raise self._fail(f"{len(groups)} exclusive groups; at most {EXCLUSIVE_MAX}")
        for group in groups:
            told = f"exclusive({', '.join(group)})"
            self._known(told, *group)
            if len(set(group)) != len(group):
                raise self._fail(f"{told} names a namespace twice")
        found = sorted(tuple(sorted(group)) for group in groups)
        if len(set(found)) != len(found):
            raise self._fail("the same exclusive group is said twice: say it once")
        return tuple(found)

    def _topological(self) -> tuple[Namespace, ...]:
        """Namespaces after what they depend on within a step; else in the order they were added."""
        before: dict[str, list[str]] = {name: [] for name in self._widths}
        for edge in self.edges:
            if edge.lag == 0:
                before[edge.namespace].append(edge.predecessor)
        order, cycle = depth_first(before)
        if cycle:
            raise self._fail(
                f"a cycle: {' -> '.join(cycle)} (each after the next, in the same step). Let one "
                "of them wait for an earlier step: graph.after(.., lag=1)"
            )
        placed = {space.name: space for space in self.namespaces}
        return tuple(placed[name] for name in order)

    def _text(self) -> str:
        spaces: dict[str, dict[str, Any]] = {}
        for name, width in self._widths.items():
            spaces[name] = {} if width == 1 else {"width": width}
        for edge in self.edges:
            told: dict[str, Any] = {"namespace": edge.predecessor}
            if edge.lag:
                told["lag"] = edge.lag
            if edge.shift is not None:
                told["shift"] = edge.shift
            spaces[edge.namespace].setdefault("after", []).append(told)
        fields: dict[str, Any] = {"name": self._name, "steps": self._steps, "namespaces": spaces}
        if self.exclusives:
            fields["exclusive"] = self.exclusives
        text = json.dumps(fields, separators=(",", ":"))
        if len(text) > JSON_BYTES_MAX:
            raise self._fail(f"{len(text)} bytes as JSON; at most {JSON_BYTES_MAX}: shorten names")
        return text


def depth_first(before: Mapping[str, Iterable[str]]) -> tuple[list[str], list[str]]:
    """An order in which each comes after those `before` it, and the first cycle there is, or [].

    A cycle begins and ends with the same name: each comes after the next. Without recursion, as
    chains may be long.
    """
    order: dict[str, None] = {}
    for start in before:
        path: dict[str, Iterator[str]] = {} if start in order else {start: iter(before[start])}
        while path:
            name = next(reversed(path))
            following = next(path[name], None)
            if following is None:
                order[name] = None
                path.popitem()
            elif following in path:
                names = list(path)
                return list(order), [*names[names.index(following) :], following]
            elif following not in order:
                path[following] = iter(before[following])
    return list(order), []


def _whole(what: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{what} is {short(value)}, not a whole number from {least} to {most}")
    return value


def _names(what: str, *names: object) -> None:
    for name in names:
        if not isinstance(name, str):
            raise BadInput(f"{what}: {short(name)} is no name of a namespace")


def _told(edge: Edge) -> str:
    lag = f", lag={edge.lag}" if edge.lag else ""
    shift = "" if edge.shift is None else f", shift={edge.shift}"
    return f"after({edge.namespace!r}, {edge.predecessor!r}{lag}{shift})"


def _by_names(edge: Edge) -> tuple[str, str, int, int]:
    return edge.namespace, edge.predecessor, edge.lag, -1 if edge.shift is None else edge.shift
