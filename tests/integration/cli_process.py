"""The command line under test: in this process where that will do, in one of its own elsewhere."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from resilient_ps.cli.exits import run
from resilient_ps.cli.main import application

PROGRAM = (sys.executable, "-m", "resilient_ps.cli.main")
DEADLINE_S = 90.0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be exactly one JSON object on one line."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Shell:
    """Runs commands in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> Ended:
        self._capture.readouterr()
        code = run(application, list(arguments))
        said = self._capture.readouterr()
        return Ended(code, said.out, said.err)


def start(*arguments: str, temporary: Path | None = None) -> subprocess.Popen[str]:
    """A command in a process of its own; `temporary` becomes its folder for temporary files."""
    environment = {**os.environ, **({} if temporary is None else {"TMPDIR": str(temporary)})}
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def lines_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """Lines of standard error, up to the one that has `text` in it."""
    assert process.stderr is not None
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} is not in: {''.join(lines)}")


def descendants(pid: int) -> set[int]:
    """All processes below `pid`."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            for parent in _parent_of(entry):
                children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    unseen = list(children.get(pid, ()))
    while unseen:
        one = unseen.pop()
        found.add(one)
        unseen += children.get(one, ())
    return found


def _parent_of(entry: Path) -> Iterator[int]:
    try:
        yield int((entry / "stat").read_text().rpartition(") ")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return


def still_running(pids: set[int]) -> set[int]:
    """Those that have not ended by the deadline."""
    until_s = time.monotonic() + DEADLINE_S
    alive = set()
    for pid in sorted(pids):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        with open(descriptor, "rb"):
            poll = select.poll()
            poll.register(descriptor)
            if not poll.poll(max(0.0, until_s - time.monotonic()) * 1000):
                alive.add(pid)
    return alive
