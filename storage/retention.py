"""Which checkpoints are kept, and which objects may be swept: rules, as functions of what there is.

Kept are the newest `last` good checkpoints, and the last one of each of the newest `hourly` hours
and `daily` days (UTC) that have any. The newest good one and those in use are never deleted; a
damaged one is not counted, and goes when `last` good ones are newer.

Checkpoints share objects, so what a deleted one leaves behind is decided by looking at all others:
an object may be swept if its cut is closed and no manifest that stays names it. Incarnation markers
and names that nobody knows are never touched. A manifest that stands in the store but is neither
retained nor dropped (another etcd recorded it) has to be read first: it may name anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import DELETE_MOST
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import CheckpointId, Located, locate, manifest_name

HOUR_S, DAY_S = 3_600, 86_400
KEEP_MOST = 10_000


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """See the module. Raises BadInput for less than one, and for more than 10,000."""

    last: int = 3
    hourly: int = 0
    daily: int = 0

    def __post_init__(self) -> None:
        for name, least in (("last", 1), ("hourly", 0), ("daily", 0)):
            value = getattr(self, name)
            if not least <= value <= KEEP_MOST:
                raise BadInput(f"keep {name}={value}: choose {least} to {KEEP_MOST}")


class Recorded(NamedTuple):
    """A checkpoint that etcd has a record of. `created_s`: seconds since 1970."""

    id: CheckpointId
    created_s: int
    good: bool


def to_delete(
    recorded: Iterable[Recorded], policy: KeepPolicy, in_use: Collection[CheckpointId] = ()
) -> tuple[CheckpointId, ...]:
    """The checkpoints that are not kept, oldest first.

    `in_use`: those that something is restored from, and the bases of open cuts.
    """
    newest_first = sorted(recorded, key=lambda each: each.id, reverse=True)
    good = [each for each in newest_first if each.good]
    kept = {each.id for each in good[: policy.last]}
    kept |= _last_of_each(good, HOUR_S, policy.hourly) | _last_of_each(good, DAY_S, policy.daily)
    kept |= set(in_use)
    if len(good) < policy.last:
        kept |= {each.id for each in newest_first}
    else:
        oldest_counted = good[policy.last - 1].id
        kept |= {each.id for each in newest_first if not each.good and each.id > oldest_counted}
    return tuple([each.id for each in reversed(newest_first) if each.id not in kept])


def _last_of_each(newest_first: list[Recorded], period_s: int, periods: int) -> set[CheckpointId]:
    found: dict[int, CheckpointId] = {}
    for each in newest_first:
        found.setdefault(each.created_s // period_s, each.id)
    return {found[period] for period in sorted(found, reverse=True)[:periods]}


def is_closed(
    checkpoint: CheckpointId, incarnation: int, last_intent: int, open_intents: Collection[int]
) -> bool:
    """Has the cut come to its end, as etcd shows it at `incarnation`?

    A rollback closes all intents of earlier incarnations. What etcd does not know yet, or not any
    more because it is an older etcd, is not closed.
    """
    if checkpoint.incarnation != incarnation:
        return checkpoint.incarnation < incarnation
    return checkpoint.number <= last_intent and checkpoint.number not in open_intents


class Sweep(NamedTuple):
    """What to delete: each batch after the one before. `unread`: manifests to be read first.

    While there are such, nothing may be swept, and there are no batches.
    """

    batches: tuple[tuple[str, ...], ...]
    unread: tuple[CheckpointId, ...]


def plan_sweep(
    cluster: str,
    names: Iterable[str],
    retained: Collection[Manifest],
    dropped: Collection[CheckpointId],
    closed: Callable[[CheckpointId], bool],
) -> Sweep:
    """Of these objects of a cluster (a listing, which may lag), those that may be deleted.

    `retained`: the manifests of *all* checkpoints that stay, the bases of open cuts among them.
    `dropped`: checkpoints that are deleted, and cuts that were given up. Manifests come first, so
    that nobody ever finds one whose objects are gone.
    """
    located = {name: at for name in names if (at := locate(cluster, name)) is not None}
    kept_ids = {manifest.id for manifest in retained}
    standing = {at.id for at in located.values() if at.kind == "manifest" and at.id is not None}
    unread = standing - kept_ids - set(dropped)
    if unread:
        return Sweep((), tuple(sorted(unread)))
    kept = {manifest_name(cluster, id) for id in kept_ids}
    for manifest in retained:
        kept |= {each.name for each in (*manifest.indexes, *manifest.objects)}
    swept = [
        (at.kind, name)
        for name, at in sorted(located.items())
        if name not in kept and _is_ended(at, closed)
    ]
    manifests = [name for kind, name in swept if kind == "manifest"]
    others = [name for kind, name in swept if kind != "manifest"]
    return Sweep((*_batches(manifests), *_batches(others)), ())


def _is_ended(at: Located, closed: Callable[[CheckpointId], bool]) -> bool:
    return at.kind != "marker" and at.id is not None and closed(at.id)


def _batches(names: list[str]) -> list[tuple[str, ...]]:
    return [tuple(names[i : i + DELETE_MOST]) for i in range(0, len(names), DELETE_MOST)]
