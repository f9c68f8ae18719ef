"""Writes that are sent when an epoch is over: who accepts one in it is found."""

from __future__ import annotations

import pytest

from resilient_ps.chaos.checkers.ended import check_ended
from resilient_ps.ids import NOWHERE, Epoch, Position
from resilient_ps.messages import PartAnswer, Status

ENDED = {0: Epoch(1, 3), 1: Epoch(1, 5)}


def accepted(shard: int, epoch: int) -> PartAnswer:
    return PartAnswer(shard, Status.OK, Position(Epoch(1, epoch), 9))


@pytest.mark.parametrize(("shard", "epoch"), [(0, 3), (0, 2), (1, 5)])
def test_a_write_that_is_accepted_in_an_ended_epoch_is_found(shard: int, epoch: int) -> None:
    verdict = check_ended([accepted(shard, epoch)], ENDED, 1)
    assert verdict.outcome == "false"
    assert f"shard {shard}: a write was accepted in epoch 1.{epoch}" in verdict.reasons[0]


def test_later_epochs_may_accept_and_earlier_ones_may_refuse() -> None:
    refused = PartAnswer(0, Status.NOT_OWNER, NOWHERE)
    assert check_ended([accepted(0, 4), refused], ENDED, 2).outcome == "true"


def test_no_answer_at_all_is_no_acceptance() -> None:
    assert check_ended([], ENDED, 5).outcome == "true"


def test_where_nothing_was_sent_nothing_is_known() -> None:
    assert check_ended([], ENDED, 0).outcome == "unknown"
