"""Servers that come and go in order while other faults go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.patience import patiently
from resilient_ps.chaos.live.scene import Fault, Scene, Skipped
from resilient_ps.client.draining import Draining
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import BadInput, NotFound, RetryLater

MARK_DEADLINE_S = 10.0  # to mark a server while etcd may be struck
LEAVE_DEADLINE_S = 90.0  # for a server to give away what it holds while others are struck


def held_by(scene: Scene, server: str) -> int:
    """The shards of which it is an in-sync member."""
    shards = scene.records.look().shards
    return sum(server in (member.server for member in record.in_sync) for record in shards)


@dataclass
class ScaleOut:
    """One more server, which is given shards, and leaves in order."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _held: int = field(default=0, init=False)
    _left_s: float = field(default=0.0, init=False)

    def inject(self) -> None:
        """Start it: it is struck by other faults only where it plays a role."""
        self.struck = (self.scene.add_server().name,)

    def heal(self) -> None:
        """Drain it, stop it, and forget it. Raises when it is not rid of its shards in time."""
        if not self.struck or self._left_s:
            return
        name = self.struck[0]
        patiently(lambda: self._claim(name), LEAVE_DEADLINE_S)
        try:
            at_s = time.monotonic()
            self._held = patiently(lambda: held_by(self.scene, name), LEAVE_DEADLINE_S)
            self.scene.remove_server(name)
            self._left_s = time.monotonic() - at_s
        finally:
            self.scene.claims.release(name)

    def _claim(self, name: str) -> None:
        try:
            self.scene.claims.claim(name)
        except Skipped as error:
            raise RetryLater(str(error)) from error

    def evidence(self) -> str:
        if not self._left_s:
            return ""
        name = self.struck[0]
        return f"{name} came, was in sync for {self._held} shards, and left in {self._left_s:.1f} s"


@dataclass
class Drain:
    """A server gives its shards away, and gets some again."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _before: int = field(default=0, init=False)
    _marked_s: float = field(default=0.0, init=False)
    _told: str = field(default="", init=False)

    def inject(self) -> None:
        """Mark it. `Skipped` when nobody else could take its shards."""
        name = self.planned.target[0]
        self._before = patiently(lambda: held_by(self.scene, name), MARK_DEADLINE_S)
        self.struck = (name,)
        try:
            with self._draining() as draining:
                patiently(draining.begin, MARK_DEADLINE_S)
        except (BadInput, NotFound) as error:
            self.struck = ()
            raise Skipped(str(error)) from error
        self._marked_s = time.monotonic()

    def heal(self) -> None:
        """Take the mark away, where it is still there."""
        if not self.struck or self._told:
            return
        after = patiently(lambda: held_by(self.scene, self.struck[0]), LEAVE_DEADLINE_S)
        told = f"in sync for {self._before} shards before, {after} after"
        with self._draining() as draining:
            try:
                patiently(draining.cancel, LEAVE_DEADLINE_S)
            except (BadInput, NotFound):
                told += ", and forgotten, having been gone for long"
        self._told = told

    def evidence(self) -> str:
        if not self._marked_s or not self._told:
            return ""
        return f"marked in etcd: {self._told}"

    @contextmanager
    def _draining(self) -> Iterator[Draining]:
        with closing(EtcdKv(self.scene.etcd)) as kv:
            yield Draining(kv, self.scene.cluster, self.struck[0])


FAULTS: dict[str, Callable[[Scene, Planned], Fault]] = {"scale-out": ScaleOut, "drain": Drain}
