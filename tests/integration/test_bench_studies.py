"""`bench consistency` and `bench platforms`, small, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_process import Shell


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_staleness_is_seen_as_it_is_bounded(shell: Shell, tmp_path: Path) -> None:
    """The slow rank lags as far as the others are let go: 1 clock, and without a bound more."""
    page = tmp_path / "study.html"
    done = shell(
        "bench", "consistency", "--modes", "bsp,ssp:1,asp", "--pattern", "fixed", "--workers", "2",
        "--clocks", "12", "--compute-ms", "2", "--factor", "40", "--batch-size", "8",
        "--plot", str(page), "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    runs = {run["consistency"]: run for run in done.json["runs"]}
    most = {name: max(map(int, run["staleness"])) for name, run in runs.items()}
    assert (most["bsp"], most["ssp:1"]) == (0, 1)
    assert most["asp"] > 1
    assert all(run["samples"] > 0 and run["looks"] for run in runs.values())
    assert done.json["holds"] is None  # there was no random straggler
    assert "not measured" in page.read_text()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--modes", "bsp,nearly"), "consistency 'nearly' is none of"),
        (("--modes", "ssp:1,ssp:1"), "one of them is there twice"),
        (("--pattern", "often"), "--pattern 'often' is none of: random, fixed, both"),
        (("--plot", "x.pdf"), "name it *.html"),
    ],
)
def test_wrong_flags_of_the_study_are_refused(
    shell: Shell, flags: tuple[str, ...], says: str
) -> None:
    done = shell("bench", "consistency", *flags)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


def test_ours_and_scikit_learn_train_the_same_problem(shell: Shell) -> None:
    done = shell(
        "bench", "platforms", "--quick", "--only", "softmax", "--peers", "scikit",
        "--seconds", "0.5", "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    rows = {row["platform"]: row for row in done.json["rows"]}
    assert set(rows) == {"ours, BSP", "ours, SSP(3)", "scikit-learn"}
    assert all(row["samples_per_s"] > 0 and row["loss"] < 2.3 for row in rows.values())
    assert done.json["holds"] is None  # logistic regression was not measured


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--only", "regression"), "--only 'regression' is none of: logistic, softmax"),
        (("--peers", "mxnet"), "--peers 'mxnet' is none of: pytorch, spark, scikit, none"),
    ],
)
def test_wrong_flags_of_the_comparison_are_refused(
    shell: Shell, flags: tuple[str, ...], says: str
) -> None:
    done = shell("bench", "platforms", *flags)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
