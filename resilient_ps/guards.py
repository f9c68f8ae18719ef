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
    epoch_check: bool = True  # what comes from an earlier epoch is refused
    replicated_ledger: bool = True  # backups keep what recognises repeats
    wait_for_backups: bool = True  # an entry is committed when all in-sync members hold it
    repeat_after_commit: bool = True  # a repeat is answered when the original has committed
    members_only: bool = True  # only in-sync members campaign
    apply_after_commit: bool = True  # backups apply what is committed only
    log_matching: bool = True  # an append must follow what the backup holds
    count_before_growth: bool = True  # a learner counts as member before the transaction is sent
    position_check: bool = True  # a replica behind what the asker has seen does not answer
    lease_check: bool = True  # answers end with the lease
    cut_overlay: bool = True  # an image keeps what pushes behind its cut would change
    incarnation_check: bool = True  # requests of another incarnation of the cluster are refused
    guarded_publishing: bool = True  # a checkpoint is recorded by the coordinator, once
    sweep_unused_only: bool = True  # what a checkpoint that stays needs is not deleted


ALL_GUARDS = Guards()
