"""Faults on a cluster that somebody runs: one after the other, as long as it stays steady.

    find who is there -> is it steady? -> a fault -> healed -> rest -> the next one -> is it steady?

A probe asks each shard for an answer 20 times a second. As soon as the steady state is left, what
is under way is healed at once, and nothing else is begun.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from resilient_ps.chaos.faults.attaching import SteadyState, allowed_kinds
from resilient_ps.chaos.faults.drawing import LONGEST_S, SHORTEST_S, Shape, draw_schedule
from resilient_ps.chaos.faults.kinds import Kind
from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.live.attached import AttachedCluster, Whom
from resilient_ps.chaos.live.ending import Ended, result_of
from resilient_ps.chaos.live.faults.making import make
from resilient_ps.chaos.live.injection import ABANDON_DEADLINE_S, Injection
from resilient_ps.chaos.live.judging import judged, of_leadership, of_list
from resilient_ps.chaos.live.onlooker import Now, Onlooker
from resilient_ps.chaos.live.probe import JOB, TABLE, Probes
from resilient_ps.chaos.live.sampling import Sampling
from resilient_ps.chaos.live.watching import Watching
from resilient_ps.chaos.live.writes import Writes
from resilient_ps.chaos.result import Judged, RunResult
from resilient_ps.client.connection import Client, connect
from resilient_ps.errors import BadInput, NotFound, ResilientPsError, Unavailable

COMMAND = ("resilient-ps", "chaos", "attach")
BEYOND_TTL_S = 3.0  # an outage that is allowed where no other bound is given
CALM_S = 3.0  # for so long it has to be steady before anything is done
ANSWER_DEADLINE_S = 30.0
SETTLED_DEADLINE_S = 60.0
CLIENT_DEADLINE_S = 90.0
TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """One run. `allow`: names of kinds and groups. `outage_most_s` 0: a lease time and 3 s.

    `every_s`: the rest between two faults. `lease_ttl_s` is found out.
    """

    etcd: str
    cluster: str
    allow: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    job: str = ""
    worker_pids: tuple[tuple[int, int], ...] = ()
    duration_s: float = 60.0
    every_s: float = 5.0
    seed: int = 1
    outage_most_s: float = 0.0
    pushes_least_per_s: float = 0.0
    lease_ttl_s: int = 0

    def kinds(self) -> tuple[Kind, ...]:
        """Raises `BadInput`, naming the flag, for what cannot be run."""
        if not SHORTEST_S <= self.duration_s <= LONGEST_S:
            raise BadInput(
                f"--duration {self.duration_s:g}s: use {SHORTEST_S:g} s to {LONGEST_S:g} s"
            )
        return allowed_kinds(self.allow)

    def steady(self) -> SteadyState:
        """The steady state, once the lease time is known."""
        most_s = self.outage_most_s or self.lease_ttl_s + BEYOND_TTL_S
        return SteadyState(most_s, self.pushes_least_per_s)

    def whom(self) -> Whom:
        """Whom faults may strike."""
        return Whom(frozenset(self.on), self.job, dict(self.worker_pids))

    def settings(self) -> dict[str, Any]:
        """For reports."""
        fields = asdict(self)
        return {n: list(v) if isinstance(v, tuple) else v for n, v in fields.items()}

    def command(self) -> str:
        """What a user types to run it again."""
        words = [*COMMAND, "--etcd", self.etcd, "--cluster", self.cluster]
        words += ["--allow", ",".join(kind.name for kind in allowed_kinds(self.allow))]
        words += ["--on", ",".join(self.on)] if self.on else []
        words += ["--job", self.job] if self.job else []
        for rank, pid in self.worker_pids:
            words += ["--worker-pid", f"{rank}={pid}"]
        words += ["--duration", f"{self.duration_s:g}s", "--every", f"{self.every_s:g}"]
        words += ["--seed", str(self.seed)]
        words += ["--max-outage-s", f"{self.outage_most_s:g}"] if self.outage_most_s else []
        if self.pushes_least_per_s:
            words += ["--min-pushes-per-s", f"{self.pushes_least_per_s:g}"]
        return shlex.join(words)


def attach(plan: AttachPlan, onlooker: Onlooker) -> RunResult:
    """Make one run. However it ends, everything is healed, and nothing of ours is left.

    Raises `BadInput` for what cannot be run, and `Unavailable` when the cluster is not steady
    before anything is done to it.
    """
    plan.kinds()
    with ExitStack() as stack:
        return _Attachment(plan, onlooker, stack).result()


@dataclass(eq=False)
class _Attachment:
    """See `attach`. Everything that is to end is on the stack."""

    plan: AttachPlan
    onlooker: Onlooker
    stack: ExitStack
    begun_s: float = field(default_factory=time.monotonic)
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    zero_s: float = 0.0
    breach: str = ""
    struck: list[Struck] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    under_way: Injection | None = None

    def result(self) -> RunResult:
        """All of it."""
        self.onlooker.phase("attaching")
        self._attach()
        schedule = self._schedule()
        self.onlooker.phase("is it steady?")
        self._begin_when_steady()
        with self._healing():
            self.onlooker.phase("faults")
            self._strike_all(schedule)
        healed_s = self.now_s
        self.onlooker.phase("is it steady?")
        return self._judge(healed_s)

    @property
    def now_s(self) -> float:
        """Seconds of the run."""
        return time.monotonic() - self.zero_s

    # -- the beginning

    def _attach(self) -> None:
        plan = self.plan
        self.scene = self.stack.enter_context(AttachedCluster(plan.etcd, plan.cluster, plan.whom()))
        self.plan = replace(plan, lease_ttl_s=self.scene.lease_ttl_s)
        self.steady = self.plan.steady()
        for text in self.scene.left_alone():
            self.onlooker.say(f"left alone: {text}")
        self.watching = self.stack.enter_context(
            Watching(plan.etcd, plan.cluster, self.scene.copies)
        )
        self.client = self._connect()
        _remove_probe(self.client)
        self.stack.callback(self._leave)
        self.probes = self.stack.enter_context(
            Probes(self._connect(), self.scene.shards, self.watching.due_clock)
        )
        self.writes = self.stack.enter_context(
            Writes(
                plan.cluster,
                lambda: self.watching.ask(lambda held: held.view.servers),
                self.probes.pushes,
            )
        )
        self.sampling = Sampling(self.writes)

    def _connect(self) -> Client:
        client = connect(self.plan.etcd, self.plan.cluster, deadline_s=CLIENT_DEADLINE_S)
        return self.stack.enter_context(client)

    def _leave(self) -> None:
        """Nothing of the probe stays in the cluster."""
        with suppress(ResilientPsError):
            self.probes.stop()
            _remove_probe(self.client)

    def _schedule(self) -> tuple[Planned, ...]:
        """The order of faults; when each begins depends on how the cluster comes through."""
        shape = Shape(
            kinds=self.plan.kinds(),
            servers=self.scene.names("server"),
            workers=self.scene.names("worker"),
            etcd=(),
            shards=self.scene.shards,
            lease_ttl_s=self.scene.lease_ttl_s,
            duration_s=self.plan.duration_s,
        )
        possible = tuple(kind for kind in shape.kinds if _has_target(kind, shape))
        if not possible:
            alone = "; ".join(self.scene.left_alone())
            raise BadInput(
                f"nobody on this machine may be struck by {', '.join(k.name for k in shape.kinds)}"
                f"{f' ({alone})' if alone else ''}: run this where servers and workers are"
            )
        return draw_schedule(self.plan.seed, replace(shape, kinds=possible))

    def _begin_when_steady(self) -> None:
        """Raises `Unavailable` when it is not."""
        unsettled = self.scene.records.unsettled()
        if unsettled:
            raise Unavailable(
                f"nothing was done: shard {unsettled[0].shard} has not all its copies in place "
                "(`resilient-ps status` says more); attach again when it has"
            )
        self._wait_for_answers()
        self.zero_s = time.monotonic()
        needed_s = self.steady.window_s + 1 if self.steady.pushes_least_per_s else CALM_S
        while not self.breach and self.now_s < needed_s:
            time.sleep(TICK_S)
            self._look()
        if self.breach:
            raise Unavailable(f"nothing was done, because the cluster is not steady: {self.breach}")
        self.zero_s = time.monotonic()
        self.sampling.begin()

    def _wait_for_answers(self) -> None:
        until_s = time.monotonic() + ANSWER_DEADLINE_S
        while True:
            answered = self.probes.answered_since(self.begun_s)
            if len(answered) == self.scene.shards:
                return
            if time.monotonic() > until_s:
                raise Unavailable(
                    f"nothing was done: {len(answered)} of {self.scene.shards} shards answer the "
                    f"probe; {self.probes.errors()[:1]}"
                )
            time.sleep(TICK_S)

    # -- while faults happen

    def _strike_all(self, schedule: tuple[Planned, ...]) -> None:
        for drawn in schedule:
            begun_s = int(self.now_s * 100) / 100  # which is not later
            planned = replace(drawn, number=len(self.struck), at_s=begun_s)
            if self.now_s + planned.lasts_s > self.plan.duration_s:
                continue
            struck = self._strike(planned)
            if self.breach or self.problems:
                return
            if not struck.skipped:
                self._rest()
            if self.breach or self.now_s > self.plan.duration_s:
                return

    def _strike(self, planned: Planned) -> Struck:
        injection = self.under_way = Injection(self.scene, [planned], self.zero_s, make)
        while not injection.over:
            injection.launch_due()
            time.sleep(TICK_S)
            self._look()
            if self.breach:
                self.onlooker.say(f"{self.now_s:6.1f} s stopped, all is healed: {self.breach}")
                injection.heal()
        self._tell_news()
        self.under_way = None
        self.problems += injection.problems
        self.struck += injection.results()
        return self.struck[-1]

    def _rest(self) -> None:
        until_s = self.now_s + self.plan.every_s
        while self.now_s < until_s and not self.breach:
            time.sleep(TICK_S)
            self._look()

    def _look(self) -> None:
        """Is it steady still?"""
        self._tell_news()
        rate = self.writes.per_s(self.steady.window_s)
        answered_s = self.probes.last_answers(self.zero_s)
        self.breach = self.breach or self.steady.breach(self.now_s, answered_s, rate)
        self.sampling.look(self.now_s, self.watching.ask(lambda held: len(held.checkpoints)))
        self.onlooker.show(self._now())

    def _tell_news(self) -> None:
        for text in self.under_way.news() if self.under_way is not None else ():
            self.onlooker.say(text)

    def _now(self) -> Now:
        return Now(
            at_s=self.now_s,
            duration_s=self.plan.duration_s,
            active=self.under_way.active() if self.under_way is not None else (),
            faults=(sum(not each.skipped for each in self.struck), len(self.struck)),
            sample=self.sampling.last,
            rates=tuple(sample.pushes for sample in self.sampling.samples),
            shards=self.watching.shard_states(),
            parties={party.name: party.state for party in self.scene.parties()},
        )

    @contextmanager
    def _healing(self) -> Iterator[None]:
        """However the block ends: no fault is under way then."""
        try:
            yield
        except BaseException:
            if self.under_way is not None:
                self.under_way.heal(ABANDON_DEADLINE_S)
            raise

    # -- the end

    def _judge(self, healed_s: float) -> RunResult:
        late: list[str] = []
        try:
            if not self.problems:  # else it is known who is missing
                self.scene.records.wait_settled(SETTLED_DEADLINE_S)
            now_s = self.now_s
            while not self.breach and self.now_s < now_s + CALM_S:
                time.sleep(TICK_S)
                self._look()
        except Unavailable as error:
            late.append(str(error))
        late += [f"the probe of shard {s} has not ended: no answer" for s in self.probes.stop()]
        self.onlooker.phase("judging")
        verdicts: list[Judged] = [
            of_list("the steady state holds", [self.breach] if self.breach else []),
            *([] if self.problems else [of_list("the cluster is at full strength again", late)]),
            *self.watching.ask(lambda held: of_leadership(held, may_roll_back=False)),
        ]
        try:
            verdict = self.probes.counted(self.client)
            verdicts.append(judged("every probe is applied exactly once", verdict))
        except ResilientPsError as error:
            self.problems.append(f"what the probe wrote cannot be read: {error}")
        if all(each.skipped for each in self.struck):
            self.problems.append("no fault was brought about")
        return result_of(self._ended(healed_s, verdicts))

    def _ended(self, healed_s: float, verdicts: list[Judged]) -> Ended:
        return Ended(
            plan=self.plan,
            judged=verdicts,
            problems=self.problems,
            faults=tuple(self.struck),
            samples=self.sampling.samples,
            notes=self.probes.notes(self.zero_s),
            leadership=self.watching.ask(lambda held: held),
            zero_s=self.zero_s,
            healed_s=healed_s,
            end_s=self.now_s,
            workload=self.writes,
            copied_bytes=0,
            logs={},
            began=self.began,
            seconds=time.monotonic() - self.begun_s,
        )


def _has_target(kind: Kind, shape: Shape) -> bool:
    """Is there anybody that it may strike? Roles are looked up when the time comes."""
    if kind.targets[0] == "worker":
        return bool(shape.workers)
    return bool(shape.servers)


def _remove_probe(client: Client) -> None:
    """What an earlier probe has left, or ours."""
    with suppress(NotFound):
        client.remove_job(JOB)
    with suppress(NotFound):
        client.drop_table(TABLE)
