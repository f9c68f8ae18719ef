"""A bank whose books must balance: orders that move amounts between accounts.

Workload: in each clock a rank carries out orders that (rank, clock, number) determine; each takes
an amount from one account and gives it to another one, mostly on another shard, and perhaps in
another table; a table of its own counts the orders. Accounts begin with 0. So what the tables hold
after some clocks of each rank is known to the last digit, and the total is 0:

* under BSP a pull at clock c sees exactly the accounts after clock c-1 of all ranks;
* a checkpoint, and the end, hold exactly the orders of complete clocks, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from resilient_ps.chaos.checkers.cuts import Content, check_content
from resilient_ps.chaos.checkers.verdict import Verdict, judge
from resilient_ps.chaos.history import History
from resilient_ps.hashing import mix64

ACCOUNTS = 16  # in each table
ORDERS_PER_CLOCK = 3
AMOUNT_MOST = 1_000
RANKS_MOST = 1 << 10
NO_TABLE = -1  # several hold the accounts: what is in one of them need not be 0


class Account(NamedTuple):
    """Where an account is: the number of its table, and its key."""

    table: int
    key: int


class Order(NamedTuple):
    """`amount` goes from one account to another one; `key`: where the order is counted."""

    source: Account
    target: Account
    amount: int
    key: int


def orders_of(rank: int, clock: int, tables: int) -> list[Order]:
    """What a rank carries out in a clock, with accounts in so many tables."""
    return [_order(rank, clock, number, tables) for number in range(ORDERS_PER_CLOCK)]


def _order(rank: int, clock: int, number: int, tables: int) -> Order:
    key = (clock * RANKS_MOST + rank) * ORDERS_PER_CLOCK + number
    drawn, accounts = mix64(key + 1), ACCOUNTS * tables
    source = drawn % accounts
    target = (source + 1 + (drawn >> 16) % (accounts - 1)) % accounts
    amount = 1 + (drawn >> 32) % AMOUNT_MOST
    return Order(_account(source, tables), _account(target, tables), amount, key)


def _account(number: int, tables: int) -> Account:
    return Account(number % tables, number // tables)


class Books:
    """What the accounts hold as clocks pass: of all ranks, as many clocks each."""

    def __init__(self, ranks: int, tables: int) -> None:
        self._ranks = ranks
        self._tables = tables
        self._after: list[dict[Account, int]] = [{}]  # by clock

    def after(self, clock: int) -> Mapping[Account, int]:
        """The accounts that do not hold 0."""
        while len(self._after) <= clock:
            now = dict(self._after[-1])
            for rank in range(self._ranks):
                _carry_out(orders_of(rank, len(self._after), self._tables), now)
            self._after.append({account: held for account, held in now.items() if held})
        return self._after[clock]


def content_after(ticked: Mapping[int, int], tables: int) -> Content:
    """What all tables hold when each rank has completed so many clocks.

    Accounts' tables are numbered from 0; that of the orders comes behind them.
    """
    accounts: dict[Account, int] = {}
    content: dict[int, dict[int, int]] = {number: {} for number in range(tables + 1)}
    for rank, clocks in ticked.items():
        for clock in range(1, clocks + 1):
            orders = orders_of(rank, clock, tables)
            _carry_out(orders, accounts)
            content[tables].update({order.key: 1 for order in orders})
    for account, held in accounts.items():
        if held:
            content[account.table][account.key] = held
    return content


def _carry_out(orders: Sequence[Order], accounts: dict[Account, int]) -> None:
    for order in orders:
        accounts[order.source] = accounts.get(order.source, 0) - order.amount
        accounts[order.target] = accounts.get(order.target, 0) + order.amount


def check_statements(history: History, names: Sequence[str], ranks: int) -> Verdict:
    """BSP: each pull sees the accounts after the clock before. `names`: of the accounts' tables."""
    books = Books(ranks, len(names))
    violations: list[str] = []
    checked = 0
    for pull in history.operations("pull"):
        if pull.outcome == "ok" and pull.invoked.table in names:
            checked += 1
            table = names.index(pull.invoked.table)
            due = books.after(pull.invoked.clock - 1)
            for key, held in zip(pull.invoked.keys, pull.values, strict=True):
                right = due.get(Account(table, key), 0)
                if held != right:
                    violations.append(
                        f"the pull of {pull.invoked.process} at clock {pull.invoked.clock} saw "
                        f"{held} in account {key} of {pull.invoked.table}, must be {right}"
                    )
    return judge(violations, checked=checked, what="pulls that were answered")


def check_books(states: Mapping[str, tuple[Content, Mapping[int, int]]], tables: int) -> Verdict:
    """`states`: by its name, what the tables hold, and how many clocks each rank has completed."""
    compared = {
        name: (held, content_after(ticked, tables)) for name, (held, ticked) in states.items()
    }
    exact = check_content(compared, balanced=NO_TABLE)
    if exact.outcome != "false":
        return exact
    totals = [text for name, (held, _) in compared.items() for text in _total(name, held, tables)]
    return Verdict("false", (*totals, *exact.reasons))


def _total(name: str, held: Content, tables: int) -> Iterator[str]:
    total = sum(sum(held.get(table, {}).values()) for table in range(tables))
    if total:
        yield f"{name}: the total of all accounts is {total}, must be 0"
