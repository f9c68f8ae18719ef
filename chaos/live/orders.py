"""Orders to a server of `chaos/live/server.py`: to hang, in one of two ways."""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias

from resilient_ps.errors import DeadlineExceeded, Unavailable

ORDER_BYTES_MAX = 100
BEGUN = b"begun"
DONE = b"done"
PATIENCE_S = 20.0

What: TypeAlias = Literal["gil", "loop"]


def orders_of(folder: Path, name: str) -> Path:
    """The Unix socket at which a server takes orders."""
    return folder / f"{name}.orders"


class Order:
    """Hang for so many seconds. The server does when this is made; `wait` returns when it is over.

    Raises `Unavailable` when no server of that name takes orders. Close it, or use `with`.
    """

    def __init__(self, folder: Path, name: str, what: What, seconds: float) -> None:
        self.done = False
        self._answers = folder / f"{name}.{time.monotonic_ns()}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(str(self._answers))
            self._socket.settimeout(PATIENCE_S)
            self._socket.sendto(f"{what} {seconds}".encode(), str(orders_of(folder, name)))
            if self._socket.recv(ORDER_BYTES_MAX) != BEGUN:
                raise OSError("it does not begin")
            self._socket.settimeout(seconds + PATIENCE_S)
        except OSError as error:
            self.close()
            raise Unavailable(f"server {name} takes no orders ({error}): is it running?") from error

    def wait(self, deadline_s: float | None = None) -> None:
        """Until the server says that it has hung for the time, and runs again.

        Raises `DeadlineExceeded` when it does not; without a deadline: some time after it should.
        """
        if self.done:
            return
        if deadline_s is not None:
            self._socket.settimeout(max(deadline_s, 0.001))
        try:
            self.done = self._socket.recv(ORDER_BYTES_MAX) == DONE
        except OSError as error:
            raise DeadlineExceeded("the server did not say that it has hung: it may be gone") from (
                error
            )
        finally:
            self.close()

    def close(self) -> None:
        """Forget it; the server hangs all the same. May be called again."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._answers.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
