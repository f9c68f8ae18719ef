"""The log of a replica: order, runs of epochs, what is dropped and what is remembered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.errors import Bug
from resilient_ps.ids import NO_EPOCH, Epoch, Position
from resilient_ps.messages import COMMAND_BYTES, Command, Entry, Kind
from resilient_ps.replication import log as log_module
from resilient_ps.replication.log import Log


def entry(lsn: int, epoch: int, text: bytes = b"") -> Entry:
    return Entry(Position(Epoch(1, epoch), lsn), Command(Kind.EPOCH, text=text))


def filled(*epochs: int, applied: int = 0) -> Log:
    """Entries of these epochs from lsn 1 on, the first of them applied."""
    log = Log()
    for lsn, epoch in enumerate(epochs, 1):
        log.append(entry(lsn, epoch))
    for _ in range(applied):
        log.take()
    return log


def test_an_empty_log_ends_nowhere() -> None:
    log = Log()
    assert log.end == Position(NO_EPOCH, 0)
    assert log.place(0) == Position(NO_EPOCH, 0)
    assert log.place(1) is None
    assert log.place(-1) is None
    assert log.epochs == ()


def test_each_lsn_has_the_epoch_in_which_it_was_made_applied_or_not() -> None:
    log = filled(1, 1, 3, 3, 4, applied=3)
    assert [log.place(lsn) for lsn in range(1, 6)] == [
        Position(Epoch(1, epoch), lsn) for lsn, epoch in enumerate((1, 1, 3, 3, 4), 1)
    ]
    assert log.end == Position(Epoch(1, 4), 5)
    assert (log.applied, log.last, len(log)) == (3, 5, 2)


def test_a_run_begins_with_the_first_entry_of_its_epoch() -> None:
    log = filled(1, 1, 3, 3, 4)
    assert [log.run_start(lsn) for lsn in range(6)] == [0, 1, 1, 3, 3, 5]


@pytest.mark.parametrize(
    "wrong", [entry(3, 2), entry(5, 2), entry(4, 1)], ids=["again", "gap", "epoch falls"]
)
def test_what_does_not_follow_is_a_bug(wrong: Entry) -> None:
    log = filled(1, 2, 2)
    with pytest.raises(Bug, match="cannot follow"):
        log.append(wrong)


def test_entries_are_applied_in_order() -> None:
    log = filled(1, 1, 2)
    assert [log.take().at.lsn for _ in range(3)] == [1, 2, 3]
    assert len(log) == 0


@pytest.mark.parametrize("lsn", range(7))
def test_all_up_to_an_lsn_are_taken_as_one_by_one(lsn: int) -> None:
    log, other = filled(1, 1, 2, 2, 2, applied=1), filled(1, 1, 2, 2, 2, applied=1)
    one_by_one = [other.take() for _ in range(min(lsn, other.last) - other.applied)]
    assert log.take_to(lsn) == one_by_one
    assert (log.applied, log.last, log.nbytes, log.keys, log.end) == (
        other.applied, other.last, other.nbytes, other.keys, other.end,
    )  # fmt: skip
    assert list(log.pending()) == list(other.pending())


def test_entries_behind_an_lsn() -> None:
    log = filled(1, 1, 2, 2, applied=1)
    assert [e.at.lsn for e in log.after(1)] == [2, 3, 4]
    assert [e.at.lsn for e in log.after(3)] == [4]
    assert log.after(4) == ()
    assert [e.at.lsn for e in log.pending()] == [2, 3, 4]


def test_a_cut_drops_what_is_behind_and_forgets_its_epochs() -> None:
    log = filled(1, 1, 2, 3, applied=1)
    log.cut(2)
    assert log.end == Position(Epoch(1, 1), 2)
    assert log.place(3) is None
    log.append(entry(3, 5))
    assert log.place(3) == Position(Epoch(1, 5), 3)
    log.cut(9)
    assert log.last == 3


def test_what_is_applied_cannot_be_cut() -> None:
    log = filled(1, 1, 2, applied=2)
    with pytest.raises(Bug, match="2 is applied"):
        log.cut(1)


def test_its_bytes_are_those_of_what_is_not_applied() -> None:
    log = Log()
    for lsn in (1, 2, 3):
        log.append(entry(lsn, 1, b"x" * 10 * lsn))
    assert log.nbytes == 3 * COMMAND_BYTES + 60
    log.take()
    assert log.nbytes == 2 * COMMAND_BYTES + 50
    log.cut(2)
    assert log.nbytes == COMMAND_BYTES + 20


def test_a_copy_gets_the_epochs_of_what_is_applied_and_goes_on_from_there() -> None:
    log = filled(1, 1, 2, 3, applied=3)
    assert log.epochs == ((1, Epoch(1, 1)), (3, Epoch(1, 2)))
    copy = Log(log.applied, log.epochs)
    assert (copy.applied, copy.last, len(copy)) == (3, 3, 0)
    assert [copy.place(lsn) for lsn in range(1, 4)] == [log.place(lsn) for lsn in range(1, 4)]
    copy.append(entry(4, 3))
    assert copy.end == log.end


def test_only_so_many_runs_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "EPOCHS_MAX", 3)
    log = filled(1, 2, 3, 4, applied=3)
    assert log.place(1) is None
    assert log.run_start(1) == 0
    assert log.place(2) == Position(Epoch(1, 2), 2)


@given(st.lists(st.integers(1, 4), max_size=12), st.integers(0, 12), st.data())
def test_runs_tell_the_same_as_a_list_of_all_epochs(
    steps: list[int], applied: int, data: st.DataObject
) -> None:
    epochs = sorted(steps)
    applied = min(applied, len(epochs))
    log = filled(*epochs, applied=applied)
    kept = data.draw(st.integers(applied, len(epochs)))
    log.cut(kept)
    assert log.last == kept
    for lsn in range(1, kept + 1):
        assert log.place(lsn) == Position(Epoch(1, epochs[lsn - 1]), lsn)
        assert log.run_start(lsn) == epochs.index(epochs[lsn - 1]) + 1
    assert [e.at.lsn for e in log.after(applied)] == list(range(applied + 1, kept + 1))
