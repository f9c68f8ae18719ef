"""Takes ranks out of a job whose workers were not heard of for as long as the job allows.

Only where the job says so (`evict_after_s`), and only ranks that a process has run: the rank leaves
by an intent, as it would by itself. Of ranks that are being taken out, have left, or have finished,
nothing is expected. A rank that has a data shard in hand cannot leave (see `data_shards`): that is
said, and left to whoever runs the job.
"""

from __future__ import annotations

from resilient_ps.consistency import BSP
from resilient_ps.coordinator.data_shards import DataShards
from resilient_ps.coordinator.intents import job_spec
from resilient_ps.coordinator.kv import Put
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import (
    IntentRecord,
    JobRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.coordinator.registry import SECOND_NS, Seat, WorkerRegistry
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.machine import Effect, Log

EVICT_REF = 27
LOOK_NS = SECOND_NS


class Eviction:
    """Looks once a second."""

    def __init__(self, view: ClusterView, mandate: Mandate, registry: WorkerRegistry) -> None:
        self._view = view
        self._mandate = mandate
        self._registry = registry
        self._look_at_ns = 0
        self._stuck: dict[Seat, int] = {}  # ranks with a data shard in hand; which incarnation

    def advance(self, now_ns: int) -> list[Effect]:
        """Take out the first rank that was silent for too long; the next one follows."""
        self._registry.look(now_ns)
        if now_ns < self._look_at_ns or self._mandate.busy(EVICT_REF):
            return []
        self._look_at_ns = now_ns + LOOK_NS
        running = {job.name: job for job in self._view.jobs if job.state == "running"}
        self._registry.forget(running)
        told: list[Effect] = []
        for job in running.values():
            if job.evict_after_s is None:
                continue
            drawn = expected_ranks(self._view, job.name)
            limit_ns = int(job.evict_after_s * SECOND_NS)
            for seat in self._registry.silent(drawn, limit_ns, now_ns):
                if not self._has_data_shard(seat):
                    return [*told, *self._evict(job, seat, drawn[seat])]
                if self._stuck.get(seat) != drawn[seat]:
                    self._stuck[seat] = drawn[seat]
                    told.append(_cannot_leave(job, seat))
        return told

    def _has_data_shard(self, seat: Seat) -> bool:
        key = self._view.keys.data_shards(seat.job)
        held = self._view.items.get(key)
        try:
            return held is not None and bool(DataShards.from_bytes(held.value, key).held(seat.rank))
        except BadInput:
            return True  # who knows

    def _evict(self, job: JobRecord, seat: Seat, incarnation: int) -> list[Effect]:
        view, keys = self._view, self._view.keys
        counter, rank = keys.counter("intents"), keys.rank(*seat)
        drawn = view.items.get(counter)
        try:
            number = read_counter(None if drawn is None else drawn.value, counter) + 1
        except BadInput as error:
            return [Log("error", "no rank can be evicted", {"error": str(error)})]
        key, inc = keys.intent(number), incarnation + 1
        record = IntentRecord(number, "leave", job.name, seat.rank, inc, "open")
        txn = self._mandate.order(
            Put(counter, counter_bytes(number)),
            Put(key, record.to_bytes()),
            Put(rank, counter_bytes(inc)),
            guards=(
                view.as_seen(counter),
                view.as_seen(key),
                view.as_seen(rank),
                view.as_seen(keys.job(job.name)),
                view.as_seen(keys.data_shards(job.name)),
            ),
        )
        return [_warning(job, seat), *self._mandate.ask(EVICT_REF, txn)]


def expected_ranks(view: ClusterView, job: str) -> dict[Seat, int]:
    """The ranks of a job that are to be heard of, and which incarnation."""
    keys = view.keys
    leaving = {i.rank: i.incarnation for i in view.intents if (i.job, i.kind) == (job, "leave")}
    prefix = keys.ranks(job)
    found: dict[Seat, int] = {}
    for key in [key for key in view.items if key.startswith(prefix)]:
        located = keys.locate(key)
        if located is None or located.kind != "rank":
            continue
        try:
            incarnation = read_counter(view.items[key].value, key)
        except BadInput:
            continue  # whoever draws from it is told
        finished = view.items.get(keys.finished(job, located.number))
        if finished is not None and finished.value == view.items[key].value:
            continue
        if leaving.get(located.number) != incarnation:
            found[Seat(job, located.number)] = incarnation
    return found


def _cannot_leave(job: JobRecord, seat: Seat) -> Log:
    what = {
        "job": job.name,
        "rank": seat.rank,
        "silent_s": job.evict_after_s,
        "remedy": "it has a data shard in hand: start the rank again, or retire it with "
        "`resilient-ps train ... --retire`",
    }
    return Log("warning", "silent rank cannot be evicted", what)


def _warning(job: JobRecord, seat: Seat) -> Log:
    what = {
        "job": job.name,
        "rank": seat.rank,
        "silent_s": job.evict_after_s,
        "remedy": "to take it in again, a new process calls client.join(job, rank)",
    }
    try:
        bsp = isinstance(job_spec(job).consistency, BSP)
    except BadInput:
        bsp = False
    if bsp:
        what["note"] = "from here on the result is not the one of an undisturbed run"
    return Log("warning", "rank evicted", what)
