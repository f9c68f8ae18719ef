"""Reading JSON strictly: what the standard parser takes too lightly is refused with `ValueError`.

For who reads what anybody may have written: records in etcd, and documents in a store.
"""

from __future__ import annotations

import json
import math
from typing import Any

SHOWN_CHARS = 60


def loads_strictly(text: str) -> Any:
    """As `json.loads`, without repeated fields, without NaN, and without infinite numbers."""
    return json.loads(
        text,
        object_pairs_hook=_without_repeats,
        parse_float=_finite,
        parse_constant=_no_constant,
    )


def short(value: object) -> str:
    """The beginning of a value: messages stay readable whatever somebody wrote."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError("a number is too large")
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")
