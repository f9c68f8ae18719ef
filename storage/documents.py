"""JSON documents in a store, read strictly: every field is there, of its type, and within bounds.

Anybody with access to the store can write anything there, and disks flip bits. What does not parse
is refused with the object, the field and the remedy; nothing is guessed, and sizes are checked
before parsing. A document says of what format and version it is, before anything else is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Never, TypeAlias, TypeVar

from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import Bytes
from resilient_ps.strict_json import loads_strictly, short

MAX_TEXT_CHARS = 1024
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

JsonObject: TypeAlias = dict[str, Any]
_T = TypeVar("_T")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_SHA256 = re.compile("[0-9a-f]{64}")
_XXH128 = re.compile("[0-9a-f]{32}")


class Damaged(BadInput):
    """An object of a checkpoint is not what was written: use another checkpoint."""


class ForeignFormat(BadInput):
    """An object was written by another program, or by a newer version of this one."""


class Fields:
    """The fields of one JSON object. Take each one, then call `end()`.

    `name` is the object in the store, which errors name. Raises `Damaged` for everything that is
    not as said.
    """

    def __init__(self, left: JsonObject, name: str, path: str = "") -> None:
        self._left = left
        self._name = name
        self._path = path  # of the field that holds this object, for errors

    def fail(self, reason: str) -> Never:
        raise Damaged(
            f"object {self._name}: {reason}. It is damaged, or another program has written it: use "
            "another checkpoint"
        )

    def end(self) -> None:
        if self._left:
            self.fail(f"unknown field {self._at(min(self._left))}")

    def integer(self, field: str, least: int = 0, most: int = INT64_MAX) -> int:
        value = self._take(field)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self._refuse(field, value, f"a whole number from {least} to {most}")
        return value

    def flag(self, field: str) -> bool:
        value = self._take(field)
        if not isinstance(value, bool):
            self._refuse(field, value, "true or false")
        return value

    def number(self, field: str) -> float:
        value = self._take(field)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._refuse(field, value, "a number")
        return float(value)

    def optional_integer(self, field: str, least: int = 0, most: int = INT64_MAX) -> int | None:
        """A whole number, or null."""
        if self._left.get(field, 0) is None:
            self._take(field)
            return None
        return self.integer(field, least, most)

    def optional_number(self, field: str) -> float | None:
        """A number, or null."""
        if self._left.get(field, 0) is None:
            self._take(field)
            return None
        return self.number(field)

    def text(self, field: str, *, least: int = 0, most: int = MAX_TEXT_CHARS) -> str:
        """A string of `least` to `most` characters."""
        value = self._take(field)
        if not isinstance(value, str) or not least <= len(value) <= most:
            self._refuse(field, value, f"a text of {least} to {most} characters")
        if _SURROGATE.search(value):
            self._refuse(field, value, "Unicode text")
        return value

    def sha256(self, field: str) -> str:
        value = self.text(field)
        if not _SHA256.fullmatch(value):
            self._refuse(field, value, "a SHA-256 in hexadecimal")
        return value

    def xxh128(self, field: str) -> str:
        value = self.text(field)
        if not _XXH128.fullmatch(value):
            self._refuse(field, value, "a XXH3-128 in hexadecimal")
        return value

    def choice(self, field: str, choices: tuple[str, ...]) -> str:
        value = self.text(field)
        if value not in choices:
            self._refuse(field, value, f"one of {', '.join(choices)}")
        return value

    def numbers(self, field: str, most: int = INT64_MAX, *, count: int) -> dict[str, int]:
        """An object of at most `count` whole numbers from 0 to `most`."""
        value = self.mapping(field)
        inner = Fields(dict(value), self._name, self._at(field))
        if len(value) > count:
            self.fail(f"{self._at(field)} has {len(value)} entries, at most {count} can be")
        return {key: inner.integer(key, 0, most) for key in value}

    def mapping(self, field: str) -> JsonObject:
        value = self._take(field)
        if not isinstance(value, dict):
            self._refuse(field, value, "an object")
        return value

    def optional_mapping(self, field: str) -> JsonObject | None:
        """An object, or null."""
        if self._left.get(field, 0) is None:
            self._take(field)
            return None
        return self.mapping(field)

    def inner(self, field: str) -> Fields:
        """The fields of an object in this one."""
        return Fields(dict(self.mapping(field)), self._name, self._at(field))

    def optional(self, field: str, read: Callable[[Fields], _T]) -> _T | None:
        """An object that is read by `read`, or null."""
        if self._left.get(field, 0) is None:
            self._take(field)
            return None
        return self._read(field, self._take(field), read)

    def each(self, field: str, read: Callable[[Fields], _T], *, most: int) -> tuple[_T, ...]:
        """A list of at most `most` objects, each read by `read`."""
        values = self._take(field)
        if not isinstance(values, list) or len(values) > most:
            self._refuse(field, values, f"a list of at most {most}")
        return tuple([self._read(f"{field}[{i}]", value, read) for i, value in enumerate(values)])

    def optional_each(
        self, field: str, read: Callable[[Fields], _T], *, most: int
    ) -> tuple[_T, ...]:
        """As `each`; nothing where the field is not there."""
        return self.each(field, read, most=most) if field in self._left else ()

    def _read(self, place: str, value: object, read: Callable[[Fields], _T]) -> _T:
        if not isinstance(value, dict):
            self._refuse(place, value, "an object")
        fields = Fields(dict(value), self._name, self._at(place))
        result = read(fields)
        fields.end()
        return result

    def _refuse(self, field: str, value: object, expected: str) -> Never:
        self.fail(f"{self._at(field)} is {short(value)}, not {expected}")

    def _take(self, field: str) -> Any:
        if field not in self._left:
            self.fail(f"field {self._at(field)} is missing")
        return self._left.pop(field)

    def _at(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field


def parse(raw: Bytes, name: str, kind: str, version: int, bytes_max: int) -> Fields:
    """The fields of a document of this kind, without `format` and `version`.

    Raises `ForeignFormat` for documents of another kind or of a newer version than `version`, and
    `Damaged` for what is no document at all, or has more than `bytes_max` bytes.
    """
    nothing = Fields({}, name)
    if len(raw) > bytes_max:
        nothing.fail(f"it has {len(raw)} bytes, at most {bytes_max} can be")
    try:
        value = loads_strictly(bytes(raw).decode())
    except (ValueError, RecursionError) as error:
        nothing.fail(f"it is no JSON: {error}"[:300])
    if not isinstance(value, dict) or value.get("format") != kind:
        raise ForeignFormat(
            f"object {name}: it is not a {kind}: name the store, the prefix and the cluster that "
            "resilient-ps wrote its checkpoints for"
        )
    fields = Fields(value, name)
    fields.text("format")
    written = fields.integer("version", 1)
    if written > version:
        raise ForeignFormat(
            f"object {name}: written by a newer version (format {written}), this one reads up to "
            f"{version}: upgrade resilient-ps"
        )
    return fields


def render(fields: Mapping[str, Any], kind: str, version: int, bytes_max: int) -> bytes:
    """A document for people and programs: what is in a list or an object has a line of its own.

    The same fields always give the same bytes. Raises BadInput for what cannot be written, or
    would be longer than `bytes_max`.
    """
    document = {"format": kind, "version": version, **fields}
    try:
        lines = [f"  {_json(key)}: {_block(value)}" for key, value in document.items()]
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"a {kind} cannot be written as JSON: {error}") from error
    raw = ("{\n" + ",\n".join(lines) + "\n}\n").encode()
    if len(raw) > bytes_max:
        raise BadInput(
            f"a {kind} would have {len(raw)} bytes, at most {bytes_max} can be: use more shards, "
            "or fewer tables"
        )
    return raw


def _block(value: Any) -> str:
    if isinstance(value, dict) and value:
        return _lines("{", [f"{_json(key)}: {_json(each)}" for key, each in value.items()], "}")
    if isinstance(value, list | tuple) and value:
        return _lines("[", [_json(each) for each in value], "]")
    return _json(value)


def _lines(begin: str, lines: list[str], end: str) -> str:
    return begin + "\n    " + ",\n    ".join(lines) + f"\n  {end}"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)
