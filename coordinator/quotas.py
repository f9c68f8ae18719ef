"""Divides the quotas of namespaces among the shards, in rounds: see `resilient_ps.quotas`.

Theory of operation. A round is a script of two steps on all shards. When all have settled, nothing
is under way that could grow anything, and `divide` gives out what is free. A round begins when a
quota is new or was changed (its record is not in force), when we have become the coordinator, when
the cluster has gone back to a checkpoint, and when a shard that is asked now and then (`USE`) has
put something off, or has nearly used up what others have left.

The number of a round is made of the revision at which we were elected: those of a successor are
larger, and a shard that has heard of a later round refuses earlier ones. What a predecessor has
given away is found by settling; so nothing but the bounds themselves is kept in etcd.

Invariant: what a round gives out, with what all shards had used when it settled, is at most the
quota.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from resilient_ps.calls import Calls
from resilient_ps.coordinator.kv import KvAnswered, KvFailed, Op, Put
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import BadInput
from resilient_ps.ids import READER
from resilient_ps.machine import Effect, Event, Log, MessageArrived, PeerLost, TimerFired
from resilient_ps.messages import Answer, Kind, PartAnswer
from resilient_ps.quotas import (
    NOTHING,
    QUOTAS_MAX,
    WITHOUT_END,
    Give,
    Given,
    Settle,
    Size,
    size_of,
)
from resilient_ps.routing import Routing, routing_of
from resilient_ps.scripts import RunningScript
from resilient_ps.takeover import Script, Settled, Step

QUOTA_REF, QUOTA_ROUTING_REF = 24, 34
RESEND_TIMER = "quotas/resend"
LOOK_NS = 500_000_000
FIRST_REQUEST = 1 << 48  # intents have calls of their own, to the same servers
ROUNDS_OF_A_REIGN = 24  # bits of a round's number
MORE_MAX = 32  # shards that are given more than others in one round
RECORDS_AT_ONCE = 40

Sizes = Mapping[int, Size]
"""By shard."""


class QuotaRounds:
    """The coordinator's part. Of what it knows of shards nothing outlives its reign."""

    def __init__(self, view: ClusterView, mandate: Mandate) -> None:
        self._view = view
        self._mandate = mandate
        self._calls: Calls | None = None
        self._running: RunningScript | None = None
        self._ends: Callable[[], None] = _nothing  # what is known when the script is over
        self._reign = (0, 0)  # the incarnation of the cluster, and the revision of our election
        self._count = 0  # rounds of this reign
        self._told: dict[str, Size] | None = None  # what the last round has told all shards
        self._allowed: dict[str, Sizes] = {}  # by it, by namespace
        self._wanted: dict[str, Sizes] = {}  # what shards wait for, as they said last
        self._look_at_ns = 0

    def advance(self, now_ns: int) -> list[Effect]:
        """Begin a round, or ask how far quotas are used up, if it is time for one."""
        self._begin_reign()
        if self._running is not None or self._mandate.busy(QUOTA_REF):
            return []
        most = self._most()
        if self._told is None and not most and not self._unknown():
            return []
        if self._told != most:
            return self._start(self._round(most), now_ns)
        if unknown := self._unknown():
            return self._put_in_force(unknown)
        if not most or now_ns < self._look_at_ns:
            return []
        self._look_at_ns = now_ns + LOOK_NS
        return self._start(self._ask(most), now_ns)

    def drop(self) -> None:
        """We are not the coordinator (any more), or the cluster goes back to a checkpoint."""
        if self._running is not None:
            self._running.abandon()
        self._running, self._told = None, None

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        """An event that is for the calls to shards."""
        calls = self._calls
        if calls is None:
            return []
        match event:
            case MessageArrived(_, Answer() as answer):
                return self._on_answer(calls, answer, now_ns)
            case PeerLost(peer):
                return calls.on_peer_lost(peer, now_ns)
            case TimerFired(name) if name == RESEND_TIMER:
                return calls.on_timer(now_ns)
            case KvAnswered(ref) | KvFailed(ref) if ref == QUOTA_ROUTING_REF:
                return calls.on_routing(self._routing(), now_ns)
            case _:
                return []

    # -- what there is to do

    def _begin_reign(self) -> None:
        held = self._view.items.get(self._view.keys.coordinator_leader)
        config = self._view.config
        assert held is not None, "we are elected"
        assert config is not None, "there is a cluster"
        reign = (config.incarnation, held.mod_revision)
        if reign != self._reign:
            self.drop()
            self._count = self._count if reign[1] == self._reign[1] else 0
            self._reign = reign

    def _most(self) -> dict[str, Size]:
        """All quotas, by namespace in order; those that are too many are left out."""
        bounded = [(path, rec) for path, rec in self._view.namespaces.items() if rec.bounded]
        return {path: bounds_of(record) for path, record in bounded[:QUOTAS_MAX]}

    def _unknown(self) -> dict[str, NamespaceRecord]:
        """Records that shards have not been told of in this incarnation of the cluster."""
        incarnation, told = self._reign[0], self._told or {}
        return {
            path: record
            for path, record in self._view.namespaces.items()
            if record.in_force != incarnation and (not record.bounded or path in told or not told)
        }

    def _put_in_force(self, unknown: Mapping[str, NamespaceRecord]) -> list[Effect]:
        view = self._view
        chosen = list(unknown.items())[:RECORDS_AT_ONCE]
        ops: list[Op] = []
        guards = [view.as_seen(view.keys.config)]
        for path, record in chosen:
            key = view.keys.namespace(path)
            ops.append(Put(key, replace(record, in_force=self._reign[0]).to_bytes()))
            guards.append(view.as_seen(key))
        log = Log("info", "quotas are in force", {"namespaces": [path for path, _ in chosen]})
        return [log, *self._mandate.ask(QUOTA_REF, self._mandate.order(*ops, guards=tuple(guards)))]

    # -- scripts

    def _round(self, most: dict[str, Size]) -> Script:
        self._count += 1
        number = (self._reign[1] << ROUNDS_OF_A_REIGN) + self._count
        shards = self._shards
        answers = yield [_quota(shards, number, Settle(most).to_json())]
        used = {path: _by_shard(answers, at) for at, path in enumerate(most)}
        given = {p: divide(most[p], used[p], self._wanted.get(p, {})) for p in most}
        yield [_quota(shards, number, Give(tuple(given.values())).to_json())]

        def ends() -> None:
            self._told, self._wanted = most, {}
            self._allowed = {path: allowed_by(given[path], used[path]) for path in most}

        self._ends = ends
        return Settled(0, b"")

    def _ask(self, most: dict[str, Size]) -> Script:
        answers = yield [Step(Kind.USE, self._shards, READER)]

        def ends() -> None:
            for at, path in enumerate(most):
                used, self._wanted[path] = _told(answers, at)
                if is_uneven(most[path], used, self._wanted[path], self._allowed[path]):
                    self._told = None  # so that a round begins

        self._ends = ends
        return Settled(0, b"")

    @property
    def _shards(self) -> tuple[int, ...]:
        assert self._calls is not None
        return self._calls.routing.order

    def _start(self, script: Script, now_ns: int) -> list[Effect]:
        routing = self._routing()
        if routing is None or any(not owner.server for owner in routing.owners):
            return []
        last_number = FIRST_REQUEST if self._calls is None else self._calls.last_number
        self._calls = Calls(
            routing,
            self._view.keys.prefix,
            last_number,
            timer=RESEND_TIMER,
            routing_ref=QUOTA_ROUTING_REF,
        )
        self._ends = _nothing
        self._running = RunningScript(script, self._calls)
        return self._running.start(now_ns)

    def _routing(self) -> Routing | None:
        config = self._view.config
        if config is None:
            return None
        return routing_of(config, self._view.shards, self._view.servers)

    def _on_answer(self, calls: Calls, answer: Answer, now_ns: int) -> list[Effect]:
        call, effects = calls.on_answer(answer, now_ns)
        if not self._mandate.elected:
            self.drop()
        running = self._running
        if call is None or running is None:
            return effects
        try:
            effects += running.on_done(call, now_ns)
            if not running.over:
                return effects
            self._running = None
            if running.failure is None:
                self._ends()
                return [*effects, *self.advance(now_ns)]
        except BadInput as error:
            self.drop()
            return [*effects, Log("error", "a shard says what it cannot", {"error": str(error)})]
        why = running.failure.text.decode(errors="replace")
        self._told = None  # another round, when somebody looks again
        return [*effects, Log("warning", "quotas could not be divided", {"why": why})]


def _nothing() -> None:
    pass


def bounds_of(record: NamespaceRecord) -> Size:
    """A record's bounds, as shards know them."""
    rows, nbytes = record.rows_max, record.bytes_max
    return Size(WITHOUT_END if rows is None else rows, WITHOUT_END if nbytes is None else nbytes)


def _quota(shards: tuple[int, ...], number: int, text: bytes) -> Step:
    return Step(Kind.QUOTA, shards, READER, clock=number, text=text)


def _by_shard(answers: Mapping[int, PartAnswer], at: int) -> dict[int, Size]:
    """Of what shards have told, that of the namespace with this number."""
    return {shard: size_of(_list(answer)[at]) for shard, answer in sorted(answers.items())}


def _told(answers: Mapping[int, PartAnswer], at: int) -> tuple[Sizes, Sizes]:
    """What is used of it, and what is waited for; nothing of shards that know other quotas."""
    used: dict[int, Size] = {}
    wanted: dict[int, Size] = {}
    for shard, answer in sorted(answers.items()):
        told = _list(answer)
        if at < len(told):
            used[shard], want = size_of(told[at][0]), size_of(told[at][1])
            if want:
                wanted[shard] = want
    return used, wanted


def _list(answer: PartAnswer) -> list[list[list[int]]]:
    try:
        told = json.loads(answer.text)
    except ValueError as error:
        raise BadInput(f"shard {answer.shard} tells of quotas what is no JSON: {error}") from error
    if not isinstance(told, list):
        raise BadInput(f"shard {answer.shard} tells nothing of quotas")
    return told


# -- pure arithmetic


def allowed_by(given: Given, used: Sizes) -> Sizes:
    """What each shard may use after a round."""
    return {
        shard: size.plus(given.share).plus(given.more.get(shard, NOTHING))
        for shard, size in used.items()
    }


def divide(most: Size, used: Sizes, wanted: Sizes) -> Given:
    """What each shard gets of a quota, beyond what it uses.

    `wanted`: how large it would be on a shard where something was put off. Who lacks least gets it
    first, as long as there is enough; what is left then is given to all alike.
    """
    total = NOTHING
    for size in used.values():
        total = total.plus(size)
    parts = [
        _divide(most[m], {s: u[m] for s, u in used.items()}, {s: w[m] for s, w in wanted.items()})
        for m in range(len(most))
    ]
    (row_share, more_rows, short_rows), (byte_share, more_bytes, short_bytes) = parts
    return Given(
        total,
        Size(row_share, byte_share),
        _sizes(more_rows, more_bytes),
        _sizes(short_rows, short_bytes),
    )


def _divide(
    most: int, used: Mapping[int, int], wanted: Mapping[int, int]
) -> tuple[int, dict[int, int], dict[int, int]]:
    """Of rows, or of bytes: the share of each, what some get beyond it, and what some lack."""
    if most == WITHOUT_END:
        return WITHOUT_END, {}, {}
    free = max(0, most - sum(used.values()))
    needs = {s: want - used[s] for s, want in wanted.items() if s in used and want > used[s]}
    more: dict[int, int] = {}
    lacking: dict[int, int] = {}
    for shard in sorted(needs, key=lambda s: (needs[s], s))[:MORE_MAX]:
        need = needs[shard]
        if need <= free:
            more[shard] = need
            free -= need
        else:
            lacking[shard] = need
    share = free // max(1, len(used))
    return share, more, {shard: need - share for shard, need in lacking.items()}


def _sizes(rows: Mapping[int, int], nbytes: Mapping[int, int]) -> dict[int, Size]:
    return {s: Size(rows.get(s, 0), nbytes.get(s, 0)) for s in sorted({*rows, *nbytes})}


def is_uneven(most: Size, used: Sizes, wanted: Sizes, allowed: Sizes) -> bool:
    """Is a new round worth while: does somebody wait, or have far less left than the others?"""
    if any(want.less(allowed.get(shard, NOTHING)) for shard, want in wanted.items()):
        return True
    return any(
        most[m] != WITHOUT_END
        and _is_uneven(most[m], [(u[m], allowed[s][m]) for s, u in used.items() if s in allowed])
        for m in range(len(most))
    )


def _is_uneven(most: int, pairs: Sequence[tuple[int, int]]) -> bool:
    """Has a shard less than a quarter left of what would be its share?"""
    share = max(0, most - sum(have for have, _ in pairs)) // max(1, len(pairs))
    return any(4 * (may - have) < share for have, may in pairs)
