"""resilient-ps: the parameter server that survives.

import numpy as np
import resilient_ps as ps

with ps.local_cluster(servers=2) as cluster, cluster.connect() as client:
    with client.worker("job", rank=0, of=1, consistency=ps.SSP(staleness=3)) as worker:
        table = worker.sparse_table("weights", dim=1, optimiser=ps.SGD(lr=0.1))
        table.push([7, 9], np.ones((2, 1), np.float32))
        worker.tick()
        print(table.pull([7, 9]))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from resilient_ps.checkpoints.settings import CheckpointSettings
    from resilient_ps.client.connection import Client, connect
    from resilient_ps.client.future import Future
    from resilient_ps.client.launch import local_cluster
    from resilient_ps.client.tables import DenseTable, SparseTable
    from resilient_ps.client.tasks import Task, Tasks
    from resilient_ps.client.worker import Worker
    from resilient_ps.consistency import ASP, BSP, SSP
    from resilient_ps.coordinator.graph import Graph
    from resilient_ps.errors import (
        BadInput,
        Bug,
        DeadlineExceeded,
        Fenced,
        FixTheCall,
        NotFound,
        NotRepeatable,
        QuotaExceeded,
        Reopen,
        ResilientPsError,
        RetryLater,
        RolledBack,
        SpecMismatch,
        TaskFailed,
        Unavailable,
    )
    from resilient_ps.estimators import PSFactorisationMachine as PSFactorisationMachine
    from resilient_ps.estimators import (
        PSFactorisationMachineRegressor as PSFactorisationMachineRegressor,
    )
    from resilient_ps.estimators import PSLogisticRegression as PSLogisticRegression
    from resilient_ps.estimators import PSMatrixFactorisation as PSMatrixFactorisation
    from resilient_ps.estimators import PSMLPClassifier as PSMLPClassifier
    from resilient_ps.schedules import Free, Pipeline, Rotation, Schedule, Wavefront
    from resilient_ps.tables.initialisers import Constant, Normal, Uniform, Zeros
    from resilient_ps.tables.optimisers import FTRL, SGD, Adagrad, Adam, Momentum, Sum

__version__ = "0.1.0"

__all__ = [
    "ASP",
    "BSP",
    "FTRL",
    "SGD",
    "SSP",
    "Adagrad",
    "Adam",
    "BadInput",
    "Bug",
    "CheckpointSettings",
    "Client",
    "Constant",
    "DeadlineExceeded",
    "DenseTable",
    "Fenced",
    "FixTheCall",
    "Free",
    "Future",
    "Graph",
    "Momentum",
    "Normal",
    "NotFound",
    "NotRepeatable",
    "Pipeline",
    "QuotaExceeded",
    "Reopen",
    "ResilientPsError",
    "RetryLater",
    "RolledBack",
    "Rotation",
    "Schedule",
    "SparseTable",
    "SpecMismatch",
    "Sum",
    "Task",
    "TaskFailed",
    "Tasks",
    "Unavailable",
    "Uniform",
    "Wavefront",
    "Worker",
    "Zeros",
    "connect",
    "local_cluster",
]

# Imported when they are first asked for: server, coordination and load processes need few of them.
# The estimators need scikit-learn, which not everybody has: they are not in `__all__`.
_HOMES = {
    "checkpoints.settings": "CheckpointSettings",
    "client.connection": "Client connect",
    "client.future": "Future",
    "client.launch": "local_cluster",
    "client.tables": "DenseTable SparseTable",
    "client.tasks": "Task Tasks",
    "client.worker": "Worker",
    "consistency": "ASP BSP SSP",
    "coordinator.graph": "Graph",
    "errors": "BadInput Bug DeadlineExceeded Fenced FixTheCall NotFound NotRepeatable "
    "QuotaExceeded Reopen ResilientPsError RetryLater RolledBack SpecMismatch TaskFailed "
    "Unavailable",
    "estimators": "PSFactorisationMachine PSFactorisationMachineRegressor PSLogisticRegression "
    "PSMLPClassifier PSMatrixFactorisation",
    "schedules": "Free Pipeline Rotation Schedule Wavefront",
    "tables.initialisers": "Constant Normal Uniform Zeros",
    "tables.optimisers": "Adagrad Adam FTRL Momentum SGD Sum",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*_HOME_OF, "__version__"})
