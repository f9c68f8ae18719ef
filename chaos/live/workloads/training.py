"""Real training: the model is compared with what the same program makes of it undisturbed."""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import time

from resilient_ps.chaos.checkers.identity import check_identity
from resilient_ps.chaos.checkers.quality import check_quality
from resilient_ps.chaos.checkers.verdict import Verdict
from resilient_ps.chaos.history import History
from resilient_ps.chaos.live.programs.training import KEYS, MODEL, Planted
from resilient_ps.chaos.live.workload import WorkloadSettings
from resilient_ps.chaos.live.workloads.recorded import Recorded
from resilient_ps.client.connection import CLUSTER_VARIABLE, ETCD_VARIABLE, Client, connect
from resilient_ps.client.tables import SparseTable
from resilient_ps.consistency import BSP
from resilient_ps.errors import Unavailable
from resilient_ps.models import Evaluation
from resilient_ps.runtime.local import LocalCluster
from resilient_ps.runtime.spawn import spawn

BAND = 0.05
"""Under SSP and ASP the held-out log loss may differ by so much from the undisturbed run's."""
UNDISTURBED_DEADLINE_S = 240.0
READ_DEADLINE_S = 60.0
LOG_TAIL_BYTES = 1_000


class Training(Recorded):
    """BSP: the same bytes. SSP and ASP: the same quality, within `BAND`."""

    program = "training"

    def __init__(self, settings: WorkloadSettings) -> None:
        super().__init__("train", settings)
        self._metrics: dict[str, float] = {}

    def verdicts(self, history: History, client: Client) -> dict[str, Verdict]:
        """Train once more, undisturbed, for as many clocks."""
        name = "the model is that of an undisturbed run"
        if not self.at_rest:
            why = "ranks have not ended behind the same clock"
            return {name: Verdict("unknown", (why,))}
        held = self._look(client)
        due = self._undisturbed(self.clocks[0])
        self._metrics = {
            "clocks": float(self.clocks[0]),
            **_numbers("", held[1]),
            **_numbers("undisturbed ", due[1]),
        }
        if isinstance(self.mode, BSP):
            return {name: check_identity({"weights": held[0]}, {"weights": due[0]})}
        pairs = {"held-out log loss": (held[1].logloss, due[1].logloss)}
        return {name: check_quality(pairs, band=BAND)}

    def metrics(self) -> dict[str, float]:
        """Known when it has been judged."""
        return self._metrics

    def _look(self, client: Client) -> tuple[str, Evaluation]:
        """The digest of all weights, and how good they are."""
        table = client.table(MODEL.table)
        assert isinstance(table, SparseTable)
        digest = hashlib.sha256(table.pull(KEYS).tobytes()).hexdigest()
        return digest, MODEL.evaluate(table, Planted.draw(self.settings.seed).held_out())

    def _undisturbed(self, clocks: int) -> tuple[str, Evaluation]:
        """The same processes, on one server that nobody hurts."""
        folder = self.settings.folder / "undisturbed"
        settings = dataclasses.replace(self.settings, folder=folder, pace_s=0.0)
        settings.histories.mkdir(parents=True)
        calm = Training(settings)
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


def _numbers(prefix: str, found: Evaluation) -> dict[str, float]:
    numbers = {"held-out log loss": found.logloss, "held-out AUC": found.auc}
    return {f"{prefix}{name}": each for name, each in numbers.items() if each is not None}
