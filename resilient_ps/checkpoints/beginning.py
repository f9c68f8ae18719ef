"""When the next attempt at a checkpoint begins: wishes, the policy, and pauses after failures.

Nothing here is stored: a new coordinator takes the age of the newest checkpoint from its record,
and begins with short pauses again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from resilient_ps.checkpoints.clocks import Clocks, Reading
from resilient_ps.checkpoints.images import FailureKind
from resilient_ps.checkpoints.planning import (
    Lead,
    newest,
    next_number,
    pending,
    plan,
    proposal,
)
from resilient_ps.checkpoints.policy import clocks_due, has_moved, interval
from resilient_ps.checkpoints.refs import CUT_REF
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import CheckpointRecord, ClusterConfig, IntentRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.ids import DrawBits
from resilient_ps.machine import Effect, Log
from resilient_ps.messages import Told

SECOND_NS = 10**9
PROBE_NS = SECOND_NS  # how often clocks are looked at, where they decide
IDLE_NS = 5 * SECOND_NS  # and where time is over, but nothing has moved
APART_NS = 60_000_000  # two readings tell how fast a job is when so much is between them
FRESH_NS = 200_000_000  # a plan is made of a reading that is no older
PAUSE_FIRST_NS = SECOND_NS
PAUSE_MOST_NS = 300 * SECOND_NS
REFUSALS_AT_ONCE = 6  # in a row: after that, with a pause
AGE_MOST_S = 10 * 365 * 86_400


class Beginning:
    """See the module."""

    def __init__(
        self,
        view: ClusterView,
        mandate: Mandate,
        settings: CheckpointSettings,
        draw: DrawBits,
        wall_s: Callable[[], int],
    ) -> None:
        self._view = view
        self._mandate = mandate
        self._settings = settings
        self._draw = draw
        self._wall_s = wall_s
        self._clocks = Clocks()
        self._lead = Lead()
        self._proposed = (0, 0)  # the last attempt of ours, and when it was planned
        self._since = (-1, 0)  # the number of the newest checkpoint, and when it was made
        self._wanted = False
        self._failures = self._refusals = 0
        self._not_before_ns = 0
        self._failed_ns = 0  # what was read before that was not enough
        self._made_ns = 0  # what was read before that does not tell what has been done since

    @property
    def busy(self) -> bool:
        """Is an attempt about to begin?"""
        return self._wanted or self._clocks.asking

    @property
    def next_ns(self) -> int:
        """When time may bring it forward, while it is busy."""
        last = self._clocks.last
        if self._clocks.asking:
            return self._clocks.ends_ns
        return 0 if last is None else last.heard_ns + APART_NS

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        self._clocks.drop()
        self._since = (-1, 0)
        self._wanted = False
        self._failures = self._refusals = self._not_before_ns = 0

    def hear(self, told: Told, now_ns: int) -> bool:
        """A server has told its clocks; is there more to be done now?"""
        return self._clocks.hear(told.request, told.body, now_ns)

    def advance(self, now_ns: int) -> list[Effect]:
        """Begin, if it is time; there is no attempt at the moment."""
        self._wanted = False
        self._clocks.look(now_ns)
        config, age_ns = self._view.config, self._age_ns(now_ns)
        if config is None or now_ns < self._not_before_ns or self._mandate.busy(CUT_REF):
            return []
        waiting = pending(self._view)
        seconds = interval(self._settings, self._view).seconds
        by_time = 0 < seconds <= age_ns / SECOND_NS
        if not waiting and not by_time and not self._settings.every_clocks:
            return []
        why = self._why(waiting, by_time=by_time)
        if not why:
            pause_ns = PROBE_NS if self._settings.every_clocks else IDLE_NS
            return self._read_clocks(now_ns, pause_ns)
        self._wanted = True
        if not self._knows_clocks(now_ns):
            return self._read_clocks(now_ns, APART_NS)
        return self._propose(config, waiting, why, now_ns)

    def began(self, number: int) -> bool:
        """Is this attempt our own? (Else somebody was at work on it before us.)"""
        return number == self._proposed[0]

    def told(self, number: int, now_ns: int) -> None:
        """All shards have been told of it."""
        if self.began(number):
            self._lead.measured((now_ns - self._proposed[1]) / SECOND_NS)

    def succeeded(self, now_ns: int) -> None:
        """The attempt has become a checkpoint; what was read before it does not make one due."""
        self._clocks.drop()
        self._made_ns = now_ns
        self._failures = self._refusals = 0

    def failed(self, kind: FailureKind, now_ns: int) -> None:
        """The attempt was given up; the next one begins after a pause that grows."""
        self._failed_ns = now_ns
        if kind == "refused":
            self._refusals += 1
            if self._refusals <= REFUSALS_AT_ONCE:
                return
        self._failures += 1
        pause_ns = min(PAUSE_MOST_NS, PAUSE_FIRST_NS << min(self._failures - 1, 30))
        self._not_before_ns = now_ns + pause_ns

    # --

    def _age_ns(self, now_ns: int) -> int:
        """Since when there is the newest checkpoint, or, without one, us as coordinator."""
        record = newest(self._view)
        number = 0 if record is None else record.number
        if self._since[0] != number:
            age_s = 0 if record is None else self._wall_s() - record.created_s
            self._since = (number, now_ns - min(max(age_s, 0), AGE_MOST_S) * SECOND_NS)
        return now_ns - self._since[1]

    def _why(self, waiting: Sequence[IntentRecord], *, by_time: bool) -> str:
        """Why an attempt is to be made; "": none is."""
        if waiting:
            why = waiting[0].details.get("why")
            return why if isinstance(why, str) and why else "asked for"
        last = self._clocks.last
        spans = {} if last is None or last.at_ns < self._made_ns else last.spans
        record: CheckpointRecord | None = newest(self._view)
        if by_time and has_moved(self._view, spans, record):
            return "time"
        job = clocks_due(self._settings.every_clocks, self._view, spans, record)
        return f"clocks of job {job}" if job else ""

    def _knows_clocks(self, now_ns: int) -> bool:
        last = self._clocks.last
        if last is None or last.at_ns < self._failed_ns:
            return False
        if now_ns - last.heard_ns > FRESH_NS:
            return False
        nothing_runs = all(job.state == "done" for job in self._view.jobs)
        return nothing_runs or self._clocks.span_ns >= APART_NS

    def _read_clocks(self, now_ns: int, pause_ns: int) -> list[Effect]:
        last: Reading | None = self._clocks.last
        if self._clocks.asking or (last is not None and now_ns - last.heard_ns < pause_ns):
            return []
        return self._clocks.ask(sorted(self._view.processes), now_ns)

    def _propose(
        self, config: ClusterConfig, waiting: Sequence[IntentRecord], why: str, now_ns: int
    ) -> list[Effect]:
        try:
            number = next_number(self._view)
            cut = self._plan(config, number, waiting, why, now_ns)
            cut.cut(number)  # refuses what shards could not be told
            puts, guards = proposal(self._view, number, cut, waiting)
        except BadInput as error:
            self._not_before_ns = now_ns + PAUSE_MOST_NS
            remedy = "remove jobs that are done: `resilient-ps job rm NAME`"
            trouble = {"error": str(error), "remedy": remedy}
            return [Log("error", "no checkpoint can begin", trouble)]
        self._proposed = (number, now_ns)
        what = {"intent": number, "checkpoint": cut.id, "clocks": cut.clocks, "why": cut.why}
        txn = self._mandate.order(*puts, guards=tuple(guards))
        return [Log("info", "checkpoint begins", what), *self._mandate.ask(CUT_REF, txn)]

    def _plan(
        self,
        config: ClusterConfig,
        number: int,
        waiting: Sequence[IntentRecord],
        why: str,
        now_ns: int,
    ) -> CutPlan:
        assert self._clocks.last is not None, "the clocks are known"
        age_s = (now_ns - self._clocks.last.at_ns) / SECOND_NS
        return plan(
            self._view,
            config,
            number,
            self._clocks,
            self._lead.seconds + age_s,
            self._draw,
            waiting=waiting,
            why=why,
            begun_s=self._wall_s(),
        )
