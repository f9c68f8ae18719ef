"""One run: a seed decides cluster, workload and faults; checkers decide what it proves.

*Safety*: faults at random moments, then all are healed; the workload ends, the cluster comes to
rest, and everything is checked; a cluster with an object store has come back from disasters by
then, other ones are spared them. *Liveness*: at some moment, in the middle of faults, a majority of
servers and etcd are chosen that hold every shard; all other faults become permanent, and within
`PROGRESS_S` every rank must have another push acknowledged.

A run takes 30 virtual seconds or more, with at least 10 faults of its schedule and 200 acknowledged
pushes. Where a shard is lost for good it is over: by then it may have been less.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import numpy as np

from resilient_ps.chaos.checkers.incarnations import rollbacks_of
from resilient_ps.chaos.checkers.suite import check_run
from resilient_ps.chaos.checkers.verdict import HOLDS, Verdict
from resilient_ps.chaos.sim.cluster import SimCluster
from resilient_ps.chaos.sim.faults import FAULTS_LEAST, Faults
from resilient_ps.chaos.sim.freeze import freeze, stranded
from resilient_ps.chaos.sim.outcome import Finding, Outcome, RunKind, RunRecord, overall
from resilient_ps.chaos.sim.schedule import MS_PER_S, Schedule
from resilient_ps.chaos.sim.setup import Setup, schedule_of, setup_of
from resilient_ps.chaos.sim.story import tell
from resilient_ps.chaos.sim.workload import Workload
from resilient_ps.chaos.sim.world import SECOND_NS
from resilient_ps.chaos.workloads.choice import workload_of
from resilient_ps.guards import ALL_GUARDS, Guards

HEAL_NS = 23 * SECOND_NS
STOP_NS = 24 * SECOND_NS
END_NS = 30 * SECOND_NS
REST_S = 60.0
"""Within this virtual time after the end of all faults a cluster must have come to rest."""
PROGRESS_S = 15.0
PUSHES_LEAST = 200
"""A run goes on until so many pushes are acknowledged, or there is nothing left to push."""
WIRE_EVERY = 25
"""One seed of so many sends real bytes."""


def run_seed(
    seed: int,
    *,
    guards: Guards = ALL_GUARDS,
    kind: RunKind = "safety",
    schedule: Schedule | None = None,
    setup: Setup | None = None,
    careful: bool = True,
    wire: bool | None = None,
    workload: Callable[[int], Workload] | None = None,
    with_story: bool = False,
) -> Outcome:
    """Run one seed. `schedule`: other faults than the seed's; `careful`: see `Faults`.

    A negative control passes `guards` with one rule switched off.
    """
    setup = setup or setup_of(seed)
    if schedule is None:
        schedule = schedule_of(seed, setup)
    if wire is None:
        wire = seed % WIRE_EVERY == 0
    cluster = SimCluster(
        seed,
        servers=setup.servers,
        shards=setup.shards,
        replicas=setup.replicas,
        min_in_sync=setup.min_in_sync,
        lease_ttl_s=setup.lease_ttl_s,
        guards=guards,
        wire=wire,
        store=setup.store,
        list_lag_s=setup.list_lag_s,
    )
    load = workload_of(seed, setup) if workload is None else workload(seed)
    run = _Run(seed, kind, schedule, cluster, load, careful=careful)
    if kind == "liveness":  # whatever faults it is run with: enough of the seed's come before
        run.not_before_ms = schedule_of(seed, setup)[FAULTS_LEAST - 1].at_ms + 1
    return run.outcome(with_story=with_story)


class _Run:
    """One run under way."""

    def __init__(
        self,
        seed: int,
        kind: RunKind,
        schedule: Schedule,
        cluster: SimCluster,
        load: Workload,
        *,
        careful: bool,
    ) -> None:
        self.seed = seed
        self.kind: RunKind = kind
        self.schedule = schedule
        self.cluster = cluster
        self.load = load
        self.faults = Faults(cluster, load, careful=careful)
        self.begin_ns = cluster.world.now_ns
        self.findings: list[Finding] = []
        self.lost: set[int] = set()
        self.healed = False
        self.not_before_ms = 0  # of a liveness run: when all but a majority is struck for ever

    def outcome(self, *, with_story: bool) -> Outcome:
        """Run it to its end."""
        try:
            self._go()
        except Exception as error:
            self.findings.append(Finding("no machine fails", Verdict("false", _why(error))))
        world, archive = self.cluster.world, self.cluster.archive
        return Outcome(
            seed=self.seed,
            kind=self.kind,
            workload=self.load.name,
            verdict=overall(self.findings),
            findings=tuple(f for f in self.findings if f.verdict.outcome != "true"),
            schedule=self.schedule,
            faults=self.faults.performed,
            skipped=self.faults.skipped,
            acknowledged=self._acknowledged,
            lost_shards=tuple(sorted(self.lost)),
            virtual_s=(world.now_ns - self.begin_ns) / SECOND_NS,
            steps=world.steps,
            trace=world.trace,
            story=tell(self.cluster, self.faults.struck, self.begin_ns) if with_story else (),
            checkpoints=0 if archive is None else len(archive.published),
            rollbacks=0 if archive is None else len(rollbacks_of(archive.configured)),
        )

    def _go(self) -> None:
        self.load.prepare(self.cluster)
        self.begin_ns = self.cluster.world.now_ns
        self.load.start()
        if self.kind == "safety":
            self.faults.plan(self.schedule)
            self._heal_and_rest()
        else:
            self._freeze_and_watch()
        record = RunRecord(
            self.cluster,
            self.kind,
            self.seed,
            self.schedule,
            tuple(sorted(self.lost)),
            self.healed,
            self.cluster.world.now_ns,
        )
        if self.kind == "safety" and not self.lost:
            self.findings += self.load.judge(record)
        self.findings += check_run(record)

    def _heal_and_rest(self) -> None:
        world, load = self.cluster.world, self.load
        world.run_to(self.begin_ns + HEAL_NS)
        self.faults.heal()
        world.run_to(self.begin_ns + STOP_NS)
        load.stop()
        if self.cluster.archive is None:
            self.lost.update(self.cluster.lost_shards())
        if self.lost:
            return  # who waits for them waits in vain
        self.healed = world.wait_for(lambda: load.finished and self.cluster.settled(), REST_S)
        world.run_to(self.begin_ns + END_NS)
        world.wait_for(self.cluster.settled, REST_S)  # a checkpoint may be under way
        verdict = HOLDS if self.healed else Verdict("false", tuple(self._unrest()))
        self.findings.append(Finding("the cluster comes to rest", verdict))

    def _unrest(self) -> list[str]:
        """Why the cluster has not come to rest."""
        found = [f"not at rest {REST_S:.0f} s after the end of all faults"]
        for rank in self.load.ranks:
            worker = self.load.worker(rank)
            if not worker.finished:
                calls = worker.session.calls
                waits = [calls.waits_for(call) for call in list(calls.open.values())[:2]]
                found.append(f"{worker.process.name} at clock {worker.clock}: {'; '.join(waits)}")
        intents = self.cluster.open_intents()
        if intents:
            coordinator = self.cluster.coordinator() or "nobody"
            found.append(f"intents {intents} are open, the coordinator is {coordinator}")
        elif len(found) == 1 and not self.load.finished:
            found.append("all workers have ended, but not the workload")
        return [*found, *self.cluster.unsettled()]

    def _freeze_and_watch(self) -> None:
        world, load = self.cluster.world, self.load
        rng = np.random.Generator(np.random.PCG64([self.seed, 3]))
        moment_ms = max(int(rng.uniform(5, 22) * MS_PER_S), self.not_before_ms)
        self.faults.plan(self.schedule, before_ms=moment_ms)
        world.run_to(self.begin_ns + moment_ms * (SECOND_NS // MS_PER_S))
        survivors = freeze(self.faults, rng)
        self.lost.update(self.cluster.lost_shards())
        if survivors:
            self.lost.update(stranded(self.cluster, survivors))
        if not survivors or self.lost:
            return
        before = {rank: load.acknowledged(rank) for rank in load.ranks}

        def all_go_on() -> bool:
            return all(self._goes_on(rank, before[rank]) for rank in load.ranks)

        verdict = HOLDS
        if not world.wait_for(all_go_on, PROGRESS_S):
            stuck = [rank for rank in load.ranks if not self._goes_on(rank, before[rank])]
            well = f"{', '.join(survivors)} and etcd were well"
            text = f"no push of ranks {stuck} was acknowledged within {PROGRESS_S:.0f} s, while "
            verdict = Verdict("false", (text + well, *self._unrest()[1:]))
        self.findings.append(Finding("progress", verdict))
        world.run_to(self.begin_ns + STOP_NS)
        load.stop()
        world.run_to(self.begin_ns + END_NS)
        world.wait_for(lambda: load.finished or self._acknowledged >= PUSHES_LEAST, REST_S)

    @property
    def _acknowledged(self) -> int:
        return sum(self.load.acknowledged(rank) for rank in self.load.ranks)

    def _goes_on(self, rank: int, before: int) -> bool:
        """Has a push been acknowledged since, or is there nothing left to push?"""
        worker = self.load.worker(rank)
        return self.load.acknowledged(rank) > before or (worker.finished and not worker.error)


def _why(error: Exception) -> tuple[str, ...]:
    """An exception, for people: what it says, where it was, and what was being handled."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = [
        f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames
    ]
    notes = [note[:400] for note in getattr(error, "__notes__", ())]
    return (f"{type(error).__name__}: {error}", *notes, " > ".join(places))
