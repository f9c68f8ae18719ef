"""Switches that take a safety rule out of a node, for negative controls.

A checker that never fails proves nothing: tests build nodes without one rule and demand that the
checker convicts them. `resilient-ps chaos run --unsafe-disable` does so with real processes, whose
hidden option of this name takes what is in `UNSAFE`. It is refused unless the environment allows
it, and such a server says again and again that it is not to be trusted (see `unsafe`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from resilient_ps.errors import BadInput


@dataclass(frozen=True, slots=True)
class Guards:
    """All rules are on by default."""

    staleness_gate: bool = True  # a pull waits for the slowest rank
    deduplication: bool = True  # a repeated push is not applied again
    fencing: bool = True  # an older incarnation of a rank is refused
    takeover_redo: bool = True  # BSP, tasks: a takeover forgets what its predecessor pushed
    barrier: bool = True  # BSP: pushes are held back until all ranks have ticked; tasks: until own
    epoch_check: bool = True  # what comes from an earlier epoch is refused
    backups_fence: bool = True  # nor are its entries taken for held, unseen
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
    quota_admission: bool = True  # what goes beyond a shard's allowance is no entry


ALL_GUARDS = Guards()

ALLOWED_BY = "RESILIENT_PS_ALLOW_UNSAFE"
"""The environment variable that has to be 1."""

UNSAFE: dict[str, tuple[str, ...]] = {
    "fencing": ("fencing", "backups_fence", "lease_check"),  # of primaries, and of ranks
    "dedup": ("deduplication",),
    "sync-ack": ("wait_for_backups",),
    "commit-gate": ("apply_after_commit",),
}
"""What can be switched off on real processes: by name, the rules that are off then."""


def without(names: Iterable[str]) -> Guards:
    """All rules but these (names in `UNSAFE`). Raises `BadInput` for another name."""
    off: dict[str, bool] = {}
    for name in names:
        if name not in UNSAFE:
            raise BadInput(f"--unsafe-disable: there is no {name!r}; use {', '.join(UNSAFE)}")
        off.update(dict.fromkeys(UNSAFE[name], False))
    return replace(ALL_GUARDS, **off) if off else ALL_GUARDS
