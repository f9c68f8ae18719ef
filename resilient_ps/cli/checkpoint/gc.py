"""`resilient-ps checkpoint gc`: what a store holds that is not to be kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from resilient_ps.cli.bars import bar
from resilient_ps.cli.checkpoint.choice import opened
from resilient_ps.cli.options import JsonOption, Where, YesOption, on_cluster, print_json
from resilient_ps.cli.output import grid, opened_catalogue, results, size_text
from resilient_ps.cli.storing import (
    KeepDailyOption,
    KeepHourlyOption,
    KeepLastOption,
    Store,
    with_store,
)
from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.coordinator.kv import Delete, Put, Txn, unchanged
from resilient_ps.coordinator.records import (
    CheckpointRecord,
    ClusterConfig,
    IntentRecord,
    RestoreRecord,
    read_counter,
)
from resilient_ps.errors import FixTheCall, NotFound
from resilient_ps.storage.blobs import BlobInfo, BlobsDeleted, DeleteBlobs, SweepUploads
from resilient_ps.storage.names import CheckpointId, checkpoints_prefix
from resilient_ps.storage.retention import KeepPolicy, Recorded, is_closed, plan_sweep, to_delete

UPLOADS_OLDER_S = 86_400
ETCD_DEADLINE_S = 10.0


@dataclass(frozen=True, slots=True)
class Known:
    """What etcd says: what is published, what is needed, and which cuts are over."""

    records: dict[CheckpointId, CheckpointRecord]
    in_use: tuple[CheckpointId, ...]
    closed: Callable[[CheckpointId], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """`dropped`: checkpoints that go; `batches`: names of objects to delete, in this order."""

    kept: tuple[CheckpointId, ...]
    dropped: tuple[CheckpointId, ...]
    batches: tuple[tuple[str, ...], ...]
    objects: int
    nbytes: int


@on_cluster(deadline_s=10.0)
@with_store()
def gc(
    *,
    where: Where,
    store: Store,
    keep_last: KeepLastOption = 3,
    keep_hourly: KeepHourlyOption = 0,
    keep_daily: KeepDailyOption = 0,
    offline: Annotated[
        bool,
        typer.Option("--offline", help="Nobody works with this cluster's part of the store."),
    ] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Show which checkpoints and leftovers are not to be kept; with --yes, delete them.

    The coordinator of a cluster keeps to --keep-last and so on by itself. This is for what nobody
    looks after any more: checkpoints that etcd does not know (it was lost), objects of checkpoints
    that were never completed, uploads that broke off. Never deleted: the newest complete
    checkpoint, what others share with one that stays, what is being restored, the base of a
    checkpoint under way, and incarnation markers. etcd is asked for these, unless --offline says
    that there is none.

    \b
    Examples:
        resilient-ps checkpoint gc --cluster ctr --store s3://backups/training
        resilient-ps checkpoint gc --keep-last 2 --keep-daily 30 --yes
        resilient-ps checkpoint gc --offline --cluster old --store ./checkpoints
    """
    policy = KeepPolicy(keep_last, keep_hourly, keep_daily)
    with opened(store, where.cluster) as stored:
        if offline:
            known = Known({}, (), lambda checkpoint: True)
            plan = _plan(stored, known, policy)
            deleted = _delete(stored, plan) if yes else None
        else:
            with opened_catalogue(where.etcd, where.cluster, where.deadline_s) as catalogue:
                known = known_to(catalogue, where.deadline_s)
                plan = _plan(stored, known, policy)
                if yes:
                    withdraw(catalogue, known, plan, where.deadline_s)
                deleted = _delete(stored, plan) if yes else None
                if yes:
                    _forget(catalogue, known, plan)
    _tell(plan, deleted, where.cluster, json=json)


def known_to(catalogue: Catalogue, deadline_s: float) -> Known:
    """What etcd says at this moment. Raises `NotFound` where there is no such cluster."""
    keys, kv = catalogue.keys, catalogue.kv
    items = kv.read(keys.prefix, prefix=True, deadline_s=deadline_s).items
    by_key = {item.key: item.value for item in items}
    if keys.config not in by_key:
        raise NotFound(
            f"there is no cluster {keys.cluster!r} in this etcd: name another --etcd or --cluster, "
            "or say --offline if nobody works with it"
        )
    config = ClusterConfig.from_bytes(by_key[keys.config], keys.config)
    records = {}
    intents = []
    for key, value in by_key.items():
        located = keys.locate(key)
        if located is not None and located.kind == "checkpoint":
            record = CheckpointRecord.from_bytes(value, key)
            records[CheckpointId.parse(record.id)] = record
        elif located is not None and located.kind == "intent":
            intents.append(IntentRecord.from_bytes(value, key))
    open_cuts = [each for each in intents if (each.kind, each.state) == ("cut", "open")]
    needed = [str(cut.details.get("base") or "") for cut in open_cuts]
    if keys.restore in by_key:
        needed.append(RestoreRecord.from_bytes(by_key[keys.restore], keys.restore).checkpoint)
    counter = keys.counter("intents")
    last = read_counter(by_key.get(counter), counter)
    numbers = {cut.number for cut in open_cuts}
    return Known(
        records,
        tuple(CheckpointId.parse(text) for text in needed if text),
        lambda checkpoint: is_closed(checkpoint, config.incarnation, last, numbers),
    )


def _plan(stored: StoredCheckpoints, known: Known, policy: KeepPolicy) -> Plan:
    objects = {each.name: each for each in stored.objects(checkpoints_prefix(stored.cluster))}
    listed = stored.listed()
    complete = [each.manifest for each in listed if each.manifest is not None]
    newest = max([m.id for m in complete], default=None)
    broken = [e.id for e in listed if e.state == "damaged" and newest and e.id < newest]
    recorded = [
        Recorded(
            m.id, m.created_s, m.id not in known.records or known.records[m.id].state == "good"
        )
        for m in complete
    ]
    dropped = {*to_delete(recorded, policy, known.in_use), *broken}
    dropped -= {each for each in dropped if not known.closed(each)}
    retained = [m for m in complete if m.id not in dropped]
    sweep = plan_sweep(stored.cluster, objects, retained, dropped, known.closed)
    if sweep.unread:
        unread = ", ".join(map(str, sweep.unread))
        raise NotFound(
            f"these manifests cannot be read by this version, so nothing is deleted: {unread}"
        )
    names = [name for batch in sweep.batches for name in batch]
    return Plan(
        tuple(m.id for m in retained),
        tuple(sorted(dropped)),
        sweep.batches,
        len(names),
        sum(_size(objects.get(name)) for name in names),
    )


def _size(found: BlobInfo | None) -> int:
    return 0 if found is None else found.size


def withdraw(catalogue: Catalogue, known: Known, plan: Plan, deadline_s: float) -> None:
    """Before any object goes, etcd says that these checkpoints may not be used any more.

    Raises `FixTheCall` where one has come into use since the plan was made: nothing is deleted.
    """
    for checkpoint in plan.dropped:
        if (record := known.records.get(checkpoint)) is not None:
            _change(catalogue, record, replace(record, state="deleting"))
    used = sorted(set(plan.dropped) & set(known_to(catalogue, deadline_s).in_use))
    if used:
        raise FixTheCall(f"checkpoint {used[0]} is in use since a moment ago: look again")


def _forget(catalogue: Catalogue, known: Known, plan: Plan) -> None:
    for checkpoint in plan.dropped:
        if (record := known.records.get(checkpoint)) is not None:
            _change(catalogue, record, None)


def _change(
    catalogue: Catalogue, record: CheckpointRecord, changed: CheckpointRecord | None
) -> None:
    """Unless the coordinator was faster."""
    key = catalogue.keys.checkpoint(record.number)
    items = catalogue.kv.read(key, deadline_s=ETCD_DEADLINE_S).items
    for item in items:
        if CheckpointRecord.from_bytes(item.value, key).id == record.id:
            do = Delete(key) if changed is None else Put(key, changed.to_bytes())
            catalogue.kv.txn(Txn((unchanged(key, item.mod_revision),), (do,)))


def _delete(stored: StoredCheckpoints, plan: Plan) -> int:
    deleted = 0
    with bar("deleting", plan.objects, "objects") as show:
        for batch in plan.batches:
            stored.blobs.do(DeleteBlobs(batch))
            deleted += len(batch)
            show(len(batch))
    swept = stored.blobs.do(SweepUploads(checkpoints_prefix(stored.cluster), UPLOADS_OLDER_S))
    assert isinstance(swept, BlobsDeleted)
    return deleted + swept.deleted


def _tell(plan: Plan, deleted: int | None, cluster: str, *, json: bool) -> None:
    if json:
        told: dict[str, Any] = {
            "cluster": cluster,
            "kept": [str(each) for each in plan.kept],
            "dropped": [str(each) for each in plan.dropped],
            "objects": plan.objects,
            "bytes": plan.nbytes,
            "deleted": deleted is not None,
        }
        print_json(told)
        return
    rows = [(each, "is kept") for each in plan.kept] + [(each, "goes") for each in plan.dropped]
    results().print(grid(f"checkpoints of cluster {cluster}", ["", ""], sorted(rows, reverse=True)))
    what = f"{plan.objects:,} objects of {size_text(plan.nbytes)}"
    if deleted is None:
        print(f"{what} would be deleted: say --yes" if plan.objects else "there is nothing to do")
    else:
        print(f"deleted {what}")
