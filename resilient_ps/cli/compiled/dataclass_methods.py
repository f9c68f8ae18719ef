"""Dataclasses whose methods are written out.

What `dataclass` makes of a class is Python that is not compiled, and that sets a frozen object's
fields one by one through a function. So `__init__`, `__eq__` and `__hash__` are written into the
class, and `dataclass` leaves them alone; the rest (its representation, `fields`, `replace`) is
still its own. `slots` goes, which compiled classes have anyway, and so does `frozen`: type checkers
have looked at the same sources.

What is not known here is refused: `Unknown` names it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from resilient_ps.cli.compiled.edits import Edit, Source, imports

KNOWN_OPTIONS = {"frozen", "slots", "eq"}
KNOWN_IN_FIELD = {"default", "default_factory", "init", "kw_only", "repr"}
EMPTY_OF = {"dict": "{}", "list": "[]"}
PLAIN_BASES = {"Record"}  # which are no dataclasses themselves
MEMORY = "memoryview"  # what is made of such an annotation cannot be loaded


class Unknown(Exception):
    """A dataclass, or a field of one, that is made in a way that is not known here."""


class Field(NamedTuple):
    """A field, and how it gets its value: texts of Python, empty where there is none."""

    name: str
    annotation: str
    default: str = ""
    factory: str = ""  # makes a new value each time
    init: bool = True
    kw_only: bool = False

    @property
    def parameter(self) -> str:
        """Of `__init__`."""
        if self.factory:
            return f"{self.name}: ({self.annotation}) | None = None"
        return f"{self.name}: {self.annotation}" + (f" = {self.default}" if self.default else "")

    @property
    def statement(self) -> str:
        """What `__init__` does with it."""
        if not self.init:
            return f"self.{self.name} = {self.default}" if self.default else "pass"
        if self.factory:
            return f"self.{self.name} = {self.factory} if {self.name} is None else {self.name}"
        return f"self.{self.name} = {self.name}"


def written_out(source: Source) -> list[Edit]:
    """The methods of all dataclasses of a module. Raises Unknown."""
    later = _names_for_type_checkers(source.tree)
    edits: list[Edit] = []
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and _decorator(node) is not None:
            edits += _edits_of(source, node, later)
    if any("_Any" in edit.text for edit in edits):
        edits += imports(source, ["from typing import Any as _Any"])
    return edits


def _decorator(node: ast.ClassDef) -> ast.expr | None:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Name) and called.id == "dataclass":
            return decorator
    return None


def _edits_of(source: Source, node: ast.ClassDef, later: set[str]) -> list[Edit]:
    where = f"{source.name}, line {node.lineno}: {node.name}"
    decorator = _decorator(node)
    assert decorator is not None
    if not {ast.unparse(base) for base in node.bases} <= PLAIN_BASES:
        raise Unknown(f"{where} inherits from what may be a dataclass")
    options = _options(decorator, where)
    fields = [_field(each, where) for each in _annotated(node)]
    edits = _decoration(source, decorator, fields, options, later)
    for each in _annotated(node):
        if MEMORY in ast.unparse(each.annotation):
            first = source.begin(each.annotation)
            edits.append(Edit(first, "_Any", source.end(each.annotation) - first))
    lines = _methods(node, fields, options)
    edits.append(Edit(source.after(node), "".join(f"\n    {line}" for line in lines)))
    return edits + _moved_variables(source, node)


def _decoration(
    source: Source,
    decorator: ast.expr,
    fields: list[Field],
    options: dict[str, bool],
    later: set[str],
) -> list[Edit]:
    first, last = source.begin(decorator), source.end(decorator)
    if later & {field.annotation for field in fields}:
        # `dataclass` loads the annotations, which are not there yet: without it, then.
        return [Edit(first - 1, "", last - first + 1)]
    kept = "dataclass" if options.get("eq", True) else "dataclass(eq=False)"
    return [Edit(first, kept, last - first)]


def _options(decorator: ast.expr, where: str) -> dict[str, bool]:
    if not isinstance(decorator, ast.Call):
        return {}
    options = {str(each.arg): bool(ast.literal_eval(each.value)) for each in decorator.keywords}
    if decorator.args or not set(options) <= KNOWN_OPTIONS:
        raise Unknown(f"{where} is made by {ast.unparse(decorator)}")
    return options


def _annotated(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and "ClassVar" not in ast.unparse(each.annotation):
            yield each


def _field(node: ast.AnnAssign, where: str) -> Field:
    assert isinstance(node.target, ast.Name)
    name, annotation, value = node.target.id, ast.unparse(node.annotation), node.value
    if value is None:
        return Field(name, annotation)
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
        return Field(name, annotation, ast.unparse(value))
    given = {str(each.arg): each.value for each in value.keywords}
    if value.args or not set(given) <= KNOWN_IN_FIELD:
        raise Unknown(f"{where}.{name} is {ast.unparse(value)}")
    default, factory = "", ""
    if "default" in given:
        default = ast.unparse(given["default"])
    if "default_factory" in given:
        default, factory = _made_by(given["default_factory"])
    init, kw_only = (
        bool(ast.literal_eval(given[key])) if key in given else key == "init"
        for key in ("init", "kw_only")
    )
    return Field(name, annotation, default, factory, init=init, kw_only=kw_only)


def _made_by(factory: ast.expr) -> tuple[str, str]:
    """A default that all may share; or what makes one."""
    if isinstance(factory, ast.Lambda):
        body = ast.unparse(factory.body)
        return (body, "") if isinstance(factory.body, ast.Name) else ("", body)
    text = ast.unparse(factory)
    return "", EMPTY_OF.get(text, f"{text}()")


def _methods(node: ast.ClassDef, fields: list[Field], options: dict[str, bool]) -> list[str]:
    own = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    lines: list[str] = []
    if "__init__" not in own:
        lines += _init(fields, after="__post_init__" in own)
    if options.get("eq", True) and "__eq__" not in own:
        lines += _eq(node.name, fields)
        if options.get("frozen") and "__hash__" not in own:
            values = "".join(f"self.{field.name}, " for field in fields)
            lines += ["def __hash__(self) -> int:", f"    return hash(({values}))"]
    return lines


def _init(fields: list[Field], *, after: bool) -> list[str]:
    given = [field for field in fields if field.init]
    words = [field.parameter for field in given if field.kw_only]
    parameters = ["self", *(field.parameter for field in given if not field.kw_only)]
    parameters += ["*", *words] if words else []
    statements = [field.statement for field in fields] + (["self.__post_init__()"] if after else [])
    body = [f"    {each}" for each in statements or ["pass"]]
    return [f"def __init__({', '.join(parameters)}) -> None:", *body]


def _eq(name: str, fields: list[Field]) -> list[str]:
    same = " and ".join(f"self.{field.name} == other.{field.name}" for field in fields)
    return [
        "def __eq__(self, other: object) -> bool:",
        f"    if type(other) is not {name}:",
        "        return NotImplemented",
        f"    assert isinstance(other, {name})",
        f"    return bool({same or True})",
    ]


# -- variables of classes


def _moved_variables(source: Source, node: ast.ClassDef) -> list[Edit]:
    """Those of a dataclass are set after it: its compiled form takes them for fields."""
    edits: list[Edit] = []
    for each in node.body:
        name, value, keeps = _variable(each)
        if name and value is not None:
            if keeps and not node.bases:
                edits.append(Edit(source.begin(each), f"{name}: {keeps}"))
            edits += source.emptied(each)
            line = f"\n{node.name}.{name} = {ast.unparse(value)}"
            edits.append(Edit(source.after(node), line))
    return edits


def _variable(node: ast.stmt) -> tuple[str, ast.expr | None, str]:
    """Its name, value and annotation, if the statement sets a variable of a class."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id, node.value, ""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        annotation = ast.unparse(node.annotation)
        if "ClassVar" in annotation:
            return node.target.id, node.value, annotation
    return "", None, ""


def _names_for_type_checkers(tree: ast.Module) -> set[str]:
    """What is imported only where types are checked."""
    return {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
