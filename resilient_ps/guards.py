"""Switches that take a safety rule out of a node, for negative controls.

A checker that never fails proves nothing: tests build nodes without one rule and demand that the
checker convicts them. No command and no setting of the product switches a rule off.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guards:
    """All rules are on by default."""

    staleness_gate: bool = True  # a pull waits for the slowest rank
    deduplication: bool = True  # a repeated push is not applied again
    fencing: bool = True  # an older incarnation of a rank is refused
    takeover_redo: bool = True  # BSP: a takeover forgets what its predecessor pushed
    barrier: bool = True  # BSP: pushes are held back until all ranks have ticked


ALL_GUARDS = Guards()
