"""What a server is told of checkpoints. Every server should be told the same: any may coordinate.

Which settings make a checkpoint due is `policy`; which checkpoints are kept is `storage.retention`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from resilient_ps.errors import BadInput

UPLOADS_MOST = 64
KEEP_MOST = 10_000
SHARE_LEAST = 0.01


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """A store is configured: cuts can be made. Raises BadInput for values out of range.

    `every_clocks`, `every_s`: a checkpoint whenever any job has done that many clocks, or that
    many seconds have passed; 0: not for that reason. `auto`: the interval is chosen from what the
    last checkpoints cost and `mtbf_h`, the hours that pass on average between two failures that
    make the job go back to a checkpoint (see `policy`). `cut_deadline_s`: a cut that is not reached
    by then is given up, naming the rank that it waits for. `loss_grace_s`: a shard
    whose replicas have all been gone for so long, after their leases ended, is lost.
    `upload_concurrency`: objects in flight per server; `upload_bytes_per_s`: per server, 0: as fast
    as the store takes it. `upload_share`: the part of the time that a server spends on uploading
    while pushes come in, above 0; 1: as fast as it can whatever comes in (see `pace`). `keep_*`:
    the newest ones, and the last one of so many hours and days.
    `on_stop_s`: a server that is told to stop asks for a checkpoint, and waits for so long, if it
    is the last one to hold a shard (see `farewell`); 0: it does not ask.
    """

    every_clocks: int = 0
    every_s: float = 0.0
    auto: bool = False
    mtbf_h: float = 24.0
    keep_last: int = 3
    keep_hourly: int = 0
    keep_daily: int = 0
    cut_deadline_s: float = 60.0
    loss_grace_s: float = 30.0
    upload_concurrency: int = 4
    upload_bytes_per_s: int = 0
    upload_share: float = 0.25
    overlay_bytes_max: int = 0  # per shard; 0: a quarter of it, or 16 MiB; all of it if that fails
    on_stop_s: float = 8.0

    def __post_init__(self) -> None:
        _check("every_clocks", self.every_clocks, 0, 10**12)
        _check("every_s", self.every_s, 0, 365 * 86_400)
        _check("mtbf_h", self.mtbf_h, 0.001, 10**6)
        _check("keep_last", self.keep_last, 1, KEEP_MOST)
        _check("keep_hourly", self.keep_hourly, 0, KEEP_MOST)
        _check("keep_daily", self.keep_daily, 0, KEEP_MOST)
        _check("cut_deadline_s", self.cut_deadline_s, 0.1, 86_400)
        _check("loss_grace_s", self.loss_grace_s, 0, 86_400)
        _check("upload_concurrency", self.upload_concurrency, 1, UPLOADS_MOST)
        _check("upload_bytes_per_s", self.upload_bytes_per_s, 0, 10**12)
        _check("upload_share", self.upload_share, SHARE_LEAST, 1)
        _check("on_stop_s", self.on_stop_s, 0, 3_600)
        _check("overlay_bytes_max", self.overlay_bytes_max, 0, 10**12)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise BadInput(f"{name}={value!r}: choose {least:g} to {most:g}")
