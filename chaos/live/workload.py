"""What workers do while faults happen: as the harness starts it, follows it, and judges it.

A workload consists of a program, which every rank runs in processes of its own, and of this side of
it. Ranks write histories (`histories`), from which come progress and counts while the run goes on,
and verdicts when it is over.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from resilient_ps.chaos.live.scene import Scene
from resilient_ps.chaos.result import Judged
from resilient_ps.client.connection import Client
from resilient_ps.consistency import BSP, parse_consistency
from resilient_ps.errors import BadInput

CLOCKS_PER_S = 30.0
"""Of all ranks together: two cores are to carry everything."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Since it was last asked for: pushes and pulls that succeeded, and how long the pushes took.

    `clocks`: by rank, the last clock that it is known to have ended.
    """

    pushes: int = 0
    pulls: int = 0
    latencies_s: tuple[float, ...] = ()
    clocks: tuple[int, ...] = ()


class LiveWorkload(Protocol):
    """One workload of one run. Called by one thread."""

    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> int: ...

    def command(self, rank: int) -> list[str]:
        """What the process of a rank runs. Run once more, it takes the rank over."""
        ...

    def environment(self, rank: int) -> dict[str, str]:
        """What it is to find in its environment, beside where the cluster is
        (`RESILIENT_PS_ETCD`, `RESILIENT_PS_CLUSTER`)."""
        ...

    def start(self, scene: Scene) -> None:
        """Before the processes run."""
        ...

    def ask_to_end(self) -> None:
        """All ranks end soon, behind a common clock."""
        ...

    def progress(self) -> Progress:
        """What has happened since the last time."""
        ...

    def judge(self, client: Client) -> list[Judged]:
        """After all ranks have ended, and the cluster has come to rest."""
        ...

    def counts(self) -> tuple[int, int, int, int]:
        """Pushes acknowledged, failed, and of unknown outcome; pulls answered."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers by name, for the report."""
        ...


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """What a workload is made of. `pace_s`: how long a clock of a rank takes at least."""

    workers: int
    mode: str
    seed: int
    folder: Path
    pace_s: float
    script: tuple[str, ...] = field(default=())

    @property
    def histories(self) -> Path:
        """Where the ranks write theirs."""
        return self.folder / "histories"

    @property
    def receipts(self) -> Path:
        """Where what was acknowledged to them is kept."""
        return self.folder / "receipts"


MODES = {
    "one-hot": "asp",
    "counter": "asp",
    "staleness": "ssp:2",
    "barrier": "bsp",
    "transfer": "bsp",
    "namespace": "ssp:2",
    "train": "bsp",
    "train-fm": "bsp",
    "train-mf": "bsp",
    "train-mlp": "bsp",
    "train-embedding-mlp": "bsp",
    "train-lda": "asp",
}
"""The workloads, and what consistency each has by default."""


def make_workload(
    name: str,
    *,
    workers: int,
    folder: Path,
    mode: str = "",
    seed: int = 0,
    script: Sequence[str] | None = None,
    clocks_per_s: float = CLOCKS_PER_S,
) -> LiveWorkload:
    """The workload of this name, with as many ranks; its files go to `folder`.

    `script`: a program of the user's with its arguments, instead (`name` is then "script").
    Raises `BadInput` for what there is not.
    """
    from resilient_ps.chaos.live.workloads.making import KINDS  # they know this module

    if name not in KINDS:
        raise BadInput(f"no workload {name!r}: use {', '.join(KINDS)}")
    if workers < 1:
        raise BadInput(f"{workers} workers: at least 1")
    mode = mode or MODES.get(name, "asp")
    consistency = parse_consistency(mode)
    if name == "barrier" and not isinstance(consistency, BSP):
        raise BadInput(f"the workload {name!r} is there to judge BSP, not {mode}")
    settings = WorkloadSettings(
        workers, mode, seed, folder, workers / clocks_per_s, tuple(script or ())
    )
    for place in (settings.histories, settings.receipts):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    return KINDS[name](settings)
