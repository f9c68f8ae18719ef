"""Figures of measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed (nearest rank)."""
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(0, rank - 1)]
