"""How long something has been missing: whoever comes back in time was never gone."""

from __future__ import annotations

from collections.abc import Collection


class Grace:
    """Names that were expected and not there, each since when. Forgotten when it is dropped."""

    def __init__(self, grace_ns: int) -> None:
        self._grace_ns = grace_ns
        self._since_ns: dict[str, int] = {}

    def look(self, expected: Collection[str], present: Collection[str], now_ns: int) -> None:
        """Take in who is expected and who is there."""
        missing = sorted(set(expected) - set(present))
        self._since_ns = {name: self._since_ns.get(name, now_ns) for name in missing}

    def next_ns(self) -> int | None:
        """When somebody will first have been missing for too long; None: nobody is missing."""
        return min(self._since_ns.values()) + self._grace_ns if self._since_ns else None

    def over(self, now_ns: int) -> list[str]:
        """Those that have been missing for too long, by name."""
        return [name for name, since in self._since_ns.items() if now_ns - since >= self._grace_ns]

    def drop(self) -> None:
        """Everybody gets the whole time again: we cannot know what happened meanwhile."""
        self._since_ns.clear()
