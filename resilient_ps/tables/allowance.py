"""How much memory the overlays of one image may take together."""

from __future__ import annotations

from collections.abc import Callable


class Allowance:
    """`failed` says why the overlays are of no use any more; `drop` is called then, once.

    A lack of memory must not disturb the tables themselves: overlays call `fail` and let go.
    """

    def __init__(self, bytes_max: int, drop: Callable[[], None]) -> None:
        self.bytes_max = bytes_max
        self.spent_bytes = 0
        self.failed = ""
        self._drop = drop

    def spend(self, nbytes: int) -> None:
        """An overlay has grown by so much, or shrunk by as much less than 0."""
        self.spent_bytes += nbytes
        if self.spent_bytes > self.bytes_max:
            self.fail(
                f"what changes while the image is taken exceeds {self.bytes_max >> 20} MiB: push "
                "less meanwhile, upload faster, or allow more (--overlay-bytes-max)"
            )

    def fail(self, why: str) -> None:
        """The overlays are not whole any more."""
        if not self.failed:
            self.failed = why
            self._drop()
