"""What the coordinator needs of who restores clusters: see `resilient_ps.checkpoints.recovery`."""

from __future__ import annotations

from typing import Any, Protocol

from resilient_ps.machine import Effect


class Recovery(Protocol):
    """How a cluster begins, and how it begins again."""

    @property
    def stored(self) -> bool:
        """Is there an object store, in which the cluster may have lived before?"""
        ...

    @property
    def busy(self) -> bool:
        """Is the cluster on its way back, so that nothing else is to be begun?"""
        ...

    def create(self, now_ns: int) -> list[Effect]:
        """There is no configuration yet."""
        ...

    def advance(self, now_ns: int) -> list[Effect]:
        """We are the coordinator: do what is missing."""
        ...

    def drop(self) -> None:
        """We are not the coordinator (any more)."""
        ...

    def status(self) -> dict[str, Any]:
        """How it stands."""
        ...
