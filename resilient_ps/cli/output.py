"""Results for people: tables on standard output, remarks on standard error.

rich is imported where it is used: servers and workers import this, and draw nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from resilient_ps.cli.exits import EXIT_NEGATIVE
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

PIPE_COLUMNS = 1000  # a program that reads us wants whole lines


def results() -> Console:
    """Standard output; as wide as it takes where it is no terminal."""
    from rich.console import Console

    tty = sys.stdout.isatty()
    return Console(file=sys.stdout, width=None if tty else PIPE_COLUMNS, highlight=False)


def print_notes(notes: Iterable[str]) -> None:
    """Below a table, one on a line of its own, letter by letter (rich takes "[a]" for markup)."""
    out = results()
    for note in notes:
        out.print(f"* {note}", soft_wrap=True, markup=False)


def remark(text: str) -> None:
    """A line for whoever is watching."""
    print(text, file=sys.stderr, flush=True)


def shout(text: str) -> None:
    """A warning that must not be overlooked; yellow on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)
    console.print(Text(text, style="bold yellow"), soft_wrap=not console.is_terminal)


def grid(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: str = ""
) -> RenderableType:
    """A plain table below a title. `right` names the columns to align right, with commas."""
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=any(columns))
    aligned_right = right.split(",") if right else []
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in aligned_right else "left",
            overflow="fold",
            header_style="dim",
        )
    for row in rows:
        table.add_row(*[Text("-" if cell is None else str(cell)) for cell in row])
    below = Padding(table, (0, 0, 0, 2), expand=False)
    return Group(Text(title, style="bold"), below) if title else below


def size_text(count: float) -> str:
    """Bytes for people: `3.4 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def confirm(question: str, *, yes: bool) -> None:
    """Ask on standard error, unless told `--yes`. Anything but a yes ends the command."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(f"{question} There is nobody to ask: say --yes")
    if not typer.confirm(question, err=True):
        remark("nothing was changed")
        raise typer.Exit(EXIT_NEGATIVE)


@contextmanager
def opened_catalogue(etcd: str, cluster: str, deadline_s: float) -> Iterator[Catalogue]:
    """What is registered in a cluster, whether or not all of it is served."""
    kv = EtcdKv(etcd)
    try:
        yield Catalogue(kv, cluster, deadline_s)
    finally:
        kv.close()
