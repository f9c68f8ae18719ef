"""What a run of `resilient-ps chaos run` is to be, checked before anything is started."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from resilient_ps.chaos.faults.drawing import LONGEST_S, SHORTEST_S
from resilient_ps.chaos.faults.kinds import Kind, choose
from resilient_ps.chaos.live.plan import MAX_WORKERS, SEAWEEDFS, ClusterPlan
from resilient_ps.chaos.live.workload import MODES
from resilient_ps.chaos.records_of_json import read_record
from resilient_ps.consistency import BSP, parse_consistency
from resilient_ps.errors import BadInput
from resilient_ps.guards import ALLOWED_BY, UNSAFE

COMMAND = "resilient-ps chaos run"
SCRIPT = "script"
SHARDS_PER_SERVER = 2
LIVENESS_SERVERS = 3


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run. `faults`: names of kinds and groups; none: all that are possible.

    `workload`: one name. `script`: a program of the user's and its arguments; the workload is
    "script" then. `store`: as in `ClusterPlan`. `consistency` "": the workload's own.
    `unsafe_disable`: protections that servers do without. `scenario`: one of those in `scenarios`,
    instead of a workload and drawn faults; it has a cluster of its own kind.
    """

    seed: int = 1
    duration_s: float = 60.0
    faults: tuple[str, ...] = ()
    workload: str = "one-hot"
    script: tuple[str, ...] = ()
    servers: int = 4
    workers: int = 4
    replicas: int = 2
    etcd: int = 3
    store: str = SEAWEEDFS
    consistency: str = ""
    liveness: bool = False
    lease_ttl_s: int = 2
    unsafe_disable: tuple[str, ...] = ()
    scenario: str = ""

    def check(self) -> None:
        """Raises `BadInput`, naming the flag, for what cannot be run."""
        self.kinds()
        self.cluster()
        _within("--seed", self.seed, 0, 1 << 62)
        _within("--duration", self.duration_s, SHORTEST_S, LONGEST_S)
        _within("--workers", self.workers, 1, MAX_WORKERS)
        if self.workload != SCRIPT and self.workload not in MODES:
            raise BadInput(
                f"--workload: there is no {self.workload!r}; use {', '.join(MODES)} or all"
            )
        if self.scenario and self.scenario not in UNSAFE:
            raise BadInput(f"--scenario: there is no {self.scenario!r}; use {', '.join(UNSAFE)}")
        if self.consistency:
            _check_mode(self.workload, self.consistency)
        if self.liveness and self.servers < LIVENESS_SERVERS:
            raise BadInput(
                f"--servers {self.servers}: --liveness takes one away and makes one deaf; use at "
                f"least {LIVENESS_SERVERS}"
            )

    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of faults that were asked for."""
        return choose(self.faults)

    def cluster(self, keep: Path | None = None) -> ClusterPlan:
        """The cluster of the run. Raises `BadInput`, naming the flag."""
        return ClusterPlan(
            servers=self.servers,
            workers=self.workers,
            replicas=self.replicas,
            etcd=self.etcd,
            store=self.store,
            lease_ttl_s=self.lease_ttl_s,
            shards=SHARDS_PER_SERVER * self.servers,
            keep=keep,
            unsafe=self.unsafe_disable,
        )

    def of(self, *, seed: int, workload: str) -> RunPlan:
        """The same with another seed and workload."""
        return replace(self, seed=seed, workload=workload)

    def settings(self) -> dict[str, Any]:
        """For reports; `plan_from` reads it."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def command(self) -> str:
        """What a user types to run it again."""
        if self.scenario:
            return self._scenario_command()
        plain, words = RunPlan(), [f"--seed {self.seed}"]
        if self.duration_s != plain.duration_s:
            words.append(f"--duration {self.duration_s:g}s")
        if self.faults:
            words.append(f"--faults {','.join(self.faults)}")
        if self.script:
            words.append(f"--script {shlex.quote(shlex.join(self.script))}")
        else:
            words.append(f"--workload {self.workload}")
        for name in ("servers", "workers", "replicas", "etcd"):
            if getattr(self, name) != getattr(plain, name):
                words.append(f"--{name} {getattr(self, name)}")
        if self.store != plain.store:
            words.append(f"--store {shlex.quote(self.store or 'none')}")
        if self.consistency:
            words.append(f"--consistency {self.consistency}")
        if self.lease_ttl_s != plain.lease_ttl_s:
            words.append(f"--lease-ttl {self.lease_ttl_s}")
        if self.liveness:
            words.append("--liveness")
        words += [f"--unsafe-disable {name}" for name in self.unsafe_disable]
        return " ".join([COMMAND, *words])

    def _scenario_command(self) -> str:
        """`--unsafe-disable` alone plays the scenario of what it names."""
        words = [] if self.unsafe_disable == (self.scenario,) else [f"--scenario {self.scenario}"]
        words += [f"--unsafe-disable {','.join(self.unsafe_disable)}"] * bool(self.unsafe_disable)
        allowed = f"{ALLOWED_BY}=1 " if self.unsafe_disable else ""
        return allowed + " ".join([COMMAND, *words])


def plan_from(settings: Mapping[str, Any], where: str) -> RunPlan:
    """Read what `settings` made. Raises `BadInput` naming `where`."""
    plan = read_record(RunPlan, dict(settings), where)
    plan.check()
    return plan


def _check_mode(workload: str, text: str) -> None:
    try:
        mode = parse_consistency(text)
    except BadInput as error:
        raise BadInput(f"--consistency: {error}") from error
    if workload == "barrier" and not isinstance(mode, BSP):
        raise BadInput(f"--consistency {text}: the workload 'barrier' is there to judge bsp")


def _within(flag: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadInput(f"{flag} {value:g}: use {least:g} to {most:g}")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
