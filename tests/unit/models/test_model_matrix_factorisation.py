"""Matrix factorisation: the descent, batches of it, and that a rotation is its serial order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from resilient_ps.data import ArrayDataset, SparseArrayDataset
from resilient_ps.errors import BadInput
from resilient_ps.models import MatrixFactorisation, RotatingFactorisation
from resilient_ps.models.factor_sgd import descend
from resilient_ps.models.rotating_factorisation import Grid
from resilient_ps.models.tables_here import TablesHere

USERS, ITEMS, RATINGS = 40, 30, 900


def planted(seed=1):
    rng = np.random.default_rng(seed)
    of_users, of_items = rng.normal(size=(USERS, 3)), rng.normal(size=(ITEMS, 3))
    users, items = rng.integers(0, USERS, RATINGS), rng.integers(0, ITEMS, RATINGS)
    ratings = 3 + (of_users[users] * of_items[items]).sum(axis=1)
    keys = np.stack([users, 1000 + items], axis=1).astype(np.uint64)
    return SparseArrayDataset(ratings, np.arange(RATINGS + 1) * 2, keys.ravel())


DATA = planted()
MODEL = MatrixFactorisation(factors=4, lr=0.05, l2=0.02, mean=3.0)


def in_plain_python(users, items, ratings, order, user_rows, item_rows, mean, lr, l2):
    """Rating by rating, float by float; returns the sum of squared errors."""
    total = 0.0
    for n in order:
        p, q = user_rows[users[n]], item_rows[items[n]]
        error = ratings[n] - mean - p[-1] - q[-1]
        for a, b in zip(p[:-1], q[:-1], strict=True):
            error -= a * b
        total += error * error
        for f in range(len(p) - 1):
            a, b = p[f], q[f]
            p[f] += lr * (error * b - l2 * a)
            q[f] += lr * (error * a - l2 * b)
        p[-1] += lr * (error - l2 * p[-1])
        q[-1] += lr * (error - l2 * q[-1])
    return total


def test_the_compiled_descent_is_the_plain_one_byte_for_byte():
    rng = np.random.default_rng(2)
    users, items = rng.integers(0, 5, 60), rng.integers(0, 4, 60)
    ratings, order = rng.normal(size=60), rng.permutation(60)
    rows = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    fast = [each.copy() for each in rows]
    squares = descend(users, items, ratings, order, *fast, 0.5, 0.1, 0.03)
    plain = [each.tolist() for each in rows]
    assert squares == in_plain_python(
        users.tolist(), items.tolist(), ratings.tolist(), order, *plain, 0.5, 0.1, 0.03
    )
    assert [each.tolist() for each in fast] == plain


def test_a_planted_model_is_learnt_from_batches(worker):
    untrained = MODEL.evaluate(MODEL.open(worker), DATA).rmse
    tables = MODEL.train(worker, DATA, batch_size=100, epochs=40)
    found = MODEL.evaluate(tables, DATA)
    assert found.rmse < 0.15 < 1.0 < untrained
    assert found.rmse == pytest.approx(
        np.sqrt(np.mean((MODEL.predict(tables, DATA) - DATA.labels) ** 2))
    )


def test_progress_tells_half_the_squared_errors_of_each_batch(worker):
    told = []
    MODEL.train(worker, DATA, batch_size=400, on_batch=told.append)
    seen = [(p.clock, p.rows, p.samples) for p in told]
    assert seen == [(0, 400, 400), (1, 400, 800), (2, 100, 900)]
    assert told[0].loss == pytest.approx(np.var(DATA.labels[:400] - 3) / 2, rel=0.2)


def test_each_push_names_the_distinct_users_and_items_of_the_batch(worker):
    data = SparseArrayDataset([1, 2, 3], [0, 2, 4, 6], np.array([7, 50, 9, 50, 7, 51], np.uint64))
    users, items = MODEL.train(worker, data, batch_size=3)
    assert [k.tolist() for k in users.keys_pushed] == [[7, 9]]
    assert [k.tolist() for k in items.keys_pushed] == [[50, 51]]


# -- the rotation


class LocalTasks:
    """Does the tasks in a given order, on tables in this process."""

    def __init__(self, worker, order):
        self.sparse_table = worker.sparse_table
        self._order = list(order)

    def run(self, work):
        for rank, step in self._order:
            work(SimpleNamespace(rank=rank, step=step))
        return len(self._order)


ROTATING = RotatingFactorisation(MODEL, parts=4, lr_decay=0.95, seed=3)
EPOCHS = 3


def trained(fresh_worker, order, rotating=ROTATING):
    tables = rotating.train(LocalTasks(fresh_worker, order), DATA, epochs=EPOCHS)
    keys = np.arange(USERS, dtype=np.uint64), np.arange(1000, 1000 + ITEMS, dtype=np.uint64)
    return b"".join(table.pull(of).tobytes() for table, of in zip(tables, keys, strict=True))


def backwards_in_each_step(task):
    rank, step = task
    return step, -rank


def test_tasks_of_a_step_may_run_in_any_order_and_nothing_changes(fresh_workers):
    serial = list(ROTATING.schedule(epochs=EPOCHS).graph.serial_order())
    assert len(serial) == 4 * 4 * EPOCHS
    other = sorted(serial, key=backwards_in_each_step)
    assert other != serial
    assert trained(next(fresh_workers), other) == trained(next(fresh_workers), serial)


def test_an_order_that_breaks_the_dependencies_changes_the_result(fresh_workers):
    serial = list(ROTATING.schedule(epochs=EPOCHS).graph.serial_order())
    lane_by_lane = sorted(serial)
    assert trained(next(fresh_workers), lane_by_lane) != trained(next(fresh_workers), serial)


def test_a_rotation_is_a_serial_descent_in_its_own_order(worker):
    serial = list(ROTATING.schedule(epochs=EPOCHS).graph.serial_order())
    found = trained(worker, serial)
    assert found == descended_alone(worker, serial)


def descended_alone(worker, tasks):
    """Without tasks, batches or pushes: each rating of each task by hand, on whole matrices."""
    fresh = type(worker)()
    tables = MODEL.open(fresh)
    keys = np.arange(USERS, dtype=np.uint64), np.arange(1000, 1000 + ITEMS, dtype=np.uint64)
    # tables of the tests keep float64 rows and hand out float32 ones
    rows = [np.array([t._initial(int(k)) for k in of]) for t, of in zip(tables, keys, strict=True)]
    users = DATA.keys[0::2].astype(np.int64)
    items = DATA.keys[1::2].astype(np.int64) - 1000
    grid, numbered = Grid(DATA, 4), {}
    for part, block in np.ndindex(4, 4):
        cell = grid.cell(part, block)
        mine = np.isin(DATA.keys[0::2], cell.user_keys) & np.isin(DATA.keys[1::2], cell.item_keys)
        numbered[part, block] = np.flatnonzero(mine)
    for rank, step in tasks:
        place = ROTATING.schedule(epochs=EPOCHS).place(rank, step)
        here = numbered[place.part, place.block]
        draws = np.random.PCG64([3, *place]).random_raw(len(here))
        before = [each.astype(np.float32).astype(np.float64) for each in rows]
        after = [each.tolist() for each in before]
        in_plain_python(
            users.tolist(), items.tolist(), DATA.labels.astype(np.float64).tolist(),
            here[np.argsort(draws, kind="stable")].tolist(), *after, 3.0, 0.05 * 0.95**place.epoch,
            0.02,
        )  # fmt: skip
        for each, old, new in zip(rows, before, after, strict=True):
            each += (np.array(new) - old).astype(np.float32)
    return b"".join(each.astype(np.float32).tobytes() for each in rows)


def test_who_trains_alone_without_a_cluster_does_all_tasks_in_the_serial_order(worker):
    tables = ROTATING.fit_alone(DATA, epochs=EPOCHS)
    assert [len(table) for table in tables] == [USERS, ITEMS]
    still = RotatingFactorisation(replace(MODEL, lr=1e-30), parts=4)
    untrained = still.fit_alone(DATA, epochs=1)
    assert ROTATING.evaluate(tables, DATA).rmse < 0.9 * ROTATING.evaluate(untrained, DATA).rmse

    class Backwards(TablesHere):
        def run(self, work):
            order = ROTATING.schedule(epochs=EPOCHS).graph.serial_order()
            for rank, step in sorted(order, key=backwards_in_each_step):
                work(SimpleNamespace(rank=rank, step=step))

    other = ROTATING.train(Backwards(), DATA, epochs=EPOCHS)
    assert [t.digest() for t in other] == [t.digest() for t in tables]


def test_every_rating_is_in_one_cell_whose_users_and_items_no_other_part_has():
    grid = Grid(DATA, 4)
    cells = {place: grid.cell(*place) for place in np.ndindex(4, 4)}
    assert sum(len(cell.ratings) for cell in cells.values()) == RATINGS
    pairs = sorted(
        (int(cell.user_keys[u]), int(cell.item_keys[i]), float(r))
        for cell in cells.values()
        for u, i, r in zip(cell.users, cell.items, cell.ratings, strict=True)
    )
    rows = zip(DATA.keys[0::2], DATA.keys[1::2], DATA.labels, strict=True)
    assert pairs == sorted((int(u), int(i), float(r)) for u, i, r in rows)
    for (part, block), cell in cells.items():
        for (other_part, other_block), other in cells.items():
            if part != other_part:
                assert not set(cell.user_keys.tolist()) & set(other.user_keys.tolist())
            if block != other_block:
                assert not set(cell.item_keys.tolist()) & set(other.item_keys.tolist())


def test_a_rotation_of_more_parts_than_users_has_tasks_with_nothing_to_do(worker):
    rotating = RotatingFactorisation(MODEL, parts=64)
    told = []
    tasks = LocalTasks(worker, rotating.schedule(epochs=1).graph.serial_order())
    rotating.train(tasks, DATA, epochs=1, on_task=told.append)
    assert len(told) == 64 * 64
    assert {p.rows for p in told} > {0}
    assert told[-1].samples == RATINGS


@pytest.fixture
def fresh_workers(worker):
    return iter(lambda: type(worker)(), None)


# -- what is refused


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"factors": 0}, "factors"),
        ({"factors": 1024}, "factors"),
        ({"lr": 0.0}, "lr"),
        ({"l2": -1.0}, "l2"),
        ({"lr": float("nan")}, "lr"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, named):
    with pytest.raises(BadInput, match=named):
        MatrixFactorisation(**wrong)


@pytest.mark.parametrize("wrong", [{"parts": 0}, {"parts": 1025}, {"lr_decay": 0.0}, {"seed": -1}])
def test_rotations_that_cannot_be_are_refused(wrong):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        RotatingFactorisation(**wrong)


def test_rows_of_another_kind_are_refused(worker):
    three = SparseArrayDataset([1], [0, 3], np.array([1, 2, 3], np.uint64))
    with pytest.raises(BadInput, match="row 0 of a batch has 3 features"):
        MODEL.train(worker, three)
    numbers = SparseArrayDataset([1], [0, 2], np.array([1, 2], np.uint64), [196.0, 242.0])
    with pytest.raises(BadInput, match="name both columns as categorical"):
        MODEL.train(worker, numbers)
    with pytest.raises(BadInput, match="not dense"):
        MODEL.train(worker, ArrayDataset(np.ones((3, 2)), [0, 1, 1]))
    unrated = SparseArrayDataset([np.nan], [0, 2], np.array([1, 2], np.uint64))
    with pytest.raises(BadInput, match="no label"):
        MODEL.train(worker, unrated)
    assert len(MODEL.predict(MODEL.open(worker), unrated)) == 1
