"""A life of the cluster: what lies between two rollbacks, and where its jobs began."""

from __future__ import annotations

from dataclasses import dataclass

from resilient_ps.coordinator.view import ClusterView


@dataclass(frozen=True, slots=True)
class Life:
    """Of the cluster: in which incarnation it is, and whether what was restored is all there.

    `clocks`: at which clock its jobs began, by their numbers as text.
    """

    incarnation: int
    settled: bool
    clocks: tuple[tuple[str, int], ...]

    def clock(self, job_id: int) -> int:
        """At which clock a job began in this life."""
        return dict(self.clocks).get(str(job_id), 0)


def life_of(view: ClusterView) -> Life:
    """The cluster's present one."""
    config, restore = view.config, view.restore
    assert config is not None, "there is no cluster"
    if restore is None or restore.incarnation != config.incarnation:
        return Life(config.incarnation, settled=True, clocks=())
    clocks = tuple(sorted(restore.clocks.items()))
    return Life(config.incarnation, settled=restore.registered, clocks=clocks)
