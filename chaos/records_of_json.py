"""Frozen records of plain data from JSON, read strictly: by the types of their fields.

For files that anybody may have written. Nothing is guessed and nothing is left out: an unknown
field is wrong, and so is a missing one.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from resilient_ps.errors import BadInput
from resilient_ps.strict_json import short

ITEMS_MOST = 1_000_000
TEXT_MOST = 100_000
MAY_BE_NAN: Mapping[str, bool] = {"may_be_nan": True}
"""Of a field of type float: JSON's null is nan."""

T = TypeVar("T")


def read_record(kind: type[T], document: Any, where: str) -> T:
    """A record of this dataclass. Raises `BadInput` naming the place within `where`."""
    if not isinstance(document, dict):
        raise _wrong(where, "an object with fields", document)
    names = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in document:
        if name not in names:
            raise BadInput(f"{where}: there is no field {short(name)}")
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, field in names.items():
        if name not in document:
            raise BadInput(f"{where}: the field {name!r} is missing")
        value, at = document[name], f"{where}.{name}"
        if value is None and field.metadata.get("may_be_nan"):
            values[name] = math.nan
        else:
            values[name] = _read(hints[name], value, at)
    return kind(**values)


def _read(hint: Any, value: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, value, where)
    if origin is Literal:
        if isinstance(value, str) and value in get_args(hint):
            return value
        raise _wrong(where, f"one of {', '.join(get_args(hint))}", value)
    if origin in (Union, types.UnionType):
        return _read_optional(hint, value, where)
    if origin is tuple:
        return _read_list(get_args(hint)[0], value, where)
    if origin is dict:
        return _read_mapping(get_args(hint)[1], value, where)
    return _read_plain(hint, value, where)


def _read_optional(hint: Any, value: Any, where: str) -> Any:
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    assert len(kinds) == 1, hint
    return None if value is None else _read(kinds[0], value, where)


def _read_list(item: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list) or len(value) > ITEMS_MOST:
        raise _wrong(where, f"a list of at most {ITEMS_MOST}", value)
    return tuple(_read(item, each, f"{where}[{place}]") for place, each in enumerate(value))


def _read_mapping(item: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > ITEMS_MOST:
        raise _wrong(where, f"an object with at most {ITEMS_MOST} fields", value)
    return {name: _read(item, each, f"{where}.{name}") for name, each in value.items()}


def _read_plain(hint: Any, value: Any, where: str) -> Any:
    if hint is str:
        if isinstance(value, str) and len(value) <= TEXT_MOST:
            return value
        raise _wrong(where, f"a text of at most {TEXT_MOST} characters", value)
    if hint is bool:
        if isinstance(value, bool):
            return value
        raise _wrong(where, "true or false", value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        if is_number and isinstance(value, int) and abs(value) < 1 << 63:
            return value
        raise _wrong(where, "a whole number of 64 bits", value)
    assert hint is float, hint
    if is_number and abs(value) < 1e300:
        return float(value)
    raise _wrong(where, "a finite number", value)


def _wrong(where: str, wanted: str, value: Any) -> BadInput:
    return BadInput(f"{where}: {wanted} was expected, not {short(value)}")
