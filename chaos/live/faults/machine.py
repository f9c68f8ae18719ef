"""Faults on the machine that all processes share: little memory, and no processor to be had."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from resilient_ps.chaos.faults.planned import Planned
from resilient_ps.chaos.live.programs import ballast
from resilient_ps.chaos.live.scene import Scene, Skipped
from resilient_ps.runtime.spawn import spawn

MACHINE = "machine"
"""Struck is everybody."""
MEMORY_MOST_BYTES = 4 * 1024**3
MEMORY_LEAST_BYTES = 2 * ballast.CHUNK_BYTES
FREE_SHARE = 0.25  # of what is free now, so much stays free
HOGS_MOST = 64
_SPIN = "while True: pass"


@dataclass
class Memory:
    """A process takes much of the free memory, and writes to it. Never more than `most_bytes`, and
    never so much that less than a quarter of what was free stays free."""

    scene: Scene
    planned: Planned
    most_bytes: int = MEMORY_MOST_BYTES
    struck: tuple[str, ...] = (MACHINE,)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _held_bytes: int = 0

    def inject(self) -> None:
        """It goes on taking while time passes: memory has to be written to, and that is slow."""
        free = ballast.free_bytes()
        leave = int(free * FREE_SHARE)
        take = min(free - leave, self.most_bytes)
        if take < MEMORY_LEAST_BYTES:
            raise Skipped(f"{free >> 20} MiB of memory are free: too little to take any of it")
        command = [sys.executable, "-I", "-S", ballast.__file__, str(take), str(leave)]
        self._children.append(spawn(command, self.scene.folder / "ballast.log"))

    def heal(self) -> None:
        self._held_bytes += self.holds_bytes
        _end(self._children)

    @property
    def holds_bytes(self) -> int:
        """At the moment."""
        return sum(_resident_bytes(child.pid) for child in self._children)

    def evidence(self) -> str:
        if self._held_bytes < MEMORY_LEAST_BYTES:
            return ""
        return f"a process held {self._held_bytes >> 20} MiB, and wrote to them"


@dataclass
class Cpu:
    """A process for each processor that does nothing but keep it busy."""

    scene: Scene
    planned: Planned
    struck: tuple[str, ...] = (MACHINE,)
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _used_s: float = 0.0
    _hogs: int = 0

    def inject(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", _SPIN]
        for _ in range(min(len(os.sched_getaffinity(0)), HOGS_MOST)):
            self._children.append(spawn(command, self.scene.folder / "hogs.log"))
        self._hogs = len(self._children)

    def heal(self) -> None:
        self._used_s += sum(_used_s(child.pid) for child in self._children)
        _end(self._children)

    def evidence(self) -> str:
        return f"{self._hogs} hogs used {self._used_s:.1f} s of processors" * (self._used_s > 0)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    while children:
        child = children.pop()
        child.kill()
        child.wait()


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def _used_s(pid: int) -> float:
    """Time of processors that a process has had."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


FAULTS = {"memory": Memory, "cpu": Cpu}
