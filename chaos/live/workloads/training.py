"""Real training: the model is compared with what the same program makes of it undisturbed."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from typing import NamedTuple

from resilient_ps.chaos.checkers.identity import check_identity
from resilient_ps.chaos.checkers.quality import check_quality
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History
from resilient_ps.chaos.live.programs.trained_models import TRAINED
from resilient_ps.chaos.live.workload import WorkloadSettings
from resilient_ps.chaos.live.workloads.recorded import Recorded
from resilient_ps.client.connection import CLUSTER_VARIABLE, ETCD_VARIABLE, Client, connect
from resilient_ps.consistency import BSP
from resilient_ps.errors import Unavailable
from resilient_ps.runtime.local import LocalCluster
from resilient_ps.runtime.spawn import spawn

BAND = 0.05
"""Under SSP and ASP the model's measure may differ by so much from the undisturbed run's."""
UNDISTURBED_DEADLINE_S = 240.0
READ_DEADLINE_S = 60.0
LOG_TAIL_BYTES = 1_000


class Found(NamedTuple):
    """Of a model: the digests of its tables, and how good it is."""

    digests: dict[str, str]
    quality: dict[str, float]


class Training(Recorded):
    """BSP: the same bytes. SSP and ASP: the same quality, within `BAND`.

    `name` says which model (`TRAINED`).
    """

    program = "training"

    def __init__(self, name: str, settings: WorkloadSettings) -> None:
        super().__init__(name, settings, rest=(name,))
        self._trained = TRAINED[name](settings.seed)
        self._metrics: dict[str, float] = {}

    def verdicts(self, history: History, client: Client) -> dict[str, Verdict]:
        """Train once more, undisturbed, for as many clocks."""
        name = "the model is that of an undisturbed run"
        sound = "tables do not contradict each other"
        if not self.at_rest:
            unknown = Verdict("unknown", ("ranks have not ended behind the same clock",))
            return {name: unknown, sound: unknown}
        held = self._look(client)
        agreed = judge(self._trained.contradictions(client), checked=1, what="models")
        due = self._undisturbed(self.clocks[0])
        calm = {f"undisturbed {each}": value for each, value in due.quality.items()}
        self._metrics = {"clocks": float(self.clocks[0]), **held.quality, **calm}
        if isinstance(self.mode, BSP):
            return {name: check_identity(held.digests, due.digests), sound: agreed}
        measure = self._trained.measure
        pairs = {measure: (held.quality[measure], due.quality[measure])}
        return {name: check_quality(pairs, band=BAND), sound: agreed}

    def metrics(self) -> dict[str, float]:
        """Known when it has been judged."""
        return self._metrics

    def _look(self, client: Client) -> Found:
        return Found(self._trained.digests(client), self._trained.quality(client))

    def _undisturbed(self, clocks: int) -> Found:
        """The same processes, on one server that nobody hurts."""
        folder = self.settings.folder / "undisturbed"
        settings = dataclasses.replace(self.settings, folder=folder, pace_s=0.0)
        settings.histories.mkdir(parents=True)
        calm = Training(self.name, settings)
        calm.end_behind(clocks)
        with LocalCluster(1, replicas=1) as processes:
            etcd = ",".join(processes.endpoints)
            where = {ETCD_VARIABLE: etcd, CLUSTER_VARIABLE: processes.cluster}
            _run_all(calm, where)
            with connect(etcd, processes.cluster, deadline_s=READ_DEADLINE_S) as client:
                return calm._look(client)


def _run_all(calm: Training, environment: dict[str, str]) -> None:
    """Raises `Unavailable` where a rank does not come to its end."""
    log = calm.settings.folder / "ranks.log"
    running: list[subprocess.Popen[bytes]] = []
    until_s = time.monotonic() + UNDISTURBED_DEADLINE_S
    try:
        for rank in range(calm.ranks):
            running.append(spawn(calm.command(rank), log, environment=environment))
        for process in running:
            try:
                code = process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
                raise Unavailable(f"the undisturbed training did not end ({code}): {tail}")
    finally:
        for process in running:
            process.kill()
            process.wait()
