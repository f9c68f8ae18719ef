"""Plans an attempt at a cut: at which clocks, and the transaction that writes its intent.

A shard refuses a cut below what it holds already, and between asking the primaries for their clocks
and telling all shards a fast job moves on. So a clock lies above the last one held by what the job
does in that time, which is known from earlier cuts, and twice as much after each refusal. A job
that is slow, or does not move at all, gets the very clock that it has reached: a refusal costs
little, a cut that lies ahead means waiting. No cut lies behind the last step of a graph of tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from resilient_ps.checkpoints.clocks import Clocks, Span
from resilient_ps.checkpoints.restored import past
from resilient_ps.coordinator.cuts import CutPlan, is_pending
from resilient_ps.coordinator.data_shards import NO_CUT, DataShards
from resilient_ps.coordinator.kv import Compare, Put
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    ClusterConfig,
    IntentRecord,
    JobRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.cut import CLOCK_MAX
from resilient_ps.errors import BadInput
from resilient_ps.ids import DrawBits
from resilient_ps.storage.names import CheckpointId

LEAD_FIRST_S = 0.1
LEAD_LEAST_S, LEAD_MOST_S = 0.01, 5.0
LEAD_KEPT = 0.7  # of the old value, when a new one is measured
SAFETY = 2.0
DOUBLINGS_MOST = 10
SERVED_MOST = 50  # pending intents that one attempt serves: a transaction has bounds
HOLD_EACH = 4  # every so many attempts, pushes behind the cut are held back
PENDING_CHARS = 200


class Lead:
    """How long it takes from a plan until all shards have been told of its cut."""

    def __init__(self) -> None:
        self.seconds = LEAD_FIRST_S

    def measured(self, seconds: float) -> None:
        """Longer times count at once, shorter ones bit by bit."""
        mixed = LEAD_KEPT * self.seconds + (1 - LEAD_KEPT) * seconds
        self.seconds = min(LEAD_MOST_S, max(LEAD_LEAST_S, seconds, mixed))


def newest(view: ClusterView) -> CheckpointRecord | None:
    """The newest checkpoint of the present state's past that is known to be good."""
    good = [record for record in past(view) if record.state == "good"]
    return max(good, key=lambda record: (record.incarnation, record.number), default=None)


def pending(view: ClusterView) -> list[IntentRecord]:
    """The wishes and failed attempts that the next attempt serves."""
    return [intent for intent in view.intents if is_pending(intent)][:SERVED_MOST]


def attempts(waiting: Sequence[IntentRecord]) -> tuple[int, int]:
    """How many attempts have failed because of the cut; how many of them, last, were refused."""
    failed, refused = 0, 0
    for intent in waiting:
        attempt, refusals = intent.details.get("attempt"), intent.details.get("refusals")
        if type(attempt) is int and type(refusals) is int:
            kind = intent.result.get("kind")
            failed = max(failed, attempt + (kind != "store"))
            refused = max(refused, refusals + 1) if kind == "refused" else refused
    return failed, refused


def plan(
    view: ClusterView,
    config: ClusterConfig,
    number: int,
    clocks: Clocks,
    lead_s: float,
    draw: DrawBits,
    *,
    waiting: Sequence[IntentRecord],
    why: str,
    begun_s: int,
) -> CutPlan:
    """The next attempt. `lead_s`: how old the last reading will be when all shards are told."""
    (attempt, refusals), base = attempts(waiting), newest(view)
    spans: Mapping[int, Span] = {} if clocks.last is None else clocks.last.spans
    running = [job for job in view.jobs if job.state != "done"]
    ahead_s = SAFETY * 2 ** min(refusals, DOUBLINGS_MOST) * lead_s
    aligned: dict[str, int] = {}
    for job in running:
        held = spans[job.job_id].held if job.job_id in spans else 0
        ahead = int(clocks.rate(job.job_id) * ahead_s + 0.5)
        aligned[job.name] = min(held + ahead, _last_clock(view, job))
    return CutPlan(
        id=str(CheckpointId.of(config.incarnation, number, draw(32))),
        clocks=aligned,
        numbers={job.name: job.job_id for job in view.jobs},
        resting=tuple(job.name for job in view.jobs if job.state == "done"),
        base="" if base is None else base.id,
        attempt=attempt,
        refusals=refusals,
        hold=attempt % HOLD_EACH == HOLD_EACH - 1,
        why=why[:PENDING_CHARS],
        begun_s=begun_s,
    )


def _last_clock(view: ClusterView, job: JobRecord) -> int:
    """The steps of a graph; other jobs go on for ever."""
    record = view.graph(job.name)
    if record is None or record.job_id != job.job_id:
        return CLOCK_MAX
    return record.graph.steps


def next_number(view: ClusterView) -> int:
    """The number of the next intent. Raises `BadInput` when etcd's counter cannot be read."""
    key = view.keys.counter("intents")
    item = view.items.get(key)
    return read_counter(None if item is None else item.value, key) + 1


def proposal(
    view: ClusterView, number: int, cut: CutPlan, waiting: Sequence[IntentRecord]
) -> tuple[list[Put], list[Compare]]:
    """What is to be written, and while what is as we know it."""
    keys = view.keys
    counter, key = keys.counter("intents"), keys.intent(number)
    record = IntentRecord(number, "cut", "", 0, 0, "open", details=cut.details())
    puts = [Put(counter, counter_bytes(number)), Put(key, record.to_bytes())]
    guards = [view.as_seen(counter), view.as_seen(key), view.as_seen(keys.config)]
    for intent in waiting:
        served = keys.intent(intent.number)
        result = {**intent.result, "retried_as": number}
        puts.append(Put(served, replace(intent, state="aborted", result=result).to_bytes()))
        guards.append(view.as_seen(served))
    for job, clock in sorted(cut.clocks.items()):
        marked = _marked(view, job, clock)
        if marked is not None:
            puts.append(marked)
            guards.append(view.as_seen(marked.key))
    return puts, guards


def _marked(view: ClusterView, job: str, clock: int) -> Put | None:
    """The record of the job's data shards, which is to keep what ends after the cut."""
    key = view.keys.data_shards(job)
    item = view.items.get(key)
    if item is None:
        return None
    try:
        return Put(key, DataShards.from_bytes(item.value, key).at_cut(clock).to_bytes())
    except BadInput:
        return None  # the checkpoint fails, and says so


def unmarked(view: ClusterView) -> list[Put]:
    """No open cut has to be reached: records of data shards need not keep what ends any more."""
    puts = []
    for job in view.jobs:
        key = view.keys.data_shards(job.name)
        item = view.items.get(key)
        if item is None:
            continue
        try:
            record = DataShards.from_bytes(item.value, key)
        except BadInput:
            continue
        if record.cut != NO_CUT:
            puts.append(Put(key, record.at_cut(NO_CUT).to_bytes()))
    return puts
