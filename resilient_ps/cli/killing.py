"""A server that is killed in the middle of a training, and started again a little later."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from resilient_ps.cli.interrupts import INTERRUPTS
from resilient_ps.cli.progress import Training, Watcher
from resilient_ps.cli.running import ServerWatch
from resilient_ps.errors import BadInput, DeadlineExceeded
from resilient_ps.runtime.local import LocalCluster

KILL_AT = 0.35  # of the training
TOO_LATE = 0.9
RESTART_AT = 0.65
GOING_ON_S = 2.0  # all ranks have been heard of so long after the kill: it is over
IN_SYNC_DEADLINE_S = 60.0


@dataclass(slots=True)
class Killed:
    """What happened. `longest_s`: the longest that any rank's batch took from the kill on."""

    server: str
    shards: tuple[int, ...]  # that it was the primary of
    longest_s: float = 0.0
    in_sync_after_s: float | None = None  # from its new start to having caught up


class Killing:
    """Call `look` again and again while ranks train, and `finish` afterwards."""

    def __init__(
        self, processes: LocalCluster, servers: ServerWatch, watcher: Watcher, total: int
    ) -> None:
        self._processes = processes
        self._servers = servers
        self._watcher = watcher
        self._total = total
        self._killed: Killed | None = None
        self._killed_s = self._restarted_s = 0.0
        self._said = False
        self._before: object = None  # the last report before the server was started again

    def look(self, training: Training, now_s: float) -> None:
        """Do what is due."""
        done = training.samples / self._total
        if self._killed is None:
            if KILL_AT <= done < TOO_LATE and self._servers.report is not None:
                self._kill()
                training.longest_s = 0.0
            return
        self._killed.longest_s = training.longest_s
        going_s = min(told.at_s for told in training.ranks.values()) - self._killed_s
        if not self._said and going_s >= GOING_ON_S:
            self._say_how_it_went_on()
        if self._said and not self._restarted_s and done >= RESTART_AT:
            self._restart()
        self._look_whether_in_sync()

    def finish(self) -> dict[str, Any]:
        """Start the server if it is still down, and wait until nothing is missing any more."""
        if self._killed is None:
            raise BadInput(
                "the training was over before a server could be killed: use more --epochs or rows"
            )
        if not self._said:
            self._say_how_it_went_on()
        if not self._restarted_s:
            self._restart()
        end_s = time.monotonic() + IN_SYNC_DEADLINE_S
        while self._killed.in_sync_after_s is None:
            if time.monotonic() > end_s:
                raise DeadlineExceeded(
                    f"{self._killed.server} has not caught up within {IN_SYNC_DEADLINE_S:g} s"
                )
            time.sleep(0.1)
            self._servers.ask()
            self._look_whether_in_sync()
        return asdict(self._killed)

    def _kill(self) -> None:
        report = self._servers.report
        assert report is not None
        primaries = Counter(shard.primary for shard in report.shards if shard.primary)
        if not primaries:
            return
        server = min(primaries, key=lambda name: (-primaries[name], name))
        shards = tuple(shard.shard for shard in report.shards if shard.primary == server)
        self._killed = Killed(server, shards)
        self._watcher.say(
            f"SIGKILL to {server}, the primary of shards {', '.join(map(str, shards))}",
            style="bold red",
        )
        self._killed_s = time.monotonic()
        self._processes.kill(server)

    def _say_how_it_went_on(self) -> None:
        assert self._killed is not None
        self._said = True
        self._watcher.say(
            f"the other servers went on in its place: no batch of any rank took longer than "
            f"{self._killed.longest_s:.2f} s",
            style="bold green",
        )

    def _restart(self) -> None:
        assert self._killed is not None
        self._watcher.say(f"{self._killed.server} is started again, with empty memory")
        self._restarted_s, self._before = time.monotonic(), self._servers.report
        with INTERRUPTS.held():
            self._processes.restart(self._killed.server, wait_ready=False)

    def _look_whether_in_sync(self) -> None:
        killed, report = self._killed, self._servers.report
        if not self._restarted_s or killed is None or killed.in_sync_after_s is not None:
            return
        if (
            report is None
            or report is self._before
            or any(shard.state != "ok" for shard in report.shards)
        ):
            return
        if any(killed.server in shard.in_sync for shard in report.shards):
            killed.in_sync_after_s = time.monotonic() - self._restarted_s
            self._watcher.say(
                f"{killed.server} has caught up after {killed.in_sync_after_s:.1f} s: every shard "
                "has all its copies",
                style="bold green",
            )
