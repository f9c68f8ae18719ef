"""Where a scenario is played: two servers that both hold the one shard, and who works with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from resilient_ps.chaos.faults.links import Effect, Rule
from resilient_ps.chaos.faults.planned import Planned, Struck
from resilient_ps.chaos.history import History
from resilient_ps.chaos.live.cluster import ChaosCluster
from resilient_ps.chaos.live.network import Network
from resilient_ps.chaos.live.plan import ClusterPlan
from resilient_ps.chaos.live.scenarios.ranks import TABLE
from resilient_ps.chaos.live.workloads.counting import read_numbers
from resilient_ps.client.connection import Client, connect
from resilient_ps.coordinator.records import ShardRecord
from resilient_ps.errors import Unavailable
from resilient_ps.runtime.addresses import Address

LEASE_TTL_S = 3
DEADLINE_S = 30.0  # of every call
ELECTED_DEADLINE_S = 60.0
POLL_S = 0.02
SHARD = 0
Say = Callable[[str], None]


def stage_plan(unsafe: tuple[str, ...], keep: Path | None) -> ClusterPlan:
    """The cluster of a scenario. One shard: so there is one primary, and one backup."""
    return ClusterPlan(
        servers=2,
        workers=0,
        etcd=1,
        store="",
        lease_ttl_s=LEASE_TTL_S,
        shards=1,
        unsafe=unsafe,
        keep=keep,
    )


@dataclass(slots=True)
class Stage:
    """See the module. `client` works through the proxies, as workers do."""

    scene: ChaosCluster
    client: Client
    say: Say
    zero_s: float = field(default_factory=time.monotonic)
    history: History = field(default_factory=History)
    struck: list[Struck] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        """Seconds since the scenario began."""
        return time.monotonic() - self.zero_s

    @property
    def record(self) -> ShardRecord:
        """Of the shard, as etcd holds it."""
        return self.scene.records.look().shards[SHARD]

    def roles(self) -> tuple[str, str]:
        """The primary, and the backup."""
        primary = self.record.primary
        (backup,) = (each.name for each in self.scene.parties("server") if each.name != primary)
        return primary, backup

    def address(self, name: str) -> Address:
        """Where a server is dialled: at its proxy."""
        view = self.scene.records.look()
        (found,) = (server for server in view.servers if server.server == name)
        return Address(found.host, found.port)

    @contextmanager
    def lines(self, kind: str, names: Sequence[str], rules: Sequence[Rule]) -> Iterator[None]:
        """Have rules in force meanwhile. `kind`, `names`: what they are, in the report."""
        network, from_s = self._network, self.now_s
        self.say(f"{kind}: {', '.join(names)}")
        numbers = [network.apply(rule) for rule in rules]
        try:
            yield
        finally:
            effects: list[Effect] = [network.lift(number) for number in numbers]
            pieces = sum(effect.pieces for effect in effects)
            evidence = f"{pieces} pieces were held up" if pieces else ""
            self._note(kind, names, from_s, evidence)

    def kill(self, name: str) -> None:
        """SIGKILL a server, of which another one holds all that was acknowledged by both.

        Raises `Skipped` when its copy is the last one.
        """
        from_s = self.now_s
        self.scene.claims.claim(name)
        self.scene.claims.doom(name)
        self.scene.party(name).kill()
        self.say(f"kill-server: {name}")
        self._note("kill-server", (name,), from_s, "it is gone")

    def wait_for_primary(self, name: str) -> None:
        """Until this server has been elected. Raises `Unavailable` when it is not."""
        until_s = time.monotonic() + ELECTED_DEADLINE_S
        while self.record.primary != name:
            if time.monotonic() > until_s:
                raise Unavailable(f"{name} is not elected within {ELECTED_DEADLINE_S:g} s")
            time.sleep(POLL_S)
        self.say(f"{name} is primary")

    def held(self, keys: Sequence[int], table: str = TABLE) -> dict[int, int]:
        """What is there in the end, read by somebody who knows nothing of what was before."""
        with connect(self.scene.etcd, self.scene.cluster, deadline_s=DEADLINE_S) as client:
            return read_numbers(client, table, np.array(keys, np.uint64))

    @property
    def _network(self) -> Network:
        network = self.scene.lines
        assert network is not None, "the plan says so"
        return network

    def _note(self, kind: str, names: Sequence[str], from_s: float, evidence: str) -> None:
        now_s, number = self.now_s, len(self.struck) + 1
        planned = Planned(number, round(from_s, 3), kind, tuple(names), round(now_s - from_s, 3))
        self.struck.append(
            Struck(planned, tuple(names), round(from_s, 3), round(now_s, 3), evidence)
        )
