"""The object store's vocabulary as data: what can be asked of it, and what it answers.

Names are relative to the store's prefix, with `/` between parts. Objects are written whole or not
at all; a name may be read as soon as its put has been answered. Listings may lag behind, or show
what has been deleted: they are for sweeping, never for truth.

`Blobs` is the blocking interface of the real stores (S3, a directory); machines emit `BlobCall`s,
which the host performs in threads of its own, and the simulator on its model (`memory`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from resilient_ps.errors import FixTheCall, NotFound, ResilientPsError, RetryLater

NAME_CHARS_MAX = 512
LIST_MOST = 1_000
DELETE_MOST = 1_000

Bytes: TypeAlias = bytes | bytearray | memoryview
PutMode: TypeAlias = Literal["overwrite", "create", "if-match"]
Refusal: TypeAlias = Literal["credentials", "expired", "clock", "bucket", "full", "request"]


class BlobMissing(NotFound):
    """There is no object of this name."""


class BlobExists(FixTheCall):
    """The condition of a conditional put does not hold: the object exists, is another one, or (for
    "if-match") is not there.

    It may be our own, written by an attempt whose answer was lost: read it back and compare.
    """


class StoreRefused(FixTheCall):
    """The store answers, and will not do it: another attempt gives the same.

    `why`: wrong or expired credentials, a clock of ours that is wrong, no such bucket (or folder),
    no space left, or a request that it cannot carry out (no conditional puts, for instance).
    """

    def __init__(self, message: str, *, why: Refusal = "request") -> None:
        super().__init__(message)
        self.why = why


class StoreUnavailable(RetryLater):
    """The store cannot be reached, or is overloaded; our own bounded attempts are used up."""


class Encoded(NamedTuple):
    """What a `Body` gives: the object in pieces, and what is to be known of it."""

    pieces: tuple[Bytes, ...]  # none: nothing is put
    info: Any = None


class Body(Protocol):
    """Content that is made right before it is sent, in a thread of the host: compressed, hashed."""

    def encode(self) -> Encoded:
        """Pure, and called once."""
        ...


@dataclass(frozen=True, slots=True)
class PutBlob:
    """Write an object. "create": only if there is none; "if-match": only over that `etag`.

    Etags are opaque; equal content may have equal ones. A store without conditional puts refuses
    (`StoreRefused`) or, worse, ignores the condition: `resilient-ps doctor` finds out which.
    """

    name: str
    body: Bytes | Body
    mode: PutMode = "overwrite"
    etag: str = ""


@dataclass(frozen=True, slots=True)
class GetBlob:
    """Read `length` bytes (-1: all that follow) of an object from byte `first` on.

    The answer is shorter where the object ends. A length of 0 tells size and etag, and no more.
    `decode` is applied in the host's thread: what it returns is `BlobGot.decoded`, and a
    `ResilientPsError` that it raises is the call's failure.
    """

    name: str
    first: int = 0
    length: int = -1
    most: int = 1 << 30  # a longer object, or range, is refused before it is read
    decode: Callable[[Any], Any] | None = None  # of `BlobGot.data`
    into: memoryview | None = None  # memory for the answer, where it is large and has room there


@dataclass(frozen=True, slots=True)
class ListBlobs:
    """Names that begin with `prefix` and come after `after`, at most `most`.

    Their order is the store's: that of their characters, or that of their parts. Who wants more
    asks again, with the last name of the answer as `after`.
    """

    prefix: str
    after: str = ""
    most: int = LIST_MOST


@dataclass(frozen=True, slots=True)
class DeleteBlobs:
    """Delete objects; those that do not exist are no error. At most `DELETE_MOST` names."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepUploads:
    """Throw away what unfinished puts have left under `prefix`, if it is that old.

    Parts of large objects whose upload was never completed, temporary files: they take space and
    are in no listing. The age is measured by the store's clock. A put under way that is older than
    this fails. The answer is `BlobsDeleted`.
    """

    prefix: str
    older_than_s: int


class BlobPut(NamedTuple):
    """Written. `sha256` in hexadecimal; `info` is the body's `Encoded.info`."""

    etag: str
    nbytes: int
    sha256: str
    info: Any = None


class BlobGot(NamedTuple):
    """Read. `size` is the whole object's."""

    data: Bytes
    etag: str
    size: int
    decoded: Any = None


class BlobInfo(NamedTuple):
    """One entry of a listing."""

    name: str
    size: int
    etag: str
    modified_s: int  # seconds since 1970, by the store's clock


class BlobList(NamedTuple):
    """Names in order; `more`: there are others behind the last."""

    items: tuple[BlobInfo, ...]
    more: bool


class BlobsDeleted(NamedTuple):
    """None of these exists any more; `deleted` is their number."""

    deleted: int


BlobRequest: TypeAlias = PutBlob | GetBlob | ListBlobs | DeleteBlobs | SweepUploads
BlobResult: TypeAlias = BlobPut | BlobGot | BlobList | BlobsDeleted


@dataclass(frozen=True, slots=True)
class BlobCall:
    """An effect: do this. The answer carries `ref`."""

    ref: int
    request: BlobRequest = field(repr=False)


@dataclass(frozen=True, slots=True)
class BlobAnswered:
    """An event: this call has succeeded."""

    ref: int
    result: BlobResult = field(repr=False)


@dataclass(frozen=True, slots=True)
class BlobFailed:
    """An event: this call has failed, after all attempts. `unknown`: it may have taken effect."""

    ref: int
    error: ResilientPsError
    unknown: bool = False


class Blobs(Protocol):
    """A store, blocking; for many threads at once. Every call ends, at its own deadlines.

    Raises `BlobMissing`, `BlobExists`, `StoreRefused`, `StoreUnavailable`, and `BadInput` for names
    that cannot be. A put that raised `StoreUnavailable` may have taken effect.
    """

    def do(self, request: BlobRequest) -> BlobResult:
        """Carry out one request."""
        ...

    def close(self) -> None:
        """Give connections back. May be called again."""
        ...
