"""Looks after the processes of a run: who dies though nobody struck it, and who is left to repair.

A worker whose program ended with "try again later" is started again, as whoever runs workers would
do. A server, a member of etcd or the store that ends by itself is a finding; it is started again so
that the rest of the run can come to its end.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from resilient_ps.chaos.live.scene import Party, Scene, Skipped
from resilient_ps.errors import DeadlineExceeded, ResilientPsError, RetryLater, Unavailable

EXIT_TRY_AGAIN = 3
EXIT_UNCAUGHT = 1  # of Python, behind a traceback
RESTARTS_MOST = 5  # of one worker
LOG_TAIL_BYTES = 1_200
REPAIR_DEADLINE_S = 120.0
REPAIR_PAUSE_S = 0.5


class Supervision:
    """`say` is told what happens; it is called in the thread that looks."""

    def __init__(self, scene: Scene, say: Callable[[str], None]) -> None:
        self._scene = scene
        self._say = say
        self._restarts: Counter[str] = Counter()
        self._known: set[tuple[str, int]] = set()  # deaths: name and process id
        self._threads: list[threading.Thread] = []
        self.died: list[str] = []
        """Processes that ended by themselves, and should not have."""
        self.gave_up: list[str] = []
        """Workers that did not come through, time and again."""

    def look(self) -> None:
        """Take note of all that have ended."""
        for party in self._scene.parties():
            if _is_over(party) and (party.name, party.pid) not in self._known:
                self._on_end(party)

    def workers_left(self) -> list[Party]:
        """Those that are still to come to their end: not who ended with an error for good."""
        return [
            worker
            for worker in self._scene.parties("worker")
            if worker.state in ("running", "paused")
            or worker.asked_to_end
            or (worker.name, worker.pid) not in self._known
        ]

    def _on_end(self, party: Party) -> None:
        if party.role == "worker" and party.exit_code == 0:
            self._known.add((party.name, party.pid))
            return
        try:
            self._scene.claims.claim(party.name)
        except Skipped:
            return  # a fault is at work on it
        try:
            if not _is_over(party):
                return
            self._known.add((party.name, party.pid))
            self._take_note(party)
        except BaseException:
            self._scene.claims.release(party.name)
            raise

    def _take_note(self, party: Party) -> None:
        """Ends with the party released, at once or by the thread that restarts it."""
        told = f"{party.name} (process {party.pid}) ended with exit code {party.exit_code}"
        again = party.role != "worker"
        if party.role == "worker" and _wants_another_try(party):
            self._restarts[party.name] += 1
            again = self._restarts[party.name] <= RESTARTS_MOST
            if not again:
                self.gave_up.append(f"{told} for the {RESTARTS_MOST + 1}th time: {_tail(party)}")
        else:
            self.died.append(f"{told}: {_tail(party)}")
        self._say(f"{told}{', it is started again' if again else ''}")
        if again:
            thread = threading.Thread(target=self._restart, args=(party,), daemon=True)
            self._threads.append(thread)
            thread.start()
        else:
            self._scene.claims.release(party.name)

    def _restart(self, party: Party) -> None:
        try:
            party.restart()
        except ResilientPsError as error:
            self.died.append(f"{party.name} cannot be started again: {error}")
        finally:
            self._scene.claims.release(party.name)

    def repair(self) -> list[str]:
        """After all faults have ended: everybody runs again. What could not be repaired."""
        for thread in self._threads:
            thread.join(REPAIR_DEADLINE_S)
        until_s = time.monotonic() + REPAIR_DEADLINE_S
        while True:
            left = self._repair_once()
            if not left or time.monotonic() > until_s:
                return left
            time.sleep(REPAIR_PAUSE_S)

    def _repair_once(self) -> list[str]:
        left: list[str] = []
        order: Sequence[str] = ("etcd", "store", "server", "worker")
        for party in sorted(self._scene.parties(), key=lambda p: (order.index(p.role), p.name)):
            try:
                if party.state == "paused":
                    party.resume()
                elif party.state in ("dead", "ended") and party.asked_to_end:
                    party.restart()
            except RetryLater as error:
                left.append(f"{party.name} does not come back: {error}")
        return left


def _is_over(party: Party) -> bool:
    """Has it ended, though nobody asked it to?"""
    return party.state in ("dead", "ended") and not party.asked_to_end


def _wants_another_try(party: Party) -> bool:
    """Did it end with an error whose remedy is to try again, such as a deadline?

    Ours says so by its exit code; a user's, that does not catch it, by the last line of its log.
    """
    if party.exit_code == EXIT_TRY_AGAIN:
        return True
    last = _tail(party).rpartition("\n")[2]
    names = [f"{kind.__module__}.{kind.__name__}" for kind in (DeadlineExceeded, Unavailable)]
    return party.exit_code == EXIT_UNCAUGHT and last.startswith(tuple(names))


def _tail(party: Party) -> str:
    try:
        text = party.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return "it has no log"
    return f"its log ends: {text}"
