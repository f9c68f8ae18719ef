"""A worker: one rank of a job, and the tables that it trains."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from resilient_ps.calls import Piece, Split
from resilient_ps.client.batches import (
    PATIENCE_S,
    Batches,
    DynamicBatches,
    resume_behind,
    static_batches,
)
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.data_shards import Leases
from resilient_ps.client.future import Future
from resilient_ps.client.heartbeat import Heartbeat
from resilient_ps.client.open_tables import OpenTables
from resilient_ps.client.opening import announce_table, encode_cursor
from resilient_ps.client.waiting import wait_for_cluster
from resilient_ps.consistency import BSP, Consistency, JobSpec
from resilient_ps.coordinator.data_shards import Grant
from resilient_ps.data.shards import Schedule
from resilient_ps.errors import (
    BadInput,
    DeadlineExceeded,
    FixTheCall,
    RolledBack,
)
from resilient_ps.ids import WorkerId
from resilient_ps.messages import NO_KEYS
from resilient_ps.routing import Routing
from resilient_ps.runtime.driver import Driver, deadline_after

Batch = TypeVar("Batch")


class Worker(OpenTables):
    """One rank of a training job, as this process runs it. Close it, or use it in a `with`.

    `clock` is the open clock, from 1; `cursor` is what the last tick said (None: nothing yet). A
    new process that takes the rank over continues behind the last tick that any shard has seen.
    """

    def __init__(
        self,
        driver: Driver,
        catalogue: Catalogue,
        job: JobSpec,
        deadline_s: float,
        heartbeat: Heartbeat,
        evict_after_s: float | None = None,
    ) -> None:
        super().__init__(driver, catalogue, deadline_s)
        self._heartbeat = heartbeat
        weakref.finalize(self, heartbeat.ask_to_stop)  # where nobody closes this worker
        self._job = job
        self._closed = False
        self._evict_after_s = evict_after_s
        self._opened_at = driver.session.clock
        self._incarnation = driver.session.routing.incarnation  # of the cluster
        self.resumed = 0  # how often: see `resume`
        self.retiring = False  # see `retire`
        self.has_batch = False  # has `batches` given out one that is not ticked yet?

    # -- what it is

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._driver.session.worker.rank

    @property
    def of(self) -> int:
        """How many ranks the job was opened with."""
        return self._job.ranks

    @property
    def consistency(self) -> Consistency:
        """BSP, SSP or ASP."""
        return self._job.consistency

    @property
    def clock(self) -> int:
        """The open clock: one more than the last that was ticked."""
        return self._driver.session.clock

    @property
    def incarnation(self) -> int:
        """Of the cluster, in which this worker works: it grows when the cluster goes back."""
        return self._incarnation

    @property
    def cursor(self) -> Any:
        """What the last tick of this rank said, whoever ticked; None before the first."""
        raw = self._driver.session.cursor
        return json.loads(raw) if raw else None

    # -- after a rollback

    def resume(self) -> None:
        """Go on after `RolledBack`, in the state that the cluster went back to.

        This worker takes its rank over anew: `clock` and `cursor` are those of the checkpoint, and
        all that was pushed behind them has never happened. Waits until the shards are there.
        Raises `Unavailable` or `DeadlineExceeded` when they are not by the deadline (call it
        again), `Reopen` if the job was ended meanwhile, `Fenced` where another process took the
        rank over. Where nothing was rolled back it does nothing.
        """
        driver, catalogue = self._driver, self._catalogue
        with driver.lock:
            if not self._was_rolled_back:
                return
            name, job = catalogue.keys.cluster, self._job
            routing = wait_for_cluster(
                catalogue.kv, name, self._deadline_s, after=self._incarnation
            )
            self._job = job = catalogue.open_job(
                job.name, job.ranks, job.consistency, self._evict_after_s
            )
            held = driver.session.worker.incarnation
            incarnation = catalogue.draw_incarnation(job.name, self.rank, held=held)
            self._heartbeat = self._heartbeat.again(incarnation)
            self._heartbeat.start()
            weakref.finalize(self, self._heartbeat.ask_to_stop)
            self._take_over(routing, WorkerId(job.job, self.rank, incarnation))
            self._open_tables_again()
            self._incarnation = routing.incarnation
            self.resumed += 1

    def check_incarnation(self) -> None:
        """Raise `RolledBack` if the cluster went back since this worker began, or resumed.

        To be asked at the end of a program, when nothing more is pulled or pushed.
        """
        if not self._closed and self._was_rolled_back:
            now = self._catalogue.incarnation()
            raise self._driver.session.broken or RolledBack(
                f"the cluster was rolled back, and is at incarnation {now} now; rank {self.rank} "
                f"came to its end in incarnation {self._incarnation}. Call resume() to go on"
            )

    @property
    def _was_rolled_back(self) -> bool:
        told = isinstance(self._driver.session.broken, RolledBack)
        return told or self._catalogue.incarnation() > self._incarnation

    def _take_over(self, routing: Routing, worker: WorkerId) -> None:
        driver = self._driver
        op, now_ns = driver.next_op(), time.monotonic_ns()
        driver.perform(driver.session.resume(op, routing, worker, now_ns, self._job))
        outcome = driver.wait(op, deadline_after(self._deadline_s))
        if outcome.error is not None:
            raise outcome.error
        self._opened_at, self.has_batch = driver.session.clock, False

    # -- clocks

    def tick(self, cursor: Any = None) -> None:
        """End the clock: all its pushes are acknowledged, then it is closed on all shards.

        `cursor` is any JSON value of at most 4 KiB: where a successor of this process continues.
        None keeps the last one. Raises `DeadlineExceeded` naming the shards that it waited for;
        the tick is then still delivered.
        """
        self.tick_async(cursor).result()

    def tick_async(self, cursor: Any = None) -> Future[None]:
        """As `tick`, without waiting: pulls of the next clock may go out meanwhile."""
        driver = self._driver
        raw = driver.session.cursor if cursor is None else encode_cursor(cursor)
        with driver.lock:
            op = driver.next_op()
            driver.perform(driver.session.tick(op, raw, time.monotonic_ns()))
        return Future(driver, [op], None, self._deadline_s)

    def batches(
        self,
        dataset: Batches[Batch],
        *,
        batch_size: int = 1024,
        epochs: int = 1,
        schedule: Schedule = "static",
        data_shards: int | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Iterator[Batch]:
        """This rank's batches of a dataset; each is a clock, ended when the next is asked for.

        `schedule`: with "static" the rank reads its own part of the data, always the same; with
        "dynamic" it takes one of `data_shards` parts after the other (default: parts of some
        batches), so that slow ranks take fewer. In both, all ranks together read every sample once
        in each epoch. After a takeover the rank continues behind its last tick. All ranks of a job
        give the same arguments.

        When the cluster goes back to a checkpoint, calls in the loop's body raise `RolledBack`:
        catch it and `continue`. The next batch that is asked for then is the one behind the
        checkpoint's cursor: the worker resumes by itself, and says so on stderr.

        At the end ranks tick empty clocks, so that nobody waits for them; where a static dataset
        cannot tell the number of its batches, the rank leaves the job at its end. `patience_s`:
        how long to wait for data shards that others have in hand, without any sign of life.
        Raises `DeadlineExceeded` naming these ranks, `BadInput` for other schedules than before,
        `SpecMismatch` where ranks differ in the data.
        """
        if schedule == "static":
            return static_batches(self, dataset, batch_size, epochs)
        if schedule != "dynamic":
            raise BadInput(f"schedule {schedule!r}: use 'static' or 'dynamic'")
        walk = DynamicBatches(
            self, self._leases, dataset, batch_size, epochs, data_shards, patience_s
        )
        return iter(walk)

    def retire(self) -> None:
        """Leave the job soon, and let other ranks finish what this one has begun (dynamic only).

        The loop over `batches` ends behind the present batch: the rest of the data shard is given
        back, the rank leaves, and this worker is closed. Called before the loop it settles a rank
        whose process died: its open clock is completed if it has to be, and then it leaves. May be
        called from a signal handler.
        """
        self.retiring = True

    @property
    def settled(self) -> bool:
        """Would nothing be kept of what was pushed in the open clock, if the rank left now?

        Under SSP and ASP a predecessor may have pushed in the clock that was open when this process
        took the rank over: it is settled once that clock is ticked.
        """
        if isinstance(self._job.consistency, BSP):
            return True
        first = self._driver.session.worker.incarnation == 1
        return not self.has_batch and (first or self.clock > self._opened_at)

    def wait_for_others(self, give_up: Callable[[], bool], look_every_s: float) -> bool:
        """Wait until the consistency lets this worker read in its open clock, without reading.

        False when `give_up()` says so, which is looked at every `look_every_s` seconds.
        """
        driver, number = self._driver, self._any_table()
        if number is None:  # then nobody pulls, and nobody waits for anybody
            time.sleep(look_every_s)
            return False
        with driver.lock:
            op, session = driver.next_op(), driver.session
            nothing = Split(NO_KEYS, {session.routing.order[0]: Piece()}, 0)
            now_ns, wait_ns = time.monotonic_ns(), int(self._deadline_s * 1e9)
            driver.perform(session.pull(op, number, nothing, now_ns, wait_ns=wait_ns))
            while not driver.is_resolved(op):
                if give_up():
                    driver.perform(session.abandon(op, time.monotonic_ns()))
                    driver.take(op)
                    return False
                driver.serve(deadline_after(look_every_s))
            outcome = driver.take(op)
        assert outcome is not None
        if isinstance(outcome.error, DeadlineExceeded):
            return False
        if outcome.error is not None:
            raise outcome.error
        return True

    def _any_table(self) -> int | None:
        """The number of a table that all shards know; None where there is none."""
        opened = next(iter(self._tables.values()), None)
        if opened is not None:
            return opened.number
        handle = next(iter(self._catalogue.tables().values()), None)
        if handle is None:
            return None
        announce_table(self._driver, handle, self._deadline_s)
        return handle.number

    def leave(self) -> None:
        """Leave the job: nobody waits for this rank any more. This worker is closed.

        A data shard that it has in hand is given back first, from its last tick on. The coordinator
        carries the leave out on all shards. Raises `DeadlineExceeded` when none does, `RolledBack`
        where the cluster went back before that, and under SSP and ASP `FixTheCall` while a batch is
        not ticked: `retire` and go on with the loop then.
        """
        self.flush()
        leases = self._leases()
        grant = leases.in_hand()
        if grant is not None:
            self._give_back(leases, grant)
        self._catalogue.propose("leave", self._job.name, self.rank, self._incarnation)
        self.close()

    def _give_back(self, leases: Leases, grant: Grant) -> None:
        if not self.settled:
            raise FixTheCall(
                f"rank {self.rank} has data shard {grant.number} in hand, and something may have "
                f"been pushed in its open clock {self.clock}: call retire() instead, and let the "
                "loop over batches end by itself"
            )
        cursor = resume_behind(self.cursor, grant)
        start = "" if cursor is None else json.dumps(cursor, sort_keys=True)
        leases.give_back(grant, start, self.clock - 1)

    def _leases(self) -> Leases:
        session, catalogue = self._driver.session, self._catalogue
        return Leases(
            catalogue.kv,
            catalogue.keys,
            self._job,
            session.worker,
            self._incarnation,
            self._deadline_s,
        )

    def flush(self) -> None:
        """Wait until all pushes and ticks are acknowledged. Raises what ended this worker."""
        driver = self._driver
        with driver.lock:
            deadline_ns = deadline_after(self._deadline_s)
            while driver.session.unsettled and driver.session.broken is None:
                if not driver.serve(deadline_ns):
                    raise driver.session.why_unsettled()
            if driver.session.broken is not None:
                raise driver.session.broken

    # -- the end

    def close(self) -> None:
        """Deliver what is under way, and close the connections. The rank stays in the job."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._driver.session.broken is None:
                self.flush()
        finally:
            self._heartbeat.stop()
            self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Literal[False]:
        if kind is None:
            self.close()
        else:  # do not wait for deadlines while something has failed
            self._closed = True
            self._heartbeat.ask_to_stop()
            self._driver.close()
        return False
