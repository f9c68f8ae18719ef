"""Changes to the text of a source that leave everything else in it as it is, comments included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """At byte `at`, `removed` bytes become `text`. Of several at one place, they are in order."""

    at: int
    text: str
    removed: int = 0


class Source:
    """The text of a module, and its tree. `name`: as it is imported."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.tree = ast.parse(text)
        self._bytes = text.encode()
        self._starts = [0]
        for line in self._bytes.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def place(self, line: int, column: int = 0) -> int:
        """Where a line (from 1) and the byte `column` of it are."""
        return self._starts[line - 1] + column

    def begin(self, node: ast.expr | ast.stmt) -> int:
        """Where a node begins."""
        return self.place(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Where a node ends."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.place(node.end_lineno, node.end_col_offset)

    def after(self, node: ast.stmt) -> int:
        """Where the last line of a statement ends, with what is noted there."""
        assert node.end_lineno is not None
        return self.place(node.end_lineno + 1) - 1

    def find(self, text: str, first: int) -> int:
        """Where a text stands next, from byte `first` on."""
        return self._bytes.index(text.encode(), first)

    def has_comma(self, first: int, last: int) -> bool:
        """Is there a comma between two places, outside of comments?"""
        return "," in re.sub("#.*", "", self._bytes[first:last].decode())

    def emptied(self, node: ast.stmt) -> list[Edit]:
        """Without a statement; its lines stay, so that others keep their numbers."""
        first, last = self.begin(node), self.end(node)
        breaks = self._bytes[first:last].count(b"\n")
        return [Edit(first, "\n" * breaks, last - first)]

    def edited(self, edits: Iterable[Edit]) -> str:
        """The text with these changes."""
        ordered = sorted(edits, key=lambda edit: edit.at)
        pieces, at = [], 0
        for edit in ordered:
            if edit.at < at:
                raise ValueError(f"{self.name}: two changes of one place")
            pieces += [self._bytes[at : edit.at], edit.text.encode()]
            at = edit.at + edit.removed
        return b"".join([*pieces, self._bytes[at:]]).decode()


def imports(source: Source, lines: Iterable[str]) -> list[Edit]:
    """More imports, behind the one that every module begins with."""
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            return [Edit(source.end(node), "".join(f"; {line}" for line in lines))]
    raise ValueError(f"{source.name}: does not begin with `from __future__ import annotations`")
