"""One run on real processes, from their start to the verdict.

    start -> the workload and the probes begin -> faults, overlapping -> all is healed ->
    the workload ends, the cluster comes to rest -> everything is judged

However it ends, with an exception or Ctrl-C too, faults are healed and processes ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from resilient_ps.chaos.faults.drawing import Shape, draw_schedule, permanent_faults, possible
from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.live.cluster import ChaosCluster
from resilient_ps.chaos.live.ending import Ended, result_of
from resilient_ps.chaos.live.faults.making import make
from resilient_ps.chaos.live.injection import (
    ABANDON_DEADLINE_S,
    HEAL_DEADLINE_S,
    Injection,
)
from resilient_ps.chaos.live.judging import judged, of_leadership, of_list
from resilient_ps.chaos.live.liveness import Liveness
from resilient_ps.chaos.live.onlooker import Now, Onlooker, own_log
from resilient_ps.chaos.live.probe import Probes
from resilient_ps.chaos.live.run_plan import RunPlan
from resilient_ps.chaos.live.sampling import Sampling
from resilient_ps.chaos.live.statuses import CopiedBytes, replicas_verdict
from resilient_ps.chaos.live.supervision import Supervision
from resilient_ps.chaos.live.watching import Watching
from resilient_ps.chaos.live.workload import LiveWorkload, make_workload
from resilient_ps.chaos.result import Judged, RunResult
from resilient_ps.client.connection import Client, connect
from resilient_ps.errors import ResilientPsError, RetryLater, Unavailable

CLIENT_DEADLINE_S = 90.0
BEGUN_DEADLINE_S = 90.0
SETTLED_DEADLINE_S = 90.0
END_DEADLINE_S = 120.0
SCRIPT_END_DEADLINE_S = 1_800.0
REST_DEADLINE_S = 20.0  # for backups to hear the last commit point
TICK_S = 0.1


def run(
    plan: RunPlan,
    onlooker: Onlooker,
    *,
    schedule: Sequence[Planned] | None = None,
    keep: Path | None = None,
) -> RunResult:
    """Make one run. `schedule`: other faults than the seed's. `keep`: a folder for the logs.

    Raises `BadInput` for what cannot be run, `Unavailable` when the cluster does not come up.
    """
    plan.check()
    with ExitStack() as stack:
        return _Run(plan, onlooker, schedule, keep, stack).result()


@dataclass(eq=False)
class _Run:
    """See `run`. Everything that is to end is on the stack."""

    plan: RunPlan
    onlooker: Onlooker
    given: Sequence[Planned] | None
    keep: Path | None
    stack: ExitStack
    begun_s: float = field(default_factory=time.monotonic)
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    zero_s: float = 0.0
    judged: list[Judged] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def result(self) -> RunResult:
        """All of it."""
        self._start_cluster()
        self._start_workload()
        schedule = self._schedule()
        self.zero_s = time.monotonic()
        self.sampling.begin()
        self.injection = Injection(self.scene, schedule, self.zero_s, make)
        liveness = Liveness(self.plan.lease_ttl_s) if self.plan.liveness else None
        with self._healing():
            self.onlooker.phase("faults")
            self._go_on(lambda: self._storm_is_over(liveness))
            if liveness is not None:
                self.judged.append(judged("progress while nothing is healed", liveness.verdict()))
            self._heal()
        self._tell_news()
        self.problems += self.injection.problems
        self.judged.append(of_list("everything comes back", self.supervision.repair()))
        healed_s = self.now_s
        self._come_to_rest()
        return self._judge(healed_s)

    @property
    def now_s(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self.zero_s

    @property
    def _own_log(self) -> tuple[str, Path]:
        return "harness", self.scene.logs_folder / "harness.log"

    # -- the beginning

    def _start_cluster(self) -> None:
        self.onlooker.phase("starting")
        cluster = self.plan.cluster(self.keep)
        self.scene = self.stack.enter_context(ChaosCluster(cluster))
        self.stack.enter_context(own_log(self._own_log[1]))
        self.stack.enter_context(_credentials(self.scene.store.environment))
        self.copies = cluster.copies
        self.watching = self.stack.enter_context(
            Watching(self.scene.etcd, self.scene.cluster, self.copies)
        )
        self.client = self._connect(self.scene.etcd)
        self.supervision = Supervision(self.scene, self.onlooker.say)

    def _start_workload(self) -> None:
        plan, scene = self.plan, self.scene
        folder = scene.folder / "workload"
        folder.mkdir()
        self.workload: LiveWorkload = make_workload(
            plan.workload,
            workers=plan.workers,
            folder=folder,
            mode=plan.consistency,
            seed=plan.seed,
            script=plan.script or None,
        )
        self.workload.start(scene)
        self.sampling = Sampling(self.workload)
        for rank in range(plan.workers):
            scene.add_worker(
                f"w{rank}", self.workload.command(rank), self.workload.environment(rank)
            )
        prober = self._connect(scene.public_etcd)
        self.probes = self.stack.enter_context(
            Probes(prober, scene.shards, self.watching.due_clock)
        )
        self.copied = self.stack.enter_context(
            CopiedBytes(scene.cluster, lambda: self.watching.ask(lambda held: held.view.servers))
        )
        self._wait_begun()

    def _connect(self, etcd: str) -> Client:
        client = connect(etcd, self.scene.cluster, deadline_s=CLIENT_DEADLINE_S)
        return self.stack.enter_context(client)

    def _wait_begun(self) -> None:
        """Until every rank has ended a clock, and every shard has answered its probe.

        Of a user's program it is only known that it will push.
        """
        self.onlooker.phase("the workload begins")
        until_s, pushed = time.monotonic() + BEGUN_DEADLINE_S, 0
        until_s += SCRIPT_END_DEADLINE_S if self.plan.script else 0
        while True:
            told = self.workload.progress()
            pushed += told.pushes
            shards = self.probes.answered_since(self.begun_s)
            begun = pushed > 0 if self.plan.script else min(told.clocks, default=0) >= 1
            if begun and len(shards) == self.scene.shards:
                return
            self.supervision.look()
            if self.supervision.died or not self.supervision.workers_left():
                raise Unavailable(f"the workload does not begin: {self._first_trouble()}")
            if time.monotonic() > until_s:
                raise Unavailable(
                    f"the workload has not begun after {BEGUN_DEADLINE_S:g} s: {pushed} pushes, "
                    f"clocks {told.clocks}, {len(shards)} of {self.scene.shards} shards answer "
                    f"their probes {self.probes.errors()[:1]}"
                )
            time.sleep(TICK_S)

    def _first_trouble(self) -> str:
        found = [*self.supervision.died, *self.supervision.gave_up]
        return found[0] if found else "all workers have ended at once"

    def _schedule(self) -> tuple[Planned, ...]:
        plan, scene = self.plan, self.scene
        if self.given is not None:
            return tuple(self.given)
        kinds = possible(plan.kinds(), scene.offers, plan.servers)
        left_out = [kind.name for kind in plan.kinds() if kind not in kinds]
        if left_out and not plan.liveness:
            self.onlooker.say(f"not possible here: {', '.join(left_out)} (see `chaos list`)")
        shape = Shape(
            kinds=kinds,
            servers=tuple(party.name for party in scene.parties("server")),
            workers=tuple(party.name for party in scene.parties("worker")),
            etcd=tuple(party.name for party in scene.parties("etcd")),
            shards=scene.shards,
            lease_ttl_s=plan.lease_ttl_s,
            duration_s=plan.duration_s,
        )
        if plan.liveness:
            return permanent_faults(plan.seed, shape, plan.duration_s)
        return draw_schedule(plan.seed, shape)

    # -- while faults happen

    def _storm_is_over(self, liveness: Liveness | None) -> bool:
        self.injection.launch_due()
        if liveness is not None:
            began_s = self.injection.all_injected_s
            notes = self.probes.last_answers(self.zero_s)
            liveness.look(self.now_s, began_s, notes, self.sampling.clock_since_s)
        return self.now_s >= self.plan.duration_s or not self.supervision.workers_left()

    def _go_on(self, is_over: Callable[[], bool]) -> None:
        """Look after everything, until it is over."""
        while not is_over():
            self.supervision.look()
            self._tell_news()
            checkpoints = self.watching.ask(lambda held: len(held.checkpoints))
            self.sampling.look(self.now_s, checkpoints)
            self.onlooker.show(self._now())
            time.sleep(TICK_S)

    def _tell_news(self) -> None:
        for text in self.injection.news():
            self.onlooker.say(text)

    def _now(self) -> Now:
        return Now(
            at_s=self.now_s,
            duration_s=self.plan.duration_s,
            active=self.injection.active(),
            faults=self.injection.progress(),
            sample=self.sampling.last,
            rates=tuple(sample.pushes for sample in self.sampling.samples),
            shards=self.watching.shard_states(),
            parties={party.name: party.state for party in self.scene.parties()},
        )

    def _heal(self) -> None:
        self.onlooker.phase("healing")
        self.injection.begin_healing()
        until_s = time.monotonic() + HEAL_DEADLINE_S
        self._go_on(lambda: self.injection.healed or time.monotonic() > until_s)
        self.injection.heal(0.0)

    @contextmanager
    def _healing(self) -> Iterator[None]:
        """However the block ends: no fault is under way then."""
        try:
            yield
        except BaseException:
            self.injection.heal(ABANDON_DEADLINE_S)
            raise

    # -- the end

    def _come_to_rest(self) -> None:
        self.onlooker.phase("coming to rest")
        self.workload.ask_to_end()
        patience_s = SCRIPT_END_DEADLINE_S if self.plan.script else END_DEADLINE_S
        until_s = time.monotonic() + patience_s
        self._go_on(lambda: not self.supervision.workers_left() or time.monotonic() > until_s)
        late = [
            f"{worker.name} has not ended {patience_s:g} s after the end of all faults"
            for worker in self.supervision.workers_left()
        ]
        try:
            self.scene.records.wait_settled(SETTLED_DEADLINE_S)
        except RetryLater as error:
            late.append(str(error))
        late += [
            f"the probe of shard {shard} has not ended: nobody answers"
            for shard in self.probes.stop()
        ]
        self.sampling.look(self.now_s + 1, self.watching.ask(lambda held: len(held.checkpoints)))
        self.judged.append(of_list("the cluster comes to rest", late))

    def _judge(self, healed_s: float) -> RunResult:
        self.onlooker.phase("judging")
        self.supervision.look()
        self.copied.ask()
        self.judged += [
            of_list("no process dies by itself", self.supervision.died),
            *self.watching.ask(lambda held: of_leadership(held, may_roll_back=False)),
        ]
        if self.supervision.gave_up:
            self.problems += self.supervision.gave_up
        if self.copies > 1:
            look = self.scene.records.look
            verdict = replicas_verdict(self.scene.cluster, look, REST_DEADLINE_S)
            self.judged.append(judged("replicas are identical", verdict))
        try:
            self.judged.append(
                judged("every probe is applied exactly once", self.probes.counted(self.client))
            )
            self.judged += self.workload.judge(self.client)
        except ResilientPsError as error:
            self.problems.append(f"what there is cannot be judged: {error}")
        return result_of(self._ended(healed_s))

    def _ended(self, healed_s: float) -> Ended:
        faults: tuple[Struck, ...] = self.injection.results()
        end_s = self.now_s
        return Ended(
            plan=self.plan,
            judged=self.judged,
            problems=self.problems,
            faults=faults,
            samples=self.sampling.samples,
            notes=self.probes.notes(self.zero_s),
            leadership=self.watching.ask(lambda held: held),
            zero_s=self.zero_s,
            healed_s=healed_s,
            end_s=end_s,
            workload=self.workload,
            copied_bytes=self.copied.total,
            logs={name: str(path) for name, path in [*self.scene.logs.items(), self._own_log]},
            began=self.began,
            seconds=time.monotonic() - self.begun_s,
        )


@contextmanager
def _credentials(environment: Mapping[str, str]) -> Iterator[None]:
    """Those of the store that was started here, where clients of stores look for them: whoever
    judges checkpoints reads them."""
    found = {name: value for name, value in environment.items() if name.startswith("AWS_")}
    before = {name: os.environ.get(name) for name in found}
    os.environ.update(found)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
