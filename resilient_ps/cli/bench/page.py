"""A bench's result as one HTML file, in the style of the reports of chaos runs.

It loads nothing, and its policy forbids the browser to; the result is in it as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

from resilient_ps.chaos.report import library
from resilient_ps.chaos.report.embedded import script_text
from resilient_ps.chaos.report.timeline import Key, Panel
from resilient_ps.errors import BadInput

Json: TypeAlias = dict[str, Any]
SERIES = 8

__all__ = ["Figure", "Key", "Page", "Panel", "check_plot", "lines", "series"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number at the top."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; the first column is text, the others are numbers."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Page:
    """All that is on the page. `state`: held, violated or unknown, which gives the colour."""

    bench: str
    state: str
    word: str
    sentence: str
    figures: Sequence[Figure]
    panels: Sequence[Panel]
    grids: Sequence[Grid]
    notes: Sequence[str]
    result: Json

    def html(self) -> str:
        """The file. Raises `BadInput` where plotly or Jinja are not installed."""
        html: str = _template().render(
            page=self,
            sign={"held": "✓", "violated": "✗"}.get(self.state, "?"),
            style=library.raw(library.beside("style.css")),
            plotly=library.raw(library.drawing_script()),
            script=library.raw(_beside("panels.js")),
            drawings=library.raw(script_text([panel.drawing() for panel in self.panels])),
            result_json=library.raw(script_text(self.result)),
        )
        return html

    def write(self, path: Path) -> None:
        """To a file."""
        path.write_text(self.html(), encoding="utf-8")


def check_plot(plot: str) -> None:
    """Before minutes of measuring: can `--plot` be written? Raises `BadInput`."""
    path = Path(plot)
    if path.suffix not in (".html", ".htm"):
        raise BadInput(f"--plot {plot}: the plot is an HTML file, name it *.html")
    if not path.absolute().parent.is_dir():
        raise BadInput(f"--plot {plot}: there is no folder {path.absolute().parent}")
    library.check_installed()


def lines(name: str, x: Sequence[float], y: Sequence[float], colour: str, unit: str) -> Json:
    """A line of plotly's. `unit`: what stands behind a value under the pointer."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": {"color": colour, "width": 2},
        "hovertemplate": f"%{{y:.4~g}}{unit}<extra>{name}</extra>",
    }


def series(number: int) -> str:
    """The name of the colour of the so-manieth series."""
    return f"--series-{number % SERIES}"


def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_beside("page.html"))


def _beside(name: str) -> str:
    text: str = files(__package__).joinpath(name).read_text(encoding="utf-8")
    return text
