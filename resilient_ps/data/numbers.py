"""Numbers from the bytes of text files: finite decimals only, none of Python's extra spellings."""

from __future__ import annotations

import math

from resilient_ps.data.lines import BadLine

MAX_FLOAT32 = 3.4028234663852886e38


def number(what: str, text: bytes) -> float:
    """A finite number that fits float32; raises `BadLine` naming `what` otherwise."""
    try:
        value = float(text)
    except ValueError:
        raise BadLine(f"{what} {shown(text)} is not a number") from None
    # Python reads "1_000" as 1000; in a data file it is a mistake
    if b"_" in text:
        raise BadLine(f"{what} {shown(text)} is not a number")
    if not math.isfinite(value):
        raise BadLine(f"{what} {shown(text)} is not finite")
    if abs(value) > MAX_FLOAT32:
        raise BadLine(f"{what} {shown(text)} does not fit float32")
    return value


def shown(text: bytes) -> str:
    """At most 40 bytes of a text, quoted for a message."""
    cut = text[:40]
    return repr(cut.decode("utf-8", "replace")) + ("..." if len(text) > len(cut) else "")
