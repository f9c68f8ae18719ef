"""A wall clock that jumps: a server is started anew under libfaketime, and its clock set wrong.

The library reads the offset from a file each time that it is asked for the time of day, so that the
clock jumps while the server runs, there and back. Its monotonic clock is not touched, as on a
machine whose clock is set. The server stays under the library, at the right time, until it is
started anew for another reason.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from pathlib import Path

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.faults.logs import LogTail
from resilient_ps.chaos.live.faults.resources import running_server, speak_to
from resilient_ps.chaos.live.scene import Scene, Skipped

HOUR_S, DAY_S = 3600, 86_400
OFFSETS_S = (HOUR_S, -HOUR_S, DAY_S, -DAY_S, 400 * DAY_S, 40, -40)
TOLERANCE_S = 8.0  # between a line of a log and our reading it
SEEN_DEADLINE_S = 5.0  # for the server to write something
LEAST_S = 1.0  # so long it has the wrong time in any case
POLL_S = 0.1
_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/opt/homebrew/lib", "/lib")
_NAME = "libfaketime.so.1"


def find_faketime() -> Path | None:
    """The library, where the package `faketime` has put it."""
    for folder in map(Path, _FOLDERS):
        for found in (folder / "faketime" / _NAME, *sorted(folder.glob(f"*/faketime/{_NAME}"))):
            if found.is_file():
                return found
    return None


@dataclass
class ClockJump:
    """See the module."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = ()
    _claimed: str = ""
    _log: LogTail | None = None
    _jumped_s: float = 0.0
    _told: str = ""

    @property
    def _offset_s(self) -> int:
        return OFFSETS_S[self.planned.how % len(OFFSETS_S)]

    def inject(self) -> None:
        library = find_faketime()
        if library is None:
            raise Skipped(f"no {_NAME} here: install the package `faketime`")
        name = self.planned.target[0]
        self.scene.claims.claim(name)
        self._claimed = name
        party = running_server(self.scene, name)
        self.scene.claims.doom(name)
        self.struck = (name,)
        self._set(0)
        party.kill()
        party.restart(_environment(library, self._file))
        _remove_traces(party.pid)
        self._log = LogTail(party.log)
        self._set(self._offset_s)
        self._jumped_s = time.monotonic()
        until_s = self._jumped_s + SEEN_DEADLINE_S
        while not self._seen() and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def heal(self) -> None:
        name, self._claimed = self._claimed, ""
        if not name:
            return
        if self.struck:
            if self._jumped_s:  # the restart may have taken all of its time
                time.sleep(max(0.0, self._jumped_s + LEAST_S - time.monotonic()))
                self._seen()
            self._set(0)
            party = self.scene.party(name)
            if party.state in ("dead", "ended"):
                party.restart()
        self.scene.claims.release(name)

    def evidence(self) -> str:
        return self._told

    @property
    def _file(self) -> Path:
        return self.scene.folder / f"clock-{self.struck[0]}"

    def _set(self, offset_s: int) -> None:
        """At once as a whole: the library reads it at any moment."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{offset_s:+d}\n")
        draft.replace(self._file)

    def _seen(self) -> bool:
        """Has a line of its log the wrong time? A server that has nothing to tell shows none."""
        if self._log is None or self._told:
            return bool(self._told)
        speak_to(self.scene, self.struck[0])
        lasted_s = time.monotonic() - self._jumped_s + TOLERANCE_S
        for event in self._log.events():
            off_s = _seconds(event.get("time")) - time.time()
            if -lasted_s < off_s - self._offset_s < TOLERANCE_S and abs(off_s) > TOLERANCE_S:
                self._told = f"{self.struck[0]} wrote {event['time']}: {off_s:+.0f} s off"
        return bool(self._told)


def _environment(library: Path, offset: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # its name in older versions
    }


def _remove_traces(pid: int) -> None:
    """What the library has in shared memory is removed at the end of a process, but for SIGKILL."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)


def _seconds(stamp: object) -> float:
    try:
        return datetime.datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return 0.0


FAULTS = {"clock-jump": ClockJump}
