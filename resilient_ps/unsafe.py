"""A server that runs without some of its rules says so: when it starts, and every minute."""

from __future__ import annotations

from resilient_ps.machine import Effect, Log, SetTimer

TIMER = "unsafe"
EVERY_NS = 60_000_000_000


def warnings(names: tuple[str, ...], now_ns: int) -> list[Effect]:
    """`names`: what is switched off (see `guards.UNSAFE`); nothing is said where nothing is."""
    if not names:
        return []
    fields = {
        "disabled": ",".join(names),
        "remedy": "it loses and doubles updates: start it again without --unsafe-disable",
    }
    return [Log("error", "UNSAFE SERVER", fields), SetTimer(TIMER, now_ns + EVERY_NS)]
