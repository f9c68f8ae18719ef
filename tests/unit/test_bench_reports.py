"""What a bench measured, summed up: rates, bars, tables, JSON and pages."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType

from resilient_ps.cli.bench import page as bench_page
from resilient_ps.cli.bench.planted import dense_classes, dense_two_classes, sparse_rows
from resilient_ps.cli.bench.platforms import report as platforms
from resilient_ps.cli.bench.platforms.gradients import gradients
from resilient_ps.cli.bench.platforms.problems import Problem, problems
from resilient_ps.cli.bench.platforms.run import PLATFORMS, Measured, Plan
from resilient_ps.cli.bench.stragglers import report
from resilient_ps.cli.bench.stragglers.slowness import Pattern, Slowness
from resilient_ps.cli.bench.stragglers.study import BAR, Run, Setting, Study, summed_up
from resilient_ps.cli.bench.stragglers.watching import Curve, Look
from resilient_ps.cli.bench.stragglers.worker import Order, Told
from resilient_ps.cli.output import print_notes
from resilient_ps.errors import BadInput

SLOWNESS = Slowness(Pattern.RANDOM, ranks=2, compute_s=0.1, factor=3.0, seed=1)
SETTING = Setting(
    2, 3, 10, 1, 0.1, 3.0, 1, 0.1, Path("rows.npz"), sparse_rows(5, 20, 2, 1)
)  # fmt: skip


def text_of(drawn: RenderableType) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(drawn)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


# --- the study of stragglers


def told(rank_s: float, stale: Sequence[int]) -> list[Told]:
    return [
        Told(c + 1, 100 + rank_s * (c + 1), 10 * (c + 1), 0.5, stale[c], 0.0, 0.1)
        for c in range(len(stale))
    ]


def order(consistency: str) -> Order:
    return Order("e", "c", "j", consistency, "rows.npz", 10, 1, 3, "t", 0.1, SLOWNESS)


def test_a_run_ends_when_its_first_rank_is_through() -> None:
    ranks = [told(0.2, (0, 1, 1)), told(0.5, (0, 0))]
    looks = Curve([(99.0, 9.0), (100.1, 0.9), (100.55, 0.7), (100.9, 0.6)])
    run = summed_up(order("ssp:1"), 100.0, ranks, looks)
    assert run.seconds == pytest.approx(0.6)
    assert run.samples == 40  # three clocks of rank 0, and the one of rank 1 that was over by then
    assert run.staleness == {0: 2, 1: 2}
    assert [look.samples for look in run.looks] == [0, 30, 40]
    assert run.loss == 0.6


def test_who_waits_is_told_from_who_works() -> None:
    quick = summed_up(order("asp"), 100.0, [told(0.12, (0, 0, 0))] * 2, Curve([(100.0, 1.0)]))
    assert quick.work_s == pytest.approx(0.02)
    assert quick.waited_share == pytest.approx(0.0, abs=1e-9)
    waits = [told(0.12, (0, 0, 0)), told(0.3, (0,))]
    assert summed_up(order("bsp"), 100.0, waits, Curve([(100.0, 1.0)])).waited_share > 0.0


def run_of(pattern: Pattern, consistency: str, rate: float) -> Run:
    looks = (Look(0.0, 0, 0.7), Look(1.0, 500, 0.6), Look(2.0, 1000, 0.5))
    return Run(
        pattern, consistency, round(2 * rate), 2.0, 2 * rate, {0: 5, 14: 1}, 0.01, 0.2, looks
    )


def study(ssp: float) -> Study:
    return Study(
        (
            run_of(Pattern.RANDOM, "bsp", 100.0),
            run_of(Pattern.RANDOM, "ssp:3", ssp),
            run_of(Pattern.FIXED, "bsp", 50.0),
        )
    )


def test_the_bar_is_between_ssp_and_bsp_under_the_random_straggler() -> None:
    assert study(100 * BAR + 1).holds is True
    assert study(100 * BAR - 1).holds is False
    assert Study((run_of(Pattern.FIXED, "ssp:3", 9.0),)).holds is None
    assert Study((run_of(Pattern.RANDOM, "ssp:3", 9.0),)).holds is None


def test_the_study_is_told_as_a_table_as_json_and_as_a_page() -> None:
    found = study(179.0)
    text = text_of(report.as_table(found))
    assert "1.79" in text
    assert "0, 14" in text  # median and largest staleness
    told = report.as_json(SETTING, found, seconds=1.0)
    assert json.loads(json.dumps(told))["runs"][1]["staleness"] == {"0": 5, "14": 1}
    assert (told["gain"], told["holds"]) == (1.79, True)
    html = report.page(SETTING, found, seconds=1.0).html()
    assert "SSP(3) is 1.79 x BSP" in html
    assert html.count('class="drawing"') == 8
    assert 'class="held"' in html
    assert 'class="violated"' in report.page(SETTING, study(101.0), seconds=1.0).html()


def test_notes_are_printed_letter_by_letter(capsys: pytest.CaptureFixture[str]) -> None:
    print_notes([platforms.REMEDY, "word " * 60])
    assert capsys.readouterr().out.splitlines() == [f"* {platforms.REMEDY}", "* " + "word " * 60]


# --- the comparison of platforms


TINY = Problem("1 hidden", 40, 6, 3, (5,), 10, 0.1)
LOGISTIC = Problem("logistic", 40, 6, 2, (), 10, 0.1)


def test_the_gradients_of_peers_are_those_of_the_loss() -> None:
    for problem, dataset in (
        (TINY, dense_classes(40, 6, 3, 1)),
        (LOGISTIC, dense_two_classes(40, 6, 1)),
    ):
        rng = np.random.default_rng(1)
        weights = [
            w + rng.normal(0, 0.3, w.shape).astype(np.float32) for w in problem.initial(seed=1)
        ]
        found = gradients(weights, dataset.features, dataset.labels)
        for layer, gradient in zip(weights, found, strict=True):
            place, step = (1, 0), np.float32(1e-2)
            layer[place] += step
            above = problem.loss(weights, dataset)
            layer[place] -= 2 * step
            below = problem.loss(weights, dataset)
            layer[place] += step
            slope = 40 * (above - below) / (2 * step)
            assert gradient[place] == pytest.approx(slope, rel=0.02, abs=0.01)


def test_the_problems_have_the_sizes_of_the_paper() -> None:
    sizes = {p.name: (p.rows, p.width, p.classes, len(p.hidden)) for p in problems()}
    assert sizes == {
        "logistic": (10_000, 10_000, 2, 0),
        "softmax": (60_000, 784, 10, 0),
        "1 hidden": (60_000, 784, 10, 1),
        "2 hidden": (60_000, 784, 10, 2),
    }
    assert {p.batch_size for p in problems()} == {1000, 500}


def test_planted_rows_are_repeatable_and_have_something_in_them_to_learn() -> None:
    one, again = dense_classes(500, 30, 5, seed=7), dense_classes(500, 30, 5, seed=7)
    assert np.array_equal(one.features, again.features)
    assert sorted(np.unique(one.labels)) == [0, 1, 2, 3, 4]
    assert 0 <= one.features.min() < one.features.max() <= 1
    sparse = sparse_rows(200, 50, 4, seed=7)
    assert (len(sparse), len(sparse.keys), 0.2 < sparse.labels.mean() < 0.8) == (200, 800, True)


def measured(platform: int, rate: float) -> Measured:
    return Measured(PLATFORMS[platform], LOGISTIC, [rate], [0.3], "1.0")


def names() -> list[str]:
    return [platform.name for platform in PLATFORMS]


def test_we_hold_only_when_ahead_of_every_peer() -> None:
    ours, torch, sklearn = 0, names().index("PyTorch"), names().index("scikit-learn")
    assert platforms.holds([measured(ours, 5), measured(torch, 4), measured(sklearn, 3)]) is True
    assert platforms.holds([measured(ours, 5), measured(torch, 4), measured(sklearn, 6)]) is False
    assert platforms.holds([measured(ours, 5)]) is None


def test_the_comparison_is_told_as_a_table_as_json_and_as_a_page() -> None:
    torch = names().index("PyTorch")
    rows = [measured(0, 5.0), measured(torch, 4.0)]
    plan = Plan([LOGISTIC], [PLATFORMS[0], PLATFORMS[torch]], 2, 3.0, 1, 1, Path("x"))
    assert "80%" in text_of(platforms.as_table(rows))
    told = platforms.as_json(plan, rows, seconds=1.0)
    assert (told["holds"], len(told["rows"])) == (True, 2)
    assert "Spark" in told["skipped"]
    spark = PLATFORMS[names().index("Spark")]
    html = platforms.page(plan, rows, [spark], seconds=1.0).html()
    assert "ahead of every peer" in html
    assert "Spark was skipped: it is not installed" in html


def test_what_a_page_shows_is_escaped() -> None:
    bad = dataclasses.replace(PLATFORMS[0], name="<script>alert(1)</script>")
    rows = [Measured(bad, LOGISTIC, [5.0], [0.3], "<b>")]
    plan = Plan([LOGISTIC], [bad], 2, 3.0, 1, 1, Path("x"))
    html = platforms.page(plan, rows, [], seconds=1.0).html()
    assert "<script>alert(1)" not in html
    assert "<b>" not in html.partition("</header>")[2].partition('id="result"')[0]


@pytest.mark.parametrize(
    ("plot", "says"),
    [("x.pdf", "name it *.html"), ("/nowhere/at/all/x.html", "there is no folder /nowhere/at/all")],
)
def test_a_plot_that_cannot_be_written_is_refused_before_anything_is_measured(
    plot: str, says: str
) -> None:
    with pytest.raises(BadInput) as caught:
        bench_page.check_plot(plot)
    assert says in str(caught.value)
