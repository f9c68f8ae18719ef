"""The object store in a world: its model, the client that each process has, and faults of both.

The client is modelled on the production ones: a call is made of attempts, each of which waits
`ATTEMPT_NS` for its answer; when they are used up the call has failed, and what it would have
written may have been written. So a conditional put whose first answer was lost is told that the
object exists. Calls of one process overtake each other.

Faults: a host is cut off from `store` (through the network), an outage, lost answers, attempts that
are performed after their caller has given them up, a slow store, objects that are damaged where
they lie. Listings that lag are a property of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from resilient_ps.chaos.sim.carriage import digest
from resilient_ps.errors import ResilientPsError
from resilient_ps.storage.blobs import (
    BlobAnswered,
    BlobCall,
    BlobFailed,
    BlobGot,
    BlobRequest,
    BlobResult,
    DeleteBlobs,
    Encoded,
    PutBlob,
    StoreUnavailable,
)
from resilient_ps.storage.memory import MemoryBlobs
from resilient_ps.storage.requests import encode, size_of

if TYPE_CHECKING:
    from resilient_ps.chaos.sim.process import Process
    from resilient_ps.chaos.sim.world import World

SECOND_NS = 10**9
BUCKET = "store"
"""The host that the object store runs on, for faults of the network."""
ATTEMPTS = 3
ATTEMPT_NS = SECOND_NS
PAUSE_MOST_NS = SECOND_NS // 2  # before the next attempt
DELAY_FACTOR = 50  # how much longer an answer takes than a message between processes
NS_PER_BYTE = 100
LATE_SHARE = 0.3
LATE_MOST_NS = 4 * SECOND_NS

Watcher = Callable[["Process", BlobRequest], None]


@dataclass(frozen=True, slots=True)
class _Ready:
    """A body that was encoded already: attempts share it."""

    encoded: Encoded

    def encode(self) -> Encoded:
        return self.encoded


@dataclass(eq=False, slots=True)
class _Call:
    """A call of one process, made of attempts."""

    process: Process
    ref: int
    request: BlobRequest
    nbytes: int
    attempt: int = 0
    over: bool = False


class Bucket:
    """The model of the object store, reached over the network by one client per process.

    `on_asked` and `on_performed` are called with every request that reaches the store, before and
    after it takes effect: what they do to the process that asked comes before the answer, and a
    request whose process they kill before it takes effect has none.
    """

    def __init__(self, world: World, *, list_lag_s: int = 0) -> None:
        self._world = world
        self.blobs = MemoryBlobs(list_lag_s=list_lag_s)
        self.lost_answers = 0.0  # share of all answers that are lost
        self.slowness = 1  # how many times longer everything takes
        self.damaged: set[str] = set()  # objects that a fault has changed
        self.calls = 0
        self.on_asked: list[Watcher] = []
        self.on_performed: list[Watcher] = []
        self._down = 0

    # -- faults

    @property
    def down(self) -> bool:
        """Does the store answer nobody?"""
        return self._down > 0

    def stop(self) -> None:
        """The store answers nobody from now on."""
        self._down += 1

    def start(self) -> None:
        """The store is there again, with all that it held."""
        self._down -= 1

    def damage(self, name: str, how: int) -> str:
        """Cut an object short, flip one of its bits, or lose it; what was done, for people."""
        data = self.blobs.peek(name)
        assert data is not None, name
        self.damaged.add(name)
        if how % 3 == 0:
            self.blobs.damage(name, None)
            return "is lost"
        if how % 3 == 1 or not data:
            self.blobs.damage(name, data[: len(data) // 2])
            return "is cut short"
        at = how // 3 % len(data)
        self.blobs.damage(name, data[:at] + bytes([data[at] ^ 1 << how % 8]) + data[at + 1 :])
        return f"has another bit in byte {at}"

    # -- calls

    def call(self, process: Process, call: BlobCall) -> None:
        """A process asks. The outcome comes as an event of its own."""
        self.calls += 1
        request, nbytes = call.request, 0
        if isinstance(request, PutBlob):
            encoded = encode(request.body)
            nbytes = size_of(encoded.pieces)
            request = replace(request, body=_Ready(encoded))
        self._attempt(_Call(process, call.ref, request, nbytes))

    def _attempt(self, asked: _Call) -> None:
        asked.attempt += 1
        delay_ns = self._delay_ns(asked.process.host, BUCKET, asked.nbytes)
        self._world.after(delay_ns, partial(self._reach, asked, asked.attempt))

    def _delay_ns(self, source: str, target: str, nbytes: int) -> int:
        delay_ns = self._world.network.delay_ns(source, target) * DELAY_FACTOR
        return (delay_ns + nbytes * NS_PER_BYTE) * self.slowness

    def _reach(self, asked: _Call, attempt: int) -> None:
        """A request reaches the store, or would: it is performed also for who has died."""
        world, host = self._world, asked.process.host
        if self.down or world.network.is_blocked(host, BUCKET):
            world.after(ATTEMPT_NS, partial(self._time_out, asked, attempt))
            if world.draw_share() < LATE_SHARE:
                world.after(world.draw_below(LATE_MOST_NS), partial(self._perform_late, asked))
            return
        result = self._perform(asked)
        lost = self.lost_answers and world.draw_share() < self.lost_answers
        if lost or world.network.is_blocked(BUCKET, host):
            world.after(ATTEMPT_NS, partial(self._time_out, asked, attempt))
            return
        nbytes = len(result.data) if isinstance(result, BlobGot) else 0
        delay_ns = self._delay_ns(BUCKET, host, nbytes)
        world.after(delay_ns, partial(self._answer, asked, attempt, result))

    def _perform(self, asked: _Call) -> BlobResult | ResilientPsError:
        alive = not asked.process.killed
        for watcher in self.on_asked:
            watcher(asked.process, asked.request)
        if alive and asked.process.killed:
            return StoreUnavailable("the process died before it had sent everything")
        try:
            result = self.blobs.apply(asked.request, self._world.wall_s())
        except ResilientPsError as error:
            return error
        for watcher in self.on_performed:
            watcher(asked.process, asked.request)
        return result

    def _perform_late(self, asked: _Call) -> None:
        """An attempt that was held back reaches the store after its caller has given it up."""
        if not self.down and not self._world.network.is_blocked(asked.process.host, BUCKET):
            with suppress(ResilientPsError):
                self._perform(asked)

    def _answer(self, asked: _Call, attempt: int, result: BlobResult | ResilientPsError) -> None:
        if asked.over or attempt != asked.attempt:
            return
        if isinstance(result, ResilientPsError):
            self._end(asked, BlobFailed(asked.ref, result))
        else:
            self._end(asked, BlobAnswered(asked.ref, result))

    def _time_out(self, asked: _Call, attempt: int) -> None:
        if asked.over or attempt != asked.attempt or asked.process.killed:
            return
        if asked.attempt < ATTEMPTS:
            pause_ns = self._world.draw_below(PAUSE_MOST_NS)
            self._world.after(pause_ns, partial(self._attempt, asked))
            return
        error = StoreUnavailable(f"the object store gave no answer in {ATTEMPTS} attempts")
        writes = isinstance(asked.request, PutBlob | DeleteBlobs)
        self._end(asked, BlobFailed(asked.ref, error, unknown=writes))

    def _end(self, asked: _Call, event: BlobAnswered | BlobFailed) -> None:
        asked.over = True
        good = isinstance(event, BlobAnswered)
        self._world.note(asked.process, (good, event.ref, digest(_name_of(asked.request).encode())))
        asked.process.step(event)


def _name_of(request: BlobRequest) -> str:
    """What a trace says of a request."""
    named = getattr(request, "name", None) or getattr(request, "prefix", None)
    return str(named or getattr(request, "names", ""))
