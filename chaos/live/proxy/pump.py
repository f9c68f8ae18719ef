"""One direction of a connection: from one socket to the other one, as the rules have it.

Where no rule is in force, what is read is written at once, with nothing of Python per byte; what
the sink does not take waits, and nothing more is read until it has gone. Under a cut nothing is
read, so the sender's buffers fill up as on a real line; an end or a reset of the connection does
not pass either. Pieces that are late wait in order, in bounded number.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from typing import Protocol

from resilient_ps.chaos.faults.links import Way
from resilient_ps.chaos.live.proxy.treatment import Treatment

READ_BYTES = 262_144
_BUFFER = memoryview(bytearray(READ_BYTES))
"""One for all pumps: they share a thread, and leave nothing in it."""

_END = memoryview(b"")


class Ends(Protocol):
    """The connection that a pump is one direction of."""

    def passes(self, pump: Pump) -> bool:
        """Something was read. Whether it passes; if not, the pump says no more of it."""
        ...

    def source_ended(self, pump: Pump) -> None:
        """In order or not; the sink does not know yet."""
        ...

    def end_passed(self, pump: Pump) -> None:
        """The sink knows that there is no more."""
        ...

    def source_reset(self, pump: Pump) -> None: ...

    def sink_gone(self, pump: Pump) -> None:
        """It takes nothing more."""
        ...


class Pump:
    """Runs from when it is made until `stop`. `source` and `sink` do not block."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        sink: socket.socket,
        way: Way,
        treatment: Treatment,
        ends: Ends,
    ) -> None:
        self.way: Way = way
        self.is_over = False  # the end has passed
        self._loop = loop
        self._source, self._sink = source, sink
        self._from, self._to = source.fileno(), sink.fileno()
        self._ends = ends
        self._treatment = treatment
        self._waiting: deque[tuple[float, memoryview]] = deque()
        self._waiting_bytes = 0
        self._last_due_s = 0.0
        self._has_end = False  # read, or waiting
        self._is_reading = self._is_writing = self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._go_on()

    @property
    def is_cut(self) -> bool:
        return self._treatment.is_cut

    @property
    def is_empty(self) -> bool:
        """Nothing waits."""
        return not self._waiting

    def treat(self, treatment: Treatment) -> None:
        """From now on; what waits is given new times."""
        self._treatment = treatment
        if self._is_stopped:
            return
        now_s = self._loop.time()
        self._last_due_s = 0.0
        again = [(self._due_s(len(piece), now_s), piece) for _, piece in self._waiting]
        self._waiting = deque(again)
        self._go_on()

    def throw_away(self) -> None:
        """Read on, but let nothing pass: the sink is gone."""
        self._stop_writing(keep_timer=True)
        self._sink = self._source

    def stop(self) -> None:
        """For good; both sockets may be closed then."""
        self._is_stopped = True
        self._stop_reading()
        self._stop_writing()
        self._waiting.clear()

    # -- reading

    def _go_on(self) -> None:
        if self._treatment.is_cut:
            self._stop_writing()
            if self._waiting:
                self._treatment.held()
                self._stop_reading()
            else:
                self._read_more()  # to see whether something wants to pass
            return
        self._write()

    def _on_readable(self) -> None:
        if self._treatment.is_cut:
            self._treatment.held()
            self._stop_reading()
            return
        try:
            if self._treatment.is_timed or self._waiting:
                self._read_to_wait()
            else:
                self._read_through()
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._ends.source_ended(self)
            self._ends.source_reset(self)

    def _read_through(self) -> None:
        count = self._source.recv_into(_BUFFER)
        if count and not self._ends.passes(self):
            return
        if not count:
            self._take_end()
            return
        sent = self._send(_BUFFER[:count])
        if sent < count and not self._is_stopped:
            self._wait(memoryview(bytes(_BUFFER[sent:count])), 0.0)
            self._write_later()

    def _read_to_wait(self) -> None:
        count = self._source.recv_into(_BUFFER[: self._treatment.piece_bytes])
        if count and not self._ends.passes(self):
            return
        if not count:
            self._take_end()
            return
        due_s = self._due_s(count, self._loop.time())
        self._wait(memoryview(bytes(_BUFFER[:count])), due_s)
        self._write()

    def _take_end(self) -> None:
        self._has_end = True
        self._stop_reading()
        self._wait(_END, self._due_s(0, self._loop.time()))
        self._ends.source_ended(self)
        if not self._is_stopped:
            self._write()

    def _due_s(self, nbytes: int, now_s: float) -> float:
        if self._treatment.is_timed:
            self._last_due_s = max(self._last_due_s, self._treatment.due_s(nbytes, now_s))
        return self._last_due_s

    def _wait(self, piece: memoryview, due_s: float) -> None:
        self._waiting.append((due_s, piece))
        self._waiting_bytes += len(piece)

    # -- writing

    def _write(self) -> None:
        """All that is due; then read on, or wait."""
        self._stop_timer()
        while self._waiting and not self._treatment.is_cut:
            due_s, piece = self._waiting[0]
            if due_s > self._loop.time():
                self._timer = self._loop.call_at(due_s, self._write)
                break
            if not len(piece):
                self._pass_end()
                return
            sent = self._send(piece)
            if self._is_stopped:
                return
            self._waiting_bytes -= sent
            if sent < len(piece):
                self._waiting[0] = (0.0, piece[sent:])
                self._write_later()
                return
            self._waiting.popleft()
        self._stop_writing(keep_timer=True)
        is_full = self._waiting_bytes >= self._treatment.max_waiting_bytes
        if self._waiting and (is_full or not self._treatment.is_timed):
            self._stop_reading()
        else:
            self._read_more()

    def _write_later(self) -> None:
        self._stop_reading()
        if not self._is_writing and not self._is_stopped:
            self._is_writing = True
            self._loop.add_writer(self._to, self._write)

    def _send(self, piece: memoryview) -> int:
        if self._sink is self._source:
            return len(piece)
        try:
            return self._sink.send(piece)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._ends.sink_gone(self)
            return len(piece)

    def _pass_end(self) -> None:
        self._waiting.popleft()
        self.is_over = True
        self._stop_writing()
        if self._sink is not self._source:
            with contextlib.suppress(OSError):  # it is over in that direction, too
                self._sink.shutdown(socket.SHUT_WR)
        self._ends.end_passed(self)

    # -- what the loop watches

    def _read_more(self) -> None:
        if not (self._is_reading or self._has_end or self._is_stopped):
            self._is_reading = True
            self._loop.add_reader(self._from, self._on_readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._from)

    def _stop_writing(self, *, keep_timer: bool = False) -> None:
        if not keep_timer:
            self._stop_timer()
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._to)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
