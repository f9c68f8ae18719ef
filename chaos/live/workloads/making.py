"""Which workloads there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from resilient_ps.chaos.live.programs.trained_models import TRAINED
from resilient_ps.chaos.live.workload import LiveWorkload, WorkloadSettings
from resilient_ps.chaos.live.workloads.bank import namespace, transfer
from resilient_ps.chaos.live.workloads.counting import barrier, counter, one_hot, staleness
from resilient_ps.chaos.live.workloads.script import Script
from resilient_ps.chaos.live.workloads.training import Training

KINDS: dict[str, Callable[[WorkloadSettings], LiveWorkload]] = {
    "one-hot": one_hot,
    "counter": counter,
    "staleness": staleness,
    "barrier": barrier,
    "transfer": transfer,
    "namespace": namespace,
    **{name: partial(Training, name) for name in TRAINED},
    "script": Script,
}
