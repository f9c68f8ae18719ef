"""The inner loop of matrix factorisation: stochastic gradient descent, rating by rating."""

from __future__ import annotations

from typing import Any

from resilient_ps.tables.compiled import kernel


@kernel
def descend(
    users: Any,
    items: Any,
    ratings: Any,
    order: Any,
    user_rows: Any,
    item_rows: Any,
    mean: Any,
    lr: Any,
    l2: Any,
) -> Any:
    """One step for each rating, in this order, in place; the sum of squared errors before them.

    `users` and `items` are int64 (n,): rows of `user_rows` and of `item_rows`, float64 (., k + 1),
    whose last column are biases. `ratings` is float64 (n,), `order` int64 (n,).
    """
    bias = user_rows.shape[1] - 1
    total = 0.0
    for at in range(len(order)):
        rating = order[at]
        user, item = users[rating], items[rating]
        error = ratings[rating] - mean - user_rows[user, bias] - item_rows[item, bias]
        for f in range(bias):
            error -= user_rows[user, f] * item_rows[item, f]
        total += error * error
        for f in range(bias):
            of_user, of_item = user_rows[user, f], item_rows[item, f]
            user_rows[user, f] += lr * (error * of_item - l2 * of_user)
            item_rows[item, f] += lr * (error * of_user - l2 * of_item)
        user_rows[user, bias] += lr * (error - l2 * user_rows[user, bias])
        item_rows[item, bias] += lr * (error - l2 * item_rows[item, bias])
    return total
