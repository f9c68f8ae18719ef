"""The native module: kernels over tables, and the codec of requests and answers.

The kernels are those of `tables/kernels.py` and `tables/partition.py`, with the same arguments and
the same results. Arrays that do not fit raise `TypeError`, `ValueError` or `BufferError`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.messages import Answer, Message, PartAnswer, Request

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
