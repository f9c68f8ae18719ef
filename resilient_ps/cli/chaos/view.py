"""A run while it goes on: live on a terminal, lines elsewhere. All on standard error."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from resilient_ps.chaos.live.onlooker import Active, Now
from resilient_ps.chaos.result import Sample
from resilient_ps.cli.progress import MARKS_SHOWN, marks_of

LINE_EVERY_S = 5.0
DRAWN_PER_S = 4
BAR_COLUMNS = 30
ACTIVE_SHOWN = 6
_STATES = {"running": "green", "paused": "yellow", "dead": "red", "ended": "dim"}
_SHARDS = {"ok": "green", "moving": "cyan", "under-replicated": "yellow"}


class View:
    """An onlooker of runs. `title` says which one it is."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._console = Console(stderr=True, highlight=False)
        self._is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._doing = ""
        self._line_at_s = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within the block it is drawn."""
        if not self._is_live:
            yield
            return
        live = Live(console=self._console, refresh_per_second=DRAWN_PER_S, transient=True)
        with live as self._live:
            yield
        self._live = None

    def phase(self, doing: str) -> None:
        """A new phase has begun."""
        self._doing = doing
        if self._live is None:
            self._print(f"{self.title}: {doing}")
        else:
            self._live.update(Text.assemble((self.title, "bold"), f"  {doing} ..."))

    def say(self, text: str) -> None:
        """A line that stays."""
        self._print(text)

    def show(self, now: Now) -> None:
        """Draw it, or write a line if it is time for one."""
        if self._live is not None:
            self._live.update(self._drawing(now))
        elif time.monotonic() >= self._line_at_s:
            self._line_at_s = time.monotonic() + LINE_EVERY_S
            self._print(_line(now))

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=not self._console.is_terminal)

    def _drawing(self, now: Now) -> RenderableType:
        first = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=now.duration_s, completed=min(now.at_s, now.duration_s))
        bar.width = BAR_COLUMNS
        first.add_row(Text(self.title, style="bold"), bar, _seconds_of(now, self._doing))
        done, of = now.faults
        faults = Text(f"{done} of {of} so far, {len(now.active)} active")
        drawn: list[RenderableType] = [first, _row("faults", faults)]
        drawn += [_row("", _active(each, now.at_s)) for each in now.active[:ACTIVE_SHOWN]]
        drawn += [
            _row("pushes", Text(_sample(now.sample))),
            _row("", Text(marks_of(now.rates[-MARKS_SHOWN:]), style="green")),
            _row("clocks", Text(_clocks(now.sample))),
            _row("shards", _counted(now.shards)),
            _row("", _parties(now.parties)),
        ]
        return Group(*drawn)


def _row(name: str, what: Text) -> Text:
    return Text.assemble((f"  {name:8}", "dim"), what)


def _line(now: Now) -> str:
    done, of = now.faults
    parts = [
        f"{now.at_s:6.1f} s",
        f"{done} of {of} faults, {len(now.active)} active",
        _sample(now.sample),
        f"clocks {_clocks(now.sample)}",
        f"shards {_counted(now.shards).plain}",
    ]
    return "  ".join(parts)


def _seconds_of(now: Now, doing: str) -> Text:
    over = now.at_s > now.duration_s
    return Text(f"{now.at_s:.0f} s, {doing}" if over else f"{now.at_s:.0f} of {now.duration_s:g} s")


def _active(active: Active, at_s: float) -> Text:
    planned = active.planned
    whom = ", ".join(active.struck) or " -> ".join(planned.target)
    since_s = max(0.0, at_s - active.since_s)
    return Text.assemble(
        (f"{planned.kind} ", "red"),
        f"{whom} ",
        (f"{since_s:.1f} of {planned.lasts_s:.1f} s", "dim"),
    )


def _sample(sample: Sample | None) -> str:
    if sample is None:
        return "-"
    text = f"{sample.pushes} pushes/s"
    if not math.isnan(sample.latency_median_s):
        text += f", median {_ms(sample.latency_median_s)}, p99 {_ms(sample.latency_p99_s)}"
    return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _clocks(sample: Sample | None) -> str:
    if sample is None or not sample.clocks:
        return "-"
    slowest, fastest = min(sample.clocks), max(sample.clocks)
    return f"{slowest} to {fastest}" if slowest != fastest else str(slowest)


def _counted(states: dict[str, int]) -> Text:
    text = Text()
    for place, (state, count) in enumerate(sorted(states.items())):
        text.append(", " if place else "")
        text.append(f"{count} {state}", style=_SHARDS.get(state, "red"))
    return text or Text("-")


def _parties(parties: dict[str, str]) -> Text:
    text = Text()
    for name, state in parties.items():
        text.append(f"{name} ", style=_STATES.get(state, ""))
    return text
