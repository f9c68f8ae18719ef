"""How far compiling is, on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from resilient_ps.cli.compiled.building import Tell
from resilient_ps.cli.output import remark

LINE_EVERY_S = 15.0
FIRST_LINE = "compiling the machines, once for this version: it takes some minutes"


@contextmanager
def compiling_shown() -> Iterator[Tell]:
    """Nothing is shown before there is anything to compile."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines().tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar: list[TaskID] = []

        def tell(what: str, done: int, total: int) -> None:
            if not bar:
                progress.console.print(FIRST_LINE)
                bar.append(progress.add_task(what))
            progress.update(bar[0], description=what, completed=done, total=total if done else None)

        yield tell


class _Lines:
    def __init__(self) -> None:
        self._last_s: float | None = None

    def tell(self, what: str, done: int, total: int) -> None:
        """See `Tell`."""
        if self._last_s is None:
            remark(FIRST_LINE)
        elif time.monotonic() < self._last_s + LINE_EVERY_S:
            return
        else:
            remark(f"{what}: {done} of {total}")
        self._last_s = time.monotonic()
