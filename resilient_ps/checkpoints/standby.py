"""The cold standby of a cluster as its servers are told of it: the store, when, and from what."""

from __future__ import annotations

from dataclasses import dataclass, field

from resilient_ps.checkpoints.settings import CheckpointSettings

AUTO = "auto"
NONE = "none"


@dataclass(frozen=True, slots=True)
class StorePlace:
    """Where checkpoints lie. `url`: "" for nowhere; of the rest "" is what the environment says."""

    url: str = ""
    endpoint: str = ""
    region: str = ""
    path_style: bool = False

    def __bool__(self) -> bool:
        return bool(self.url)

    def flags(self) -> list[str]:
        """The options of a command that give this."""
        words = _words("store", self.url) + _words("s3-endpoint", self.endpoint)
        words += _words("s3-region", self.region)
        return words + (["--s3-path-style"] if self.path_style else [])


@dataclass(frozen=True, slots=True)
class Standby:
    """`restore`: what a new cluster begins with: "auto" is the newest checkpoint in its store, if
    there is any, "none" is nothing; else see `wish`. `from_cluster`: whose checkpoints, if not its
    own."""

    store: StorePlace = field(default_factory=StorePlace)
    settings: CheckpointSettings = field(default_factory=lambda: CheckpointSettings(auto=True))
    restore: str = AUTO
    from_cluster: str = ""

    def flags(self) -> list[str]:
        """The options of `server` that give this."""
        settings = self.settings
        words = [*self.store.flags(), "--checkpoint-every-clocks", str(settings.every_clocks)]
        words += ["--checkpoint-every-s", AUTO if settings.auto else repr(settings.every_s)]
        for name, option in NUMBERS.items():
            words += [f"--{option}", str(getattr(settings, name))]
        return words + _words("restore", self.restore) + _words("from-cluster", self.from_cluster)


NUMBERS = {
    "mtbf_h": "mtbf-h",
    "keep_last": "keep-last",
    "keep_hourly": "keep-hourly",
    "keep_daily": "keep-daily",
    "cut_deadline_s": "cut-deadline",
    "loss_grace_s": "loss-grace",
    "upload_bytes_per_s": "upload-bytes-per-s",
    "upload_share": "upload-share",
    "overlay_bytes_max": "overlay-bytes-max",
}
"""Settings that have an option of their own, and its name."""


def _words(option: str, value: str) -> list[str]:
    return [f"--{option}", value] if value else []
