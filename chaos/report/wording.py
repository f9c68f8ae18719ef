"""Numbers as people read them."""

from __future__ import annotations

import math


def count(number: float) -> str:
    """48213 -> 48,213"""
    return f"{number:,.0f}"


def counted(number: int, one: str, more: str = "") -> str:
    """1 fault, 2 faults"""
    return f"{count(number)} {one if number == 1 else more or one + 's'}"


def seconds(value_s: float) -> str:
    """0.084 -> 84 ms, 2.1 -> 2.10 s, 75 -> 75.0 s"""
    if not math.isfinite(value_s):
        return "-"
    if value_s < 0.0995:
        return f"{value_s * 1e3:.0f} ms" if value_s >= 0.00995 else f"{value_s * 1e3:.1f} ms"
    return f"{value_s:.2f} s" if value_s < 9.995 else f"{value_s:.1f} s"


def size(amount_bytes: float) -> str:
    """734003200 -> 700 MiB"""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount_bytes < 1024:
            digits = 0 if unit == "B" or amount_bytes >= 100 else 1
            return f"{amount_bytes:,.{digits}f} {unit}"
        amount_bytes /= 1024
    return f"{amount_bytes:,.1f} TiB"


def number(value: float) -> str:
    """Of a metric: as many digits as say something."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:,.6g}"
