"""The native module: kernels over tables, and the codec of requests and answers.

The kernels are those of `tables/kernels.py` and `tables/partition.py`, with the same arguments and
the same results. Arrays that do not fit raise `TypeError`, `ValueError` or `BufferError`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from resilient_ps.coordinator.records import Member
from resilient_ps.ids import Position, WorkerId
from resilient_ps.messages import (
    Answer,
    Append,
    Appended,
    AppendedPart,
    AppendPart,
    Message,
    PartAnswer,
    Request,
)
from resilient_ps.replication.replica import Replica
from resilient_ps.shard import Reply
from resilient_ps.waiting import Origin

def push_rows(
    keys: NDArray[np.uint64],
    grads: NDArray[Any],
    entries: NDArray[np.uint64],
    slab: NDArray[Any],
    row_keys: NDArray[np.uint64],
    scratch: NDArray[np.int32],
    meta: NDArray[np.int64],
    hyper: NDArray[np.float64],
    work: NDArray[Any],
    /,
) -> int: ...
def load_rows(
    keys: NDArray[np.uint64],
    source: NDArray[Any],
    columns: int,
    entries: NDArray[np.uint64],
    slab: NDArray[Any],
    row_keys: NDArray[np.uint64],
    scratch: NDArray[np.int32],
    meta: NDArray[np.int64],
    /,
) -> int: ...
def pull_rows(
    keys: NDArray[np.uint64],
    out: NDArray[Any],
    entries: NDArray[np.uint64],
    slab: NDArray[Any],
    meta: NDArray[np.int64],
    hyper: NDArray[np.float64],
    /,
) -> None: ...
def rehash(entries: NDArray[np.uint64], larger: NDArray[np.uint64], rows_kept: int, /) -> None: ...
def forget_stamps(entries: NDArray[np.uint64], /) -> None: ...
def row_numbers(
    keys: NDArray[np.uint64], rows: NDArray[np.int32], entries: NDArray[np.uint64], /
) -> None: ...
def survey_rows(
    entries: NDArray[np.uint64],
    first: int,
    last: int,
    stamp: int,
    touched: NDArray[np.bool_],
    /,
) -> None: ...
def claim_rows(
    keys: NDArray[np.uint64],
    rows: NDArray[np.uint32],
    states: NDArray[np.uint8],
    first: int,
    last: int,
    entries: NDArray[np.uint64],
    /,
) -> int: ...
def push_blocks(
    values: NDArray[Any],
    state: NDArray[Any],
    grads: NDArray[Any],
    blocks: NDArray[np.int64],
    block_elements: int,
    meta: NDArray[np.int64],
    hyper: NDArray[np.float64],
    work: NDArray[Any],
    /,
) -> None: ...
def push_run(
    values: NDArray[Any],
    state: NDArray[Any],
    grads: NDArray[Any],
    first_block: int,
    block_elements: int,
    meta: NDArray[np.int64],
    hyper: NDArray[np.float64],
    work: NDArray[Any],
    /,
) -> None:
    """As `push_blocks`, for consecutive blocks, on all cores where there is much to do."""

def push_runs(
    grads: NDArray[Any], elements: list[int], runs: list[tuple[Any, ...]], /
) -> bool | None:
    """`push_run` for several tables at once: of each, how many of the gradients are its, and what
    `push_run` takes but for them. None: not possible, and nothing has changed."""

def run_of(blocks: NDArray[np.uint64], /) -> tuple[int, int] | None:
    """The first block and one more than the last, if they follow one another."""

def push_parts(
    keys: NDArray[np.uint64],
    grads: NDArray[Any],
    counts: list[int],
    tables: list[tuple[Any, ...]],
    kept: list[tuple[Any, ...] | None],
    /,
) -> tuple[int, ...] | None:
    """`push_rows` for several tables, which share the keys and gradients out in order.

    A table is (entries, slab, row_keys, scratch, meta, hyper, work, most rows). `kept` is empty, or
    has for each of them where an image keeps its rows before they change: None, or (states, first,
    last, entries, slab, row_keys, scratch, meta). Returns what each of them lacks to go on (0: it
    is done), plus 8 where rows were kept; None: something does not fit, and nothing has changed.
    """

def receive_push(
    fd: int,
    keys: NDArray[np.uint64],
    values: NDArray[Any],
    left: int,
    counts: list[int],
    tables: list[tuple[Any, ...]],
    /,
) -> tuple[int, tuple[int, ...]] | None:
    """`push_parts` of keys and values of which the last `left` bytes still come from a socket: each
    table's part is pushed when it is there. It is waited for, but not for long.

    How many bytes have come, and what each part lacks to go on, or -1 if it was not made: all of
    them, where all bytes have come. None: something does not fit, and nothing has happened.
    """

def push_each(
    keys: list[NDArray[np.uint64]],
    grads: list[NDArray[Any]],
    counts: list[int],
    tables: list[tuple[Any, ...]],
    /,
) -> tuple[int, ...] | None:
    """`push_parts`, where each table's keys and gradients are arrays of their own."""

def pull_parts(
    keys: NDArray[np.uint64], out: NDArray[Any], counts: list[int], tables: list[tuple[Any, ...]], /
) -> bool | None:
    """`pull_rows` for several tables: (entries, slab, meta, hyper). None: they do not fit."""

def fill_rows(
    out: NDArray[Any], first_row: int, meta: NDArray[np.int64], hyper: NDArray[np.float64], /
) -> None: ...
def group_keys(
    keys: NDArray[np.uint64],
    shards: int,
    ranks: NDArray[np.int32] | None,
    grouped: NDArray[np.uint64],
    order: NDArray[np.uint32] | None,
    places: NDArray[np.uint32] | None,
    /,
) -> tuple[int, ...]:
    """Fills `grouped`, and, where given, `order[place] = position`, `places[position] = place`.

    Returns the size of each group.
    """

def group_rows(
    keys: NDArray[np.uint64],
    shards: int,
    ranks: NDArray[np.int32] | None,
    grouped: NDArray[np.uint64],
    rows: NDArray[Any],
    grouped_rows: NDArray[Any],
    /,
) -> tuple[int, ...]:
    """Fills `grouped` and `grouped_rows`; returns the size of each group."""

def gather(source: NDArray[Any], order: NDArray[np.uint32], out: NDArray[Any], /) -> bool: ...
def scatter(grouped: NDArray[Any], order: NDArray[np.uint32], out: NDArray[Any], /) -> bool: ...
def use_instructions(name: str, /) -> str:
    """Use the kernels for `baseline` processors, or the `best`; returns which those are."""

def set_up(words: dict[str, Any], /) -> bool:
    """Tell the codec the types of messages; false where this machine has no quick way."""

def encode_request(message: Request, /) -> list[Any] | None: ...
def encode_answer(message: Answer, /) -> list[Any] | None: ...
def take(
    scratch: memoryview,
    lo: int,
    hi: int,
    meta_limit: int,
    payload_limit: int,
    place: Callable[[int, tuple[PartAnswer, ...]], list[memoryview] | None],
    /,
) -> tuple[Message, int] | None:
    """The message of the whole frame at `lo`, and where it ends; None: not a quick one."""

def begin(
    scratch: memoryview, lo: int, hi: int, meta_limit: int, payload_limit: int, /
) -> tuple[Message, int, int, tuple[NDArray[Any], ...]] | Literal[False] | None:
    """The request of the frame at `lo`, whose meta is there, and the arrays to be filled.

    With where they begin, and how many bytes they have together. None: not a quick one. False: a
    pull that fits into the scratch as a whole.
    """

def ask(
    kind: int,
    number: int,
    incarnation: int,
    worker: WorkerId,
    clock: int,
    n: int,
    wait_ns: int,
    table: tuple[int, int, int, int],
    order: tuple[int, ...],
    ranks: NDArray[np.int32],
    seen: list[Position],
    last: dict[int, int] | None,
    keys: Any,
    rows: Any,
    /,
) -> tuple[memoryview, bytes | None] | None:
    """The frame of a pull, with whose key's each row of its answer is as uint32, or of a push, of
    which `last` then tells; None if it is not plain."""

def ask_blocks(
    kind: int,
    number: int,
    incarnation: int,
    worker: WorkerId,
    clock: int,
    n: int,
    wait_ns: int,
    table: tuple[int, int, int, int],
    seen: list[Position],
    last: dict[int, int] | None,
    blocks: NDArray[np.uint64],
    parts: tuple[tuple[int, int, int, int, int], ...],
    /,
) -> memoryview | None:
    """The frame of a pull of blocks, or of a push but for its values, of which `last` then tells.
    `parts`: see `split.Cut`. None if it is not plain."""

def answered(
    scratch: memoryview,
    lo: int,
    hi: int,
    meta_limit: int,
    payload_limit: int,
    frame: memoryview,
    seen: list[Position],
    places: bytes | tuple[tuple[int, int, int, int, int], ...] | None,
    out: NDArray[Any] | None,
    /,
) -> bool:
    """Is `scratch[lo:hi]` the whole answer to `frame`, that all is well and not older than `seen`?
    Then `seen` and `out` have been set. `places`, of a pull: of rows, as `ask` gave it, or the
    parts of blocks."""

def send_rows(
    fd: int, frame: memoryview, places: bytes, keys: NDArray[np.uint64], rows: NDArray[Any], /
) -> int:
    """Put the keys and rows of a large push into its frame, as `ask` gave it with its places, and
    send what is ready meanwhile, as far as the kernel takes it: how many bytes that was. With a
    negative `fd`, none. Whoever sends the rest finds the errors."""

def receive(
    fd: int,
    scratch: memoryview,
    meta_limit: int,
    payload_limit: int,
    patience_ns: int,
    frame: memoryview,
    seen: list[Position],
    places: bytes | tuple[tuple[int, int, int, int, int], ...] | None,
    out: NDArray[Any] | None,
    /,
) -> int:
    """As `answered`, from a socket, of which nothing has been received: 0 if so it is.

    Once such an answer has begun to come, its end is waited for. If nothing comes for
    `patience_ns`, `OSError` is raised, and the connection is at an end. Otherwise so many bytes are
    in the scratch, and nothing else has happened; -1: none has come within the socket's patience.
    """

def answer_pull(
    scratch: memoryview,
    lo: int,
    hi: int,
    meta_limit: int,
    payload_limit: int,
    plans: dict[bytes, dict[int, tuple[Any, Any, Any]]],
    values_max: int,
    lent_max: int,
    /,
) -> list[Any] | None:
    """Buffers that answer the frame of a pull that is `scratch[lo:hi]`; None if it is not plain.

    `plans`: by what a request's meta says up to its table; by shard what has a `position`, and what
    has `pull_arrays`. Most bytes of values: of rows, and of blocks, which are not copied.
    """

def set_up_log(words: dict[str, Any], /) -> None: ...
def encode_append(message: Append, /) -> list[bytes] | None: ...
def encode_appended(message: Appended, /) -> list[bytes] | None: ...
def take_log(
    scratch: memoryview, lo: int, hi: int, meta_limit: int, payload_limit: int, /
) -> tuple[Message, int] | None: ...
def set_up_replicating(words: dict[str, Any], /) -> None: ...
def enter_push(
    request: Request, by_number: Mapping[int, Replica], origin: Origin, now_ns: int, /
) -> dict[str, list[AppendPart]] | None:
    """See `quick_replication`, as for the next two. None: nothing has happened."""

def take_entries(
    parts: tuple[AppendPart, ...], by_number: Mapping[int, Replica], /
) -> tuple[AppendedPart, ...] | None: ...
def note_pushes(request: Request, made: Any, /) -> list[bytes] | None: ...
def commit_entries(
    parts: tuple[AppendedPart, ...],
    by_number: Mapping[int, Replica],
    member: Member,
    now_ns: int,
    /,
) -> list[Reply] | None: ...
def crc32c(data: memoryview, before: int, /) -> int: ...  # where the processor can
