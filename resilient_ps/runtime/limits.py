"""What a host bears at most: of connections, of unsent bytes, of patience."""

from __future__ import annotations

from dataclasses import dataclass, field

from resilient_ps.wire import FrameLimits

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class HostLimits:
    """Bounds of one host. The defaults suit a server on a machine of its own.

    A connection whose peer does not take its answers is first not read from (`high_water_bytes`,
    until `low_water_bytes`), and cut at `unsent_bytes`. A server that we dialled is read from all
    the time, and cut at `server_unsent_bytes`, or when its host has taken nothing of what waits for
    `server_silence_s` (by TCP). Those bytes and `dial_queue_bytes` must be more than a primary's
    logs hold for one server: that much is sent at once when a connection broke.
    """

    frame: FrameLimits = field(default_factory=FrameLimits)
    connections: int = 1024
    greeting_timeout_s: float = 10.0  # for the whole first frame
    high_water_bytes: int = 64 * _MIB
    low_water_bytes: int = 16 * _MIB
    unsent_bytes: int = 1024 * _MIB
    server_unsent_bytes: int = 512 * _MIB
    server_silence_s: float = 15.0
    dial_timeout_s: float = 5.0
    dial_queue_bytes: int = 512 * _MIB  # sent to one server while it is being dialled
    close_grace_s: float = 1.0  # for a peer to take the last words
    linger_ns: int = 60_000  # so long a server that replicates looks for the next message: `Awake`
