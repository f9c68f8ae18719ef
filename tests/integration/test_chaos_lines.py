"""Faults of lines on a real cluster: they strike, and afterwards all is well and counted once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from struck import NUMBERS, AtWork, at_work

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults.making import make
from resilient_ps.chaos.live.plan import ClusterPlan
from resilient_ps.chaos.live.scene import Fault
from resilient_ps.coordinator.runtime.processes import find_etcd

LASTS_S = 1.5


@pytest.fixture(scope="module")
def cluster() -> Iterator[AtWork]:
    """Its probes push to every shard, twenty times a second; all that they had acknowledged is
    counted in the end."""
    if find_etcd() is None:
        pytest.skip("no etcd binary on the PATH (apt: etcd-server)")
    plan = ClusterPlan(servers=3, workers=0, replicas=2, etcd=3, shards=6, store="")
    with at_work(plan) as working:
        yield working


def strike(cluster: AtWork, *wanted: tuple[str, tuple[str, ...]]) -> list[Fault]:
    """All at the same time; each one must be healed as if it were alone."""
    faults = [
        make(Planned(next(NUMBERS), 0.0, kind, target, LASTS_S, how=5), cluster.scene)
        for kind, target in wanted
    ]
    try:
        for fault in faults:
            fault.inject()
        cluster.pause.wait(LASTS_S)
    finally:
        for fault in faults:
            fault.heal()
    cluster.wait_until_all_answer()
    cluster.settle()
    assert cluster.scene.lines is not None
    assert cluster.scene.lines.rules == ()
    return faults


@pytest.mark.parametrize(
    "wanted",
    [
        [("one-way", ("s1", "s2")), ("worker-server", ("harness", "s2"))],
        [("isolate", ("s1",)), ("etcd-member", ("e1",))],
        [("server-etcd", ("s2",)), ("partition", ("s1", "s3"))],
        [("half-open", ("s3",)), ("jitter", ("s2",))],
        [("lose-answer", ("s1",)), ("delay", ("s2",))],
        [("bandwidth", ("s3",)), ("loss", ("s1",)), ("reset", ("s2",))],
    ],
    ids=lambda wanted: ", ".join(kind for kind, _ in wanted),
)
def test_lines_are_struck_and_all_is_well_again(
    cluster: AtWork, wanted: list[tuple[str, tuple[str, ...]]]
) -> None:
    evidence = {f.planned.kind: f.evidence() for f in strike(cluster, *wanted)}  # type: ignore[attr-defined]
    assert all(evidence.values()), evidence
