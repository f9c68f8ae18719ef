"""A run's report: one HTML file, the verdict first."""

from __future__ import annotations

from resilient_ps.chaos.report import library
from resilient_ps.chaos.report.embedded import ELEMENT, script_text
from resilient_ps.chaos.report.tables import fault_rows, harmless, links, pairs, recovery_rows
from resilient_ps.chaos.report.timeline import panels
from resilient_ps.chaos.report.verdict import SIGNS, WORDS, checks, figures, sentence
from resilient_ps.chaos.result import RunResult


def page(result: RunResult) -> str:
    """The whole file. It loads nothing, and its policy forbids the browser to.

    Raises `BadInput` naming the remedy when plotly or Jinja are not installed.
    """
    drawn = panels(result)
    return library.template("page.html").render(
        run=result,
        word=WORDS[result.verdict],
        sign=SIGNS[result.verdict],
        sentence=sentence(result),
        checks=checks(result),
        figures=figures(result),
        panels=drawn,
        recovery=recovery_rows(result),
        harmless=harmless(result),
        faults=fault_rows(result),
        metrics=pairs(result.metrics),
        settings=pairs(result.settings),
        versions=pairs(result.versions),
        logs=links(result.logs),
        result_id=ELEMENT,
        result_json=library.raw(script_text(result.as_json())),
        drawings=library.raw(script_text([panel.drawing() for panel in drawn])),
        style=library.raw(library.beside("style.css")),
        script=library.raw(library.beside("timeline.js")),
        plotly=library.raw(library.drawing_script()),
    )
