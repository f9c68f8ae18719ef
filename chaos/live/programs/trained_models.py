"""Which models the workloads `train` and `train-..` train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from resilient_ps.chaos.live.programs.trained import Trained
from resilient_ps.chaos.live.programs.trained_factors import (
    TrainedFactorisationMachine,
    TrainedMatrixFactorisation,
)
from resilient_ps.chaos.live.programs.trained_logistic import TrainedLogistic
from resilient_ps.chaos.live.programs.trained_networks import TrainedEmbeddings, TrainedMLP


def _topics(seed: int) -> Trained:
    """Imported when it is asked for: a compiler is loaded with it."""
    found: Trained = import_module("resilient_ps.chaos.live.programs.trained_topics").TrainedTopics(
        seed
    )
    return found


TRAINED: Mapping[str, Callable[[int], Trained]] = {
    "train": TrainedLogistic,
    "train-fm": TrainedFactorisationMachine,
    "train-mf": TrainedMatrixFactorisation,
    "train-mlp": TrainedMLP,
    "train-embedding-mlp": TrainedEmbeddings,
    "train-lda": _topics,
}
"""By the workload's name: what makes them of a seed."""
