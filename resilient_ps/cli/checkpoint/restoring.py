"""`resilient-ps checkpoint restore`: a cluster goes back to a checkpoint, or begins with one."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated, Any

import typer

from resilient_ps.checkpoints.choosing import Chosen
from resilient_ps.cli.bars import bar
from resilient_ps.cli.checkpoint.choice import (
    NEWEST,
    WishArgument,
    age_text,
    choose,
    clocks_text,
    opened,
)
from resilient_ps.cli.options import (
    JsonOption,
    MinInSyncOption,
    ReplicasOption,
    Where,
    YesOption,
    on_cluster,
    print_json,
)
from resilient_ps.cli.output import confirm, opened_catalogue, remark, size_text
from resilient_ps.cli.storing import FromClusterOption, Store, with_store
from resilient_ps.client.preparing import prepare_cluster
from resilient_ps.client.restoring import GivenManifest, propose_rollback, wait_for_restore
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.client.verifying import bytes_of
from resilient_ps.client.verifying import verify as verify_all
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.placement import MAX_SHARDS
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.errors import BadInput, Reopen
from resilient_ps.runtime.local import check_replicas
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.reading import plan_load


@on_cluster(deadline_s=300.0)
@with_store()
def restore(
    *,
    where: Where,
    store: Store,
    which: WishArgument = NEWEST,
    from_cluster: FromClusterOption = "",
    check: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Read all of it before anything is done.")
    ] = True,
    prepare: Annotated[
        bool,
        typer.Option("--prepare", help="For a new cluster, whose servers have not been started."),
    ] = False,
    shards: Annotated[
        int,
        typer.Option(
            "--shards", min=0, max=MAX_SHARDS, help="Of a new cluster; 0: as the checkpoint has."
        ),
    ] = 0,
    initial_servers: Annotated[
        int, typer.Option("--initial-servers", min=1, help="Of a new cluster.")
    ] = 1,
    replicas: ReplicasOption = 2,
    min_in_sync: MinInSyncOption = 1,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be read, and do nothing. No etcd.")
    ] = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Take a running cluster back to a checkpoint, or prepare a new one that begins with it.

    What was trained since then is dropped. Every worker is told: its calls raise RolledBack until
    it resumes; `train`, and loops over `worker.batches`, do so by themselves, behind the clocks of
    the checkpoint. The cluster gets a new incarnation: nothing of the dropped time can come back.

    With --prepare the configuration of a new cluster is written, with any number of shards; servers
    that are then started, as many as you like, begin with the checkpoint. (Started without that,
    servers of a new cluster begin with the newest checkpoint by themselves: `server --restore`.)

    \b
    Examples:
        resilient-ps checkpoint restore --cluster ctr --store s3://backups/ctr
        resilient-ps checkpoint restore clock:500 --store ./checkpoints --yes
        resilient-ps checkpoint restore time:2026-07-01T23:30 --store ./store
        resilient-ps checkpoint restore --prepare --cluster ctr2 \\
            --from-cluster ctr --shards 32 --store s3://backups/training
    """
    if (shards or from_cluster) and not (prepare or dry_run):
        raise BadInput("--shards and --from-cluster are for a new cluster: say --prepare")
    with opened(store, from_cluster or where.cluster) as stored:
        manifest, skipped = choose(stored, which)
        for why in skipped:
            remark(f"passed over: {why}")
        if check:
            _verify(stored, manifest)
        if dry_run:
            _tell_plan(stored, manifest, shards or manifest.shards, skipped, json=json)
            return
        if prepare:
            check_replicas(replicas, min_in_sync)
            wishes = ClusterWishes(initial_servers, shards, replicas, min_in_sync)
            told = _prepare(where, stored, manifest, wishes)
        else:
            chosen = stored.identified(manifest)
            told = _roll_back(where, chosen, yes=yes)
    told = {"checkpoint": str(manifest.id), "clocks": dict(manifest.clocks), **told}
    if json:
        print_json({**told, "skipped": skipped})
        return
    what = f"checkpoint {manifest.id} (clocks {clocks_text(manifest.clocks)})"
    if prepare:
        print(
            f"cluster {where.cluster} will begin with {what}, in {told['shards']} shards: start "
            "its servers, with the same --store"
        )
    else:
        print(f"cluster {where.cluster} is back at {what}, incarnation {told['incarnation']}")


def _verify(stored: StoredCheckpoints, manifest: Manifest) -> None:
    with bar(f"verifying {manifest.id}", bytes_of(manifest), "B") as show:
        verdict = verify_all(stored, manifest, show)
    if not verdict.good:
        raise BadInput(
            f"checkpoint {manifest.id} is damaged, nothing has been done: "
            f"{'; '.join(verdict.damages[:3])}. `resilient-ps checkpoint ls` shows others"
        )


def _tell_plan(
    stored: StoredCheckpoints, manifest: Manifest, shards: int, skipped: list[str], *, json: bool
) -> None:
    plan = plan_load(stored.indexes(manifest), shards, range(shards))
    told = {
        "checkpoint": str(manifest.id),
        "clocks": dict(manifest.clocks),
        "shards": shards,
        "shards_of_checkpoint": manifest.shards,
        "reads": len(plan.fetches),
        "bytes": plan.nbytes,
        "content_bytes": plan.raw_bytes,
        "skipped": skipped,
    }
    if json:
        print_json(told)
        return
    print(
        f"checkpoint {manifest.id} (clocks {clocks_text(manifest.clocks)}) would be restored: "
        f"{manifest.shards} shards into {shards}, {size_text(plan.nbytes)} in "
        f"{len(plan.fetches):,} reads, {size_text(plan.raw_bytes)} of content"
    )


def _prepare(
    where: Where, stored: StoredCheckpoints, manifest: Manifest, wishes: ClusterWishes
) -> dict[str, Any]:
    with closing(EtcdKv(where.etcd)) as kv:
        config = prepare_cluster(kv, stored, where.cluster, manifest, wishes)
    return {"incarnation": config.incarnation, "shards": config.shards, "prepared": True}


def _roll_back(where: Where, chosen: Chosen, *, yes: bool) -> dict[str, Any]:
    manifest = chosen.manifest
    question = (
        f"take cluster {where.cluster} back to checkpoint {manifest.id} of "
        f"{age_text(manifest.created_s)} ago, and drop what was trained since?"
    )
    confirm(question, yes=yes)
    with opened_catalogue(where.etcd, where.cluster, where.deadline_s) as catalogue:
        intent = propose_rollback(
            catalogue,
            str(manifest.id),
            why="asked for",
            manifest=GivenManifest(chosen.name, chosen.nbytes, chosen.sha256),
            deadline_s=where.deadline_s,
        )
        incarnation = int(intent.result["incarnation"])
        with bar("restoring", 1, "shards") as show:
            done = wait_for_restore(
                catalogue,
                incarnation,
                where.deadline_s,
                lambda progress: show.set(progress.led, progress.shards),
            )
    if done.checkpoint != str(manifest.id):
        raise Reopen(
            f"checkpoint {manifest.id} could not be loaded; cluster {where.cluster} is back at "
            f"{done.checkpoint or 'the initial state'} instead"
        )
    return {"incarnation": done.incarnation, "prepared": False}
