"""Gates of BSP, SSP and ASP, their names, and the specification of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.consistency import (
    ASP,
    BSP,
    SSP,
    STALENESS_MAX,
    Consistency,
    JobSpec,
    Tasks,
    consistency_name,
    parse_consistency,
)
from resilient_ps.errors import BadInput


def test_a_pull_under_bsp_needs_the_clock_before_its_own() -> None:
    assert [BSP().gate(clock) for clock in (1, 2, 9)] == [0, 1, 8]


def test_a_pull_under_ssp_needs_the_clock_that_lies_the_staleness_further_back() -> None:
    assert [SSP(2).gate(clock) for clock in (1, 2, 3, 4, 9)] == [0, 0, 0, 1, 6]
    assert [SSP(0).gate(clock) for clock in (1, 2)] == [0, 1]


@pytest.mark.parametrize("mode", [ASP(), Tasks()], ids=str)
def test_a_pull_under_asp_and_in_a_task_waits_for_nothing(mode: Consistency) -> None:
    assert mode.gate(1_000_000) == 0


def test_pushes_are_held_under_bsp_and_in_tasks() -> None:
    modes = (BSP(), BSP("mean"), SSP(0), ASP(), Tasks())
    held = [JobSpec(1, "j", 1, mode).holds_pushes for mode in modes]
    assert held == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("bsp", BSP()),
        ("bsp:sum", BSP()),
        ("BSP:mean", BSP("mean")),
        (" ssp ", SSP(3)),
        ("ssp:0", SSP(0)),
        ("ssp:17", SSP(17)),
        ("asp", ASP()),
        ("tasks", Tasks()),
    ],
)
def test_names_of_modes(text: str, mode: Consistency) -> None:
    assert parse_consistency(text) == mode
    assert parse_consistency(consistency_name(mode)) == mode


@pytest.mark.parametrize(
    "text",
    ["", "bsp:max", "ssp:-1", "ssp:1.5", "ssp:²", "ssp:٣", "asp:1", "tasks:1", "x",
     "ssp:" + "9" * 7, "ssp:" + "9" * 5000],
)  # fmt: skip
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_consistency(text)


@pytest.mark.parametrize("staleness", [-1, 1.0, True, "3", STALENESS_MAX + 1])
def test_a_staleness_is_a_whole_number_within_its_range(staleness: object) -> None:
    with pytest.raises(BadInput, match="whole number"):
        SSP(staleness)  # type: ignore[arg-type]


def test_bsp_knows_sum_and_mean_only() -> None:
    with pytest.raises(BadInput, match="'sum' or 'mean'"):
        BSP("max")  # type: ignore[arg-type]


@given(
    st.integers(1, 100),
    st.text(max_size=20),
    st.integers(1, 65_536),
    st.sampled_from([BSP(), BSP("mean"), SSP(0), SSP(5), ASP(), Tasks()]),
)
def test_a_jobs_specification_survives_its_json(
    job: int, name: str, ranks: int, mode: Consistency
) -> None:
    spec = JobSpec(job, name, ranks, mode)
    assert JobSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", "[" * 100_000,
        '{"job": 1, "name": "j", "ranks": 0, "consistency": "bsp"}',
        '{"job": 1, "name": "j", "ranks": 65537, "consistency": "bsp"}',
        '{"job": 1, "name": "j", "ranks": 1e999, "consistency": "bsp"}',
        '{"job": 1, "name": "j", "ranks": 1, "consistency": 5}',
        '{"job": [], "name": "j", "ranks": 1, "consistency": "bsp"}',
    ],
)  # fmt: skip
def test_anything_else_is_no_specification(text: str) -> None:
    with pytest.raises(BadInput):
        JobSpec.from_json(text)
