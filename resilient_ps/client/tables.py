"""Tables as a program sees them: numpy arrays in, numpy arrays out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilient_ps.calls import Split
from resilient_ps.client.future import Future
from resilient_ps.errors import BadInput, FixTheCall
from resilient_ps.quick_calls import PlainTable, plain_table
from resilient_ps.runtime.driver import Driver, deadline_after
from resilient_ps.session import SessionEffect
from resilient_ps.split import (
    SparsePull,
    TableHandle,
    check_dtype,
    check_gradients,
    check_keys,
    chunk_rows,
    cuts_of,
    split_dense,
    split_sparse_pull,
    split_sparse_push,
)
from resilient_ps.tables.dense import DenseLayout
from resilient_ps.tables.spec import DenseSpec, SparseSpec

WINDOW_BYTES = 64 << 20
"""Pushes that are not acknowledged yet hold at most about this much; then `push` waits."""

SERVER_SHARE = 0.9
"""Of a pull's deadline that the server may wait: its answer says for whom, ours only that."""


class _Table:
    """What both kinds of tables have in common: the operations of a session."""

    def __init__(
        self, handle: TableHandle, driver: Driver, deadline_s: float, *, writable: bool
    ) -> None:
        self._handle = handle
        self._driver = driver
        self._deadline_s = deadline_s
        self._writable = writable

    def rebind(self, handle: TableHandle) -> None:
        """The cluster was rolled back: the table may have another number, and more or fewer
        shards."""
        self._handle = handle

    @property
    def name(self) -> str:
        """The table's name, with its namespace."""
        return self._handle.spec.name

    @property
    def number(self) -> int:
        """The number that messages use for the table."""
        return self._handle.number

    @property
    def _what(self) -> str:
        return f"table {self.name!r}"

    def set_learning_rate(self, rate: float) -> None:
        """Change the optimiser's learning rate, in the order of this worker's pushes.

        Under BSP it holds from the next clock on. Raises `BadInput` for a rate out of range.
        """
        self._check_writable()
        self._handle.spec.optimiser.with_lr(rate)
        driver = self._driver
        with driver.lock:
            op = driver.next_op()
            driver.perform(driver.session.tune(op, self._handle.number, rate, time.monotonic_ns()))
            outcome = driver.wait(op, deadline_after(self._deadline_s))
        if outcome.error is not None:
            raise outcome.error

    def _check_writable(self) -> None:
        if not self._writable:
            raise FixTheCall(
                f"table {self.name!r} was opened for reading: only workers push. Open it with "
                "worker.table(...), worker.sparse_table(...) or worker.dense_table(...)"
            )

    def _left_s(self, begun_s: float) -> float:
        """Of a call's deadline: sending may have waited already."""
        return max(0.0, begun_s + self._deadline_s - time.monotonic())

    def _start_pulls(self, splits: Iterable[Split]) -> list[int]:
        driver, ops = self._driver, []
        until_ns = deadline_after(self._deadline_s)
        wait_ns = int(self._deadline_s * 1e9 * SERVER_SHARE)
        for split in splits:
            op = driver.next_op()
            now_ns = time.monotonic_ns()
            driver.perform(
                driver.session.pull(op, self._handle.number, split, now_ns, wait_ns=wait_ns),
                until_ns,
            )
            ops.append(op)
        return ops

    def _start_pushes(self, splits: Iterable[Split]) -> list[int]:
        driver, ops = self._driver, []
        until_ns = deadline_after(self._deadline_s)
        held_bytes = 0
        for split in splits:
            op = driver.next_op()
            now_ns = time.monotonic_ns()
            effects: list[SessionEffect] = driver.session.push(
                op, self._handle.number, split, now_ns
            )
            driver.perform(effects, until_ns)
            ops.append(op)
            held_bytes += split.nbytes
            if held_bytes > WINDOW_BYTES:
                self._wait_for_room(ops, until_ns)
                held_bytes = 0
        return ops

    def _wait_for_room(self, ops: list[int], until_ns: int) -> None:
        while not all(self._driver.is_resolved(op) for op in ops):
            if not self._driver.serve(until_ns):
                return  # the pushes stay queued; whoever waits for them hears of the deadline


class SparseTable(_Table):
    """Rows of `dim` values under uint64 keys. Rows exist from their first push on."""

    def __init__(
        self, handle: TableHandle, driver: Driver, deadline_s: float, *, writable: bool
    ) -> None:
        super().__init__(handle, driver, deadline_s, writable=writable)
        self.rebind(handle)

    def rebind(self, handle: TableHandle) -> None:
        """As for all tables."""
        super().rebind(handle)
        self._plain = plain_table(handle.number, self.spec, chunk_rows(self.spec))

    @property
    def spec(self) -> SparseSpec:
        """Dimension, dtype, optimiser and initialiser."""
        spec = self._handle.spec
        assert isinstance(spec, SparseSpec)
        return spec

    def pull(self, keys: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The rows of `keys` (n,), as an array (n, dim) of the table's dtype.

        Keys may repeat; a key that was never pushed gives its initial value. `out` receives the
        rows if given (C order). Waits while the consistency asks for it. Raises `BadInput`,
        `DeadlineExceeded` (naming the rank that it waited for), `Fenced`.
        """
        begun_s = time.monotonic()
        return self.pull_async(keys, out).result(self._left_s(begun_s))

    def pull_async(self, keys: Any, out: NDArray[Any] | None = None) -> Future[NDArray[Any]]:
        """As `pull`, without waiting: `result()` gives the rows."""
        if self._plain is not None and type(keys) is np.ndarray:
            future = self._pull_quickly(self._plain, keys, out)
            if future is not None:
                return future
        spec = self.spec
        keys = check_keys(spec, keys)
        rows = np.empty((len(keys), spec.dim), spec.dtype) if out is None else out
        _check_out(spec, rows, (len(keys), spec.dim))
        routing, step = self._driver.session.routing, chunk_rows(spec)
        if 0 < len(keys) <= step:
            pull = split_sparse_pull(routing, keys, spec)
            with self._driver.lock:
                ops = self._start_pulls((pull.split,))
            end = partial(pull.finish, rows)
            return Future(self._driver, ops, rows, self._deadline_s, end, what=self._what)
        pulls: list[SparsePull] = []

        def splits() -> Iterator[Split]:
            for start in range(0, len(keys), step):
                pulls.append(split_sparse_pull(routing, keys[start : start + step], spec))
                yield pulls[-1].split

        def finish(number: int) -> None:
            pulls[number].finish(rows[number * step : (number + 1) * step], number)

        with self._driver.lock:
            ops = self._start_pulls(splits())
        return Future(self._driver, ops, rows, self._deadline_s, finish, what=self._what)

    def _pull_quickly(
        self, plain: PlainTable, keys: NDArray[Any], out: Any
    ) -> Future[NDArray[Any]] | None:
        """None where only the usual way will do; it also says what is wrong."""
        if out is None:
            spec = self.spec
            out = np.empty((keys.size, spec.dim), spec.dtype)
        elif type(out) is not np.ndarray:
            return None
        driver, deadline_s = self._driver, self._deadline_s
        with driver.lock:
            wait_ns = int(deadline_s * 1e9 * SERVER_SHARE)
            call = driver.pull_quickly(plain, keys, out, deadline_s, wait_ns)
        if call is None:
            return None
        return Future(driver, [call.op], out, deadline_s, call.finish, what=self._what)

    def push(self, keys: Any, gradients: Any) -> None:
        """Apply `gradients` (n, dim) to the rows of `keys` (n,) with the table's optimiser.

        Gradients of keys that repeat are added. Returns when all shards have acknowledged. Raises
        `BadInput` for wrong shapes and dtypes, `DeadlineExceeded` (outcome unknown), `Fenced`.
        """
        begun_s = time.monotonic()
        self.push_async(keys, gradients).result(self._left_s(begun_s))

    def push_async(self, keys: Any, gradients: Any) -> Future[None]:
        """As `push`, without waiting for the acknowledgement; the arrays are copied."""
        self._check_writable()
        if self._plain is not None and type(keys) is type(gradients) is np.ndarray:
            driver, deadline_s = self._driver, self._deadline_s
            with driver.lock:
                call = driver.push_quickly(self._plain, keys, gradients, deadline_s)
            if call is not None:
                return Future(driver, [call.op], None, deadline_s, what=self._what)
        spec = self.spec
        keys = check_keys(spec, keys)
        gradients = check_gradients(spec, keys, gradients)
        routing, step = self._driver.session.routing, chunk_rows(spec)

        def splits() -> Iterator[Split]:
            for start in range(0, len(keys), step):
                yield split_sparse_push(
                    routing, keys[start : start + step], gradients[start : start + step]
                )

        with self._driver.lock:
            ops = self._start_pushes(splits())
        return Future(self._driver, ops, None, self._deadline_s, what=self._what)


class DenseTable(_Table):
    """An array of fixed shape."""

    def __init__(
        self, handle: TableHandle, driver: Driver, deadline_s: float, *, writable: bool
    ) -> None:
        super().__init__(handle, driver, deadline_s, writable=writable)
        self.rebind(handle)

    def rebind(self, handle: TableHandle) -> None:
        """As for all tables."""
        super().rebind(handle)
        self._layout = DenseLayout(self.spec, self._driver.session.routing.shards)
        self._plain = plain_table(handle.number, self.spec)

    @property
    def spec(self) -> DenseSpec:
        """Shape, dtype, optimiser and initialiser."""
        spec = self._handle.spec
        assert isinstance(spec, DenseSpec)
        return spec

    def pull(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The whole array. `out` receives it if given (C order). Errors as `SparseTable.pull`."""
        begun_s = time.monotonic()
        return self.pull_async(out).result(self._left_s(begun_s))

    def pull_async(self, out: NDArray[Any] | None = None) -> Future[NDArray[Any]]:
        """As `pull`, without waiting: `result()` gives the array."""
        spec = self.spec
        array = np.empty(spec.shape, spec.dtype) if out is None else out
        _check_out(spec, array, spec.shape)
        routing = self._driver.session.routing
        with self._driver.lock:
            flat = array.reshape(-1)
            ops = self._pull_quickly(flat)
            if not ops:
                ops = self._start_pulls(split_dense(routing, self._layout, flat, pull=True))
        return Future(self._driver, ops, array, self._deadline_s, what=self._what)

    def _pull_quickly(self, flat: NDArray[Any]) -> list[int]:
        """The operation; none where only the usual way will do."""
        driver, deadline_s = self._driver, self._deadline_s
        cuts = cuts_of(driver.session.routing.order, self._layout, pull=True)
        if self._plain is None or len(cuts) != 1:
            return []
        wait_ns = int(deadline_s * 1e9 * SERVER_SHARE)
        call = driver.pull_quickly(self._plain, cuts[0], flat, deadline_s, wait_ns)
        return [] if call is None else [call.op]

    def push(self, gradient: Any) -> None:
        """One optimiser step with `gradient`, of the table's shape and dtype.

        Returns when all shards have acknowledged. Errors as `SparseTable.push`. After
        `DeadlineExceeded` the array must not change before a `flush` or `tick` has succeeded: it
        is still being delivered.
        """
        begun_s = time.monotonic()
        self._push(self._checked(gradient)).result(self._left_s(begun_s))

    def push_async(self, gradient: Any, *, copy: bool = True) -> Future[None]:
        """As `push`, without waiting for the acknowledgement.

        The array is copied; with `copy=False` it must not change until the future is done.
        """
        checked = self._checked(gradient)
        return self._push(checked.copy() if copy else checked)

    def _push(self, gradient: NDArray[Any]) -> Future[None]:
        self._check_writable()
        routing = self._driver.session.routing
        with self._driver.lock:
            flat = gradient.reshape(-1)
            ops = self._push_quickly(flat)
            if not ops:
                ops = self._start_pushes(split_dense(routing, self._layout, flat, pull=False))
        return Future(self._driver, ops, None, self._deadline_s, what=self._what)

    def _push_quickly(self, flat: NDArray[Any]) -> list[int]:
        """The operation; none where only the usual way will do."""
        driver = self._driver
        cuts = cuts_of(driver.session.routing.order, self._layout, pull=False)
        if self._plain is None or len(cuts) != 1:
            return []
        call = driver.push_quickly(self._plain, cuts[0], flat, self._deadline_s)
        return [] if call is None else [call.op]

    def _checked(self, gradient: Any) -> NDArray[Any]:
        spec = self.spec
        array = check_dtype(spec, gradient)
        if array.shape != spec.shape:
            raise BadInput(
                f"table {spec.name!r}: the gradient must have shape {spec.shape}, not {array.shape}"
            )
        return np.ascontiguousarray(array)


def _check_out(spec: SparseSpec | DenseSpec, out: Any, shape: tuple[int, ...]) -> None:
    """Can the values be received in there? Raises `BadInput`."""
    if not isinstance(out, np.ndarray):
        raise BadInput(f"table {spec.name!r}: out must be a numpy array, not {type(out).__name__}")
    fits = out.shape == shape and out.dtype == np.dtype(spec.dtype)
    if not fits or not out.flags.c_contiguous or not out.flags.writeable:
        raise BadInput(
            f"table {spec.name!r}: out must be {spec.dtype} {shape}, writeable and in C order, "
            f"not {out.dtype} {out.shape}"
        )
