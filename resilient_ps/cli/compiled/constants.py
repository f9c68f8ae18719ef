"""Constants that are never set again: compiled code need not look them up."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from resilient_ps.cli.compiled.edits import Edit, Source, imports

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*|_new|native")
NO_VALUES = {"TypeVar", "ParamSpec", "NewType"}  # what these make is for type checkers


def made_final(source: Source) -> list[Edit]:
    """Constants of the module that are set in one place."""
    counts = Counter(
        node.id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    edits: list[Edit] = []
    for node in source.tree.body:
        name = _constant(node)
        if name and counts[name] == 1:
            edits += _edits_of(source, node)
    return edits + imports(source, ["from typing import Final as _Constant"]) if edits else []


def _constant(node: ast.stmt) -> str:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target: ast.expr = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    else:
        return ""
    if not isinstance(target, ast.Name) or not CONSTANT.fullmatch(target.id):
        return ""
    value = node.value
    called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
    return target.id if value is not None and called not in NO_VALUES else ""


def _edits_of(source: Source, node: ast.stmt) -> Iterator[Edit]:
    if isinstance(node, ast.Assign):
        yield Edit(source.end(node.targets[0]), ": _Constant")
    elif isinstance(node, ast.AnnAssign) and not set(_words(node)) & {"TypeAlias", "Final"}:
        yield Edit(source.begin(node.annotation), "_Constant[")
        yield Edit(source.end(node.annotation), "]")


def _words(node: ast.AnnAssign) -> list[str]:
    return re.findall(r"\w+", ast.unparse(node.annotation))
