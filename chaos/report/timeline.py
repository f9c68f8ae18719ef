"""The timeline as panels over one axis of time, in plotly's JSON.

Colours are names of the page's style (`--ink`); `timeline.js` puts in those of the light or dark
scheme. Texts from outside are escaped here, because plotly understands a few HTML tags.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from resilient_ps.chaos.report.lanes import Bar, Row, in_lanes
from resilient_ps.chaos.report.shapes import Json, bands, between, healed
from resilient_ps.chaos.report.wording import counted, seconds
from resilient_ps.chaos.result import Outage, Reign, RunResult, Sample

SERIES = 8
SHARDS_SHOWN = 64
LANE_PX = 23
AXIS_PX = 26
GRAPH_PX = 150
GAP_S = 2.5  # between samples of two seconds that follow each other


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a panel's legend; `shape`: how it is drawn."""

    text: str
    colour: str
    shape: str = "area"


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing with its heading and legend."""

    id: str
    title: str
    note: str
    height_px: int
    data: list[Json]
    layout: Json = field(default_factory=dict)
    keys: tuple[Key, ...] = ()

    def drawing(self) -> Json:
        """What `timeline.js` reads."""
        return {"id": self.id, "data": self.data, "layout": self.layout}


def panels(result: RunResult) -> list[Panel]:
    """From top to bottom, with the same axis of time."""
    rows, bars = in_lanes(result.faults)
    behind = [*bands(bars), *healed(result)]
    across = {
        "xaxis": {"range": [0, _end_s(result)], "ticksuffix": " s"},
        "shapes": behind,
    }
    drawn = [
        _faults(result, {**across, "shapes": [*between(rows), *healed(result)]}, bars, rows),
        _throughput(result.samples, across),
        _latency(result.samples, across),
        _leadership(result, across),
        _clocks(result.samples, across),
    ]
    return [panel for panel in drawn if panel.data]


def _faults(result: RunResult, across: Json, bars: Sequence[Bar], rows: Sequence[Row]) -> Panel:
    lanes = sum(row.lanes for row in rows)
    data = {
        **_bars((bar.fault.injected_s, bar.fault.healed_s, bar.lane) for bar in bars),
        "marker": {
            "color": [f"--{bar.group}" for bar in bars],
            "line": {"width": 1, "color": [f"--{bar.group}" for bar in bars]},
        },
        "text": [escape(bar.kind) for bar in bars],
        "hovertext": [_about(bar) for bar in bars],
        "textposition": "inside",
        "insidetextanchor": "start",
        "insidetextfont": {"color": "--on-bar", "size": 11},
        "width": 0.82,
    }
    layout = {
        **across,
        "yaxis": {
            "tickvals": [row.middle for row in rows],
            "ticktext": [row.group for row in rows],
            "range": [lanes - 0.5, -0.5],
            "showgrid": False,
        },
        "uniformtext": {"mode": "hide", "minsize": 10},
    }
    skipped = sum(1 for fault in result.faults if fault.skipped)
    note = counted(len(bars), "fault") + (f", {skipped} more were skipped" if skipped else "")
    note += f"; all healed at {seconds(result.healed_s)}" if result.healed_s else ""
    return Panel(
        "faults", "Faults", note, lanes * LANE_PX + AXIS_PX, [data] if bars else [], layout
    )


def _throughput(samples: Sequence[Sample], across: Json) -> Panel:
    times = [sample.at_s for sample in samples]
    data: list[Json] = [
        _line(times, [sample.pushes for sample in samples], "pushes", "--series-0"),
        {
            **_line(times, [sample.pulls for sample in samples], "pulls", "--series-1"),
            "line": {"color": "--series-1", "width": 1.5, "dash": "dot"},
        },
    ]
    keys = (Key("pushes", "--series-0", "line"), Key("pulls", "--series-1", "dots"))
    layout = {**across, "yaxis": {"rangemode": "tozero", "tickformat": "~s"}}
    note = "acknowledged pushes and answered pulls, per second"
    return Panel("throughput", "Throughput", note, GRAPH_PX, data if samples else [], layout, keys)


def _latency(samples: Sequence[Sample], across: Json) -> Panel:
    times = [sample.at_s for sample in samples]
    medians = [1e3 * sample.latency_median_s for sample in samples]
    tails = [1e3 * sample.latency_p99_s for sample in samples]
    data = [
        _line(times, tails, "p99", "--series-3", " ms", ".3~r"),
        _line(times, medians, "median", "--series-2", " ms", ".3~r"),
    ]
    keys = (Key("median", "--series-2", "line"), Key("p99", "--series-3", "line"))
    axis = {"type": "log", "ticksuffix": " ms", "tickformat": "~r", "dtick": 1}
    note = "of pushes, from call to acknowledgement; logarithmic"
    layout = {**across, "yaxis": axis}
    return Panel("latency", "Latency", note, GRAPH_PX, data if samples else [], layout, keys)


def _leadership(result: RunResult, across: Json) -> Panel:
    shards, shown = _shards(result)
    place = {shard: row for row, shard in enumerate(shown)}
    reigns = [r for r in result.reigns if r.shard in place and r.server]
    outages = [outage for outage in result.outages if outage.shard in place]
    servers = sorted({reign.server for reign in result.reigns if reign.server})
    colours = {name: _series(at) for at, name in enumerate(servers)}
    kinds = {fault.planned.number: fault.planned.kind for fault in result.faults}
    led = {
        **_bars((reign.from_s, reign.to_s, place[reign.shard]) for reign in reigns),
        "marker": {"color": [colours[reign.server] for reign in reigns], "opacity": 0.75},
        "hovertext": [_led(reign) for reign in reigns],
        "width": 0.7,
    }
    out = {
        **_bars((outage.from_s, outage.to_s, place[outage.shard]) for outage in outages),
        "marker": {"color": "--bad", "line": {"color": "--bad", "width": 1.5}},
        "hovertext": [_out(outage, kinds) for outage in outages],
        "width": 0.86,
    }
    every = 1 + len(shown) // 20
    row_px = 18 if len(shown) <= 16 else 9
    axis = {
        "tickvals": [place[shard] for shard in shown][::every],
        "ticktext": [f"shard {shard}" for shard in shown][::every],
        "range": [len(shown) - 0.5, -0.5],
        "showgrid": False,
    }
    keys = (
        *(Key(escape(name), colours[name]) for name in servers),
        Key("nothing acknowledged", "--bad"),
    )
    note = "who led each shard, and when it acknowledged nothing"
    note += f" ({len(shown)} of {shards} shards)" if shards > len(shown) else ""
    data = [led, out] if shown else []
    height = len(shown) * row_px + AXIS_PX
    return Panel(
        "leadership", "Leadership and outages", note, height, data, {**across, "yaxis": axis}, keys
    )


def _clocks(samples: Sequence[Sample], across: Json) -> Panel:
    ranks = max((len(sample.clocks) for sample in samples), default=0)
    data: list[Json] = []
    for rank in range(ranks):
        have = [sample for sample in samples if len(sample.clocks) > rank]
        colour = _series(rank)
        line = _line([s.at_s for s in have], [s.clocks[rank] for s in have], f"rank {rank}", colour)
        data.append({**line, "line": {"color": colour, "width": 1.5, "shape": "hv"}})
    keys = [Key(f"rank {rank}", f"--series-{rank % SERIES}", "line") for rank in range(ranks)]
    made = _checkpoints(samples)
    if made and data:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "checkpoint",
                "x": [sample.at_s for sample in made],
                "y": [min(sample.clocks, default=0) for sample in made],
                "marker": {"symbol": "diamond", "size": 9, "color": "--ink"},
                "hovertemplate": "made<extra>checkpoint</extra>",
            }
        )
        keys.append(Key("checkpoint", "--ink", "diamond"))
    layout = {**across, "yaxis": {"rangemode": "tozero", "tickformat": ",d"}}
    note = "the last one that each rank has ticked"
    return Panel("clocks", "Clocks", note, GRAPH_PX, data, layout, tuple(keys))


def _bars(spans: Iterable[tuple[float, float, int]]) -> Json:
    rows = list(spans)
    return {
        "type": "bar",
        "orientation": "h",
        "base": [from_s for from_s, _, _ in rows],
        "x": [max(to_s - from_s, 0.0) for from_s, to_s, _ in rows],
        "y": [row for _, _, row in rows],
        "hoverinfo": "text",
    }


def _line(
    times: Sequence[float],
    values: Sequence[float],
    name: str,
    colour: str,
    unit: str = "",
    digits: str = ",",
) -> Json:
    x, y = _with_gaps(times, values)
    return {
        "type": "scatter",
        "mode": "lines+markers",  # a second alone is no line
        "name": name,
        "x": x,
        "y": y,
        "line": {"color": colour, "width": 2},
        "marker": {"color": colour, "size": 3},
        "hovertemplate": f"%{{y:{digits}}}{unit}<extra>{name}</extra>",
    }


def _series(number: int) -> str:
    return f"--series-{number % SERIES}"


def _with_gaps(
    times: Sequence[float], values: Sequence[float]
) -> tuple[list[float], list[float | None]]:
    """No line leads over a time that nobody looked at."""
    x: list[float] = []
    y: list[float | None] = []
    for at_s, value in zip(times, values, strict=True):
        if x and at_s - x[-1] > GAP_S:
            x.append((x[-1] + at_s) / 2)
            y.append(None)
        x.append(at_s)
        y.append(value)
    return x, y


def _about(bar: Bar) -> str:
    fault = bar.fault
    whom = ", ".join(fault.struck) or ", ".join(fault.planned.target)
    lines = (
        f"<b>{escape(bar.kind)}</b> {escape(whom)}",
        f"{seconds(fault.healed_s - fault.injected_s)}, from {fault.injected_s:.2f} s",
        escape(fault.evidence) or "nothing shows that it really happened",
    )
    return "<br>".join(lines)


def _led(reign: Reign) -> str:
    return (
        f"<b>{escape(reign.server)}</b> led shard {reign.shard}<br>epoch {escape(reign.epoch)}, "
        f"{reign.from_s:.2f} s to {reign.to_s:.2f} s"
    )


def _out(outage: Outage, kinds: dict[int, str]) -> str:
    cause = kinds.get(outage.fault)
    put_down = f"put down to {escape(cause)}" if cause else "no fault explains it"
    lasted = seconds(outage.to_s - outage.from_s)
    return f"<b>shard {outage.shard}</b> acknowledged nothing for {lasted}<br>{put_down}"


def _shards(result: RunResult) -> tuple[int, list[int]]:
    """How many there are; those that are drawn: of too many the ones that were away for longest."""
    away: dict[int, float] = {reign.shard: 0.0 for reign in result.reigns}
    for outage in result.outages:
        away[outage.shard] = away.get(outage.shard, 0.0) + outage.to_s - outage.from_s
    worst = sorted(away, key=lambda shard: (-away[shard], shard))
    return len(away), sorted(worst[:SHARDS_SHOWN])


def _checkpoints(samples: Sequence[Sample]) -> list[Sample]:
    """The samples in whose second one was made."""
    before = (0, *(sample.checkpoints for sample in samples))
    return [
        sample for sample, had in zip(samples, before, strict=False) if sample.checkpoints > had
    ]


def _end_s(result: RunResult) -> float:
    ends = [
        result.healed_s,
        *(sample.at_s for sample in result.samples),
        *(fault.healed_s for fault in result.faults),
        *(outage.to_s for outage in result.outages),
        *(reign.to_s for reign in result.reigns),
    ]
    return max(1.0, *ends)
