"""What a platform's program is told, and what it says: one JSON object on a command line each."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from resilient_ps.cli.bench.platforms.problems import Problem, Weights


@dataclass(frozen=True, slots=True)
class Order:
    """Train `problem` with `workers` processes for `seconds`, not counting what comes before the
    first step. `folder` has the data, and gets the weights. `rank`: for platforms whose processes
    are started one by one. `etcd`, `cluster`, `consistency`: of ours.
    """

    problem: Problem
    folder: str
    workers: int
    seconds: float
    seed: int
    run: str
    rank: int = 0
    etcd: str = ""
    cluster: str = ""
    consistency: str = ""

    @property
    def batch_size(self) -> int:
        """Rows of one worker's batch."""
        return max(1, self.problem.batch_size // self.workers)

    @property
    def weights_path(self) -> Path:
        """Where the weights go."""
        return Path(self.folder) / f"{self.run}-weights.npz"

    def to_json(self) -> str:
        """As an argument."""
        return json.dumps({**asdict(self), "problem": self.problem.to_json()})

    @classmethod
    def from_argument(cls) -> Order:
        """What this process was told."""
        fields = json.loads(sys.argv[1])
        return cls(**{**fields, "problem": Problem.from_json(fields["problem"])})

    def save(self, weights: Weights) -> None:
        """Leave the trained weights, in the layout of `Problem.shapes`."""
        with self.weights_path.open("wb") as file:
            np.savez(file, *weights)

    def weights(self) -> Weights:
        """What was left."""
        with np.load(self.weights_path) as archive:
            return [archive[name] for name in archive.files]


@dataclass(frozen=True, slots=True)
class Said:
    """What a program says: samples of this process, and how long it was at it."""

    samples: int
    seconds: float
    version: str = ""

    def say(self) -> None:
        """On standard output."""
        print(json.dumps(asdict(self)), flush=True)
