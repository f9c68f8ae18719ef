"""Notices that the store behind the endpoints is not the one that this client was opened on.

etcd may be wiped, restored from an old backup, or replaced behind the same address. Going on with
what one knew would then elect twice and bring back the dead, so the client stops: `Reopen`.
"""

from __future__ import annotations

import threading
from typing import Any

from resilient_ps.errors import Reopen


class Pin:
    """The cluster id of the first answer, and the highest revision of all answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cluster_id = 0
        self._revision = 0

    def floor(self) -> int:
        """Taken before a linearizable call: its answer's revision cannot be lower."""
        return self._revision

    def check(self, header: Any, where: str, *, floor: int = 0) -> None:
        with self._lock:
            self._cluster_id = self._cluster_id or header.cluster_id
            pinned = self._cluster_id
            if header.cluster_id == pinned:
                self._revision = max(self._revision, header.revision)
        if header.cluster_id != pinned:
            raise Reopen(
                f"etcd at {where} is cluster {header.cluster_id:x}, not {pinned:x} as before: it "
                "was wiped or replaced, or the endpoints belong to different clusters"
            )
        if header.revision < floor:
            raise Reopen(
                f"etcd at {where} is at revision {header.revision}, below {floor} which it had "
                "acknowledged: it lost data or was restored from a backup"
            )
