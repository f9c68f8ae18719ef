"""Processes that are killed, paused, or told to stop, and started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults.roles import find
from resilient_ps.chaos.live.parties import process_state
from resilient_ps.chaos.live.scene import Fault, Party, Scene, Skipped

SIGKILLED = -9
NOTICE_TTLS = 0.6
"""A server that is told to stop may give up a member that it has not heard for a lease time, and
then be a shard's last member. It gets less than that to end; then it is killed, which is safe."""
WORKER_NOTICE_S = 20.0


@dataclass
class Stroke:
    """What faults on one process share: it is found, and claimed until all is as it was."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _party: Party | None = field(default=None, init=False)
    _pid: int = field(default=0, init=False)
    _at_s: float = field(default=0.0, init=False)

    def inject(self) -> None:
        """Find whom, claim it, and strike."""
        party = find(self.scene, self.planned.target[0])
        self.scene.claims.claim(party.name)
        self._party = party
        try:
            if party.state != "running":
                raise Skipped(f"{party.name} is {party.state}")
            self._prepare(party)
            self.struck = (party.name,)
            self._pid, self._at_s = party.pid, time.monotonic()
            self._strike(party)
        except Skipped:
            self._let_go(party)
            raise

    def heal(self) -> None:
        """Undo it, wait until it serves, and let go of it."""
        party = self._party
        if party is None:
            return
        if self._pid:
            self._undo(party)
        self._let_go(party)

    def evidence(self) -> str:
        raise NotImplementedError

    def _prepare(self, party: Party) -> None:
        """Raises `Skipped` when it would go too far."""

    def _strike(self, party: Party) -> None:
        raise NotImplementedError

    def _undo(self, party: Party) -> None:
        raise NotImplementedError

    def _let_go(self, party: Party) -> None:
        self._party = None
        self.scene.claims.release(party.name)


@dataclass
class Ended(Stroke):
    """A process that ends, by a signal or in order, and is started again."""

    _code: int | None = field(default=None, init=False)
    _next_pid: int = field(default=0, init=False)
    _away_s: float = field(default=0.0, init=False)

    def _prepare(self, party: Party) -> None:
        if party.role in ("server", "etcd"):
            self.scene.claims.doom(party.name)

    def _undo(self, party: Party) -> None:
        party.resume()  # where it was about to be ended, and was not
        if party.state in ("dead", "ended"):
            party.restart()
            self._next_pid, self._away_s = party.pid, time.monotonic() - self._at_s

    @property
    def _return(self) -> str:
        return f"pid {self._next_pid} serves after {self._away_s:.1f} s"


@dataclass
class Kill(Ended):
    """SIGKILL."""

    def _strike(self, party: Party) -> None:
        party.kill()
        self._code = party.exit_code

    def evidence(self) -> str:
        if self._code != SIGKILLED or not self._next_pid:
            return ""
        return f"pid {self._pid} ended by SIGKILL, {self._return}"


@dataclass
class Stop(Ended):
    """SIGTERM, as machines on notice get it: who takes too long is killed."""

    _ended_s: float = field(default=0.0, init=False)

    def _prepare(self, party: Party) -> None:
        if party.role == "server":
            self.scene.claims.doom(party.name, in_order=True)

    def _strike(self, party: Party) -> None:
        is_server = party.role == "server"
        notice_s = NOTICE_TTLS * self.scene.lease_ttl_s if is_server else WORKER_NOTICE_S
        self._code = party.stop(notice_s)
        self._ended_s = time.monotonic() - self._at_s

    def evidence(self) -> str:
        if self._code is None or not self._next_pid:
            return ""
        how = "killed" if self._code == SIGKILLED else f"ended with exit code {self._code}"
        return f"pid {self._pid}, {how} {self._ended_s:.1f} s after SIGTERM, {self._return}"


@dataclass
class Pause(Stroke):
    """SIGSTOP: it hangs, its connections stand."""

    _seen: int = field(default=0, init=False)  # times that the kernel said it is stopped
    _paused_s: float = field(default=0.0, init=False)

    def _prepare(self, party: Party) -> None:
        if party.role == "etcd":
            self.scene.claims.doom(party.name)

    def _strike(self, party: Party) -> None:
        party.pause()
        self._look()

    def _undo(self, party: Party) -> None:
        self._look()
        self._paused_s = self._paused_s or time.monotonic() - self._at_s
        party.resume()

    def _look(self) -> None:
        self._seen += process_state(self._pid) == "T"

    def evidence(self) -> str:
        if self._seen < 2:
            return ""
        return f"pid {self._pid} stopped for {self._paused_s:.1f} s (state T in /proc)"


FAULTS: dict[str, Callable[[Scene, Planned], Fault]] = {
    **dict.fromkeys(
        (
            "kill-server",
            "kill-primary",
            "kill-coordinator",
            "kill-worker",
            "kill-etcd",
            "kill-etcd-leader",
            "kill-store",
        ),
        Kill,
    ),
    **dict.fromkeys(
        (
            "pause-server",
            "pause-primary",
            "pause-coordinator",
            "pause-worker",
            "pause-etcd-leader",
            "pause-store",
        ),
        Pause,
    ),
    **dict.fromkeys(("stop-server", "stop-worker"), Stop),
}
