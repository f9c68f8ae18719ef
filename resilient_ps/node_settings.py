"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from resilient_ps.checkpoints.bootstrap import RestoreWish
from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.records import ServerRecord
from resilient_ps.guards import ALL_GUARDS, Guards


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a server is told when it starts. `record.lease` is filled in later.

    `checkpoints`: None where there is no object store. `restore`: what a new cluster begins with.
    `loss_grace_s`: as in `CheckpointSettings`, where there is no store. `guards`: without some of
    them on purpose; the server then says all the time what is `unsafe` (names in `guards.UNSAFE`).
    """

    cluster: str
    record: ServerRecord
    lease_ttl_s: int = 5
    wishes: ClusterWishes = field(default_factory=ClusterWishes)
    guards: Guards = ALL_GUARDS
    checkpoints: CheckpointSettings | None = None
    restore: RestoreWish = field(default_factory=RestoreWish)
    loss_grace_s: float = 30.0
    unsafe: tuple[str, ...] = ()

    @property
    def loss_ns(self) -> int:
        """How long a shard's members may be missing before it is lost."""
        given = self.checkpoints
        grace_s = self.loss_grace_s if given is None else given.loss_grace_s
        return int((self.lease_ttl_s + grace_s) * 1e9)
