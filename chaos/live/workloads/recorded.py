"""What workloads have in common whose programs write histories."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from resilient_ps.chaos.checkers.sessions import check_clocks, check_views
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History
from resilient_ps.chaos.live.evidence import (
    AUDIT_FOLDER,
    AuditFiles,
    ReceiptFiles,
    check_evidence,
)
from resilient_ps.chaos.live.histories import Histories, Life
from resilient_ps.chaos.live.programs.life import LAST_CLOCK
from resilient_ps.chaos.live.scene import Scene
from resilient_ps.chaos.live.workload import Progress, WorkloadSettings
from resilient_ps.chaos.result import Judged
from resilient_ps.client.connection import Client
from resilient_ps.client.receipts import LEDGER_VARIABLE
from resilient_ps.consistency import parse_consistency

EXACTLY_ONCE = "what was acknowledged was applied once"
END_MARGIN_S = 2.0  # so long may pass until the ranks look
END_MARGIN_CLOCKS = 3


class Recorded:
    """A workload whose ranks run `program`, a module in `chaos.live.programs`.

    A subclass says what is to be judged (`verdicts`).
    """

    program = ""

    def __init__(self, name: str, settings: WorkloadSettings, rest: Sequence[str] = ()) -> None:
        self.name = name
        self.ranks = settings.workers
        self.settings = settings
        self.mode = parse_consistency(settings.mode)
        self.histories = Histories(settings.histories)
        self.audit: AuditFiles | None = None
        self._rest = tuple(rest)
        self._clocks = [0] * settings.workers  # by rank: the last one that is known to have ended
        self._begun = 0  # the highest that any rank has begun

    @property
    def job(self) -> str:
        """The name of the job."""
        return self.name

    def command(self, rank: int) -> list[str]:
        """The program, and what it is told."""
        settings = self.settings
        told = {
            "folder": settings.histories,
            "job": self.job,
            "rank": rank,
            "of": self.ranks,
            "mode": settings.mode,
            "seed": settings.seed,
            "pace-s": f"{settings.pace_s:g}",
        }
        options = [f"--{name}={value}" for name, value in told.items()]
        module = f"resilient_ps.chaos.live.programs.{self.program}"
        return [sys.executable, "-m", module, *options, *self._rest]

    def environment(self, rank: int) -> dict[str, str]:
        """Where acknowledgements are kept; the rest is in the command."""
        return {LEDGER_VARIABLE: str(self.settings.receipts)}

    def start(self, scene: Scene) -> None:
        """Ranks create their tables; see where servers keep their audit."""
        self.audit = AuditFiles(scene.folder / AUDIT_FOLDER)

    def ask_to_end(self) -> None:
        """Behind a clock that none can have begun when the ranks see the file."""
        self.progress()
        margin = END_MARGIN_CLOCKS + int(END_MARGIN_S / max(self.settings.pace_s, 1e-3))
        self.end_behind(max([self._begun, *self._clocks]) + margin)

    def end_behind(self, clock: int) -> None:
        """All ranks end behind this clock."""
        place = self.settings.histories / LAST_CLOCK
        written = place.with_suffix(".new")
        written.write_text(str(clock))
        os.replace(written, place)

    # -- while it runs

    @property
    def clocks(self) -> tuple[int, ...]:
        """By rank, the last clock that it is known to have ended."""
        return tuple(self._clocks)

    def progress(self) -> Progress:
        """From the histories."""
        pushes = pulls = 0
        latencies_s: list[float] = []
        for begun, over in self.histories.read():
            self._begun = max(self._begun, begun.clock)
            if over.outcome != "ok":
                continue
            if begun.action == "push":
                pushes += 1
                latencies_s.append((over.at_ns - begun.at_ns) / 1e9)
            elif begun.action == "pull":
                pulls += 1
            elif begun.action == "open":
                self._clocks[begun.rank] = over.values[0]
            else:
                self._clocks[begun.rank] = begun.clock
        for rank, life in self._last_lives().items():
            if life.why == "":  # the answer to its last tick may have been lost
                self._clocks[rank] = life.ended_clock
        return Progress(pushes, pulls, tuple(latencies_s), self.clocks)

    def _last_lives(self) -> dict[int, Life]:
        lives = {rank: self.histories.of(rank) for rank in range(self.ranks)}
        return {rank: each[-1] for rank, each in lives.items() if each}

    def counts(self) -> tuple[int, int, int, int]:
        """From the histories."""
        self.progress()
        history = self.histories.history()
        outcomes = [push.outcome for push in history.operations("push")]
        pulls = sum(pull.outcome == "ok" for pull in history.operations("pull"))
        return outcomes.count("ok"), outcomes.count("fail"), outcomes.count("unknown"), pulls

    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    # -- the verdicts

    def judge(self, client: Client) -> list[Judged]:
        """What every history is judged for, and what this one is."""
        client.resume()  # where the cluster was rolled back; else it does nothing
        self.progress()
        history = self.histories.history()
        common = {
            "no worker fails": judge(
                self.histories.failures(), checked=len(self.histories.lives), what="workers"
            ),
            "positions only grow": check_views(history),
            "clocks only grow": check_clocks(before_rollbacks(history)),
        }
        verdicts = {**common, **self.verdicts(history, client)}
        if self.audit is not None:
            receipts = ReceiptFiles(self.settings.receipts)
            verdicts[EXACTLY_ONCE] = check_evidence(receipts, self.audit)
        return [Judged(name, v.outcome, v.reasons) for name, v in verdicts.items()]

    def verdicts(self, history: History, client: Client) -> dict[str, Verdict]:
        """Those of this workload, by the checker's name."""
        raise NotImplementedError

    @property
    def at_rest(self) -> bool:
        """Have all ranks ended, in order, behind the same clock?"""
        ends = [life.ended_clock for life in self._last_lives().values() if life.why == ""]
        return len(ends) == self.ranks and len(set(ends)) == 1


def before_rollbacks(history: History) -> History:
    """The part until the first process was told of a rollback: clocks go back then."""
    told = history.rollbacks_told()
    if not told:
        return history
    first_ns = told[0].at_ns
    return History([record for record in history.records if record.at_ns < first_ns])
