"""What a replica may write to etcd of its shard: transactions that only the right one can make.

The shard's value and its leader key change together, and only in transactions that compare both,
and the cluster's configuration (its incarnation). A record's nonce tells whose transaction wrote
it, when the answer was lost.

* *campaign*: the leader key is absent, or hangs on the lease of a process that is known to be dead;
* *change*: the in-sync set, by the primary whose leader key is unchanged;
* *hand over*: the primary gives leader key and epoch to another in-sync member, under its lease.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.kv import (
    Compare,
    Put,
    Read,
    ReadResult,
    Txn,
    TxnResult,
    absent,
    unchanged,
)
from resilient_ps.coordinator.records import Member, ShardRecord
from resilient_ps.errors import BadInput
from resilient_ps.ids import Epoch


@dataclass(frozen=True, slots=True)
class Known:
    """What a replica knows of its shard in etcd, and in which revisions it stands there."""

    record: ShardRecord
    revision: int  # of the record
    leader_revision: int = 0  # of the leader key; 0: absent
    leader_lease: int = 0
    config_revision: int = 0
    version: int = 0  # how often the record has been written


@dataclass(frozen=True, slots=True)
class Claim:
    """A transaction under way: `record` is what it writes over revision `over`."""

    record: ShardRecord
    over: int
    txn: Txn
    lease: int = 0  # under which it writes the leader key; 0: it does not

    @property
    def nonce(self) -> bytes:
        """By which its success is recognised."""
        return self.record.nonce.encode()


def campaign(
    keys: ClusterKeys, known: Known, me: Member, lease: int, min_in_sync: int, nonce: str
) -> Claim:
    """Become primary: of a shard without a leader, or of one whose leader's process is dead."""
    old = known.record
    in_sync = old.in_sync
    if old.primary and old.leader != me and len(in_sync) > min_in_sync:
        in_sync = tuple(member for member in in_sync if member != old.leader)
    if me not in in_sync:  # only with the rule of `members_only` switched off
        in_sync = (*in_sync, me)
    record = _led_by(old, me, in_sync, nonce)
    key = keys.leader(old.shard)
    vacant = (
        Compare(key, "lease", "=", known.leader_lease) if known.leader_revision else absent(key)
    )
    return _claim(keys, known, record, vacant, Put(key, leader_value(me), lease))


def change(keys: ClusterKeys, known: Known, in_sync: tuple[Member, ...], nonce: str) -> Claim:
    """Replace the in-sync set, as its primary."""
    record = replace(known.record, in_sync=in_sync, nonce=nonce)
    return _claim(keys, known, record, _still_leading(keys, known))


def hand_over(keys: ClusterKeys, known: Known, heir: Member, lease: int, nonce: str) -> Claim:
    """Make an in-sync member primary in our place. `lease`: the heir's."""
    old = known.record
    record = _led_by(old, heir, old.in_sync, nonce)
    put = Put(keys.leader(old.shard), leader_value(heir), lease)
    return _claim(keys, known, record, _still_leading(keys, known), put)


def found_instead(result: TxnResult, known: Known) -> Known | None:
    """What a refused claim has read of the shard; None if that is no record."""
    shard, leader = result.results[0], result.results[1]
    if not isinstance(shard, ReadResult) or not shard.items:
        return None
    assert isinstance(leader, ReadResult)
    item = shard.items[0]
    try:
        record = ShardRecord.from_bytes(item.value, item.key)
    except BadInput:
        return None  # who sees it in the watch tells of it
    held = leader.items[0] if leader.items else None
    leads = (0, 0) if held is None else (held.mod_revision, held.lease)
    return Known(record, item.mod_revision, *leads, known.config_revision, item.version)


def leader_value(member: Member) -> bytes:
    """The value of a leader key."""
    return json.dumps({"process": member.process, "server": member.server}).encode()


def _led_by(
    old: ShardRecord, primary: Member, in_sync: tuple[Member, ...], nonce: str
) -> ShardRecord:
    epoch = Epoch(old.epoch.incarnation, old.epoch.counter + 1)
    return replace(
        old,
        epoch=epoch,
        primary=primary.server,
        primary_process=primary.process,
        in_sync=in_sync,
        nonce=nonce,
    )


def _still_leading(keys: ClusterKeys, known: Known) -> Compare:
    return unchanged(keys.leader(known.record.shard), known.leader_revision)


def _claim(
    keys: ClusterKeys, known: Known, record: ShardRecord, leader: Compare, *puts: Put
) -> Claim:
    shard = keys.shard(record.shard)
    compares = (
        unchanged(shard, known.revision),
        leader,
        unchanged(keys.config, known.config_revision),
    )
    put = Put(shard, record.to_bytes())
    reads = (Read(shard), Read(keys.leader(record.shard)))
    lease = sum(put.lease for put in puts)
    return Claim(record, known.revision, Txn(compares, (put, *puts), reads), lease)
