"""Which tables a namespace is the scope of.

A table `ctr/emb/user` lies in the namespace `ctr/emb`, and so below `ctr`; a namespace `ctr/a` has
nothing to do with `ctr/ab`, and a table named `ctr/emb` lies in `ctr`, not in `ctr/emb`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from resilient_ps.coordinator.keys import check_namespace
from resilient_ps.errors import NotFound

_T = TypeVar("_T")


def covers(namespace: str, name: str) -> bool:
    """Does a table (or namespace) of this name lie in the namespace, or below it?"""
    return name.startswith(namespace + "/")


def enclosing(name: str) -> tuple[str, ...]:
    """The namespaces that a table (or namespace) lies in, the outermost first."""
    levels = name.split("/")
    return tuple("/".join(levels[:count]) for count in range(1, len(levels)))


def within(namespace: str, named: Iterable[tuple[str, _T]]) -> list[_T]:
    """Of what has the name of a table, that which lies in the namespace. Raises `NotFound`.

    `namespace` "": all of it.
    """
    present = list(named)
    if not namespace:
        return [each for _, each in present]
    check_namespace(namespace)
    found = [each for name, each in present if covers(namespace, name)]
    if not found:
        names = sorted({path for name, _ in present for path in enclosing(name)})
        raise NotFound(
            f"there is no table in namespace {namespace!r}; namespaces: {', '.join(names) or '-'}"
        )
    return found
