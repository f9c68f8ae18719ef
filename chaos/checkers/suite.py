"""All that is judged of a simulated cluster as a whole, whatever its workload was."""

from __future__ import annotations

from resilient_ps.chaos.checkers.bounds import check_bounds
from resilient_ps.chaos.checkers.incarnations import check_incarnations
from resilient_ps.chaos.checkers.layout import check_layout
from resilient_ps.chaos.checkers.leases import check_granted, check_own_clock
from resilient_ps.chaos.checkers.published import check_published, check_swept
from resilient_ps.chaos.checkers.replicas import ReplicaState, check_replicas
from resilient_ps.chaos.checkers.usage import size_of, usage_of
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.checkers.writers import check_epochs, check_writers, elected_by
from resilient_ps.chaos.sim.archive import Archive
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.outcome import Finding, RunRecord
from resilient_ps.chaos.sim.process import PPM
from resilient_ps.chaos.sim.world import SECOND_NS, SKEW_MOST_PPM
from resilient_ps.coordinator.records import Member


def check_run(run: RunRecord) -> list[Finding]:
    """The audit of every run; of one that has come to rest, the state of the cluster too."""
    cluster = run.cluster
    audit = cluster.world.audit
    records = [record for _, record in audit.records]
    # a slow clock stretches a lease
    tolerance_ns = 2 * cluster.lease_ttl_s * SKEW_MOST_PPM * (SECOND_NS // PPM)
    granted = check_granted(audit.answers, tolerance_ns=tolerance_ns)
    findings = [
        Finding("one writer per epoch", check_writers(audit.answers, elected_by(records))),
        Finding("epochs only grow", check_epochs(records)),
        Finding("no answer after the lease", check_own_clock(audit.answers)),
        Finding("no answer after the lease has ended in etcd", granted),
        Finding("no server gives up", _exits(cluster)),
    ]
    if cluster.archive is not None:
        findings += _of_checkpoints(cluster.archive, run)
    if run.healed:
        limits = size_of(cluster).limits()
        findings += [
            Finding("replicas are identical", check_replicas(replica_states(cluster))),
            Finding("shards are where they belong", _layout(run)),
            Finding("what is held is bounded", check_bounds(usage_of(cluster), limits)),
        ]
    return findings


def _of_checkpoints(archive: Archive, run: RunRecord) -> list[Finding]:
    """What was published, deleted, and taken as incarnation; a calm run has made checkpoints."""
    damaged, problems = run.cluster.world.bucket.damaged, {}
    for record in archive.good():
        stored = archive.stored.get(record.id)
        if stored is not None and not stored.names & damaged:
            problems[record.id] = archive.problem(record)
    published = check_published(archive.published, problems)
    return [
        Finding("incarnations only grow", check_incarnations(archive.configured)),
        Finding("nothing that is needed is deleted", check_swept(archive.sweeps)),
        *([Finding("what is published is there", published)] if archive.published else []),
    ]


def replica_states(cluster: SimCluster) -> list[ReplicaState]:
    """The in-sync replicas on living servers."""
    states: list[ReplicaState] = []
    for number, record in sorted(cluster.records().items()):
        members = {member.process for member in record.in_sync}
        states += [
            ReplicaState(number, held.server, held.shard.lsn, held.shard.digest())
            for held in cluster.replicas(number)
            if held.process_id in members
        ]
    return states


def _exits(cluster: SimCluster) -> Verdict:
    """A process that finds that its state contradicts the log ends itself, rather than serve it.

    With all rules kept none finds that.
    """
    exits = [(s.name, s.process_id, s.process.exit_code) for s in cluster.lives]
    wrong = [
        f"{name} (process {process}) ended with {code}" for name, process, code in exits if code
    ]
    return judge(wrong, checked=len(exits), what="servers")


def _layout(run: RunRecord) -> Verdict:
    cluster = run.cluster
    living = [Member(s.name, s.process_id) for s in cluster.servers.values() if s.alive]
    records = [record for _, record in sorted(cluster.records().items())]
    return check_layout(records, living, replicas=cluster.replicas_wanted, lost=run.lost_shards)
