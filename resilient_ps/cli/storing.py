"""Options on checkpoints and on the store that they lie in, which several commands share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from resilient_ps.checkpoints.settings import KEEP_MOST, SHARE_LEAST, CheckpointSettings
from resilient_ps.checkpoints.standby import AUTO, NONE, NUMBERS, Standby, StorePlace
from resilient_ps.checkpoints.wish import Wish
from resilient_ps.cli.options import grouped
from resilient_ps.client.stored import READERS
from resilient_ps.errors import BadInput
from resilient_ps.runtime.logs import Logger
from resilient_ps.storage.blobs import ListBlobs, StoreRefused, StoreUnavailable
from resilient_ps.storage.names import markers_prefix
from resilient_ps.storage.runtime.open import OpenedStore, open_store
from resilient_ps.storage.runtime.options import StoreOptions, options_from

StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="RESILIENT_PS_STORE",
        help="Where checkpoints lie: s3://BUCKET/PREFIX, or a folder.",
    ),
]
EndpointOption = Annotated[
    str,
    typer.Option(
        "--s3-endpoint",
        envvar="RESILIENT_PS_S3_ENDPOINT",
        help="URL of an S3-compatible store, such as MinIO; default: Amazon's.",
    ),
]
RegionOption = Annotated[
    str, typer.Option("--s3-region", help="Region of the bucket; default: AWS_REGION.")
]
PathStyleOption = Annotated[
    bool,
    typer.Option(
        "--s3-path-style", help="Name the bucket in the path, as most other stores want it."
    ),
]
MetricsOption = Annotated[
    str, typer.Option("--metrics", help="HOST:PORT on which Prometheus finds metrics.")
]


def _number(option: str, what: str, least: float = 0.0) -> Any:
    return Annotated[float, typer.Option(option, min=least, help=what)]


def _count(option: str, what: str, least: int = 0, most: int = KEEP_MOST) -> Any:
    return Annotated[int, typer.Option(option, min=least, max=most, help=what)]


EveryClocksOption = _count(
    "--checkpoint-every-clocks", "A checkpoint every so many clocks; 0: not for that.", 0, 10**12
)
EverySOption = Annotated[
    str,
    typer.Option(
        "--checkpoint-every-s",
        help="A checkpoint every so many seconds, or auto: from its cost and --mtbf-h; 0: none.",
    ),
]
MtbfOption = _number(
    "--mtbf-h", "Hours between failures that take all replicas of a shard (for auto).", 0.001
)
KeepLastOption = _count("--keep-last", "Checkpoints to keep: the last so many,", 1)
KeepHourlyOption = _count("--keep-hourly", "the last one of each of so many hours,")
KeepDailyOption = _count("--keep-daily", "and the last one of each of so many days.")
CutDeadlineOption = _number(
    "--cut-deadline", "Seconds for all ranks to come to a checkpoint's clock.", 0.1
)
UploadRateOption = _count(
    "--upload-bytes-per-s", "Of each server, for checkpoints; 0: what the store takes.", 0, 10**12
)
UploadShareOption = Annotated[
    float,
    typer.Option(
        "--upload-share",
        min=SHARE_LEAST,
        max=1,
        help="Part of the time to upload in while pushes come in; 1: as fast as possible.",
    ),
]
OverlayOption = _count(
    "--overlay-bytes-max",
    "Memory for a shard's rows that change while its image is made; 0: a quarter of the shard.",
    0,
    10**12,
)
LossGraceOption = _number(
    "--loss-grace",
    "Seconds without any replica of a shard, beyond its lease, before the cluster is rolled back "
    "to its last checkpoint.",
)
RestoreOption = Annotated[
    str,
    typer.Option(
        "--restore",
        help="What a new cluster begins with: auto (the newest checkpoint, if its store has any), "
        "none, latest, clock:N, time:WHEN, or the id of a checkpoint.",
    ),
]
FromClusterOption = Annotated[
    str, typer.Option("--from-cluster", help="Whose checkpoints to begin with; default: its own.")
]


@dataclass(frozen=True, slots=True)
class Store(StorePlace):
    """Where checkpoints lie, as a command was told."""

    def open(self) -> OpenedStore:
        """The store. Raises `BadInput` where none was named."""
        if not self.url:
            raise BadInput(
                "name the store: --store s3://BUCKET/PREFIX or a folder (or RESILIENT_PS_STORE)"
            )
        return open_store(self.url, store_options(self))


def store_options(place: StorePlace, concurrency: int = READERS) -> StoreOptions:
    """What was said, and else what the environment says."""
    usual = options_from(os.environ)
    return dataclasses.replace(
        usual,
        endpoint=place.endpoint or usual.endpoint,
        region=place.region or usual.region,
        path_style=place.path_style or usual.path_style,
        concurrency=concurrency,
    )


_STORE: dict[str, tuple[Any, object]] = {
    "store": (StoreOption, ""),
    "s3_endpoint": (EndpointOption, ""),
    "s3_region": (RegionOption, ""),
    "s3_path_style": (PathStyleOption, False),
}
_USUAL = CheckpointSettings()
_POLICY: dict[str, tuple[Any, object]] = {
    "checkpoint_every_clocks": (EveryClocksOption, 0),
    "checkpoint_every_s": (EverySOption, AUTO),
    "mtbf_h": (MtbfOption, _USUAL.mtbf_h),
    "keep_last": (KeepLastOption, _USUAL.keep_last),
    "keep_hourly": (KeepHourlyOption, _USUAL.keep_hourly),
    "keep_daily": (KeepDailyOption, _USUAL.keep_daily),
    "cut_deadline": (CutDeadlineOption, _USUAL.cut_deadline_s),
    "loss_grace": (LossGraceOption, _USUAL.loss_grace_s),
    "upload_bytes_per_s": (UploadRateOption, _USUAL.upload_bytes_per_s),
    "upload_share": (UploadShareOption, _USUAL.upload_share),
    "overlay_bytes_max": (OverlayOption, _USUAL.overlay_bytes_max),
    "restore": (RestoreOption, AUTO),
    "from_cluster": (FromClusterOption, ""),
}


def check_store(place: StorePlace, cluster: str, log: Logger, *, is_new: bool) -> None:
    """Ask the store something, so that what is wrong with it is told when a server starts.

    What it refuses ends the start of a new cluster (`StoreRefused`). A cluster that lives goes on
    without its store: then it is an error in the log.
    """
    usual = store_options(place)
    hasty = dataclasses.replace(usual, attempts=1, connect_timeout_s=5.0, read_timeout_s=5.0)
    try:
        with closing(open_store(place.url, hasty)) as store:
            store.do(ListBlobs(markers_prefix(cluster), most=1))
    except StoreRefused as error:
        if is_new:
            raise
        log.error("store refuses", store=place.url, error=str(error), why=error.why)
    except StoreUnavailable as error:
        log.error("store does not answer", store=place.url, error=str(error))


def with_store(parameter: str = "store") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command with a parameter `store`, a `Store`: it becomes --store and its options."""
    return grouped(parameter, _make_store, _STORE)


def with_s3_options(parameter: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command that is told otherwise where the store is: a `Store` without a URL."""

    def make(s3_endpoint: str, s3_region: str, s3_path_style: bool) -> Store:  # noqa: FBT001
        return Store("", s3_endpoint, s3_region, s3_path_style)

    options = {name: option for name, option in _STORE.items() if name != "store"}
    return grouped(parameter, make, options)


def with_standby(
    parameter: str = "standby", **others: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command with a parameter `standby`: a `Standby`. `others`: other defaults."""
    options = {**_STORE, **_POLICY}
    for name, default in others.items():
        options[name] = (options[name][0], default)
    return grouped(parameter, _make_standby, options)


def _make_store(store: str, s3_endpoint: str, s3_region: str, s3_path_style: bool) -> Store:  # noqa: FBT001
    return Store(store, s3_endpoint, s3_region, s3_path_style)


def _make_standby(
    *,
    store: str,
    s3_endpoint: str,
    s3_region: str,
    s3_path_style: bool,
    checkpoint_every_clocks: int,
    checkpoint_every_s: str,
    restore: str,
    from_cluster: str,
    **numbers: Any,
) -> Standby:
    auto = checkpoint_every_s == AUTO
    settings = CheckpointSettings(
        every_clocks=checkpoint_every_clocks,
        every_s=0.0 if auto else _seconds(checkpoint_every_s),
        auto=auto,
        **{name: numbers[option.replace("-", "_")] for name, option in NUMBERS.items()},
    )
    check_wish(restore)
    place = StorePlace(store, s3_endpoint, s3_region, s3_path_style)
    return Standby(place, settings, restore, from_cluster)


def check_wish(restore: str) -> None:
    """Raises `BadInput` for what --restore does not know."""
    if restore not in (AUTO, NONE):
        Wish.parse(restore)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"--checkpoint-every-s {text}: give seconds, 0, or auto") from None
