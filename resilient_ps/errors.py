"""Errors, grouped by what the caller should do about them.

`RetryLater`: nothing is wrong with the call; try again. `Reopen`: this worker or connection is
finished; make a new one. `FixTheCall`: the call or its input is wrong. `Bug`: an invariant of the
product is broken; please report it.
"""

from __future__ import annotations


class ResilientPsError(Exception):
    """Root of every error that this package raises on purpose."""


class RetryLater(ResilientPsError):
    """Remedy: try again. Nothing is wrong with the call."""


class Unavailable(RetryLater):
    """A server, etcd or a store could not be reached, or refuses for the moment."""


class DeadlineExceeded(RetryLater):
    """The call ended at its deadline. Its outcome is *unknown*: it may have taken effect."""


class Reopen(ResilientPsError):
    """Remedy: this object is finished; create it again."""


class Fenced(Reopen):
    """Another process has taken over this rank; this one must not write any more."""


class RolledBack(Reopen):
    """The cluster went back to a checkpoint: call `resume()` and continue at `clock` + 1."""

    def __init__(self, message: str, *, clock: int = 0, cursor: bytes = b"") -> None:
        super().__init__(message)
        self.clock = clock
        self.cursor = cursor


class TaskFailed(Reopen):
    """A task of the graph ended with an error, so the graph does not go on.

    Mend what the message says, allow another try (`resilient-ps ns retry`), and open it anew.
    """

    def __init__(self, message: str, *, namespace: str, n: int, step: int, why: str) -> None:
        super().__init__(message)
        self.namespace = namespace
        self.n = n
        self.step = step
        self.why = why


class FixTheCall(ResilientPsError):
    """Remedy: change the call or its input."""


class BadInput(FixTheCall, ValueError):
    """A flag, file, value, shape or dtype that cannot be used."""


class SpecMismatch(FixTheCall):
    """Something of this name exists with another specification; the message shows both."""


class NotFound(FixTheCall):
    """No table, job, file or cluster of this name."""


class QuotaExceeded(FixTheCall):
    """A namespace may not hold more rows or bytes; the message names it, its quota, and its use.

    The push, or the new table, that went beyond has changed nothing on the shard that refused it.
    A push goes to many shards, each of which takes or refuses its part as a whole: parts of the
    same push that other shards had room for *have been taken*. So this worker is finished, and the
    open clock is incomplete. Raise the quota (`Namespace.set_quota`, or `resilient-ps ns set`) or
    drop tables, then open the worker again (`client.worker(...)` with the same rank): it takes its
    rank over at the open clock. Under BSP, and in tasks, nothing of that clock has taken effect,
    and it begins anew. Under SSP and ASP what was taken stays; when the program pushes the clock
    again as it did before (other keys raise `NotRepeatable`), the parts that were taken are passed
    over, so nothing counts twice.
    """


class NotRepeatable(FixTheCall):
    """A repeated clock pushed other keys than the first time."""


class Bug(ResilientPsError):
    """An invariant of the product is broken: please report it with the log."""
