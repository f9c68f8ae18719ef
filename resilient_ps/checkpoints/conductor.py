"""The coordinator's part in checkpoints: from a wish to a record in etcd.

Theory of operation. What is to be done next is in etcd, and in the store; in memory there are only
timers and what servers said last. So a successor goes on with what it finds:

1. *Wished*: intents without a plan, failed attempts that are to be repeated, or the policy. The
   primaries are asked where the jobs are (`clocks`), and an attempt is written (`planning`).
2. *Telling*: the execution of intents tells all shards, in the order of numbers. One refusal, and
   the attempt is given up.
3. *Imaging*: the servers that make the images are asked until all are written (`images`).
4. *Publishing*: the manifest is written (`publishing`).
5. *Recording*: one transaction writes the record and closes the intent.

An attempt that is given up is *aborted* on all shards, then closed; a new number is tried later.
Joins and leaves go on while an attempt waits for workers.

Invariants:

* no-shard-before-etcd: a shard hears of a cut only after its intent, with its clocks, is in etcd;
* fenced: a record is written, and one removed, only by transactions that compare our mandate and
  the intent; objects are deleted only if they belong to what such a transaction has closed;
* once: an attempt has one nonce; whatever stands under its name was made of its images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from resilient_ps.checkpoints import publishing
from resilient_ps.checkpoints.assembling import Imaged, assemble
from resilient_ps.checkpoints.attempt import Attempt, record_of
from resilient_ps.checkpoints.beginning import Beginning
from resilient_ps.checkpoints.housekeeping import Housekeeping
from resilient_ps.checkpoints.images import Failure, FailureKind, Images, reach_ns
from resilient_ps.checkpoints.outlook import Outlook, figures, standing
from resilient_ps.checkpoints.publishing import Published, Publishing, read_manifest_back
from resilient_ps.checkpoints.refs import CONDUCTOR_BLOBS, CUT_REF, JOBS_REF, PUBLISH_REF, Refs
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.cuts import CutPlan, is_wish
from resilient_ps.coordinator.fields import JsonObject
from resilient_ps.coordinator.kv import (
    KvAnswered,
    KvCall,
    KvFailed,
    Put,
    Read,
    ReadResult,
    Txn,
    TxnResult,
)
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import IntentRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.figures import Figure
from resilient_ps.guards import ALL_GUARDS, Guards
from resilient_ps.ids import DrawBits
from resilient_ps.machine import Effect, Log, SetTimer
from resilient_ps.messages import PartAnswer, Status, Told
from resilient_ps.storage.blobs import BlobAnswered, BlobCall, BlobFailed, BlobGot
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import CheckpointId, manifest_name

TIMER = "coordinator/checkpoints"
TIMERS = frozenset({TIMER, publishing.TIMER})
BEGIN_STEP_NS = 20_000_000  # how often to look, at most, while somebody waits for one to begin
FIGURES_NS = 1_000_000_000
WHY_CHARS_MAX = 500


class Conductor:
    """See the module. `wall_s` gives seconds since 1970, for people; `now_ns` is monotonic."""

    def __init__(
        self,
        view: ClusterView,
        mandate: Mandate,
        settings: CheckpointSettings,
        draw: DrawBits,
        wall_s: Callable[[], int],
        version: str = "",
        guards: Guards = ALL_GUARDS,
    ) -> None:
        self._view = view
        self._mandate = mandate
        self._settings = settings
        self._wall_s = wall_s
        self._written_by = f"{mandate.server} {version}".strip()
        self._guards = guards
        self._refs = Refs(CONDUCTOR_BLOBS)
        self._beginning = Beginning(view, mandate, settings, draw, wall_s)
        self._housekeeping = Housekeeping(view, mandate, settings, self._refs, guards)
        self._attempt: Attempt | None = None
        self._outlook = Outlook()
        self._figures: tuple[Figure, ...] = ()
        self._figures_at_ns = 0

    # -- what the coordinator calls

    def advance(self, now_ns: int) -> list[Effect]:
        """Do what is missing."""
        effects = self._follow(now_ns)
        effects += self._step(now_ns)
        if self._attempt is None and not self._open_attempts():
            effects += self._beginning.advance(now_ns)
        effects += self._housekeeping.advance(now_ns, needs_marks=self._needs_marks())
        effects += self._outlook.warnings(self._view, self._settings, self._wall_s(), now_ns)
        if now_ns >= self._figures_at_ns:
            failures, wall_s = self._outlook.failures_in_a_row, self._wall_s()
            self._figures = figures(self._view, self._settings, wall_s, failures)
            self._figures_at_ns = now_ns + FIGURES_NS
        if self._attempt is not None:
            effects.append(SetTimer(TIMER, self._attempt.look_again_ns(now_ns)))
        elif self._beginning.busy:
            again_ns = max(now_ns + BEGIN_STEP_NS, self._beginning.next_ns)
            effects.append(SetTimer(TIMER, again_ns))
        return effects

    def drop(self) -> None:
        """We are not the coordinator (any more): leave the rest to whoever is."""
        self._attempt = None
        self._figures = ()
        self._beginning.drop()
        self._housekeeping.drop()

    def hear(self, told: Told, now_ns: int) -> list[Effect]:
        """A server has answered a question."""
        if self._beginning.hear(told, now_ns):
            return self.advance(now_ns)
        attempt = self._attempt
        if attempt is None or attempt.images is None:
            return []
        if not attempt.images.hear(told.request, told.body, now_ns):
            return []
        return self._step(now_ns)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """The object store has answered one of our calls."""
        if not self._mandate.elected:
            return []
        attempt = self._attempt
        if attempt is not None and event.ref == attempt.look_ref:
            self._on_looked(attempt, event)
            return self._step(now_ns)
        publishing_it = None if attempt is None else attempt.publishing
        if publishing_it is not None and publishing_it.owns(event.ref):
            return [*publishing_it.on_blob(event, now_ns), *self._step(now_ns)]
        return self._housekeeping.on_blob(event, now_ns)

    def figures(self) -> tuple[Figure, ...]:
        """For a metrics system, of about a second ago; none where we are not the coordinator.

        May be called from another thread.
        """
        return self._figures

    def status(self, now_ns: int) -> JsonObject:
        """For `resilient-ps status`."""
        attempt = self._attempt
        config = self._view.config
        shards = 0 if config is None else config.shards
        doing = None if attempt is None else attempt.status(shards, now_ns)
        told = standing(self._view, self._settings, self._wall_s())
        failed = self._outlook.last_failure
        return {
            "store": True,
            **told,
            "under_way": doing,
            "failures": self._outlook.failures_in_a_row,
            "last_failure": failed,
            "sweeping": self._housekeeping.trouble,
        }

    # -- what the execution of intents calls

    def awaits_telling(self, number: int) -> bool:
        """Is this attempt to be told to the shards now?"""
        attempt = self._attempt  # None: its plan cannot be read, which is said by who reads it
        return attempt is None or (attempt.number == number and attempt.stage == "telling")

    def to_abort(self) -> int:
        """The attempt that is to be aborted on all shards; 0: none is."""
        attempt = self._attempt
        return attempt.number if attempt is not None and attempt.stage == "aborting" else 0

    def on_cut_told(
        self, number: int, answers: Mapping[int, PartAnswer], now_ns: int
    ) -> list[Effect]:
        """Every shard has answered: which server makes its image, or why there can be no cut."""
        attempt = self._attempt
        if attempt is None or attempt.number != number or attempt.stage != "telling":
            return []
        self._beginning.told(number, now_ns)
        refused = [a for _, a in sorted(answers.items()) if a.status is not Status.OK]
        if refused:
            text = refused[0].text.decode(errors="replace") or refused[0].status.name
            why = (
                f"{len(refused)} of {len(answers)} shards refuse, shard {refused[0].shard}: {text}"
            )
            return self._give_up(attempt, Failure("refused", why), now_ns)
        by = {shard: a.text.decode(errors="replace") for shard, a in answers.items()}
        attempt.stage = "imaging"
        attempt.images = Images(
            number,
            attempt.plan,
            by,
            self._view.processes,
            self._settings.cut_deadline_s,
            now_ns,
        )
        return self._step(now_ns)

    def on_cut_aborted(self, number: int, now_ns: int) -> list[Effect]:
        """No shard goes on with it any more: close the intent."""
        attempt = self._attempt
        if attempt is None or attempt.number != number or attempt.stage != "aborting":
            return []
        attempt.stage = "closing"
        return self._step(now_ns)

    # -- the attempt

    def _needs_marks(self) -> bool:
        """Are the records of data shards to go on keeping what ends after an open cut?"""
        known = self._attempt is not None and self._attempt.jobs is not None
        return bool(self._open_attempts()) and not known

    def _open_attempts(self) -> list[IntentRecord]:
        return [i for i in self._view.open_intents if i.kind == "cut" and not is_wish(i)]

    def _follow(self, now_ns: int) -> list[Effect]:
        """Take up the attempt that etcd knows of; forget one that is over."""
        intents = self._open_attempts()
        attempt = self._attempt
        if attempt is not None and all(i.number != attempt.number for i in intents):
            self._attempt = None
            return self._ended(attempt, now_ns)
        if attempt is not None or not intents:
            return []
        try:
            plan = CutPlan.of(intents[0])
            assert plan is not None, "a wish is no attempt"
            checkpoint = CheckpointId.parse(plan.id)
        except BadInput:
            return []  # it is closed by who is to tell the shards
        number = intents[0].number
        self._attempt = attempt = Attempt(number, plan, now_ns)
        if self._beginning.began(number):
            return []
        attempt.look_ref = self._refs.draw()
        name = manifest_name(self._view.keys.cluster, checkpoint)
        what = {"intent": number, "checkpoint": plan.id}
        look = BlobCall(attempt.look_ref, read_manifest_back(name))
        return [Log("info", "checkpoint taken over", what), look]

    def _ended(self, attempt: Attempt, now_ns: int) -> list[Effect]:
        """Its intent is open no more: done, aborted, or closed by a rollback."""
        if any(record.id == attempt.plan.id for record in self._view.checkpoints):
            self._outlook.succeeded()
            self._beginning.succeeded(now_ns)
            what = {"checkpoint": attempt.plan.id, "clocks": attempt.plan.clocks}
            return [Log("info", "checkpoint made", what)]
        if attempt.failure is not None:
            self._outlook.failed(attempt.failure.why)
            self._beginning.failed(attempt.failure.kind, now_ns)
        return []

    def _step(self, now_ns: int) -> list[Effect]:
        """Go on with the attempt, as far as it goes at the moment."""
        attempt = self._attempt
        if attempt is None:
            return []
        match attempt.stage:
            case "telling":
                return self._tell(attempt, now_ns)
            case "imaging":
                return self._image(attempt, now_ns)
            case "publishing":
                return self._publish(attempt, now_ns)
            case "recording":
                return self._record(attempt, now_ns)
            case "closing":
                return self._close(attempt, now_ns)
            case "aborting":
                return []

    def _tell(self, attempt: Attempt, now_ns: int) -> list[Effect]:
        """The execution of intents does it: here it is only seen that it does not take for ever."""
        if attempt.published is not None:
            attempt.stage = "recording"
            return self._record(attempt, now_ns)
        if now_ns - attempt.begun_ns < reach_ns(attempt.plan, self._settings.cut_deadline_s):
            return []
        why = "not every shard has a primary that answers"
        return self._give_up(attempt, Failure("deadline", why), now_ns)

    def _image(self, attempt: Attempt, now_ns: int) -> list[Effect]:
        images = attempt.images
        assert images is not None, "shards have been told"
        if attempt.published is not None:
            attempt.stage = "recording"
            return self._record(attempt, now_ns)
        failure = images.failure(self._view.processes, now_ns)
        if failure is not None:
            return self._give_up(attempt, failure, now_ns)
        effects = [*images.ask(now_ns), SetTimer(TIMER, images.next_ns)]
        if images.reached and attempt.jobs is None:
            effects += self._read_jobs(attempt)
        if not images.done or attempt.jobs is None:
            return effects
        checkpoint = CheckpointId.parse(attempt.plan.id)
        name = manifest_name(self._view.keys.cluster, checkpoint)
        indexes = [info for _, info in sorted(images.indexes.items())]
        made = self._maker(attempt, attempt.jobs)
        attempt.publishing = Publishing(name, checkpoint, indexes, made, self._refs, now_ns)
        attempt.stage = "publishing"
        return self._publish(attempt, now_ns)

    def _read_jobs(self, attempt: Attempt) -> list[Effect]:
        if attempt.reading_jobs:
            return []
        attempt.reading_jobs = True
        keys = self._view.keys
        reads = (Read(keys.jobs, prefix=True), Read(keys.tables, prefix=True))
        return [KvCall(JOBS_REF, Txn((), reads))]

    def on_read(self, event: KvAnswered | KvFailed, now_ns: int) -> list[Effect]:
        """What etcd has, now that the cut is reached; a failed read is repeated."""
        attempt = self._attempt
        if attempt is None or not attempt.reading_jobs or not self._mandate.elected:
            return []  # of an earlier attempt: its cut was another one
        attempt.reading_jobs = False
        match event:
            case KvAnswered(_, TxnResult(results=results)) if attempt.images is not None:
                reads = [each for each in results if isinstance(each, ReadResult)]
                attempt.jobs = {item.key: item.value for each in reads for item in each.items}
                return self._step(now_ns)
            case _:
                return []

    def _maker(
        self, attempt: Attempt, read: Mapping[bytes, bytes]
    ) -> Callable[[Sequence[Imaged]], Manifest]:
        def make(shards: Sequence[Imaged]) -> Manifest:
            config = self._view.config
            assert config is not None, "a cluster without a configuration has no coordinator"
            return assemble(
                self._view,
                config,
                attempt.number,
                attempt.plan,
                shards,
                read=read,
                created_s=self._wall_s(),
                written_by=self._written_by,
            )

        return make

    def _publish(self, attempt: Attempt, now_ns: int) -> list[Effect]:
        at_work = attempt.publishing
        assert at_work is not None, "all images are written"
        effects = at_work.advance(now_ns)
        failure = at_work.failure(now_ns)
        attempt.published = attempt.published or at_work.published
        if attempt.published is not None:
            attempt.stage = "recording"
            return [*effects, *self._record(attempt, now_ns)]
        return effects if failure is None else self._give_up(attempt, failure, now_ns)

    def _on_looked(self, attempt: Attempt, event: BlobAnswered | BlobFailed) -> None:
        """A manifest of this attempt that stands there already is as good as ours."""
        attempt.look_ref = 0
        match event:
            case BlobAnswered(_, BlobGot(data, _, _, Manifest() as manifest)):
                if str(manifest.id) == attempt.plan.id and attempt.stage != "closing":
                    attempt.published = Published.of(manifest, data)
            case _:
                pass  # there is none, or it cannot be read now: then it is written again

    def _record(self, attempt: Attempt, now_ns: int) -> list[Effect]:
        """The checkpoint exists from here on: if we are still the coordinator, and it is open."""
        view, published = self._view, attempt.published
        assert published is not None, "the manifest stands in the store"
        key, intent = view.keys.checkpoint(attempt.number), self._intent(attempt)
        if intent is None:
            return []
        record = record_of(published, manifest_name(view.keys.cluster, published.manifest.id))
        took_s = round(max(0.0, (now_ns - attempt.begun_ns) / 1e9), 3)
        result: JsonObject = {"checkpoint": record.id, "took_s": took_s}
        done = replace(intent, state="done", result=result)
        puts = (Put(key, record.to_bytes()), Put(view.keys.intent(attempt.number), done.to_bytes()))
        seen = (view.keys.intent(attempt.number), key, view.keys.config)
        txn = self._mandate.order(*puts, guards=tuple(view.as_seen(each) for each in seen))
        if not self._guards.guarded_publishing:
            txn = replace(txn, compares=())
        return self._mandate.ask(PUBLISH_REF, txn)

    def _give_up(self, attempt: Attempt, failure: Failure, now_ns: int) -> list[Effect]:
        attempt.failure = Failure(failure.kind, failure.why[:WHY_CHARS_MAX])
        attempt.stage = "aborting"
        what = {"intent": attempt.number, "attempt": attempt.plan.attempt, "why": failure.why}
        return [Log("warning", "checkpoint given up", what), SetTimer(TIMER, now_ns)]

    def _close(self, attempt: Attempt, now_ns: int) -> list[Effect]:
        """It has ended on all shards; whoever waits for it is served by the next attempt."""
        intent, failure = self._intent(attempt), attempt.failure
        if intent is None or failure is None:
            return []
        kind: FailureKind = failure.kind
        result: JsonObject = {"why": failure.why, "kind": kind, "retry": True}
        key = self._view.keys.intent(attempt.number)
        put = Put(key, replace(intent, state="aborted", result=result).to_bytes())
        txn = self._mandate.order(put, guards=(self._view.as_seen(key),))
        return self._mandate.ask(CUT_REF, txn)

    def _intent(self, attempt: Attempt) -> IntentRecord | None:
        found = [i for i in self._open_attempts() if i.number == attempt.number]
        return found[0] if found else None
