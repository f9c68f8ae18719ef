"""A JSON object from etcd, read strictly: every field is there, of its type, and within bounds.

Anybody with access to etcd can write anything there. What does not parse is refused with the key,
the fault and the remedy; nothing is guessed, and sizes are checked before parsing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Never, cast

from resilient_ps.errors import BadInput
from resilient_ps.strict_json import loads_strictly, short

MAX_RECORD_BYTES = 64 * 1024
MAX_DEPTH = 16  # of nested JSON; checked before the parser recurses
MAX_ITEMS = 1024
MAX_TEXT_CHARS = 1024
INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SURROGATE = re.compile(r"[\ud800-\udfff]")

JsonObject = dict[str, Any]


class Fields:
    """The fields of one JSON object. Take each one, then call `end()`.

    `key` is the etcd key that errors name. Raises BadInput for everything that is not as said.
    """

    def __init__(
        self, raw: bytes, key: bytes, what: str, bytes_max: int = MAX_RECORD_BYTES
    ) -> None:
        self._bytes_max = bytes_max
        self._key = key.decode(errors="replace")
        self._what = what
        self._left: JsonObject = self._parse(raw)

    def fail(self, reason: str) -> Never:
        raise BadInput(
            f"etcd key {self._key}: not a valid {self._what}: {reason}. It was written by another "
            "program or version: use another cluster name, or run the version that wrote it"
        )

    def end(self) -> None:
        if self._left:
            self.fail(f"unknown field {short(min(self._left))}")

    def integer(self, name: str, least: int, most: int) -> int:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(f"{name} is {short(value)}, not a whole number from {least} to {most}")
        return value

    def optional_integer(self, name: str, least: int, most: int) -> int | None:
        """A whole number, or null."""
        if self._left.get(name, 0) is None:
            return cast(None, self._take(name))
        return self.integer(name, least, most)

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            self.fail(f"{name} is {short(value)}, not true or false")
        return value

    def number(self, name: str, least: float, most: float) -> float:
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"{name} is {short(value)}, not a number")
        if not least <= value <= most:
            self.fail(f"{name} is {short(value)}, not a number from {least:g} to {most:g}")
        return float(value)

    def optional_number(self, name: str, least: float, most: float) -> float | None:
        """A number, or null."""
        if self._left.get(name, 0) is None:
            return cast(None, self._take(name))
        return self.number(name, least, most)

    def text(self, name: str, *, least: int = 0, most: int = MAX_TEXT_CHARS) -> str:
        """A string of `least` to `most` characters."""
        return self._text(name, self._take(name), least, most)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in choices:
            self.fail(f"{name} is {short(value)}, not one of {', '.join(choices)}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        """A list of distinct, non-empty strings."""
        values = self._list(name)
        names = tuple(self._text(name, value, 1, MAX_TEXT_CHARS) for value in values)
        if len(set(names)) != len(names):
            self.fail(f"{name} names something twice: {short(values)}")
        return names

    def members(self, name: str) -> tuple[tuple[str, int], ...]:
        """A list of (server, process) with distinct servers."""
        members: list[tuple[str, int]] = []
        for value in self._list(name):
            if not isinstance(value, list) or len(value) != 2 or type(value[1]) is not int:
                self.fail(f"{name} is {short(value)}, not pairs of a server and a process")
            if not 1 <= value[1] <= UINT64_MAX:
                self.fail(f"{name} names process {short(value[1])}")
            members.append((self._text(name, value[0], 1, MAX_TEXT_CHARS), value[1]))
        if len({server for server, _ in members}) != len(members):
            self.fail(f"{name} names a server twice: {short(members)}")
        return tuple(members)

    def weighted(self, name: str, least: float, most: float) -> tuple[tuple[str, float, str], ...]:
        """A list of (server, weight, zone) with distinct servers and weights within the bounds."""
        rows: list[tuple[str, float, str]] = []
        for value in self._list(name):
            if not isinstance(value, list) or len(value) != 3 or type(value[1]) not in (int, float):
                self.fail(f"{name} is {short(value)}, not triples of a server, a weight and a zone")
            server, weight, zone = value
            if not least <= weight <= most:
                self.fail(f"{name} has weight {short(weight)}, not {least:g} to {most:g}")
            server = self._text(name, server, 1, MAX_TEXT_CHARS)
            rows.append((server, float(weight), self._text(name, zone, 0, MAX_TEXT_CHARS)))
        if len({server for server, _, _ in rows}) != len(rows):
            self.fail(f"{name} names a server twice: {short(rows)}")
        return tuple(rows)

    def pair(self, name: str) -> tuple[int, int]:
        """Two whole numbers of 0 to 2^63 - 1."""
        values = self._list(name)
        if len(values) != 2 or not all(type(v) is int and 0 <= v <= INT64_MAX for v in values):
            self.fail(f"{name} is {short(values)}, not two whole numbers")
        return values[0], values[1]

    def rows(self, name: str, columns: int) -> list[list[Any]]:
        """A list of lists of so many values each; what these are, the caller checks."""
        rows = self._list(name)
        for row in rows:
            if not isinstance(row, list) or len(row) != columns:
                self.fail(f"{name} has {short(row)}, not {columns} values")
        return rows

    def integers(self, name: str, least: int, most: int) -> tuple[int, ...]:
        """A list of whole numbers."""
        values = self._list(name)
        if not all(type(value) is int and least <= value <= most for value in values):
            self.fail(f"{name} is {short(values)}, not whole numbers from {least} to {most}")
        return tuple(values)

    def object(self, name: str) -> JsonObject:
        value = self._take(name)
        if not isinstance(value, dict):
            self.fail(f"{name} is {short(value)}, not an object")
        return value

    def optional_object(self, name: str) -> JsonObject:
        """An object; an empty one where an earlier version did not write the field."""
        return self.object(name) if name in self._left else {}

    def clocks(self, name: str) -> JsonObject:
        """An object of clocks: a name or number -> a whole number from 0."""
        value = self.object(name)
        if len(value) > MAX_ITEMS:
            self.fail(f"{name} has {len(value)} entries, at most {MAX_ITEMS} are allowed")
        for key, clock in value.items():
            self._text(name, key, 1, MAX_TEXT_CHARS)
            if type(clock) is not int or not 0 <= clock <= INT64_MAX:
                self.fail(f"{name} says {short(clock)} for {short(key)}, which is no clock")
        return value

    def digest(self, name: str) -> str:
        """A sha256 in lower-case hexadecimal."""
        value = self.text(name, least=64, most=64)
        if not set(value) <= set("0123456789abcdef"):
            self.fail(f"{name} is {short(value)}, not a sha256 in lower-case hexadecimal")
        return value

    def _take(self, name: str) -> Any:
        if name not in self._left:
            self.fail(f"field {name} is missing")
        return self._left.pop(name)

    def _list(self, name: str) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            self.fail(f"{name} is {short(value)}, not a list of at most {MAX_ITEMS}")
        return value

    def _text(self, name: str, value: Any, least: int, most: int) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most:
            self.fail(f"{name} is {short(value)}, not a text of {least} to {most} characters")
        if not value.isascii() and _SURROGATE.search(value):
            self.fail(f"{name} is {short(value)}, which is not Unicode text")
        return value

    def _parse(self, raw: bytes) -> JsonObject:
        if len(raw) > self._bytes_max:
            self.fail(f"it has {len(raw)} bytes, at most {self._bytes_max} are allowed")
        try:
            text = raw.decode()
            if _opened(text) > MAX_DEPTH and _depth(text) > MAX_DEPTH:
                self.fail(f"it is nested deeper than {MAX_DEPTH}")
            value = loads_strictly(text)
        except BadInput:
            raise
        except (ValueError, RecursionError) as error:
            self.fail(f"{error} in {short(raw)}")
        if not isinstance(value, dict):
            self.fail(f"it is {short(value)}, not an object")
        return value


def dump(fields: Mapping[str, Any], what: str) -> bytes:
    """The JSON bytes of a record; the same fields always give the same bytes."""
    try:
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"a {what} cannot be written as JSON: {error}") from error
    return text.encode()


def _opened(text: str) -> int:
    """How many arrays and objects there are at most: they are not nested deeper than that."""
    return text.count("[") + text.count("{")


def _depth(text: str) -> int:
    """How deeply arrays and objects are nested; brackets in strings do not count."""
    deepest = depth = 0
    for bracket in re.findall(r"[][{}]", _STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest
