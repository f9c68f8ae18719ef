"""Verdicts, whole clocks, and what a history gives back."""

from __future__ import annotations

from histories import note

from resilient_ps.chaos.checkers.verdict import HOLDS, REASONS_MAX, Verdict, judge, together
from resilient_ps.chaos.checkers.whole_clock import check_whole_clocks
from resilient_ps.chaos.history import History


def test_a_clock_is_the_work_of_one_process() -> None:
    limits = {"a": 2, "b": 2}
    assert check_whole_clocks({"a": [1, 1], "b": [2, 2]}, limits).outcome == "true"
    mixed = check_whole_clocks({"a": [1, 2], "b": [2, 2]}, limits)
    assert mixed.reasons == ("a is a mixture: [1, 2]",)
    assert check_whole_clocks({"a": [0, 0]}, limits).outcome == "false"
    assert check_whole_clocks({"a": [3, 3]}, limits).outcome == "false"
    assert check_whole_clocks({}, {}).outcome == "unknown"


def test_a_verdict_names_the_first_violations_and_counts_the_others() -> None:
    verdict = judge((f"violation {i}" for i in range(50)), checked=50, what="things")
    assert len(verdict.reasons) == REASONS_MAX + 1
    assert verdict.reasons[-1] == "and 30 more"


def test_the_worst_of_several_verdicts_counts() -> None:
    unknown, broken = Verdict("unknown", ("too short",)), Verdict("false", ("lost",))
    assert together(HOLDS, HOLDS) == HOLDS
    assert together(HOLDS, unknown) == unknown
    assert together(unknown, broken, HOLDS) == broken
    assert together(broken, broken).reasons == ("lost", "lost")


def test_operations_join_beginnings_and_ends() -> None:
    history = History()
    note(history, "0.1", "push", 1, 1, keys=(4,))
    note(history, "0.1", "pull", 1, 2, 5, values=(7,))
    (push,) = history.operations("push")
    assert (push.outcome, push.ended_ns, push.invoked.keys) == ("unknown", None, (4,))
    assert [o.values for o in history.operations("pull", "push")] == [(), (7,)]
    assert len(history.operations()) == 2


def test_a_history_of_one_table_keeps_what_belongs_to_none() -> None:
    history = History()
    for table in ("rows", "slots", ""):
        history.complete(history.invoke("0.1", "push", 0, 1, 1, table=table), 2)
    history.died("0.1", 3)
    rows = history.of("rows")
    assert [o.invoked.table for o in rows.operations()] == ["rows", ""]
    assert rows.deaths() == {"0.1": 3}
