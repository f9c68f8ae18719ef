"""Which outage is put down to which fault, and which failover had no cause."""

from __future__ import annotations

from resilient_ps.chaos.faults.blame import Failover, false_failovers, put_down, recoveries
from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.result import Outage, Reign

REIGNS = (
    Reign(0, "s1", "1.1", 0.0, 10.4),
    Reign(0, "s2", "1.2", 10.4, 60.0),
    Reign(1, "s3", "1.1", 0.0, 60.0),
)


def _struck(
    number: int, kind: str, whom: tuple[str, ...], from_s: float, to_s: float, skipped: str = ""
) -> Struck:
    return Struck(Planned(number, from_s, kind), whom, from_s, to_s, "seen", skipped)


def _fault_of(outage: Outage, *faults: Struck) -> int:
    return put_down([outage], faults, REIGNS, 4.0)[0].fault


def test_an_outage_is_put_down_to_who_struck_its_primary() -> None:
    kill = _struck(1, "kill-server", ("s1",), 10.0, 14.0)
    other = _struck(2, "pause-server", ("s3",), 10.1, 14.0)
    assert _fault_of(Outage(0, 9.97, 10.8), kill, other) == 1
    assert _fault_of(Outage(1, 10.05, 13.0), kill, other) == 2


def test_of_two_that_struck_the_primary_the_later_one_counts() -> None:
    slow = _struck(1, "delay", ("s1",), 2.0, 12.0)
    kill = _struck(2, "kill-server", ("s1",), 10.0, 14.0)
    assert _fault_of(Outage(0, 9.99, 10.8), slow, kill) == 2


def test_a_fault_that_came_later_than_the_outage_began_is_the_last_resort() -> None:
    early = _struck(1, "delay", ("s1",), 9.0, 12.0)
    late = _struck(2, "kill-server", ("s1",), 10.9, 14.0)
    assert _fault_of(Outage(0, 10.0, 11.0), early, late) == 1
    assert _fault_of(Outage(0, 10.0, 11.0), late) == 2


def test_without_a_fault_about_an_outage_is_nobodys() -> None:
    before = _struck(1, "kill-server", ("s1",), 1.0, 2.0)
    skipped = _struck(2, "kill-server", ("s1",), 10.0, 12.0, "no other copy")
    assert _fault_of(Outage(0, 10.0, 11.0), before, skipped) == -1
    assert _fault_of(Outage(0, 5.0, 6.0), before) == 1


def test_what_struck_the_whole_machine_may_have_struck_any_primary() -> None:
    hogs = _struck(1, "cpu", ("machine",), 10.0, 12.0)
    elsewhere = _struck(2, "pause-worker", ("w1",), 10.1, 12.0)
    assert _fault_of(Outage(1, 10.2, 11.0), hogs, elsewhere) == 1


def test_recovery_counts_the_longest_outage_of_each_fault() -> None:
    faults = (
        _struck(1, "kill-server", ("s1",), 10.0, 14.0),
        _struck(2, "kill-server", ("s1",), 30.0, 33.0),
        _struck(3, "kill-server", ("s2",), 40.0, 43.0, "no other copy"),
        _struck(4, "delay", ("s2",), 50.0, 53.0),
    )
    outages = (
        Outage(0, 9.95, 10.5, fault=1),
        Outage(1, 10.1, 11.9, fault=1),
        Outage(0, 12.0, 12.3, fault=1),
        Outage(0, 20.0, 25.0, fault=-1),
    )
    kill, delay = recoveries(outages, faults)
    assert (kill.kind, kill.faults, kill.median_s, kill.longest_s) == ("kill-server", 2, 0.9, 1.8)
    assert (delay.kind, delay.faults, delay.longest_s) == ("delay", 1, 0.0)


def test_an_outage_is_measured_from_the_fault_on() -> None:
    kill = _struck(1, "kill-server", ("s1",), 10.0, 14.0)
    (row,) = recoveries([Outage(0, 9.5, 10.5, fault=1)], [kill])
    assert row.longest_s == 0.5


def test_a_failover_is_false_where_nobody_struck_the_primary() -> None:
    faults = (
        _struck(1, "pause-server", ("s1",), 10.0, 12.0),
        _struck(2, "etcd-restart", ("e0", "e1", "e2"), 20.0, 21.0),
        _struck(3, "kill-server", ("s3",), 30.0, 31.0, "no other copy"),
    )
    due = Failover(15.0, 0, "s1", "s2")
    late = Failover(17.0, 0, "s1", "s2")
    by_etcd = Failover(20.5, 1, "s3", "s1")
    skipped = Failover(30.5, 1, "s3", "s1")
    assert false_failovers([due, late, by_etcd, skipped], faults, 4.0) == (late, by_etcd, skipped)
