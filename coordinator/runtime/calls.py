"""One call to etcd, made of attempts at its members, until its deadline.

An attempt ends after at most `attempt_s`, because a member that is cut off or looks for a leader
may drop a request and answer nothing for seconds. Whether another attempt may follow depends on
what is known about the last one (`refusals.judge`) and on the call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, TypeVar

import grpc
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential
from tenacity.nap import sleep_using_event

from resilient_ps.coordinator.runtime.endpoints import Endpoint, Endpoints
from resilient_ps.coordinator.runtime.login import Login, Metadata
from resilient_ps.coordinator.runtime.pin import Pin
from resilient_ps.coordinator.runtime.refusals import Verdict, describe, judge, translate
from resilient_ps.errors import BadInput, DeadlineExceeded, Unavailable

T = TypeVar("T")

MAX_ATTEMPT_S = 1.0
_MIN_ATTEMPT_S = 0.1


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt is given. `doubtful`: the answer of an earlier one was lost."""

    member: Endpoint
    timeout_s: float
    metadata: Metadata
    doubtful: bool


@dataclass(slots=True)
class Call(Generic[T]):
    """`send` performs one attempt. `repeatable`: it may be sent again after a lost answer.
    `has_effect`: a lost answer makes the outcome unknown. `linearizable`: the revision in the
    answer's header cannot be lower than what was seen before."""

    what: str
    send: Callable[[Attempt], T]
    deadline_s: float
    repeatable: bool = True
    has_effect: bool = True
    linearizable: bool = False
    until_s: float = field(default=0.0, init=False)
    doubtful: bool = field(default=False, init=False)
    reason: str = field(default="no attempt was possible", init=False)


class _Again(Exception):
    """The attempt failed in a way that another may follow."""


class Caller:
    """Runs calls over the members; shared by all threads of a client."""

    def __init__(
        self,
        endpoints: Endpoints,
        login: Login,
        pin: Pin,
        closing: threading.Event,
        attempt_s: float,
    ) -> None:
        if not 0 < attempt_s <= MAX_ATTEMPT_S:
            raise BadInput(f"attempt_s={attempt_s}: use more than 0 and at most {MAX_ATTEMPT_S}")
        self._endpoints = endpoints
        self._login = login
        self._pin = pin
        self._closing = closing
        self._attempt_s = attempt_s
        self._jitter = wait_random_exponential(multiplier=0.02, max=0.3)

    def run(self, call: Call[T]) -> T:
        """The answer; else `Unavailable` (no effect), `DeadlineExceeded` (unknown) or a refusal."""
        if not call.deadline_s > 0:
            raise BadInput(f"{call.what}: deadline of {call.deadline_s} s; use more than 0")
        call.until_s = time.monotonic() + call.deadline_s
        retrying = Retrying(
            stop=lambda state: self._is_over(call, state),
            wait=self._pause_s,
            retry=retry_if_exception_type(_Again),
            sleep=sleep_using_event(self._closing),
            reraise=True,
        )
        try:
            answer: T = retrying(self._attempt, call)
            return answer
        except _Again:
            self._give_up(call)

    def _attempt(self, call: Call[T]) -> T:
        member = self._endpoints.pick()
        timeout_s = self._share_s(call)
        floor = self._pin.floor() if call.linearizable else 0
        try:
            metadata = self._login.metadata(member, timeout_s)
        except (grpc.RpcError, ValueError) as error:
            self._on_failure(call, member, error, sent=False)
        try:
            answer = call.send(Attempt(member, timeout_s, metadata, call.doubtful))
        except (grpc.RpcError, ValueError) as error:
            self._on_failure(call, member, error, sent=True)
        self._endpoints.worked(member)
        header: Any = getattr(answer, "header", None)
        if header is not None:
            self._pin.check(header, member.address, floor=floor)
        return answer

    def _on_failure(self, call: Call[T], member: Endpoint, error: Any, *, sent: bool) -> NoReturn:
        if isinstance(error, ValueError):
            self._on_closed_channel(call, error)
        verdict = judge(error)
        call.reason = f"{member.address} said {describe(error)}"
        if verdict is Verdict.FINAL:
            if call.doubtful and call.has_effect:
                self._give_up(call)
            raise translate(call.what, member.address, error) from error
        if verdict is Verdict.LOGIN:
            self._login.forget()
        else:
            self._endpoints.failed(member)
        if verdict is Verdict.LOST and sent:
            call.doubtful = True
            if not call.repeatable:
                self._give_up(call)
        raise _Again from error

    def _on_closed_channel(self, call: Call[T], error: ValueError) -> None:
        # gRPC raises ValueError for a call on a channel that has been closed.
        if not self._closing.is_set():
            raise BadInput(f"{call.what}: {error}") from error
        call.reason = "this client was closed"
        self._give_up(call)

    def _give_up(self, call: Call[T]) -> NoReturn:
        place = f"{call.what} at etcd {self._endpoints}"
        if call.doubtful and call.has_effect:
            raise DeadlineExceeded(
                f"{place}: outcome unknown, the answer was lost ({call.reason}); read the current "
                "state and decide anew"
            )
        raise Unavailable(
            f"{place}: no answer within {call.deadline_s:g} s ({call.reason}); check that etcd "
            "runs there and can be reached, then try again"
        )

    def _share_s(self, call: Call[T]) -> float:
        """With several members, half of what is left: a hung one must not eat all of it. And a
        first attempt that may be repeated is short, as etcd forgets what it was told just before
        its leader died."""
        left_s = max(call.until_s - time.monotonic(), 0.001)
        share_s = left_s if len(self._endpoints) == 1 else max(left_s / 2, _MIN_ATTEMPT_S)
        is_first = call.repeatable and not call.doubtful
        return min(self._attempt_s / 2 if is_first else self._attempt_s, share_s, left_s)

    def _pause_s(self, state: RetryCallState) -> float:
        everybody_was_tried = state.attempt_number > len(self._endpoints)
        if self._endpoints.has_fresh() and not everybody_was_tried:
            return 0.0
        return self._jitter(state)

    def _is_over(self, call: Call[T], state: RetryCallState) -> bool:
        return self._closing.is_set() or time.monotonic() + state.upcoming_sleep >= call.until_s
