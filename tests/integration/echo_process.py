"""Starts and ends processes of `echo_machine.py` for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from wire_peer import TIMEOUT_S, WirePeer

PROGRAM = Path(__file__).with_name("echo_machine.py")


class EchoProcess:
    """A server process of its own; a context that leaves nothing behind."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._log = folder / "echo.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), *flags], stdout=subprocess.PIPE, stderr=log
            )

    def __enter__(self) -> EchoProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; waits until it is ready."""
        if not hasattr(self, "_address"):
            assert self.process.stdout is not None
            line = self.process.stdout.readline().decode()
            assert line.startswith("ready echo "), f"{line!r} {self._log.read_text()}"
            host, _, port = line.split()[2].rpartition(":")
            self._address = host, int(port)
        return self._address

    def peer(self) -> WirePeer:
        return WirePeer(self.address)

    def wait(self) -> int:
        """Its exit code, once it has ended by itself."""
        return self.process.wait(TIMEOUT_S)

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()]
