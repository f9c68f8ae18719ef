"""The lines between all parties, as the harness holds them: starts the proxy, gives it orders."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from resilient_ps.chaos.faults.links import Effect, Rule, StoreTrouble
from resilient_ps.errors import BadInput, Unavailable
from resilient_ps.runtime.addresses import Address
from resilient_ps.runtime.spawn import spawn

HARNESS = "harness"
READY_DEADLINE_S = 20.0
ORDER_DEADLINE_S = 20.0
STOP_DEADLINE_S = 5.0
_MODULE = "resilient_ps.chaos.live.proxy"
_TAIL_BYTES = 2_000


class Network:
    """See `scene.Lines` for what rules do. Thread-safe. Raises `Unavailable` when the proxy dies.

    `folder`: where `network.log` goes. Nothing else of it stays anywhere.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "network.log"
        self._rules: dict[int, Rule] = {}
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)
        try:
            self._start()
            self.know(HARNESS, os.getpid())
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Of the proxy."""
        return self._process.pid if self._process else 0

    # -- parties

    def open(
        self,
        party: str,
        target: str,
        *,
        http: bool = False,
        port: int = 0,
        credentials: tuple[str, str] = ("", ""),
    ) -> str:
        """The address (host:port) at which others dial the party, instead of at `target`.

        Nobody need listen at `target` yet: dials are refused while nobody does. A party may have
        several addresses. `http`: it is the S3 store, with plain HTTP; its `credentials` (access
        key, secret key) are needed where conditions of puts are to be ignored. `port` 0: any one.
        """
        order = {"party": party, "target": target, "http": http, "port": port}
        host, found = self._order("open", **order, credentials=list(credentials))
        return str(Address(host, found))

    def close_address(self, address: str) -> None:
        """Nobody is dialled there any more; its connections are reset."""
        self._order("close", address=address)

    def know(self, party: str, pid: int) -> None:
        """The party is this process now, and all that it starts."""
        self._order("know", party=party, pid=pid)

    # -- lines

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those in force now."""
        return tuple(self._rules.copy().values())

    def apply(self, rule: Rule) -> int:
        """From now on; returns a number."""
        number = int(self._order("apply", rule=asdict(rule)))
        self._rules[number] = rule
        return number

    def lift(self, number: int) -> Effect:
        """No longer; what it has done. A number that is not known any more is no error."""
        effect = Effect(**self._order("lift", number=number))
        self._rules.pop(number, None)
        return effect

    def effect(self, number: int) -> Effect:
        """What it has done so far."""
        return Effect(**self._order("effect", number=number))

    def trouble_store(self, trouble: StoreTrouble) -> None:
        """Replaces what was before; `StoreTrouble()` ends it."""
        self._order("trouble store", trouble=asdict(trouble))

    def store_effect(self) -> Effect:
        """What has been done to the store's answers, all together."""
        return Effect(**self._order("store effect"))

    # -- the process

    def stop(self) -> None:
        """Ends all lines, and the process. May be repeated."""
        atexit.unregister(self.stop)
        with self._lock:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._process is not None:
                try:
                    self._process.wait(STOP_DEADLINE_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self) -> None:
        """The socket has a name and no file: nothing is left, and no path can be too long."""
        name = f"resilient-ps-network-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"\0{name}")
            listener.listen(8)
            listener.settimeout(0.1)
            self._process = spawn([sys.executable, "-m", _MODULE, name], self._log)
            self._control = self._accept(listener)
            self._control.settimeout(ORDER_DEADLINE_S)

    def _accept(self, listener: socket.socket) -> socket.socket:
        assert self._process is not None
        for _ in range(round(READY_DEADLINE_S / 0.1)):
            with contextlib.suppress(TimeoutError):
                control = listener.accept()[0]
                if _pid_of_peer(control) == self._process.pid:
                    return control
                control.close()  # somebody else on this machine
            if self._process.poll() is not None:
                break
        raise Unavailable(f"the network's proxy did not start: {self._tail()}")

    def _order(self, what: str, **order: Any) -> Any:
        line = json.dumps({"do": what, **order}).encode() + b"\n"
        with self._lock:
            if self._control is None:
                raise Unavailable("the network's proxy is stopped: start a new one")
            try:
                self._control.sendall(line)
                answer = self._read_line(self._control)
            except OSError as error:  # what it says later would be taken for another answer
                self._control.close()
                self._control = None
                raise Unavailable(
                    f"the network's proxy is gone ({error}): {self._tail()}"
                ) from error
        said = json.loads(answer)
        if "error" in said:
            raise BadInput(str(said["error"]))
        return said["result"]

    def _read_line(self, control: socket.socket) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            more = control.recv(65_536)
            if not more:
                raise ConnectionResetError("it has ended")
            data += more
        return data

    def _tail(self) -> str:
        try:
            text = self._log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"the end of {self._log} says: {text}" if text else f"{self._log} is empty"


def _pid_of_peer(sock: socket.socket) -> int:
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", told)[0])
