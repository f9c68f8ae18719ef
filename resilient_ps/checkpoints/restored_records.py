"""What etcd is to say of tables and jobs in a restored cluster, as changes of what it says.

A pure function of the checkpoint's manifest and of what is in etcd: whoever coordinates makes the
changes that are left, until there are none.

* Tables and jobs of the manifest are as they were at the cut: numbers, specifications, states, and
  who works on which data shard.
* Namespaces that etcd has keep the quotas that they have there; those of the manifest come back.
* Tables that were made after the cut stay, and are empty. Jobs that began after it begin anew.
* No rank has finished. Counters only grow; those of ranks' incarnations stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from resilient_ps.coordinator.data_shards import DataShards
from resilient_ps.coordinator.fields import dump
from resilient_ps.coordinator.keys import ClusterKeys, Counter
from resilient_ps.coordinator.kv import Compare, Delete, KeyValue, Op, Put, absent, unchanged
from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.coordinator.records import (
    JobRecord,
    TableRecord,
    counter_bytes,
    read_counter,
)
from resilient_ps.errors import BadInput
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.manifest import JobEntry, Manifest


@dataclass(frozen=True, slots=True)
class Change:
    """One key, and what it is to be; `value` None: it is to go."""

    key: bytes
    value: bytes | None

    @property
    def op(self) -> Op:
        """As part of a transaction."""
        return Delete(self.key) if self.value is None else Put(self.key, self.value)

    def guard(self, items: Mapping[bytes, KeyValue]) -> Compare:
        """Holds while the key is as it is among these."""
        held = items.get(self.key)
        return absent(self.key) if held is None else unchanged(self.key, held.mod_revision)


def changes_left(
    manifest: Manifest | None, keys: ClusterKeys, items: Mapping[bytes, KeyValue]
) -> list[Change]:
    """What of it is not so yet. `manifest` None: the initial state. Raises `Damaged`."""
    try:
        wanted = dict(_wanted(manifest, keys, items))
    except Damaged:
        raise
    except BadInput as error:
        raise Damaged(f"the manifest has a table or a job that cannot be: {error}") from error
    found: list[Change] = []
    for key, value in sorted(wanted.items()):
        held = items.get(key)
        if value is None and held is not None:
            found.append(Change(key, None))
        elif value is not None and (held is None or held.value != value):
            found.append(Change(key, value))
    return found


def _wanted(
    manifest: Manifest | None, keys: ClusterKeys, items: Mapping[bytes, KeyValue]
) -> Iterator[tuple[bytes, bytes | None]]:
    for key in items:
        located = keys.locate(key)
        if located is not None and located.kind in ("finished", "data-shards"):
            yield key, None
        if located is not None and located.kind == "namespace":
            record = NamespaceRecord.from_bytes(items[key].value, key)
            if record.dropping:  # those tables come back, or are gone from all shards
                yield key, replace(record, dropping=()).to_bytes()
    if manifest is None:
        return
    for table in manifest.tables:
        yield keys.table(table.name), TableRecord(table.number, table.spec).to_bytes()
    for namespace in manifest.namespaces:
        key = keys.namespace(namespace.name)
        if key not in items:  # quotas that are set now are those that are meant
            yield key, NamespaceRecord(namespace.rows_max, namespace.bytes_max).to_bytes()
    for job in manifest.jobs:
        yield keys.job(job.name), _job(job)
        if job.data_shards is not None:
            yield keys.data_shards(job.name), _data_shards(job)
    numbers: dict[Counter, int] = {
        "tables": max((table.number for table in manifest.tables), default=0),
        "jobs": max((job.number for job in manifest.jobs), default=0),
        "intents": manifest.id.number,
    }
    for counter, least in numbers.items():
        key = keys.counter(counter)
        held = items.get(key)
        if read_counter(None if held is None else held.value, key) < least:
            yield key, counter_bytes(least)


def _job(job: JobEntry) -> bytes:
    record = JobRecord(
        job_id=job.number,
        name=job.name,
        consistency=job.consistency,
        ranks=job.ranks,
        state=job.state,  # type: ignore[arg-type]  # checked when it is written
        evict_after_s=job.evict_after_s,
    )
    return record.to_bytes()


def _data_shards(job: JobEntry) -> bytes:
    raw = dump(job.data_shards or {}, DataShards.WHAT)
    record = DataShards.from_bytes(raw, f"data shards of job {job.name!r}".encode())
    return record.to_bytes()
