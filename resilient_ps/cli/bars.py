"""A bar for work whose size is known: drawn on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from resilient_ps.cli.output import remark, size_text

LINE_EVERY_S = 3.0


class Bar:
    """Call it with what was done since the last call, from any thread; `say` changes the text."""

    def __init__(self, show: Callable[[int, int, str], None], total: int, text: str) -> None:
        self._show = show
        self._lock = threading.Lock()
        self.total = total
        self.done = 0
        self._text = text

    def __call__(self, done: int = 1) -> None:
        with self._lock:
            self.done += done
            self._show(self.done, self.total, self._text)

    def set(self, done: int, total: int | None = None) -> None:
        """So much is done by now, of so much."""
        with self._lock:
            self.done, self.total = done, self.total if total is None else total
            self._show(self.done, self.total, self._text)

    def say(self, text: str) -> None:
        """What is being done now."""
        with self._lock:
            self._text = text
            self._show(self.done, self.total, text)


@contextmanager
def bar(text: str, total: int, unit: str) -> Iterator[Bar]:
    """On standard error. `unit`: "B" for bytes, or the word for what is counted."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield Bar(_Lines(unit), total, text)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[count]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(text, total=total, count="")

        def draw(done: int, most: int, doing: str) -> None:
            progress.update(
                task, completed=done, total=most, description=doing, count=_count(done, most, unit)
            )

        yield Bar(draw, total, text)


class _Lines:
    """A line every few seconds, if it takes that long."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._due_s = time.monotonic() + LINE_EVERY_S

    def __call__(self, done: int, total: int, text: str) -> None:
        now_s = time.monotonic()
        if now_s >= self._due_s:
            self._due_s = now_s + LINE_EVERY_S
            remark(f"{text}: {_count(done, total, self._unit)}")


def _count(done: int, total: int, unit: str) -> str:
    if unit == "B":
        return f"{size_text(done)} of {size_text(total)}"
    return f"{done:,} of {total:,} {unit}"
