"""Servers whose etcd is in trouble: a member that is cut off, a leader that dies or hangs."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from crew import Hurt, eventually, hurt_cluster, ranks_at_work

from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.live.network import Network
from resilient_ps.coordinator.runtime.processes import EtcdProcess
from resilient_ps.errors import Unavailable

MEMBERS = 3
LEASE_TTL_S = 4  # servers must keep their leases also where the machine is slow
HANGS_SOAK = 40


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """Between s1 and the members of etcd, e0 and so on."""
    with Network(tmp_path_factory.mktemp("network")) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster(network: Network) -> Iterator[Hurt]:
    def options(etcd: EtcdProcess) -> Mapping[str, Sequence[str]]:
        ways = [network.open(f"e{n}", endpoint) for n, endpoint in enumerate(etcd.endpoints)]
        return {"s1": ("--etcd", ",".join(ways))}

    with hurt_cluster(
        3,
        replicas=3,
        shards=3,
        members=MEMBERS,
        lease_ttl_s=LEASE_TTL_S,
        options=options,
    ) as hurt:
        yield hurt


def pass_a_ttl() -> None:
    """Long enough for every lease to end that was not renewed."""
    threading.Event().wait(LEASE_TTL_S + 1.0)


def mend(network: Network, cut: int) -> None:
    """What waited at the cut never comes."""
    network.lift(network.apply(Rule("reset")))
    network.lift(cut)


def leader_of(etcd: EtcdProcess) -> int:
    found: list[int] = []

    def look() -> bool:
        try:
            found.append(etcd.leader())
        except Unavailable:
            return False
        return True

    eventually(look, "a leader of etcd")
    return found[0]


def test_a_server_keeps_its_lease_when_the_member_that_it_talks_to_is_cut_off(
    cluster: Hurt, network: Network
) -> None:
    before = cluster.records.epochs()
    with ranks_at_work(cluster):
        for number in range(MEMBERS):  # one of them is the one
            cut = network.apply(Rule("drop", targets=(f"e{number}",)))
            pass_a_ttl()
            mend(network, cut)
    assert cluster.records.epochs() == before


def test_a_server_cut_off_from_etcd_is_replaced_and_finds_its_way_back(
    cluster: Hurt, network: Network
) -> None:
    with ranks_at_work(cluster):
        cut = network.apply(Rule("drop"))
        eventually(lambda: not cluster.records.led_by("s1"), "other primaries")
        assert cluster.processes.stop_server("s3") == 0  # the membership changes twice
        cluster.processes.restart("s3")
        cluster.kv.compact(cluster.records.look().revision)  # it cannot read up on that
        mend(network, cut)
        cluster.settle()
        assert cluster.records.led_by("s1")


def test_a_server_that_hears_late_of_every_change_acts_on_nothing_that_is_over(
    cluster: Hurt, network: Network
) -> None:
    cluster.settle()
    late = network.apply(Rule("delay", way="answers", delay_s=0.5))
    with ranks_at_work(cluster) as ranks:
        for name in ("s2", "s3"):
            before = cluster.records.led_by(name)
            cluster.processes.kill(name)
            for rank in ranks:
                rank.wait_for_more()
            assert not before.keys() & cluster.records.led_by(name).keys()
            cluster.processes.restart(name)
            cluster.settle()
    assert network.lift(late).pieces > 0


def test_the_death_of_the_leader_of_etcd_moves_no_shard(cluster: Hurt) -> None:
    cluster.settle()
    before = cluster.records.epochs()
    with ranks_at_work(cluster):
        leader = leader_of(cluster.etcd)
        cluster.etcd.kill(leader)
        pass_a_ttl()
        cluster.etcd.restart(leader)
    assert cluster.records.epochs() == before


def let_the_leader_hang(cluster: Hurt, seconds: float) -> int:
    """How many shards had another primary behind it."""
    before = cluster.records.epochs()
    leader = leader_of(cluster.etcd)
    cluster.etcd.pause(leader)
    threading.Event().wait(seconds)
    cluster.etcd.resume(leader)
    leader_of(cluster.etcd)
    after = cluster.records.epochs()
    return sum(after[shard] != before[shard] for shard in before)


def test_nothing_is_lost_when_the_leader_of_etcd_hangs(cluster: Hurt) -> None:
    with ranks_at_work(cluster) as ranks:
        for seconds in (0.5, 1.5):
            let_the_leader_hang(cluster, seconds)
            for rank in ranks:
                rank.wait_for_more()


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_nothing_is_lost_when_the_leader_of_etcd_hangs_again_and_again(
    cluster: Hurt, record_property: Callable[[str, object], None]
) -> None:
    source = random.Random(1)
    failovers = 0
    with ranks_at_work(cluster) as ranks:
        for _ in range(HANGS_SOAK):
            failovers += let_the_leader_hang(cluster, source.uniform(1.5, 10.0))
            for rank in ranks:
                rank.wait_for_more()
    record_property("failovers", failovers)
    cluster.settle()
