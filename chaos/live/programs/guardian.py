"""Lets processes go on that were paused by somebody who is no more.

    python guardian.py        # reads lines: `paused PID BEGAN`, `resumed PID BEGAN`

It belongs to a command that pauses processes of others. When that ends, however it does, its end of
the pipe is closed; then whoever is still paused by it is told to go on. Then this ends, too.
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    paused: set[tuple[int, int]] = set()
    for line in sys.stdin:
        what, pid, began = line.split()
        process = (int(pid), int(began))
        if what == "paused":
            paused.add(process)
        else:
            paused.discard(process)
    for pid_began in sorted(paused):
        _resume(*pid_began)


def _resume(pid: int, began: int) -> None:
    """If it is the same process still."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        held = os.pidfd_open(pid)
        with open(f"/proc/{pid}/stat") as stat:
            if int(stat.read().rpartition(")")[2].split()[19]) == began:
                signal.pidfd_send_signal(held, signal.SIGCONT)
        os.close(held)


if __name__ == "__main__":
    main()
