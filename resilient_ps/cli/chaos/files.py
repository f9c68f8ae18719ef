"""The files that runs leave: JSON, reports and logs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from resilient_ps.chaos.report.index import index
from resilient_ps.chaos.report.library import check_installed
from resilient_ps.chaos.report.page import page
from resilient_ps.chaos.result import RunResult
from resilient_ps.errors import BadInput

SEED = "{seed}"
STANDARD_OUTPUT = "-"
SEVERAL = "resilient-ps chaos runs"


@dataclass(frozen=True, slots=True)
class Files:
    """Where what is to be written; "" and None: nowhere. `several`: more than one seed.

    With `{seed}` in its name there is a file for each seed. Several seeds without it: one JSON file
    with all runs; and one page that leads to a report for each seed, beside it.
    """

    json: str = ""
    report: str = ""
    keep: Path | None = None
    several: bool = False
    written: list[tuple[RunResult, Path]] = field(default_factory=list)

    def check(self) -> None:
        """Raises `BadInput`, naming the flag, for what cannot be written: before a run of minutes.

        Folders for logs are made.
        """
        if self.report:
            check_installed()
            if not self.report.endswith((".html", ".htm")):
                raise BadInput(f"--report {self.report}: a report is an HTML file, name it *.html")
        for flag, name in (("--json", self.json), ("--report", self.report)):
            if name and name != STANDARD_OUTPUT:
                _check_writable(flag, Path(name))
        if self.keep is not None:
            try:
                self.keep.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BadInput(f"--keep {self.keep}: {error.strerror}") from error

    @property
    def wants_lines(self) -> bool:
        """Is standard output for people?"""
        return self.json != STANDARD_OUTPUT

    def logs_of(self, seed: int) -> Path | None:
        """Where the logs of a seed's run stay: as asked for, or else beside its report."""
        if self.keep is not None:
            return self.keep / f"seed-{seed}" if self.several else self.keep
        report = self._report_of(seed)
        return None if report is None else report.with_name(f"{report.stem}-logs")

    def write(self, result: RunResult) -> RunResult:
        """The files of one seed; the result with its logs' places as these files name them."""
        report = self._report_of(result.seed)
        base = Path(self.json).parent if self.json else Path()
        told = _with_logs(result, report.parent if report is not None else base)
        if self.logs_of(result.seed) is None:
            told = replace(told, logs={})
        if report is not None:
            report.write_text(page(told))
            self.written.append((told, report))
        if self.json and (not self.several or SEED in self.json):
            _write_json(self.json.replace(SEED, str(result.seed)), told.as_json())
        return told

    def finish(self, runs: Sequence[RunResult], *, is_last: bool = True) -> None:
        """The files about all seeds so far: they stay when the next run is interrupted."""
        if not self.several:
            return
        if self.json and SEED not in self.json and (is_last or self.wants_lines):
            together = {"format": SEVERAL, "runs": [run.as_json() for run in runs]}
            _write_json(self.json, together)
        if self.report and SEED not in self.report:
            pages = [(run, path.name) for run, path in self.written]
            Path(self.report).write_text(index(pages))

    def _report_of(self, seed: int) -> Path | None:
        if not self.report:
            return None
        path = Path(self.report.replace(SEED, str(seed)))
        if self.several and SEED not in self.report:
            return path.with_name(f"{path.stem}-seed-{seed}{path.suffix}")
        return path


def _check_writable(flag: str, path: Path) -> None:
    if path.is_dir():
        raise BadInput(f"{flag} {path}: that is a folder; name a file")
    if not path.parent.is_dir():
        raise BadInput(f"{flag} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"{flag} {path}: it cannot be written")


def _with_logs(result: RunResult, base: Path) -> RunResult:
    logs = {name: os.path.relpath(path, base) for name, path in result.logs.items()}
    return replace(result, logs=logs)


def _write_json(name: str, document: dict[str, Any]) -> None:
    text = json.dumps(document, allow_nan=False) + "\n"
    if name == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        Path(name).write_text(text)
