"""The bank's books, and the quality of a model: what is right, and what is convicted."""

from __future__ import annotations

import pytest
from histories import why

from resilient_ps.chaos.checkers.bank import (
    ACCOUNTS,
    Account,
    Books,
    check_books,
    check_statements,
    content_after,
    orders_of,
)
from resilient_ps.chaos.checkers.cuts import Content
from resilient_ps.chaos.checkers.quality import check_quality
from resilient_ps.chaos.history import History

RANKS = 2
TICKED = {0: 3, 1: 4}
NAMES = ("a/accounts", "b/accounts")


def changed(content: Content, table: int, key: int, by: int) -> Content:
    rows = {number: dict(held) for number, held in content.items()}
    rows[table][key] = rows[table].get(key, 0) + by
    return rows


@pytest.mark.parametrize("tables", [1, 2])
def test_orders_move_amounts_between_different_accounts(tables: int) -> None:
    orders = [
        o for rank in range(RANKS) for clock in (1, 2, 3) for o in orders_of(rank, clock, tables)
    ]
    assert len({order.key for order in orders}) == len(orders)
    assert all(order.source != order.target for order in orders)
    assert {account.table for order in orders for account in order[:2]} == set(range(tables))
    assert (
        sum(sum(rows.values()) for rows in list(content_after(TICKED, tables).values())[:-1]) == 0
    )


@pytest.mark.parametrize("tables", [1, 2])
def test_books_that_balance_hold(tables: int) -> None:
    state = {"in the end": (content_after(TICKED, tables), TICKED)}
    assert check_books(state, tables).outcome == "true"


def test_a_lost_a_doubled_and_a_halved_order_are_convicted() -> None:
    order = orders_of(0, 1, 2)[0]
    whole = content_after(TICKED, 2)

    def verdict(held: Content) -> str:
        return why(check_books({"in the end": (held, TICKED)}, 2))

    assert f"key {order.key} holds 0, not 1" in verdict(changed(whole, 2, order.key, -1))
    assert f"key {order.key} holds 2, not 1" in verdict(changed(whole, 2, order.key, 1))
    halved = changed(whole, order.source.table, order.source.key, order.amount)
    assert f"the total of all accounts is {order.amount}" in verdict(halved)


def test_a_cut_with_more_of_one_rank_is_convicted() -> None:
    held = content_after({0: 3, 1: 5}, 1)
    assert "checkpoint 7" in why(check_books({"checkpoint 7": (held, TICKED)}, 1))


def statement(history: History, clock: int, table: int, values: tuple[int, ...]) -> None:
    keys = tuple(range(ACCOUNTS))
    number = history.invoke("0.1", "pull", 0, clock, 10 * clock, keys, table=NAMES[table])
    history.complete(number, 10 * clock + 1, "ok", values)


def accounts(clock: int, table: int) -> tuple[int, ...]:
    after = Books(RANKS, 2).after(clock)
    return tuple([after.get(Account(table, key), 0) for key in range(ACCOUNTS)])


def test_bsp_pulls_see_the_accounts_after_the_clock_before() -> None:
    history = History()
    for clock in (1, 2, 3):
        for table in (0, 1):
            statement(history, clock, table, accounts(clock - 1, table))
    assert check_statements(history, NAMES, RANKS).outcome == "true"


@pytest.mark.parametrize("seen_after", [1, 3])
def test_a_pull_that_sees_another_clock_is_convicted(seen_after: int) -> None:
    history = History()
    statement(history, 3, 0, accounts(seen_after, 0))
    assert "the pull of 0.1 at clock 3 saw" in why(check_statements(history, NAMES, RANKS))


def test_no_pull_proves_nothing() -> None:
    assert check_statements(History(), NAMES, RANKS).outcome == "unknown"


def test_a_measure_within_the_band_holds_and_others_are_convicted() -> None:
    assert check_quality({"loss": (0.51, 0.5)}, band=0.05).outcome == "true"
    for held in (0.56, 0.44, float("nan")):
        assert "undisturbed 0.5" in why(check_quality({"loss": (held, 0.5)}, band=0.05))
    assert check_quality({}, band=0.05).outcome == "unknown"
