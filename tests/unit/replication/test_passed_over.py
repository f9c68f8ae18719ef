"""Entries that need not be kept, and what a log holds in memory."""

from __future__ import annotations

import numpy as np
import pytest

from resilient_ps.errors import Bug
from resilient_ps.ids import Epoch, Position
from resilient_ps.messages import Command, Entry, Kind
from resilient_ps.replication.log import Log

EPOCH = Epoch(1, 2)


def entry(lsn: int, keys: int = 0) -> Entry:
    return Entry(Position(EPOCH, lsn), Command(Kind.PUSH, keys=np.zeros(keys, np.uint64)))


def test_an_entry_that_is_passed_over_leaves_its_place() -> None:
    log = Log()
    log.append(entry(1))
    log.take()
    assert log.pass_over(EPOCH) == 2
    assert (log.applied, log.last, len(log)) == (2, 2, 0)
    assert log.place(2) == Position(EPOCH, 2)
    log.append(entry(3))
    assert [held.at.lsn for held in log.after(2)] == [3]


def test_nothing_is_passed_over_before_what_is_pending_or_of_another_epoch() -> None:
    log = Log()
    with pytest.raises(Bug):
        log.pass_over(EPOCH)
    log.append(entry(1))
    with pytest.raises(Bug):
        log.pass_over(EPOCH)
    log.take()
    with pytest.raises(Bug):
        log.pass_over(Epoch(1, 3))


def test_a_log_knows_how_many_keys_wait() -> None:
    log = Log()
    for lsn, keys in ((1, 3), (2, 4), (3, 5)):
        log.append(entry(lsn, keys))
    assert log.keys == 12
    log.take()
    log.cut(2)
    assert log.keys == 4
