"""A new cluster that begins with a checkpoint: its configuration, before any server is there."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from dataclasses import replace

from resilient_ps.checkpoints.restored import checkpoint_record, restore_record
from resilient_ps.client.stored import StoredCheckpoints
from resilient_ps.coordinator.controller import ClusterWishes
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import Kv, Op, Put, Txn, absent
from resilient_ps.coordinator.records import ClusterConfig, counter_bytes
from resilient_ps.errors import FixTheCall, Unavailable
from resilient_ps.storage.blobs import BlobExists, PutBlob
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.names import marker_name

TRIES = 8  # others may take incarnations at the same time


def prepare_cluster(
    kv: Kv, stored: StoredCheckpoints, cluster: str, manifest: Manifest, wishes: ClusterWishes
) -> ClusterConfig:
    """Write what makes `cluster` begin with this checkpoint (of its own, or of another cluster).

    `wishes.shards` 0: as many as the checkpoint has. The servers are then started with the same
    --store. Raises `FixTheCall` where there is such a cluster already.
    """
    keys = ClusterKeys(cluster)
    if kv.read(keys.config, deadline_s=10.0).items:
        raise _exists(cluster)
    by = f"pid {os.getpid()} on {socket.gethostname()}"
    incarnation = _mark(stored, cluster, f"prepared by {by} from {manifest.id}")
    config = wishes.new_config(secrets.randbits, by)
    shards = wishes.shards or manifest.shards
    config = replace(config, incarnation=incarnation, shards=shards)
    chosen = stored.identified(manifest)
    why = f"prepared with checkpoint {manifest.id} of {stored.cluster}"
    restore = restore_record(incarnation, chosen, why, int(time.time()))
    ops: list[Op] = [Put(keys.restore, restore.to_bytes()), Put(keys.config, config.to_bytes())]
    if stored.cluster == cluster:
        number = manifest.id.number
        ops.append(Put(keys.checkpoint(number), checkpoint_record(chosen).to_bytes()))
        ops.append(Put(keys.counter("intents"), counter_bytes(number)))
    if not kv.txn(Txn((absent(keys.config),), tuple(ops))).succeeded:
        raise _exists(cluster)
    return config


def _mark(stored: StoredCheckpoints, cluster: str, why: str) -> int:
    """The next incarnation, which is ours."""
    own = stored if stored.cluster == cluster else StoredCheckpoints(stored.blobs, cluster)
    for _ in range(TRIES):
        incarnation = own.incarnation() + 1
        body = {
            "cluster": cluster,
            "incarnation": incarnation,
            "nonce": f"{secrets.randbits(64):016x}",
            "why": why,
        }
        name = marker_name(cluster, incarnation)
        try:
            stored.blobs.do(PutBlob(name, (json.dumps(body) + "\n").encode(), "create"))
        except BlobExists:
            continue
        return incarnation
    raise Unavailable(
        f"others took {TRIES} incarnations of cluster {cluster!r} meanwhile: try again"
    )


def _exists(cluster: str) -> FixTheCall:
    return FixTheCall(
        f"there is a cluster {cluster!r} in this etcd: `checkpoint restore` without --prepare "
        "takes it back; for a new one, use another --cluster"
    )
