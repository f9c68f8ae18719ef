"""What the timeline draws of a run, and what the tables say of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from sample_run import sample_run

from resilient_ps.chaos.faults.kinds import KINDS
from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.report.lanes import in_lanes
from resilient_ps.chaos.report.tables import fault_rows, harmless, pairs, recovery_rows
from resilient_ps.chaos.report.timeline import SHARDS_SHOWN, panels
from resilient_ps.chaos.report.verdict import figures
from resilient_ps.chaos.report.wording import counted, seconds, size
from resilient_ps.chaos.result import Outage, Recovery, Reign, Sample

SPANS = st.lists(
    st.tuples(
        st.sampled_from([*sorted(KINDS), "of-a-later-version"]),
        st.floats(0, 60),
        st.floats(0, 9),
    ),
    max_size=40,
)


def struck(number: int, kind: str, from_s: float, lasts_s: float = 2.0) -> Struck:
    return Struck(Planned(number, from_s, kind), ("s1",), from_s, from_s + lasts_s, "seen")


@given(SPANS)
def test_no_two_bars_of_a_lane_overlap_and_none_is_missing(
    spans: list[tuple[str, float, float]],
) -> None:
    faults = [struck(number, *span) for number, span in enumerate(spans)]
    rows, bars = in_lanes(faults)
    assert sorted(bar.fault.planned.number for bar in bars) == list(range(len(faults)))
    for lane in {bar.lane for bar in bars}:
        inside = sorted((b.fault.injected_s, b.fault.healed_s) for b in bars if b.lane == lane)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(inside))
    groups = {row.group: range(row.lane, row.lane + row.lanes) for row in rows}
    assert all(bar.lane in groups[bar.group] for bar in bars)
    assert [row.lane for row in rows] == [
        sum(r.lanes for r in rows[:at]) for at in range(len(rows))
    ]


def test_all_panels_share_one_axis_of_time_that_holds_everything() -> None:
    run = replace(sample_run(), reigns=(Reign(0, "s1", "1.1", 0.0, 71.5),))
    drawn = panels(run)
    assert [panel.id for panel in drawn] == [
        "faults", "throughput", "latency", "leadership", "clocks",
    ]  # fmt: skip
    assert {tuple(panel.layout["xaxis"]["range"]) for panel in drawn} == {(0, 71.5)}


def test_faults_stand_as_bands_behind_every_other_panel() -> None:
    run = replace(sample_run(), faults=(struck(0, "kill-server", 3.0, 4.0),))
    for panel in panels(run):
        bands = [shape for shape in panel.layout["shapes"] if shape["type"] == "rect"]
        spans = [(band["x0"], band["x1"], band["fillcolor"]) for band in bands]
        assert spans == ([] if panel.id == "faults" else [(3.0, 7.0, "--kill")])


def test_leadership_has_a_colour_for_each_server_and_a_gap_where_nobody_led() -> None:
    reigns = (
        Reign(0, "s1", "1.1", 0.0, 10.0),
        Reign(0, "", "1.1", 10.0, 10.5),
        Reign(0, "s2", "1.2", 10.5, 60.0),
    )
    outages = (Outage(0, 9.9, 10.6, fault=4),)
    run = replace(sample_run(), reigns=reigns, outages=outages, faults=(struck(4, "gil", 9.8),))
    (panel,) = [panel for panel in panels(run) if panel.id == "leadership"]
    led, out = panel.data
    assert (led["base"], led["x"]) == ([0.0, 10.5], [10.0, 49.5])
    assert len(set(led["marker"]["color"])) == 2
    assert out["hovertext"] == ["<b>shard 0</b> acknowledged nothing for 0.70 s<br>put down to gil"]
    assert [key.text for key in panel.keys] == ["s1", "s2", "nothing acknowledged"]


def test_of_too_many_shards_those_that_were_away_for_longest_are_drawn() -> None:
    reigns = tuple(Reign(shard, "s1", "1.1", 0.0, 60.0) for shard in range(1024))
    run = replace(sample_run(), reigns=reigns, outages=(Outage(1000, 1.0, 3.0),))
    (panel,) = [panel for panel in panels(run) if panel.id == "leadership"]
    led, out = panel.data
    assert len(led["y"]) == SHARDS_SHOWN
    assert out["y"] == [SHARDS_SHOWN - 1]
    assert "64 of 1024 shards" in panel.note


def test_a_checkpoint_is_marked_in_the_second_that_made_it() -> None:
    samples = tuple(
        Sample(float(at), 1, 1, 0.001, 0.002, (at, at + 1), checkpoints=at // 2)
        for at in range(1, 5)
    )
    (panel,) = [p for p in panels(replace(sample_run(), samples=samples)) if p.id == "clocks"]
    assert [trace["name"] for trace in panel.data] == ["rank 0", "rank 1", "checkpoint"]
    assert panel.data[-1]["x"] == [2.0, 4.0]


def test_no_line_leads_over_a_time_that_nobody_looked_at() -> None:
    samples = tuple(Sample(at, 10, 5, 0.001, 0.002, (1,)) for at in (1.0, 2.0, 9.0))
    (panel,) = [p for p in panels(replace(sample_run(), samples=samples)) if p.id == "throughput"]
    pushes = panel.data[0]
    assert (pushes["x"], pushes["y"]) == ([1.0, 2.0, 5.5, 9.0], [10, 10, None, 10])


def test_ranks_that_join_later_have_lines_of_their_own() -> None:
    samples = (
        Sample(1.0, 1, 1, 0.001, 0.002, (1,)),
        Sample(2.0, 1, 1, 0.001, 0.002, (2, 1)),
    )
    (panel,) = [p for p in panels(replace(sample_run(), samples=samples)) if p.id == "clocks"]
    assert [(trace["x"], trace["y"]) for trace in panel.data] == [
        ([1.0, 2.0], [1, 2]),
        ([2.0], [1]),
    ]


def test_recovery_names_what_hurt_most_first_and_what_did_no_harm_apart() -> None:
    recovery = (
        Recovery("delay", 3, 0.0, 0.0, 0.0),
        Recovery("kill-primary", 8, 0.084, 0.4, 0.5),
        Recovery("pause-primary", 2, 2.0, 2.5, 2.5),
    )
    run = replace(sample_run(), recovery=recovery)
    rows = [(row.kind, row.median, row.longest, row.share) for row in recovery_rows(run)]
    assert rows == [
        ("pause-primary", "2.00 s", "2.50 s", 100.0),
        ("kill-primary", "84 ms", "0.50 s", 20.0),
    ]
    assert harmless(run) == [("delay", "network", 3)]


def test_a_fault_without_evidence_is_doubtful() -> None:
    planned = Planned(0, 1.0, "kill-primary", ("primary:3",), 2.0)
    faults = (
        Struck(planned, ("s2",), 1.0, 3.1, ""),
        Struck(replace(planned, number=1, at_s=0.5), skipped="nobody leads"),
    )
    skipped, doubtful = fault_rows(replace(sample_run(), faults=faults))
    assert (skipped.state, skipped.remark, skipped.lasted) == ("skipped", "nobody leads", "")
    assert (doubtful.state, doubtful.whom, doubtful.lasted) == (
        "doubtful", "s2 (primary:3)", "2.10 s",
    )  # fmt: skip


def test_the_longest_outage_names_its_shard_and_its_fault() -> None:
    run = replace(sample_run(), faults=(struck(4, "gil", 9.8),))
    blamed = replace(run, outages=(Outage(1, 1.0, 1.2), Outage(2, 9.9, 10.6, fault=4)))
    assert "shard 2, gil" in [figure.note for figure in figures(blamed)]
    unexplained = replace(run, outages=(Outage(1, 1.0, 1.2),))
    assert "shard 1, no fault explains it" in [figure.note for figure in figures(unexplained)]
    assert "none" in [figure.value for figure in figures(replace(run, outages=()))]
    unmeasured = replace(run, outages=(), reigns=())  # a scenario has no probes
    assert "it was not measured" in [figure.note for figure in figures(unmeasured)]


def test_a_false_failover_stands_out() -> None:
    run = sample_run()
    assert not any(figure.alarming for figure in figures(run))
    alarmed = replace(run, counts=replace(run.counts, false_failovers=2))
    assert [figure.name for figure in figures(alarmed) if figure.alarming] == ["failovers"]


def test_numbers_are_written_for_people() -> None:
    assert [seconds(value) for value in (0.0021, 0.0996, 2.104, 75.04, float("nan"))] == [
        "2.1 ms", "0.10 s", "2.10 s", "75.0 s", "-",
    ]  # fmt: skip
    assert [size(value) for value in (0, 1536, 734_003_200)] == ["0 B", "1.5 KiB", "700 MiB"]
    assert [counted(1, "fault"), counted(2, "fault")] == ["1 fault", "2 faults"]
    assert pairs({"lease_ttl_s": 2, "cap_bytes": 2048, "kinds": ["a", "b"], "liveness": False}) == [
        ("lease ttl", "2 s"), ("cap", "2.0 KiB"), ("kinds", "a, b"), ("liveness", "no"),
    ]  # fmt: skip
