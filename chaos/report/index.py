"""The page before the reports of several seeds: what each came to, with a link to its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from resilient_ps.chaos.report import library
from resilient_ps.chaos.report.verdict import SIGNS, WORDS, sentence
from resilient_ps.chaos.report.wording import count, counted, seconds
from resilient_ps.chaos.result import RunResult, RunVerdict


@dataclass(frozen=True, slots=True)
class SeedRow:
    """One seed's line."""

    seed: int
    href: str
    verdict: RunVerdict
    word: str
    sign: str
    sentence: str
    faults: str
    pushes: str
    failovers: str
    longest: str


def index(runs: Sequence[tuple[RunResult, str]]) -> str:
    """The whole file; with each result the path of its report, relative to this one.

    Raises `BadInput` when Jinja is not installed.
    """
    rows = [_row(result, path) for result, path in runs]
    verdict = overall([row.verdict for row in rows])
    held = sum(1 for row in rows if row.verdict == "held")
    return library.template("index.html").render(
        rows=rows,
        verdict=verdict,
        word=WORDS[verdict],
        sign=SIGNS[verdict],
        sentence=f"{held} of {counted(len(rows), 'seed')} held.",
        workloads=sorted({result.workload for result, _ in runs}),
        style=library.raw(library.beside("style.css")),
    )


def overall(verdicts: Sequence[RunVerdict]) -> RunVerdict:
    """One violation is one; all must have held."""
    if "violated" in verdicts:
        return "violated"
    return "held" if verdicts and set(verdicts) == {"held"} else "unknown"


def _row(result: RunResult, path: str) -> SeedRow:
    longest_s = max((o.to_s - o.from_s for o in result.outages), default=0.0)
    return SeedRow(
        seed=result.seed,
        href=quote(path),
        verdict=result.verdict,
        word=WORDS[result.verdict],
        sign=SIGNS[result.verdict],
        sentence="" if result.verdict == "held" else sentence(result),
        faults=count(sum(1 for fault in result.faults if not fault.skipped)),
        pushes=count(result.counts.acknowledged),
        failovers=count(result.counts.failovers),
        longest=seconds(longest_s) if longest_s else "none",
    )
