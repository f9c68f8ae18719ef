"""etcd in a world: its model, the client that each process has, and faults of both.

The client is modelled on the production one: an attempt waits `ATTEMPT_NS` for its answer; what may
be repeated (`coordinator.repeats`) is, up to the call's deadline; a transaction that a repeat found
refused is recognised by its nonce; else the outcome is unknown. Watch events arrive in order.

Faults: a host is cut off from `etcd` (through the network), an outage, lost answers, a change of
leader that gives all leases a whole TTL again, events that lag, compaction under a watch that lags,
the loss of everything.
Leases expire in the world's time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    Answer,
    KvAnswered,
    KvCall,
    KvChanged,
    KvFailed,
    KvReset,
    KvWatch,
    Leased,
    LeaseGrant,
    LeaseRefresh,
    LeaseRevoke,
    LeaseRevoked,
    Read,
    ReadResult,
    Txn,
    TxnResult,
)
from resilient_ps.coordinator.memory import Compacted, MemoryKv
from resilient_ps.coordinator.repeats import check_nonce, may_repeat, nonce_puts, writes_nothing
from resilient_ps.errors import DeadlineExceeded, NotFound, ResilientPsError

if TYPE_CHECKING:
    from resilient_ps.chaos.sim.process import Process
    from resilient_ps.chaos.sim.world import World

SECOND_NS = 10**9
ETCD = "etcd"
"""The host that etcd runs on, for faults of the network."""
ATTEMPT_NS = SECOND_NS
CALL_DEADLINE_NS = 5 * SECOND_NS
TEND_EVERY_NS = SECOND_NS // 2
LATE_SHARE = 0.3
LATE_MOST_NS = 4 * SECOND_NS
"""A share of the requests that are held back on the way is performed late, by up to so much."""


@dataclass(eq=False, slots=True)
class _Call:
    """A call of one process's client, made of attempts."""

    process: Process
    call: KvCall
    deadline_ns: int
    attempt: int = 0
    grant: int = 0  # the lease that an earlier attempt was granted
    over: bool = False


@dataclass(eq=False, slots=True)
class _Watch:
    process: Process
    watch: KvWatch
    number: int  # in the model
    next_revision: int
    last_ns: int = 0  # when the last event reaches the process


class Store:
    """The model of etcd, reached over the network by one client per process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.kv = MemoryKv()
        self._down = 0
        self._deaf: set[str] = set()  # hosts whose connection is dead: no answer came back
        self.lost_answers: dict[str, float] = {}  # host -> share of its answers that are lost
        self.lags: dict[str, int] = {}  # host -> how long watch events take more
        self._watches: list[_Watch] = []
        self._told = 0  # revision up to which watchers were told
        self._keys = ClusterKeys(world.cluster)
        self._audit = self.kv.watch(self._keys.prefix, 0)
        self.wiped = 0  # how often everything was lost
        world.network.on_open.append(self._tell)
        world.after(TEND_EVERY_NS, self._tend)

    # -- faults

    @property
    def down(self) -> bool:
        """Does etcd answer nobody?"""
        return self._down > 0

    def stop(self) -> None:
        """etcd has no quorum from now on: it answers nobody, and ends no lease."""
        self._down += 1

    def start(self) -> None:
        """etcd is there again. Its new leader gives every lease a whole TTL."""
        self._down -= 1
        if not self._down:
            self.kv.renew_leases(self._world.now_ns)
            self._tell()

    def change_leader(self, stall_ns: int) -> None:
        """The leader dies; for `stall_ns` nobody is answered."""
        self.stop()
        self._world.after(stall_ns, self.start)

    def compact(self) -> None:
        """Forget all history: a watch that lags behind gets everything anew."""
        self._note_records()
        if self.kv.revision > self.kv.compacted:
            self.kv.compact(self.kv.revision)

    def wipe(self) -> None:
        """etcd is another one, and empty. All servers must be dead."""
        self._note_records()
        self.kv = MemoryKv(cluster_id=self.kv.cluster_id + 1)
        self.wiped += 1
        self._watches, self._told = [], 0
        self._audit = self.kv.watch(self._keys.prefix, 0)

    # -- calls

    def call(self, process: Process, call: KvCall) -> None:
        """A process asks. The outcome comes as an event of its own."""
        request = call.request
        if call.nonce and isinstance(request, Txn):
            check_nonce(request, call.nonce)
        limit_ns = ATTEMPT_NS if isinstance(request, LeaseRefresh) else CALL_DEADLINE_NS
        self._attempt(_Call(process, call, self._world.now_ns + limit_ns))

    def _attempt(self, asked: _Call) -> None:
        asked.attempt += 1
        delay_ns = self._world.network.delay_ns(asked.process.host, ETCD)
        self._world.after(delay_ns, partial(self._perform, asked, asked.attempt, self.wiped))

    def _perform(self, asked: _Call, attempt: int, wiped: int) -> None:
        """A request reaches etcd: it is performed even where nobody waits for it any more."""
        world, host = self._world, asked.process.host
        if self.down or wiped != self.wiped or not self._is_connected(host):
            world.after(ATTEMPT_NS, partial(self._time_out, asked, attempt))
            if world.draw_share() < LATE_SHARE:
                late = partial(self._perform_late, asked, wiped)
                world.after(world.draw_below(LATE_MOST_NS), late)
            return
        result: Answer | ResilientPsError
        try:
            result = self._apply(asked)
        except ResilientPsError as refusal:
            result = refusal
        share = self.lost_answers.get(host, 0.0)
        if share and world.draw_share() < share:
            world.after(ATTEMPT_NS, partial(self._time_out, asked, attempt))
        else:
            delay_ns = world.network.delay_ns(ETCD, host)
            world.after(delay_ns, partial(self._answer, asked, attempt, result))
        self._tell()

    def _is_connected(self, host: str) -> bool:
        """Does a request get through? Where no answers come back, not for long."""
        network = self._world.network
        if not network.is_blocked(ETCD, host):
            self._deaf.discard(host)
        return not network.is_blocked(host, ETCD) and host not in self._deaf

    def _perform_late(self, asked: _Call, wiped: int) -> None:
        """A request that was held back reaches etcd after its client has given it up; another etcd,
        which began anew, it does not reach."""
        if self.down or wiped != self.wiped or not self._is_connected(asked.process.host):
            return
        with suppress(ResilientPsError):
            self._apply(asked)
        self._tell()

    def _apply(self, asked: _Call) -> Answer:
        request, now_ns = asked.call.request, self._world.now_ns
        if isinstance(request, LeaseGrant) and asked.grant:
            # the client chose the number: a repeated grant finds its own
            ttl_s = self.kv.apply(LeaseRefresh(asked.grant), now_ns).ttl_s
            if not ttl_s:
                raise DeadlineExceeded("lease grant: it ended already")
            return Leased(asked.grant, ttl_s)
        if isinstance(request, LeaseRevoke) and asked.attempt > 1:
            try:
                return self.kv.apply(request, now_ns)
            except NotFound:
                return LeaseRevoked(request.lease)
        result = self.kv.apply(request, now_ns)
        if isinstance(result, Leased):
            asked.grant = result.lease
        return result

    def _answer(self, asked: _Call, attempt: int, result: Answer | ResilientPsError) -> None:
        if asked.over or attempt != asked.attempt:
            return
        world = self._world
        if world.network.is_blocked(ETCD, asked.process.host):
            world.after(ATTEMPT_NS, partial(self._time_out, asked, attempt))
            self._deaf.add(asked.process.host)
            return
        if isinstance(result, ResilientPsError):
            self._end(asked, KvFailed(asked.call.ref, result, unknown=False))
            return
        refused = isinstance(result, TxnResult) and not result.succeeded
        if refused and asked.attempt > 1 and not writes_nothing(_txn(asked)):
            self._recognise(asked)
            return
        self._end(asked, KvAnswered(asked.call.ref, result))

    def _time_out(self, asked: _Call, attempt: int) -> None:
        if asked.over or attempt != asked.attempt:
            return
        request = asked.call.request
        repeatable = not isinstance(request, Txn) or may_repeat(request)
        if repeatable and self._world.now_ns < asked.deadline_ns and not asked.process.killed:
            self._attempt(asked)
        else:
            self._recognise(asked)

    def _recognise(self, asked: _Call) -> None:
        """Look for the nonce of a transaction whose outcome is not known."""
        request, nonce = asked.call.request, asked.call.nonce
        host = asked.process.host
        network = self._world.network
        reachable = not (
            self.down or network.is_blocked(host, ETCD) or network.is_blocked(ETCD, host)
        )
        if nonce and reachable and isinstance(request, Txn):
            for op in nonce_puts(request, nonce):
                found = self.kv.apply(Read(op.key), self._world.now_ns).items
                if found and found[0].value == op.value:
                    nothing = (None,) * len(request.success)
                    revision = found[0].mod_revision
                    result = TxnResult(
                        succeeded=True, revision=revision, results=nothing, recognised=True
                    )
                    self._end(asked, KvAnswered(asked.call.ref, result))
                    return
        error = DeadlineExceeded("etcd did not answer in time: the outcome is unknown")
        self._end(asked, KvFailed(asked.call.ref, error, unknown=True))

    def _end(self, asked: _Call, event: KvAnswered | KvFailed) -> None:
        asked.over = True
        self._world.note(asked.process, (isinstance(event, KvAnswered), event.ref))
        asked.process.step(event)

    # -- watches

    def watch(self, process: Process, watch: KvWatch) -> None:
        """Deliver changes from a revision on."""
        number = self.kv.watch(watch.prefix, watch.from_revision)
        self._watches.append(_Watch(process, watch, number, watch.from_revision))
        self._told = 0
        self._tell()

    def _tell(self) -> None:
        """Send watchers what has happened."""
        if self._told == self.kv.revision or self.down:
            return
        self._note_records()
        network, all_told = self._world.network, True
        for held in self._watches:
            host = held.process.host
            if network.is_blocked(ETCD, host) or network.is_blocked(host, ETCD):
                all_told = False
                continue
            batches = self.kv.poll(held.number)
            if isinstance(batches, Compacted):
                self._reset(held)
                continue
            for batch in batches:
                self._deliver(held, KvChanged(held.watch.ref, batch))
        if any(held.process.killed for held in self._watches):
            self._forget_killed()
        self._told = self.kv.revision if all_told else 0

    def _note_records(self) -> None:
        batches = self.kv.poll(self._audit)
        assert not isinstance(batches, Compacted), "records are noted before history is compacted"
        for batch in batches:
            self._world.audit.note(self._world.now_ns, batch, self._keys)

    def _reset(self, held: _Watch) -> None:
        result = self.kv.apply(Read(held.watch.prefix, prefix=True), self._world.now_ns)
        assert isinstance(result, ReadResult)
        held.number = self.kv.watch(held.watch.prefix, result.revision + 1)
        self._deliver(held, KvReset(held.watch.ref, result.items, result.revision))

    def _deliver(self, held: _Watch, event: KvChanged | KvReset) -> None:
        process, world = held.process, self._world
        delay_ns = world.network.delay_ns(ETCD, process.host)
        if self.lags:
            delay_ns += self.lags.get(process.host, 0)
        held.last_ns = max(held.last_ns + 1, world.now_ns + delay_ns)
        world.at(held.last_ns, partial(self._hand_over, process, event))

    def _hand_over(self, process: Process, event: KvChanged | KvReset) -> None:
        revision = event.batch.revision if isinstance(event, KvChanged) else event.revision
        self._world.note(process, (isinstance(event, KvChanged), revision))
        process.step(event)

    def _forget_killed(self) -> None:
        for held in self._watches:
            if held.process.killed:
                self.kv.unwatch(held.number)
        self._watches = [held for held in self._watches if not held.process.killed]

    # -- time

    def _tend(self) -> None:
        """Let leases expire while nobody asks for anything."""
        if not self.down:
            self.kv.expire(self._world.now_ns)
            self._tell()
        self._world.after(TEND_EVERY_NS, self._tend)


def _txn(asked: _Call) -> Txn:
    assert isinstance(asked.call.request, Txn)
    return asked.call.request
