"""Tables and cursors on their way to the shards: small steps that workers and clients share."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.errors import BadInput
from resilient_ps.ids import READER
from resilient_ps.messages import Kind
from resilient_ps.runtime.driver import Driver, deadline_after
from resilient_ps.shard import CURSOR_BYTES_MAX
from resilient_ps.split import TableHandle
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.takeover import Step


def encode_cursor(cursor: Any) -> bytes:
    """A cursor as bytes. Raises `BadInput` when it is no JSON value, or over 4 KiB."""
    try:
        raw = json.dumps(cursor, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadInput(f"a cursor must be a JSON value: {error}") from error
    if len(raw) > CURSOR_BYTES_MAX:
        raise BadInput(
            f"the cursor takes {len(raw)} bytes, at most {CURSOR_BYTES_MAX} are possible"
        )
    return raw


def bind(
    handle: TableHandle, driver: Driver, deadline_s: float, *, writable: bool
) -> SparseTable | DenseTable:
    """The table over a driver's session."""
    kind: Callable[..., SparseTable | DenseTable] = (
        SparseTable if isinstance(handle.spec, SparseSpec) else DenseTable
    )
    return kind(handle, driver, deadline_s, writable=writable)


def announce_table(driver: Driver, handle: TableHandle, deadline_s: float) -> None:
    """Make the table known to all shards; it may be known already."""
    text = handle.spec.to_json().encode()
    session = driver.session
    order = session.routing.order
    step = Step(Kind.OPEN_TABLE, order, session.worker, table=handle.number, text=text)
    broadcast(driver, step, deadline_s)


def drop_table(driver: Driver, number: int, deadline_s: float) -> None:
    """Let all shards forget a table that is registered no more."""
    step = Step(Kind.DROP_TABLE, driver.session.routing.order, READER, table=number)
    broadcast(driver, step, deadline_s)


def broadcast(driver: Driver, step: Step, deadline_s: float) -> None:
    """One request to shards, answered by all. Raises what the first refusal says."""
    with driver.lock:
        op = driver.next_op()
        driver.perform(driver.session.broadcast(op, step, time.monotonic_ns()))
        outcome = driver.wait(op, deadline_after(deadline_s))
    if outcome.error is not None:
        raise outcome.error
