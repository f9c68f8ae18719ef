"""A user's own program, unchanged, in every worker process.

It finds in its environment where the cluster is and which rank it is to be, so that
`resilient_ps.connect()` and `client.worker(job)` need no arguments. What is promised of any program
is judged: every push that was acknowledged was applied, once; no pull was answered before the
job's consistency lets it; ranks come to their end, and in order. What it prints as `metric NAME
VALUE`, or as a JSON object with "metric" and "value", is reported: the last of each process, as the
mean of all ranks.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.live.evidence import (
    AUDIT_FOLDER,
    AuditFiles,
    ReceiptFiles,
    check_bounds_kept,
    check_evidence,
)
from resilient_ps.chaos.live.scene import Scene
from resilient_ps.chaos.live.workload import Progress, WorkloadSettings
from resilient_ps.chaos.live.workloads.recorded import EXACTLY_ONCE
from resilient_ps.chaos.result import Judged
from resilient_ps.client.connection import RANK_VARIABLE, RANKS_VARIABLE, Client
from resilient_ps.client.receipts import LEDGER_VARIABLE
from resilient_ps.coordinator.intents import job_spec
from resilient_ps.errors import BadInput

BOUNDS = "pulls wait for the slowest"
METRICS_MOST = 100
LOG_BYTES_MOST = 1 << 26


class Script:
    """See the module."""

    name = "script"

    def __init__(self, settings: WorkloadSettings) -> None:
        if not settings.script:
            raise BadInput("the workload 'script' needs a program: --script my_train.py")
        self.ranks = settings.workers
        self._settings = settings
        self._command = command_of(settings.script)
        self._receipts = ReceiptFiles(settings.receipts)
        self._scene: Scene | None = None
        self._clocks = [0] * settings.workers
        self._pushes = self._pulls = 0

    def command(self, rank: int) -> list[str]:
        """The program and its arguments, the same for every rank."""
        return self._command

    def environment(self, rank: int) -> dict[str, str]:
        """Which rank it is, and where acknowledgements are kept."""
        return {
            RANK_VARIABLE: str(rank),
            RANKS_VARIABLE: str(self.ranks),
            LEDGER_VARIABLE: str(self._settings.receipts),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, scene: Scene) -> None:
        """Everything is the program's own affair."""
        self._scene = scene

    def ask_to_end(self) -> None:
        """It ends by itself."""

    def progress(self) -> Progress:
        """From the receipts."""
        pushes = pulls = 0
        latencies_s: list[float] = []
        for call in self._receipts.read():
            if call.what == "push":
                pushes += 1
                latencies_s.append((call.ended_ns - call.begun_ns) / 1e9)
            elif call.what == "pull":
                pulls += 1
            elif call.rank < self.ranks:
                self._clocks[call.rank] = call.clock
        self._pushes += pushes
        self._pulls += pulls
        return Progress(pushes, pulls, tuple(latencies_s), tuple(self._clocks))

    def judge(self, client: Client) -> list[Judged]:
        """Exactly once, and the ends of all ranks."""
        self.progress()
        assert self._scene is not None, "start comes first"
        audit = AuditFiles(self._scene.folder / AUDIT_FOLDER)
        verdicts = {
            EXACTLY_ONCE: check_evidence(self._receipts, audit),
            "every rank ends in order": self._ends(self._scene),
        }
        jobs = {record.job_id: job_spec(record) for record in client.catalogue.jobs()}
        if any(pull.job in jobs for pull in self._receipts.pulls):
            verdicts[BOUNDS] = check_bounds_kept(self._receipts, audit, jobs)
        return [Judged(name, v.outcome, v.reasons) for name, v in verdicts.items()]

    def _ends(self, scene: Scene) -> Verdict:
        workers = scene.parties("worker")
        wrong = [
            f"{worker.name} ended with exit code {worker.exit_code}"
            if worker.exit_code is not None
            else f"{worker.name} has not ended"
            for worker in workers
            if worker.exit_code != 0
        ]
        return judge(wrong, checked=len(workers), what="workers")

    def counts(self) -> tuple[int, int, int, int]:
        """Failures are the program's own affair, too: only what succeeded is known."""
        self.progress()
        return self._pushes, 0, 0, self._pulls

    def metrics(self) -> dict[str, float]:
        """What the ranks have printed."""
        assert self._scene is not None, "start comes first"
        told: dict[str, list[float]] = {}
        for rank in range(self.ranks):
            log = self._scene.party(f"w{rank}").log
            for name, value in metrics_in(_lines_of(log)).items():
                told.setdefault(name, []).append(value)
        means = {name: math.fsum(values) / len(values) for name, values in told.items()}
        return dict(sorted(means.items())[:METRICS_MOST])


def command_of(script: Sequence[str]) -> list[str]:
    """How a user's program is run: Python files by this interpreter. Raises `BadInput`."""
    program, *arguments = script
    path = Path(program)
    if path.suffix == ".py":
        if not path.is_file():
            raise BadInput(f"--script {program}: there is no such file")
        return [sys.executable, str(path.absolute()), *arguments]
    found = shutil.which(program)
    if found is None:
        raise BadInput(f"--script {program}: no such program (a .py file, or an executable)")
    return [os.path.abspath(found), *arguments]


def metrics_in(lines: Iterable[str]) -> dict[str, float]:
    """By name, the last value: of `metric NAME VALUE` lines and JSON objects with "metric"."""
    found: dict[str, float] = {}
    for line in lines:
        words = line.split()
        if len(words) == 3 and words[0] == "metric":
            found.update(_number(words[1], words[2]))
        elif line.startswith("{") and '"metric"' in line:
            try:
                told = json.loads(line)
            except ValueError:
                continue
            found.update(_number(told.get("metric"), told.get("value")))
    return found


def _number(name: object, value: object) -> dict[str, float]:
    """Nothing where it is none."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return {}
    return {str(name): number} if math.isfinite(number) else {}


def _lines_of(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_BYTES_MOST))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
