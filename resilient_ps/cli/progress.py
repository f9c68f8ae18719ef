"""Progress on standard error: live on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from resilient_ps.cli.worker import Told

LINE_EVERY_S = 3.0
DRAWN_PER_S = 5
RATE_OVER_S = 3.0
BAR_COLUMNS = 30
MARK_S = 0.5
MARKS_SHOWN = 60
MARKS = "▁▂▃▄▅▆▇█"


@dataclass
class Training:
    """What all workers have told so far. `total`: samples to expect; None where unknown."""

    total: int | None
    begun_s: float
    ranks: dict[int, Told] = field(default_factory=dict)
    server_rates: dict[str, float] = field(default_factory=dict)
    clocks: dict[int, int] = field(default_factory=dict)  # what servers say is better than `ranks`
    shard_states: dict[str, int] = field(default_factory=dict)  # how many are in which state
    loss: float | None = None
    longest_s: float = 0.0  # of all that was told: the longest that a batch took
    rates: list[float] = field(default_factory=list)  # samples per second, every `MARK_S`
    _marked: tuple[float, int] | None = None
    _firsts: dict[int, Told] = field(default_factory=dict)
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def take(self, news: Iterable[Told]) -> None:
        """Take in what was told since the last time.

        What a rank's processes did one after the other is what the rank has done.
        """
        rows, loss_sum = 0, 0.0
        for told in news:
            first = self._firsts.setdefault(told.rank, told)
            before = told.earlier - first.earlier
            begun_s = told.begun_s and min(told.begun_s, self._begun_s(told))
            self.ranks[told.rank] = replace(told, samples=before + told.samples, begun_s=begun_s)
            self.longest_s = max(self.longest_s, told.longest_s)
            rows += told.rows
            loss_sum += told.loss * told.rows
        if rows:
            self.loss = loss_sum / rows

    def _begun_s(self, told: Told) -> float:
        known = self.ranks.get(told.rank)
        return known.begun_s if known is not None and known.begun_s else told.begun_s

    @property
    def samples(self) -> int:
        """Trained on, by all workers."""
        return sum(told.samples for told in self.ranks.values())

    def look(self, now_s: float) -> Look:
        """The numbers to show. The rate is that of the last seconds."""
        samples = self.samples
        self._mark(now_s, samples)
        self._seen.append((now_s, samples))
        while len(self._seen) > 2 and now_s - self._seen[0][0] > RATE_OVER_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        if now_s - since_s < 0.5:
            since_s, before = self.begun_s, 0
        rate = (samples - before) / max(now_s - since_s, 1e-3)
        left_s = None
        if self.total is not None and rate > 0:
            left_s = max(0, self.total - samples) / rate
        known = self.clocks or {told.rank: told.clock for told in self.ranks.values()}
        clocks = sorted((clock, rank) for rank, clock in known.items())
        return Look(samples, self.total, rate, self.loss, clocks, now_s - self.begun_s, left_s)

    def _mark(self, now_s: float, samples: int) -> None:
        since_s, before = self._marked or (self.begun_s, 0)
        if self._marked is None or now_s - since_s >= MARK_S:
            if self._marked is not None:
                self.rates.append(max(0, samples - before) / (now_s - since_s))
            self._marked = now_s, samples


def marks_of(rates: Sequence[float]) -> str:
    """A picture of rates: one block each, as high as its share of the highest."""
    most = max(rates, default=0.0) or 1.0
    return "".join(MARKS[min(int(rate / most * len(MARKS)), len(MARKS) - 1)] for rate in rates)


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a training. `clocks`: (clock, rank), the slowest first."""

    samples: int
    total: int | None
    samples_per_s: float
    loss: float | None
    clocks: list[tuple[int, int]]
    elapsed_s: float
    left_s: float | None


class Watcher:
    """Shows stages one after the other, and a training while it goes on."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._display: Live | None = None
        self._line_at_s = 0.0

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        self._console.print(Text(text, style=style), soft_wrap=not self._console.is_terminal)

    @contextmanager
    def stage(self, doing: str) -> Iterator[Stage]:
        """While the block runs, `doing` is shown; then what the block said came of it."""
        stage, begun_s = Stage(doing), time.monotonic()
        if self._live:
            with self._console.status(Text(f"{doing} ...")):
                yield stage
        else:
            self.say(f"{doing} ...")
            yield stage
        self.say(f"{stage.done} ({time.monotonic() - begun_s:.1f} s)")

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within the block, `show` draws."""
        self._line_at_s = time.monotonic() + LINE_EVERY_S
        if not self._live:
            yield
            return
        with Live(
            console=self._console, refresh_per_second=DRAWN_PER_S, transient=True
        ) as self._display:
            yield

    def show(self, training: Training) -> None:
        """Draw the training, or write a line if it is time for one."""
        now_s = time.monotonic()
        if self._display is not None:
            self._display.update(_drawing(training.look(now_s), training))
        elif now_s >= self._line_at_s:
            self._line_at_s = now_s + LINE_EVERY_S
            self.say(_line(training.look(now_s), training))
        else:
            training.look(now_s)


class Stage:
    """What a stage of the work has come to; the block sets `done`."""

    def __init__(self, doing: str) -> None:
        self.done = doing


def _drawing(look: Look, training: Training) -> RenderableType:
    first = Table.grid(padding=(0, 1))
    bar = ProgressBar(
        total=look.total, completed=look.samples, width=BAR_COLUMNS, pulse=look.total is None
    )
    first.add_row("training", bar, Text(_share(look)), Text(_times(look), style="dim"))
    second = Text.assemble(("  rate    ", "dim"), _rate(look), ("   loss ", "dim"), _loss(look))
    third = Text.assemble(("  clocks  ", "dim"), _clocks(look))
    drawn: list[RenderableType] = [first, second, third]
    if training.server_rates:
        drawn.append(Text.assemble(("  servers ", "dim"), _server_rates(training.server_rates)))
    if training.shard_states:
        drawn.append(Text.assemble(("  shards  ", "dim"), _shard_states(training.shard_states)))
    if training.rates:
        recent = marks_of(training.rates[-MARKS_SHOWN:])
        drawn.append(Text.assemble(("          ", "dim"), (recent, "green")))
    return Group(*drawn)


def _line(look: Look, training: Training) -> str:
    parts = [
        f"training: {look.samples:,} samples",
        _share(look),
        _rate(look),
        f"loss {_loss(look)}",
        f"clocks {_clocks(look)}",
        _server_rates(training.server_rates) if training.server_rates else "",
        f"shards {_shard_states(training.shard_states)}" if training.shard_states else "",
        _times(look),
    ]
    return ", ".join(part for part in parts if part)


def _share(look: Look) -> str:
    return "" if not look.total else f"{min(1.0, look.samples / look.total):.0%}"


def _times(look: Look) -> str:
    left = "" if look.left_s is None else f", {_clock_text(look.left_s)} left"
    return f"{_clock_text(look.elapsed_s)} elapsed{left}"


def _clock_text(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _rate(look: Look) -> str:
    return f"{look.samples_per_s:,.0f} samples/s"


def _loss(look: Look) -> str:
    return "-" if look.loss is None else f"{look.loss:.4f}"


def _clocks(look: Look) -> str:
    if not look.clocks:
        return "-"
    (slowest, slow_rank), (fastest, fast_rank) = look.clocks[0], look.clocks[-1]
    return f"slowest {slowest} (rank {slow_rank}), fastest {fastest} (rank {fast_rank})"


def _server_rates(servers: dict[str, float]) -> str:
    rates = "  ".join(f"{name} {rate:,.0f}" for name, rate in sorted(servers.items()))
    return f"log entries/s {rates}"


def _shard_states(states: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
