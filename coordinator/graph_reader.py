"""Reads a graph of tasks out of what a TOML, YAML or JSON file holds, strictly.

Every error names the source, the table and the remedy.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from resilient_ps.errors import BadInput
from resilient_ps.strict_json import short

if TYPE_CHECKING:
    from resilient_ps.coordinator.graph import Graph


class GraphReader:
    """Reads one mapping. `kind`: what it makes; `source`: the file, for errors."""

    def __init__(self, kind: type[Graph], source: str) -> None:
        self._kind = kind
        self._source = source

    def graph(self, fields: object) -> Graph:
        table = self._table("the graph", fields, {"name", "steps", "namespaces", "exclusive"})
        for needed in ("name", "steps", "namespaces"):
            if needed not in table:
                raise self._fail(f"{needed} is missing: see Graph.from_file for an example")
        with_source = functools.partial(self._at, "the graph")
        graph: Graph = with_source(self._kind, table["name"], table["steps"])
        spaces = self._table("[namespaces]", table["namespaces"])
        for name, space in spaces.items():
            self._add(graph, name, space)
        for name, space in spaces.items():
            where = f"[namespaces.{name}] after"
            for edge in self._list(where, space.get("after", [])):
                self._after(graph, name, where, edge)
        for group in self._list("exclusive", table.get("exclusive", [])):
            self._at("exclusive", graph.exclusive, *self._list("exclusive", group))
        with_source(graph.check)
        return graph

    def _add(self, graph: Graph, name: str, space: object) -> None:
        where = f"[namespaces.{name}]"
        table = self._table(where, space, {"width", "after"})
        self._at(where, graph.add, name, table.get("width", 1))

    def _after(self, graph: Graph, name: str, where: str, edge: object) -> None:
        table = self._table(where, edge, {"namespace", "lag", "shift"})
        if "namespace" not in table:
            raise self._fail(f'{where}: name the predecessor: {{ namespace = ".." }}')
        lag, shift = table.get("lag", 0), table.get("shift")
        self._at(where, graph.after, name, table["namespace"], lag, shift)

    def _table(self, where: str, value: object, known: Iterable[str] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._fail(f"{where} is {short(value)}, not a table")
        for name in value:
            if not isinstance(name, str):
                raise self._fail(f"{where}: {short(name)} is no text: put it in quotes")
            if known and name not in known:
                fields = ", ".join(sorted(known))
                raise self._fail(f"{where} has no field {short(name)}: it can have {fields}")
        return value

    def _list(self, where: str, value: object) -> list[Any]:
        if not isinstance(value, list):
            raise self._fail(f"{where} is {short(value)}, not a list")
        return value

    def _at(self, where: str, call: Any, *arguments: Any) -> Any:
        """Errors of the graph, with the place in the file."""
        try:
            return call(*arguments)
        except BadInput as error:
            raise self._fail(f"{where}: {error}") from error

    def _fail(self, reason: str) -> BadInput:
        return BadInput(f"{self._source}: {reason}")
