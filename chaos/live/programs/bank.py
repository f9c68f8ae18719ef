"""A rank that carries out orders: amounts go from account to account, each order once.

    python -m resilient_ps.chaos.live.programs.bank --folder F ... -- ORDERS ACCOUNTS [ACCOUNTS ...]

ORDERS and ACCOUNTS are names of tables. `chaos.checkers.bank` says what the orders are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from resilient_ps.chaos.checkers.bank import ACCOUNTS, Order, orders_of
from resilient_ps.chaos.live.programs.life import Life, Push, Settings
from resilient_ps.tables.optimisers import Sum


class Bank:
    """See the module."""

    def __init__(self, orders: str, accounts: Sequence[str]) -> None:
        self._names = (*accounts, orders)

    def open(self, life: Life) -> None:
        """All tables sum."""
        *self._accounts, self._orders = [
            life.worker.sparse_table(name, dim=1, dtype="int64", optimiser=Sum())
            for name in self._names
        ]

    def one_clock(self, life: Life) -> None:
        """Look at all accounts, carry out some orders, and say how many are done."""
        rank, clock = life.settings.rank, life.worker.clock
        for table in self._accounts:
            life.pull(table, np.arange(ACCOUNTS, dtype=np.uint64))
        life.rest(0.5)
        orders = orders_of(rank, clock, len(self._accounts))
        pushes = [push for order in orders for push in self._transfer(order)]
        keys = _keys([order.key for order in orders])
        life.push(*pushes, Push(self._orders, keys, np.ones((len(keys), 1), np.int64)))
        life.rest(0.5)
        life.tick({"orders": clock * len(orders)})

    def _transfer(self, order: Order) -> list[Push]:
        """One push, or one for each table."""
        sides = [(order.source, -order.amount), (order.target, order.amount)]
        pushes = []
        for number, table in enumerate(self._accounts):
            here = [(at.key, amount) for at, amount in sides if at.table == number]
            if here:
                amounts = np.array([[amount] for _, amount in here], np.int64)
                pushes.append(Push(table, _keys([key for key, _ in here]), amounts))
        return pushes


def _keys(keys: Sequence[int]) -> NDArray[np.uint64]:
    return np.array(keys, np.uint64)


def main(arguments: list[str]) -> None:
    """The process itself."""
    settings = Settings.parse(arguments)
    orders, *accounts = settings.rest
    Life(settings).run(Bank(orders, accounts))


if __name__ == "__main__":
    main(sys.argv[1:])
