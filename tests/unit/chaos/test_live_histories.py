"""Files of worker processes become one history, also those that killed processes leave behind."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from resilient_ps.chaos.live.audit import AuditFile
from resilient_ps.chaos.live.evidence import AuditFiles, ReceiptFiles, check_evidence
from resilient_ps.chaos.live.histories import Histories
from resilient_ps.chaos.live.programs.journal import Journal
from resilient_ps.chaos.live.workload import MODES, make_workload
from resilient_ps.chaos.live.workloads.making import KINDS
from resilient_ps.chaos.live.workloads.script import command_of, metrics_in
from resilient_ps.client.receipts import Receipts
from resilient_ps.errors import BadInput
from resilient_ps.ids import Epoch, Position, WorkerId
from resilient_ps.messages import Kind
from resilient_ps.noted_calls import Acknowledged


def test_lives_are_joined_in_the_order_of_time(tmp_path: Path) -> None:
    first, second = Journal(tmp_path, 0), Journal(tmp_path, 1)
    first.opened("0.1", 1, 0)
    second.opened("1.1", 2, 0)
    (push,) = first.begin("push", 1, [("rows", [7, 8])], 1.0)
    (pull,) = second.begin("pull", 1, [("rows", [7])], 1.0)
    second.end([pull], "ok", [3])
    first.end([push], "unknown")
    first.saw([Position(Epoch(1, 2), 9)], 1)
    first.told(1)
    histories = Histories(tmp_path)
    ended = [(begun.action, over.outcome) for begun, over in histories.read()]
    assert sorted(ended) == [("open", "ok"), ("open", "ok"), ("pull", "ok"), ("push", "unknown")]
    history = histories.history()
    moments = [record.at_ns for record in history.records]
    assert moments == sorted(moments)
    pushed, pulled = history.operations("push", "pull")
    assert pushed.invoked[1:6] == ("0.1", "push", 0, 1, (7, 8))
    assert pushed.invoked.deadline_ns - pushed.invoked.at_ns == 10**9
    assert (pulled.invoked.process, pulled.values) == ("1.1", (3,))
    assert history.sights()[0].shards == (Position(Epoch(1, 2), 9),)
    assert history.rollbacks_told()[0].before == 1


def test_reading_goes_on_where_it_ended_and_leaves_torn_lines(tmp_path: Path) -> None:
    journal, histories = Journal(tmp_path, 0), Histories(tmp_path)
    (number,) = journal.begin("push", 1, [("rows", [1])], 1.0)
    assert histories.read() == []
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("ab") as file:
        file.write(b'["ended",1,"o')
    assert histories.read() == []
    with path.open("ab") as file:
        file.write(b'k",[],5]\n')
    assert [over.outcome for _, over in histories.read()] == ["ok"]
    assert histories.read() == []
    assert number == 1


def test_what_a_killed_life_had_begun_is_unknown_and_what_failed_is_told(tmp_path: Path) -> None:
    killed, failed, ended = (Journal(tmp_path, rank) for rank in range(3))
    for journal in (killed, failed, ended):
        journal.opened(f"{journal.process}.1", 1, 0)
        journal.begin("push", 1, [("rows", [1])], 1.0)
    failed.over("Fenced: another process")
    ended.over(clock=7)
    histories = Histories(tmp_path)
    histories.read()
    history = histories.history()
    assert history.deaths().keys() == {"0.1"}
    assert [push.outcome for push in history.operations("push")] == ["unknown"] * 3
    assert histories.failures() == ["1.1: Fenced: another process"]
    assert [(life.why, life.ended_clock) for life in histories.of(2)] == [("", 7)]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0.1.1.jsonl").write_text('["sung", 1]\n')
    with pytest.raises(BadInput, match="is no history"):
        Histories(tmp_path).read()
    (tmp_path / "0.1.1.jsonl").write_text("hello\n")
    with pytest.raises(BadInput, match="no line of JSON"):
        Histories(tmp_path).read()


def test_receipts_and_audits_are_read_and_compared(tmp_path: Path) -> None:
    made, applied = ReceiptFiles(tmp_path / "receipts"), AuditFiles(tmp_path / "audit")
    kept = Receipts(made.folder, 0)
    worker, place = WorkerId(1, 0, 1), Position(Epoch(1, 1), 2)
    kept.note(Acknowledged(Kind.PUSH, worker, 1, 1, 5, {0: place}))
    kept.note(Acknowledged(Kind.PULL, worker, 1, 0, 6, {0: place}))
    kept.note(Acknowledged(Kind.TICK, worker, 1, 0, 7, {0: place}))
    kept.note(Acknowledged(Kind.FENCE, worker, 1, 0, 8, {0: place}))
    told = [(call.what, call.clock, call.begun_ns) for call in made.read()]
    assert told == [("push", 1, 5), ("pull", 1, 6), ("tick", 1, 7)]
    assert check_evidence(made, applied).outcome == "unknown", "no server keeps an audit"
    applied.folder.mkdir()
    audit = applied.folder / "s1.1.1.audit"
    audit.write_text('["epoch",0,1,1,1,0,0,0,0,0]\n')
    assert check_evidence(made, applied).outcome == "false", "nobody applied the push"
    audit.write_text(audit.read_text() + '["push",0,1,1,2,1,0,1,1,1]\n')
    assert check_evidence(made, applied).outcome == "true"
    audit.write_text(audit.read_text() + '["lost",4]\n')
    assert check_evidence(made, applied).outcome == "unknown"


def test_receipts_of_a_holder_are_those_of_the_lanes_whose_tasks_it_did(tmp_path: Path) -> None:
    made, applied = ReceiptFiles(tmp_path / "receipts"), AuditFiles(tmp_path / "audit")
    kept = Receipts(made.folder, 0)
    for lane in (2, 5):
        place = Position(Epoch(1, 1), 2 + lane)
        kept.note(Acknowledged(Kind.PUSH, WorkerId(1, lane, 1), 1, 1, 5, {0: place}))
    applied.folder.mkdir()
    audit = applied.folder / "s1.1.1.audit"
    lines = ['["epoch",0,1,1,1,0,0,0,0,0]', '["push",0,1,1,4,1,2,1,1,1]']
    audit.write_text("".join(f"{line}\n" for line in lines))
    assert check_evidence(made, applied).outcome == "false", "that of lane 5 is missing"
    audit.write_text(audit.read_text() + '["push",0,1,1,7,1,5,1,1,1]\n')
    assert check_evidence(made, applied).outcome == "true"


def test_what_a_full_disk_has_no_room_for_is_written_when_it_has(tmp_path: Path) -> None:
    file = AuditFile(tmp_path, "s1")
    (path,) = tmp_path.iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        file.note("push", 0, Position(Epoch(1, 1), 2), 1, 0, 1, 1, 1)
        assert path.stat().st_size == 0
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    file.note("tick", 0, Position(Epoch(1, 1), 3), 1, 0, 1, 1, 0)
    assert path.read_text().splitlines() == [
        '["push",0,1,1,2,1,0,1,1,1]',
        '["tick",0,1,1,3,1,0,1,1,0]',
    ]


def test_metrics_are_found_among_other_lines() -> None:
    lines = [
        "epoch 1",
        "metric loss 0.9",
        '{"metric": "auc", "value": 0.75}',
        "metric loss 0.5",
        "metric loss better",
        '{"metric": "auc"',
        '{"metric": ["x"], "value": null}',
        "metric loss nan",
    ]
    assert metrics_in(lines) == {"loss": 0.5, "auc": 0.75}


def test_scripts_are_run_by_this_python_and_programs_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    with pytest.raises(BadInput, match="no such file"):
        command_of([str(script)])
    script.write_text("")
    assert command_of([str(script), "--epochs", "3"])[1:] == [str(script), "--epochs", "3"]
    assert command_of(["sh", "-c", "true"])[1:] == ["-c", "true"]
    with pytest.raises(BadInput, match="no such program"):
        command_of(["there-is-no-such-program"])


def test_workloads_are_found_by_name(tmp_path: Path) -> None:
    assert MODES.keys() == KINDS.keys() - {"script"}
    load = make_workload("barrier", workers=2, folder=tmp_path)
    assert (load.name, load.ranks) == ("barrier", 2)
    assert "--mode=bsp" in load.command(1)
    assert "--rank=1" in load.command(1)
    with pytest.raises(BadInput, match="no workload 'sing'"):
        make_workload("sing", workers=2, folder=tmp_path)
    with pytest.raises(BadInput, match="judge BSP"):
        make_workload("barrier", workers=2, folder=tmp_path, mode="asp")
    with pytest.raises(BadInput, match="needs a program"):
        make_workload("script", workers=2, folder=tmp_path)
    with pytest.raises(BadInput, match="at least 1"):
        make_workload("train", workers=0, folder=tmp_path)
