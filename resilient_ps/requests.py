"""What clients ask of a server: each part goes to its shard's replica, if that may answer it."""

from __future__ import annotations

from functools import partial
from typing import Any

from resilient_ps.answers import pieces_of
from resilient_ps.coordinator.membership import Membership
from resilient_ps.guards import ALL_GUARDS
from resilient_ps.ids import NOWHERE
from resilient_ps.machine import Effect, Send, SetTimer
from resilient_ps.messages import (
    Answer,
    Command,
    Keys,
    Kind,
    Part,
    PartAnswer,
    Request,
    Status,
    Values,
)
from resilient_ps.quick_pulls import QuickPulls
from resilient_ps.quick_replication import enter_push
from resilient_ps.quick_requests import EarlyPush, answer_quickly, append_quickly, begin_push
from resilient_ps.replicas import Replicas, rolled_back
from resilient_ps.replication.home import Home, Out
from resilient_ps.replication.leading import Leading
from resilient_ps.shard import Reply
from resilient_ps.waiting import Origin

PULLS_TIMER = "pulls"
HEAVY_BYTES = 1 << 18  # requests from this size on are worked on in parallel
HEAVY_KEY_WEIGHT = 4  # a key means a row to be found and gathered


class Requests:
    """See the module."""

    def __init__(self, home: Home, membership: Membership, replicas: Replicas) -> None:
        self._home = home
        self._membership = membership
        self._replicas = replicas
        self.quick_pulls = QuickPulls(replicas.by_number)
        self._pulls_at_ns: int | None = None
        self._all_rules = home.guards is ALL_GUARDS  # the quick way knows of no others

    def on_request(self, peer: str, request: Request, now_ns: int) -> list[Effect]:
        """Answered now, or when its entries are committed and its gates are reached."""
        origin = Origin(peer, request.request)
        if request.incarnation != self._home.incarnation and self._home.guards.incarnation_check:
            return self._elsewhen(request, origin, now_ns)
        if self._all_rules and self._membership.may_answer(now_ns):
            answer = self._quickly(request)
            if answer is not None:
                return [Send(peer, answer, self._membership.deadline_ns)]
            if request.kind is Kind.PUSH:
                self.quick_pulls.forget()  # what is committed at once may be more than this push
                sent = enter_push(request, self._replicas.by_number, origin, now_ns)
                if sent is not None:
                    return self._replicas.sent(sent, now_ns)
                entered = append_quickly(request, self._replicas.by_number, origin, now_ns)
                if entered is not None:
                    return self._replicas.performed(entered, now_ns)
        if request.kind is not Kind.PULL:
            self.quick_pulls.forget()
        if self._is_heavy(request):
            tasks = [
                partial(self._on_part, request, part, keys, values, origin, now_ns)
                for part, keys, values in pieces_of(request)
            ]
            outs = [out for done in self._replicas.in_parallel(tasks) for out in done]
        else:
            outs = []
            for part, keys, values in pieces_of(request):
                outs += self._on_part(request, part, keys, values, origin, now_ns)
        effects = self._replicas.performed(outs, now_ns)
        if request.kind is Kind.PULL and len(outs) < len(request.parts):
            effects += self._set_pulls_timer()
        return effects

    def _quickly(self, request: Request) -> Answer | None:
        if request.kind is Kind.PULL:
            return self.quick_pulls.answer(request)
        return answer_quickly(request, self._replicas.by_number)

    def begin_push(self, request: Request, now_ns: int) -> EarlyPush | None:
        """A push of which only the keys are there, if its parts may be made as they come."""
        if request.incarnation != self._home.incarnation or not self._all_rules:
            return None
        if not self._membership.may_answer(now_ns):
            return None
        return begin_push(request, self._replicas.by_number, self._membership.deadline_ns)

    def answer_bytes(
        self, scratch: memoryview, lo: int, hi: int, limits: tuple[int, int], now_ns: int
    ) -> tuple[list[Any], int] | None:
        """Buffers of an answer, and until when they may leave: see `QuickPulls.answer_bytes`."""
        if not self._all_rules or not self._membership.may_answer(now_ns):
            return None
        answer = self.quick_pulls.answer_bytes(scratch, lo, hi, *limits)
        return None if answer is None else (answer, self._membership.deadline_ns)

    def _elsewhen(self, request: Request, origin: Origin, now_ns: int) -> list[Effect]:
        """A request of another incarnation of the cluster: one of the two is behind."""
        incarnation = self._home.incarnation
        behind = f"{self._home.me.server} knows incarnation {incarnation} of the cluster only"
        outs: list[Out] = []
        for part in request.parts:
            if request.incarnation < incarnation:
                answer = rolled_back(part.shard, incarnation)
            else:
                answer = PartAnswer(part.shard, Status.NOT_OWNER, NOWHERE, text=behind.encode())
            outs.append(Reply(origin, answer))
        return self._replicas.performed(outs, now_ns)

    def _on_part(
        self, request: Request, part: Part, keys: Keys, values: Values, origin: Origin, now_ns: int
    ) -> list[Out]:
        replica = self._replicas.by_number.get(part.shard)
        leading = None if replica is None else replica.serving
        behind = leading is not None and part.seen > leading.shard.position
        if behind and self._home.guards.position_check:
            return [Reply(origin, self._not_owner(part.shard, now_ns))]
        if leading is None or not self._may_answer(now_ns):
            return [Reply(origin, self._not_owner(part.shard, now_ns))]
        if request.kind is Kind.STAND:
            return [Reply(origin, leading.shard.stand(request.worker))]
        if request.kind is Kind.USE:
            return [Reply(origin, leading.use())]
        if request.kind is Kind.PULL:
            return [*leading.shard.on_pull(request, part, keys, origin, now_ns)]
        command = Command(
            request.kind,
            request.worker,
            request.clock,
            request.n,
            part.prev,
            request.table,
            request.rate,
            request.settled,
            request.text,
            keys,
            values,
        )
        return leading.write(command, origin, now_ns)

    def _may_answer(self, now_ns: int) -> bool:
        return self._membership.may_answer(now_ns) or not self._home.guards.lease_check

    def _is_heavy(self, request: Request) -> bool:
        """Does it pay to work on its shards at the same time?"""
        if len(request.parts) == 1:
            return False
        if request.kind is Kind.PUSH and self._is_only_appended(request.parts[0].shard):
            return False
        if request.kind is Kind.TICK:
            jobs = [leading.shard.jobs.get(request.worker.job) for leading in self._primaries]
            nbytes = sum([job.barrier.held_bytes for job in jobs if job is not None])
        else:
            nbytes = request.keys.nbytes * HEAVY_KEY_WEIGHT
            nbytes += sum([piece.nbytes for piece in request.values])
        if nbytes < HEAVY_BYTES:
            return False
        numbers = [part.shard for part in request.parts]
        return len(set(numbers)) == len(numbers)  # a shard is for one thread at a time

    def _is_only_appended(self, shard: int) -> bool:
        """Is a push to this shard not applied before its followers hold it?"""
        replica = self._replicas.by_number.get(shard)
        leading = None if replica is None else replica.leading
        return leading is not None and bool(leading.followers)

    @property
    def _primaries(self) -> list[Leading]:
        return self._replicas.primaries()

    def _not_owner(self, number: int, now_ns: int) -> PartAnswer:
        """Why this server does not answer, and who may."""
        me, replica = self._home.me.server, self._replicas.by_number.get(number)
        if not self._membership.may_answer(now_ns):
            text = f"{me} has no valid lease at the moment"
        elif replica is not None and replica.serving is not None:
            text = f"{me} is behind what this client has seen"
        elif replica is not None and replica.leading is not None:
            text = f"{me} is taking it over"
        else:
            text = f"{me} does not serve it"
        if replica is None:
            return PartAnswer(number, Status.NOT_OWNER, NOWHERE, text=text.encode())
        return replica.not_owner(text)

    # -- pulls that wait

    def on_timer(self, now_ns: int) -> list[Effect]:
        """The first waiting pull gives up."""
        self._pulls_at_ns = None
        outs: list[Out] = []
        for leading in self._primaries:
            outs += self._release(leading, now_ns)
        return [*self._replicas.performed(outs, now_ns), *self._set_pulls_timer()]

    def _release(self, leading: Leading, now_ns: int) -> list[Out]:
        """Waiting pulls whose time has come; all of them when we may not answer any more."""
        if self._may_answer(now_ns):
            return [*leading.shard.release(now_ns)]
        away = self._not_owner(leading.number, now_ns)
        return [Reply(pull.origin, away) for pull in leading.shard.waiting.take_all()]

    def _set_pulls_timer(self) -> list[Effect]:
        """Wake up when the first waiting pull gives up."""
        deadlines = [leading.shard.waiting.next_deadline_ns() for leading in self._primaries]
        first = min((at for at in deadlines if at is not None), default=None)
        if first is None or (self._pulls_at_ns is not None and self._pulls_at_ns <= first):
            return []
        self._pulls_at_ns = first
        return [SetTimer(PULLS_TIMER, first)]
