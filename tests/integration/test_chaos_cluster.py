"""A cluster that is made to be hurt: its processes die, hang, leave and come, and nothing stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from struck import NUMBERS, AtWork, at_work

from resilient_ps.chaos.faults.kinds import KINDS
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.cluster import ChaosCluster
from resilient_ps.chaos.live.faults.making import MAKES, make
from resilient_ps.chaos.live.parties import WorkerParty, process_state
from resilient_ps.chaos.live.plan import ClusterPlan
from resilient_ps.chaos.live.scene import Fault, Skipped
from resilient_ps.coordinator.runtime.processes import find_etcd
from resilient_ps.errors import BadInput, NotFound
from resilient_ps.storage.runtime.seaweedfs import find_weed

PATIENCE_S = 60.0
WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[AtWork]:
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    try:
        find_weed()
    except NotFound as error:
        pytest.skip(str(error))
    with at_work(ClusterPlan(servers=3, workers=1, replicas=2, etcd=3, shards=6)) as working:
        working.scene.add_worker("w0", [sys.executable, "-c", WAITS])
        yield working


def planned(kind: str, *target: str) -> Planned:
    return Planned(next(NUMBERS), 0.0, kind, target)


def brought_about(cluster: AtWork, wanted: Sequence[tuple[str, str]]) -> list[Fault]:
    """Faults at the same time, each healed in a thread of its own; then all is well again."""
    faults = [make(planned(kind, target), cluster.scene) for kind, target in wanted]
    try:
        for fault in faults:
            fault.inject()
    finally:
        with ThreadPoolExecutor(len(faults)) as pool:
            for healing in [pool.submit(fault.heal) for fault in faults]:
                healing.result()
    cluster.scene.wait_settled(PATIENCE_S)
    cluster.wait_until_all_answer()
    assert not cluster.scene.claims.claimed
    return faults


def test_every_kind_of_the_catalogue_can_be_made() -> None:
    assert MAKES.keys() == KINDS.keys()


def test_what_was_killed_serves_again_where_it_was_and_as_another_process(cluster: AtWork) -> None:
    scene = cluster.scene
    before = {party.name: party.pid for party in scene.parties()}
    addresses = {r.server: (r.host, r.port) for r in scene.records.look().servers}
    kills = [("kill-primary", "primary:0"), ("kill-worker", "w0")]
    kills += [("kill-etcd-leader", "etcd leader"), ("kill-store", "store")]
    faults = brought_about(cluster, kills)
    for fault in faults:
        (name,) = fault.struck
        party = scene.party(name)
        assert party.state == "running"
        assert party.pid != before[name]
        assert f"pid {before[name]} ended by SIGKILL, pid {party.pid} serves" in fault.evidence()
        assert '"event": "party started"' in party.log.read_text()
    assert {r.server: (r.host, r.port) for r in scene.records.look().servers} == addresses
    assert scene.fallen() == []


def test_what_was_paused_goes_on_as_the_same_process(cluster: AtWork) -> None:
    before = {party.name: party.pid for party in cluster.scene.parties()}
    pauses = [("pause-primary", "primary:1"), ("pause-worker", "w0")]
    pauses += [("pause-etcd-leader", "etcd leader"), ("pause-store", "store")]
    for fault in brought_about(cluster, pauses):
        party = cluster.scene.party(fault.struck[0])
        assert party.state == "running"
        assert party.pid == before[party.name]
        assert fault.evidence().startswith(f"pid {party.pid} stopped for ")


def test_what_was_told_to_stop_ends_and_comes_back(cluster: AtWork) -> None:
    stops = [("stop-server", "s1"), ("stop-worker", "w0")]
    server, worker = brought_about(cluster, stops)
    assert "s after SIGTERM, pid" in server.evidence()
    assert "ended with exit code 0" in worker.evidence()
    assert cluster.scene.party("s1").state == "running"


def test_the_coordinator_is_whoever_is_elected_when_the_time_comes(cluster: AtWork) -> None:
    (fault,) = brought_about(cluster, [("pause-coordinator", "coordinator")])
    assert fault.struck[0] in ("s1", "s2", "s3")
    assert fault.evidence()


def test_a_kill_that_would_take_the_last_copy_is_not_carried_out(cluster: AtWork) -> None:
    scene = cluster.scene
    members = scene.records.look().shards[0].in_sync
    first, second = (member.server for member in members)
    kill = make(planned("kill-server", first), scene)
    kill.inject()
    try:
        too_much = make(planned("kill-server", second), scene)
        with pytest.raises(Skipped, match=f"{second} holds the last copy of shard"):
            too_much.inject()
        too_much.heal()
        assert not too_much.evidence()
        assert scene.party(second).state == "running"
        assert scene.claims.claimed == {first}
        stop = make(planned("stop-server", second), scene)
        with pytest.raises(Skipped, match=second):
            stop.inject()
    finally:
        kill.heal()
    scene.wait_settled(PATIENCE_S)


def test_etcd_keeps_its_majority(cluster: AtWork) -> None:
    kill = make(planned("kill-etcd", "e0"), cluster.scene)
    kill.inject()
    try:
        with pytest.raises(Skipped, match="no majority"):
            make(planned("kill-etcd", "e1"), cluster.scene).inject()
        assert cluster.scene.party("e1").state == "running"
    finally:
        kill.heal()
    assert kill.evidence()


def test_one_fault_at_a_time_strikes_a_process(cluster: AtWork) -> None:
    pause = make(planned("pause-server", "s2"), cluster.scene)
    pause.inject()
    try:
        with pytest.raises(Skipped, match="s2 is being struck by another fault"):
            make(planned("kill-server", "s2"), cluster.scene).inject()
        assert cluster.scene.party("s2").state == "paused"
    finally:
        pause.heal()
    pause.heal()  # which may happen again
    assert pause.evidence()


STARTS_ANOTHER = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid, flush=True)
"""


def test_what_a_worker_began_and_left_behind_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "w0.log"
    command = [sys.executable, "-c", STARTS_ANOTHER]
    party = WorkerParty("w0", log, lambda name, pid: None, command, {})
    party.start()
    wait_for(lambda: party.state == "ended")
    left = int(log.read_text().splitlines()[-1])
    assert process_state(left) not in ("", "Z")
    party.close()
    wait_for(lambda: process_state(left) in ("", "Z"))


def test_a_party_that_has_ended_is_not_struck(cluster: AtWork) -> None:
    worker = cluster.scene.party("w0")
    worker.stop(PATIENCE_S)
    assert worker.state == "ended"
    with pytest.raises(Skipped, match="w0 is ended"):
        make(planned("kill-worker", "w0"), cluster.scene).inject()
    worker.restart()
    with pytest.raises(BadInput, match="w0 is running"):
        worker.restart()
    with pytest.raises(Skipped, match="no party 'w7'"):
        make(planned("kill-worker", "w7"), cluster.scene).inject()


def test_servers_come_and_go_while_others_are_drained(cluster: AtWork) -> None:
    scene = cluster.scene
    more = make(planned("scale-out"), scene)
    drain = make(planned("drain", "s3"), scene)
    more.inject()
    drain.inject()
    try:
        name = more.struck[0]
        cluster.eventually(lambda: scene.records.led_by(name), "shards of the new server")
        cluster.eventually(lambda: not scene.records.led_by("s3"), "the drained one to lead none")
    finally:
        drain.heal()
        more.heal()
    assert f"{name} came, was in sync for " in more.evidence()
    assert "marked in etcd" in drain.evidence()
    assert [party.name for party in scene.parties("server")] == ["s1", "s2", "s3"]
    assert scene.records.look().drains == []
    cluster.settle()


# --- nothing stays -------------------------------------------------------------------------------

PROGRAM = """
import sys
from resilient_ps.chaos.live.cluster import ChaosCluster
from resilient_ps.chaos.live.plan import ClusterPlan

with ChaosCluster(ClusterPlan(servers=2, workers=1, etcd=1, store=sys.argv[2])) as scene:
    scene.add_worker("w0", [sys.executable, "-c", "import signal; signal.pause()"])
    print("started", flush=True)
    if sys.argv[1] == "raise":
        raise RuntimeError("of the user")
    sys.stdin.read()
"""
MARK = "RESILIENT_PS_TEST_MARK"


def marked(mark: str) -> list[int]:
    """The processes that were started below the one with this mark."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            environment = (folder / "environ").read_bytes() if folder.name.isdigit() else b""
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment.split(b"\0"):
            found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail("waited in vain")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets lie in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("moment", "store"),
    [
        pytest.param("network.log", "folder", marks=pytest.mark.soak),
        pytest.param("e0.log", "folder", marks=pytest.mark.soak),
        pytest.param("store.log", "seaweedfs", marks=pytest.mark.soak),
        pytest.param("s1.log", "folder", marks=pytest.mark.soak),
        ("w0.log", "folder"),
        ("raise", "folder"),
    ],
)
def test_nothing_is_left_after_an_exception_or_ctrl_c_at_any_moment(
    short_folder: Path, moment: str, store: str
) -> None:
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    mark = f"{os.getpid()}-{moment}"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, moment, store],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(short_folder), MARK: mark},
    )
    with process:
        try:
            if moment != "raise":
                wait_for(lambda: list(short_folder.glob(f"*/logs/{moment}")))
                process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode != 0
    assert (b"RuntimeError" if moment == "raise" else b"KeyboardInterrupt") in errors
    assert marked(mark) == []
    assert list(short_folder.iterdir()) == []


def test_logs_are_kept_and_a_store_of_the_users_is_left_as_it_was(tmp_path: Path) -> None:
    theirs = tmp_path / "store" / "of-others"
    theirs.parent.mkdir()
    theirs.write_text("stays")
    plan = ClusterPlan(
        servers=1,
        workers=0,
        replicas=1,
        etcd=0,
        store=str(theirs.parent),
        network=False,
        keep=tmp_path / "logs",
    )
    with ChaosCluster(plan) as scene:
        assert [path.name for path in theirs.parent.glob("*/markers")] == ["markers"]
        assert scene.parties("etcd") == []
        assert not scene.offers & {"etcd", "quorum", "network", "s3", "store process"}
        assert scene.lines is None
    assert not list(theirs.parent.glob("chaos*"))
    assert theirs.read_text() == "stays"
    assert "kernels ready" in (tmp_path / "logs" / "s1.log").read_text()


def test_what_is_missing_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    plan = ClusterPlan(servers=1, workers=0, replicas=1, store="", network=False)
    with pytest.raises(NotFound, match="--etcd 0"), at_work(plan):
        pass
