"""Named tuples that are made quickly.

`Name(a, b)` runs Python that is not compiled, and `tuple.__new__(Name, (a, b))` makes two tuples.
Both become a call of `make`, a function of C (see `make_tuple.c`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from resilient_ps.cli.compiled.edits import Edit, Source, imports

MAKER = "resilient_ps._make_tuple"
PLAIN = "_new"  # what modules call `tuple.__new__`
IMPORTS = [
    "from typing import Final as _Final, cast as _cast",
    f"from {MAKER} import make as _made",
    "_make: _Final = _made",
]

Defaults: TypeAlias = tuple[str | None, ...]
"""For each field the text of its default: None if it has none, or not a plain one."""
Kinds: TypeAlias = Mapping[tuple[str, str], Defaults]
"""Named tuples, by module and name."""


def kinds_in(sources: Iterable[Source]) -> dict[tuple[str, str], Defaults]:
    """All named tuples of these modules."""
    return {
        (source.name, node.name): tuple(_default(each) for each in _fields(node))
        for source in sources
        for node in source.tree.body
        if isinstance(node, ast.ClassDef)
        and [ast.unparse(base) for base in node.bases] == ["NamedTuple"]
    }


def _fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    return (each for each in node.body if isinstance(each, ast.AnnAssign))


def _default(field: ast.AnnAssign) -> str | None:
    return ast.unparse(field.value) if isinstance(field.value, ast.Constant) else None


def made_quickly(source: Source, kinds: Kinds) -> list[Edit]:
    """The changes of a module. What is given by keywords or from a sequence stays as it is."""
    known = _known(source, kinds)
    edits: list[Edit] = []
    for node in source.tree.body:
        for function in _functions(node):
            for statement in function.body:
                edits += _edits_below(source, statement, known)
    return edits + imports(source, IMPORTS) if edits else []


def _known(source: Source, kinds: Kinds) -> dict[str, Defaults]:
    """Under which names the module knows which kinds."""
    known = {name: defaults for (module, name), defaults in kinds.items() if module == source.name}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (node.module, alias.name) in kinds:
                    known[alias.asname or alias.name] = kinds[node.module, alias.name]
    return known


def _functions(node: ast.stmt) -> Iterator[ast.FunctionDef]:
    """Functions and methods of a module; not those in them."""
    if isinstance(node, ast.FunctionDef):
        yield node
    elif isinstance(node, ast.ClassDef):
        for each in node.body:
            yield from _functions(each)


def _edits_below(source: Source, node: ast.AST, known: dict[str, Defaults]) -> Iterator[Edit]:
    """Inner calls first: where two end at one place, their ends are in this order."""
    for child in ast.iter_child_nodes(node):
        yield from _edits_below(source, child, known)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if any(isinstance(each, ast.Starred) for each in node.args):
            return
        if node.func.id == PLAIN:
            yield from _of_plain(source, node, known)
        elif node.func.id in known:
            yield from _of_named(source, node, known[node.func.id])


def _of_plain(source: Source, node: ast.Call, known: dict[str, Defaults]) -> Iterator[Edit]:
    kind, values = node.args
    if not isinstance(kind, ast.Name) or not isinstance(values, ast.Tuple):
        return
    whole = len(values.elts) == len(known.get(kind.id, ()))
    if not whole or any(isinstance(each, ast.Starred) for each in values.elts):
        return
    yield Edit(source.begin(node.func), f"_cast({kind.id}, _make", len(PLAIN))
    yield Edit(source.begin(values), "", 1)
    yield Edit(source.end(values) - 1, "", 1)
    yield Edit(source.end(node), ")")


def _of_named(source: Source, node: ast.Call, defaults: Defaults) -> Iterator[Edit]:
    missing = defaults[len(node.args) :]
    if None in missing or not node.args or len(node.args) > len(defaults):
        return
    assert isinstance(node.func, ast.Name)
    begin, close = source.begin(node.func), source.end(node) - 1
    yield Edit(begin, f"_cast({node.func.id}, _make(")
    yield Edit(source.find("(", source.end(node.func)), ", ", 1)
    if missing:
        comma = "" if source.has_comma(source.end(node.args[-1]), close) else ", "
        yield Edit(close, comma + ", ".join(str(each) for each in missing))
    yield Edit(source.end(node), ")")
