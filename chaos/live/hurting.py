"""Faults by hand, for tests: strike now, heal when told, or at the end of a `with` block."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from resilient_ps.chaos.faults.kinds import KINDS
from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults.making import make
from resilient_ps.chaos.live.scene import Fault, Role, Scene, Skipped
from resilient_ps.errors import BadInput, Unavailable

PATIENCE_S = 30.0
LASTS_S = 2.0
POLL_S = 0.1
_KILLS: dict[Role, str] = {
    "server": "kill-server",
    "worker": "kill-worker",
    "etcd": "kill-etcd",
    "store": "kill-store",
}
_PAUSES: dict[Role, str] = {
    "server": "pause-server",
    "worker": "pause-worker",
    "store": "pause-store",
}


class Strike:
    """A fault that has been brought about, and is not healed yet. A context: its end heals."""

    def __init__(self, kind: str, fault: Fault) -> None:
        self.kind = kind
        self._fault = fault
        self._is_healed = False

    @property
    def struck(self) -> tuple[str, ...]:
        """Whom, by name."""
        return self._fault.struck

    def heal(self) -> None:
        """Bring back what it took; return when that serves again. May be called again."""
        if not self._is_healed:
            self._fault.heal()
            self._is_healed = True

    @property
    def evidence(self) -> str:
        """After it was healed: how it is known that it really happened; "" when it did not."""
        return self._fault.evidence()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.heal()

    def __repr__(self) -> str:
        return f"<{self.kind} {', '.join(self.struck)}{', healed' if self._is_healed else ''}>"


class Faults:
    """What can be done to a cluster.

    Each method strikes at once. What it returns heals it: by its `heal()`, or as a context:
    `with faults.pause("s1"): ...`. `heal()` heals everything.

    Nothing destroys a shard: a server is only killed or stopped once every shard that it holds has
    another copy in sync. For that, and for a role that nobody plays at the moment, a strike waits
    up to `patience_s`, then raises `Unavailable` saying what it waited for.
    """

    def __init__(self, scene: Scene, *, patience_s: float = PATIENCE_S) -> None:
        self._scene = scene
        self._patience_s = patience_s
        self._strikes: list[Strike] = []

    def kill(self, name: str) -> Strike:
        """SIGKILL a process: a server (`s1`), worker (`w0`), member of etcd (`e0`), or `store`.

        Healing starts it again under its name and address.
        """
        return self.strike(self._by_role("kill", name, _KILLS), name)

    def kill_primary(self, shard: int = 0) -> Strike:
        """SIGKILL the server that leads a shard."""
        return self.strike("kill-primary", f"primary:{shard}")

    def stop(self, name: str) -> Strike:
        """SIGTERM a server, as a machine that is taken away: it hands its shards over."""
        return self.strike(self._by_role("stop", name, {"server": "stop-server"}), name)

    def pause(self, name: str) -> Strike:
        """SIGSTOP a server, a worker or the store: it hangs, its connections stand."""
        return self.strike(self._by_role("pause", name, _PAUSES), name)

    def pause_primary(self, shard: int = 0) -> Strike:
        """SIGSTOP the server that leads a shard. After a lease time another one leads it."""
        return self.strike("pause-primary", f"primary:{shard}")

    def partition(self, one: str, other: str) -> Strike:
        """Two servers do not hear each other."""
        return self.strike("partition", one, other)

    def isolate(self, server: str) -> Strike:
        """A server is cut off from everybody, this process included."""
        return self.strike("isolate", server)

    def strike(self, kind: str, *target: str, lasts_s: float = LASTS_S, how: int = 0) -> Strike:
        """Any fault of the catalogue (`resilient-ps chaos list`).

        `target`: names, or roles: `primary:3`, `coordinator`, `etcd leader`. `lasts_s`: for kinds
        that end by themselves (`gil`, `loop`). `how`: what their chance is drawn from.

        Raises `BadInput` for a kind that there is not, or whose needs this cluster does not offer,
        `NotFound` for an unknown name, `Unavailable` when it could not be brought about.
        """
        self._check(kind, target)
        until_s = time.monotonic() + self._patience_s
        while True:
            fault = make(Planned(len(self._strikes), 0.0, kind, target, lasts_s, how), self._scene)
            try:
                fault.inject()
            except Skipped as why:
                fault.heal()
                if time.monotonic() > until_s:
                    waited = f"after {self._patience_s:g} s: {why}"
                    raise Unavailable(f"{kind} could not be brought about {waited}") from None
                time.sleep(POLL_S)
                continue
            except BaseException:
                fault.heal()
                raise
            strike = Strike(kind, fault)
            self._strikes.append(strike)
            return strike

    def heal(self) -> None:
        """Heal everything, the latest first; return when what was taken serves again."""
        while self._strikes:
            self._strikes[-1].heal()
            self._strikes.pop()

    def _by_role(self, verb: str, name: str, kinds: dict[Role, str]) -> str:
        role = self._scene.party(name).role
        if role not in kinds:
            raise BadInput(f"cannot {verb} {name}: it is none of {', '.join(kinds)}; see strike()")
        return kinds[role]

    def _check(self, kind: str, target: tuple[str, ...]) -> None:
        known = KINDS.get(kind)
        if known is None:
            raise BadInput(f"no fault {kind!r}; `resilient-ps chaos list` shows all of them")
        if lacking := sorted(known.needs - self._scene.offers):
            raise BadInput(
                f"{kind} needs what this cluster does not have: {', '.join(lacking)} "
                "(see the options of the marker chaos_cluster)"
            )
        names = {party.name for party in self._scene.parties()}
        roles = ("primary:", "coordinator", "etcd leader", "shard")
        for name in target:
            if name not in names and not name.startswith(roles):
                self._scene.party(name)  # raises NotFound, naming those that there are
