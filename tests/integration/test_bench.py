"""The bench measures, reports, and tells when a bar is missed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from resilient_ps.cli.bench.cases import Case, SparseShape, dense_cases, sparse_cases
from resilient_ps.cli.bench.raw import RawPeer, memcpy_bytes_per_s
from resilient_ps.cli.bench.report import as_json, as_table
from resilient_ps.cli.bench.run import Plan, Row, run_several, run_single
from resilient_ps.engine import ENGINE

SHAPE = SparseShape(2_000, 16)


def few(cases: list[Case]) -> tuple[Case, ...]:
    return tuple(replace(case, times=3) for case in cases)


def test_all_kinds_of_cases_are_measured_and_reported(tmp_path: Path) -> None:
    cases = few([*dense_cases((1,)), *sparse_cases(SHAPE, (256,))])
    plan = Plan((1,), (SHAPE,), cases, rounds=2, transports=("tcp", "unix"))
    rows: list[Row] = []
    with RawPeer(tmp_path) as raw:
        run_single(plan, 1, raw, lambda text: None, rows.append)
        scaled = replace(plan, cases=(cases[0], *cases[2:4]))
        run_several(scaled, 2, 2, raw, lambda text: None, rows.append)
    assert len(rows) == 2 * len(cases) + 3
    assert all(len(row.rates) == 2 and min(row.rates) > 0 for row in rows)
    assert (rows[-1].servers, rows[-1].workers) == (2, 2)
    report = as_json(rows, {}, seconds=1.0)
    assert [row["case"] for row in report["rows"]] == [row.case.name for row in rows]
    assert report["kernels"] == ENGINE
    assert as_table(rows).row_count == len(rows)


def test_the_raw_limits_are_of_this_world(tmp_path: Path) -> None:
    with RawPeer(tmp_path) as raw:
        for transport in ("tcp", "unix"):
            assert 1e7 < raw.one_way_bytes_per_s(transport, total=8 << 20) < 1e12
            assert 1e-7 < raw.round_trip_s(transport, times=10) < 1
    assert 1e7 < memcpy_bytes_per_s(8 << 20) < 1e12


def test_a_missed_bar_is_told() -> None:
    (case,) = [c for c in sparse_cases(SparseShape(1_000_000, 16), (10_000,)) if c.bar == 0.21]
    row = Row(case, "tcp", 1, 1, [1.0], [0.3], [1.0], [1.0])
    assert row.holds is True
    assert replace(row, ratios=[0.1]).holds is False
    assert replace(row, case=replace(case, bar=None)).holds is None
    assert replace(row, transport="unix").holds is None
    assert as_json([replace(row, ratios=[0.1])], {}, seconds=1.0)["holds"] is False
    rtt = replace(case, bar=None, bar_round_trips=4.0)
    assert replace(row, case=rtt, round_trips=[5.0]).holds is False
