"""From planned faults to those that can be brought about: a class for each kind."""

from __future__ import annotations

from collections.abc import Callable

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults import (
    clocks,
    etcd,
    lines,
    machine,
    membership,
    partitions,
    processes,
    resources,
    store,
)
from resilient_ps.chaos.live.scene import Fault, Scene
from resilient_ps.errors import Bug

Make = Callable[[Scene, Planned], Fault]

MAKES: dict[str, Make] = {
    **processes.FAULTS,
    **partitions.FAULTS,
    **lines.FAULTS,
    **store.FAULTS,
    **machine.FAULTS,
    **resources.FAULTS,
    **clocks.FAULTS,
    **etcd.FAULTS,
    **membership.FAULTS,
}
"""By kind. A test compares it with the catalogue."""


def make(planned: Planned, scene: Scene) -> Fault:
    """The fault that was planned; nothing has happened yet."""
    found = MAKES.get(planned.kind)
    if found is None:
        raise Bug(f"no fault of kind {planned.kind!r} is made here")
    return found(scene, planned)
