"""What a cluster that is to be hurt consists of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from resilient_ps.checkpoints.settings import CheckpointSettings
from resilient_ps.checkpoints.standby import Standby, StorePlace
from resilient_ps.coordinator.runtime.processes import MAX_MEMBERS
from resilient_ps.errors import BadInput
from resilient_ps.runtime.local import MAX_SERVERS, check_replicas

ETCD_HEARTBEAT_MS = 20
ETCD_ELECTION_MS = 200
MAX_WORKERS = 256
SEAWEEDFS, FOLDER = "seaweedfs", "folder"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`etcd`: members; 0: the embedded coordination process. `store`: "seaweedfs" (started here),
    "folder" (a temporary one), the URL of a store of yours, or "" for none. `shards` 0: 4 per
    server. `network`: a proxy between all parties. `keep`: a folder for the logs, which otherwise
    go away with the cluster. `unsafe`: protections that servers do without, by name.

    `grace_s`: a server that is gone for longer is replaced by new copies elsewhere; `loss_grace_s`:
    a shard is only lost when all its members are gone for longer, which no fault lasts.
    """

    servers: int = 4
    workers: int = 4
    replicas: int = 2
    etcd: int = 3
    store: str = SEAWEEDFS
    lease_ttl_s: int = 2
    min_in_sync: int = 1
    shards: int = 0
    checkpoint_every_s: float = 5.0
    grace_s: float = 5.0
    loss_grace_s: float = 120.0
    network: bool = True
    keep: Path | None = None
    unsafe: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises `BadInput` for what cannot be started."""
        _check("--servers", self.servers, 1, MAX_SERVERS)
        _check("--workers", self.workers, 0, MAX_WORKERS)
        _check("--etcd", self.etcd, 0, MAX_MEMBERS)
        _check("--lease-ttl", self.lease_ttl_s, 1, 60)
        check_replicas(self.replicas, self.min_in_sync)

    @property
    def copies(self) -> int:
        """Of each shard, when all is well."""
        return min(self.replicas, self.servers)

    def server_flags(self, store_url: str) -> list[str]:
        """Options that all servers share, but for names and addresses."""
        words = ["--initial-servers", str(self.servers), "--shards", str(self.shards)]
        words += ["--replicas", str(self.replicas), "--min-in-sync", str(self.min_in_sync)]
        words += ["--lease-ttl", str(self.lease_ttl_s), "--grace", str(self.grace_s)]
        for name in self.unsafe:
            words += ["--unsafe-disable", name]
        settings = CheckpointSettings(
            every_s=self.checkpoint_every_s, keep_last=3, loss_grace_s=self.loss_grace_s
        )
        return words + Standby(StorePlace(store_url), settings).flags()


def _check(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise BadInput(f"{option} {value}: use {least} to {most}")
