"""A number that somebody may want to watch: what a metrics system scrapes."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Figure(NamedTuple):
    """`name` begins with `resilient_ps_`; a "counter" only grows, and its name ends in `_total`.

    `labels`: pairs of name and value that tell figures of one name apart.
    """

    name: str
    value: float
    text: str
    kind: Literal["counter", "gauge"] = "gauge"
    labels: tuple[tuple[str, str], ...] = ()
