"""What is judged of a job whose cluster makes checkpoints, and may have gone back to one."""

from __future__ import annotations

from resilient_ps.chaos.checkers.cuts import check_ranks
from resilient_ps.chaos.checkers.incarnations import check_all_told, check_told, rollbacks_of
from resilient_ps.chaos.sim.archive import Archive
from resilient_ps.chaos.sim.outcome import Finding
from resilient_ps.chaos.workloads.crew import Crew
from resilient_ps.chaos.workloads.journal import name_of

SETTLE_NS = 8 * 10**9
"""So long after a rollback a server may not have heard of it, with the longest faults of etcd."""


def judge_survival(crew: Crew, archive: Archive) -> list[Finding]:
    """Were the ranks told of every rollback, and where do checkpoints say that they stand?"""
    cluster, job = crew.cluster, crew.job.job
    rollbacks = rollbacks_of(archive.configured)
    told = check_told(crew.history, rollbacks, crew.names, settle_ns=SETTLE_NS)
    last = [crew.present(rank) for rank in sorted(crew.lives)]
    latest = {name_of(worker): worker.incarnation for worker in last}
    stands = {
        f"checkpoint {stored.id}": (stored.clocks.get(job), stored.stands.get(job, {}))
        for stored in archive.stored.values()
    }
    findings = [
        Finding("rollbacks are told", told),
        Finding("nobody is left behind", check_all_told(latest, cluster.incarnation)),
    ]
    if stands:
        findings.append(Finding("ranks stand at the cut", check_ranks(stands)))
    return findings
