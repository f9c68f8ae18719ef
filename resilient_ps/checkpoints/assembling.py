"""Makes the manifest of a checkpoint: of the indexes of all shards, and of what etcd says.

What the shards hold decides which tables and jobs are in it; etcd adds what shards do not know: the
state of a job, and how its data shards were given out as of the cut. A table that etcd does not
have any more was dropped: some shards may have lost it before the cut, and others after it. It is
left out, and whoever reads the indexes passes it over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from resilient_ps.consistency import JobSpec, consistency_name
from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.coordinator.data_shards import NO_CUT, DataShards
from resilient_ps.coordinator.fields import JsonObject
from resilient_ps.coordinator.keys import ClusterKeys
from resilient_ps.coordinator.records import ClusterConfig, JobRecord, TableRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.storage.documents import Damaged
from resilient_ps.storage.manifest import (
    JobEntry,
    Manifest,
    NamespaceEntry,
    RingEntry,
    TableEntry,
    Totals,
)
from resilient_ps.storage.names import CheckpointId, checkpoint_prefix
from resilient_ps.storage.shard_index import JobState, ObjectInfo, RankState, ShardIndex
from resilient_ps.tables.spec import spec_from_json


class Imaged(NamedTuple):
    """A shard's index, and the object that it was read from."""

    info: ObjectInfo
    image: ShardIndex


def assemble(
    view: ClusterView,
    config: ClusterConfig,
    number: int,
    plan: CutPlan,
    shards: Sequence[Imaged],
    *,
    read: Mapping[bytes, bytes],
    created_s: int,
    written_by: str,
) -> Manifest:
    """The manifest; `shards` are in order.

    `read`: what lies below the prefixes of jobs and tables in etcd, read after all shards had
    reached the cut: our view may lag behind it, and would not know of data shards that ranks had in
    hand at the cut, nor of tables that shards have dropped before it. Raises
    `Damaged` if shards do not fit together, and `BadInput` if what became of data shards since the
    cut is not known any more.
    """
    indexes = [shard.image for shard in shards]
    for at, index in enumerate(indexes):
        expected = (at, config.shards, number)
        if (index.shard, index.shards, index.cut) != expected:
            raise Damaged(
                f"object {shards[at].info.name} is of shard {index.shard} of {index.shards} at "
                f"cut {index.cut}; expected was {expected}"
            )
    checkpoint = CheckpointId.parse(plan.id)
    infos, objects = tuple(shard.info for shard in shards), _objects(indexes)
    jobs = _job_states(indexes)
    return Manifest(
        id=checkpoint,
        cluster=view.keys.cluster,
        created_s=created_s,
        written_by=written_by,
        replicas=config.replicas,
        clocks=_clocks(view, plan, jobs),
        base=plan.base,
        tables=_tables(indexes, _catalogued(view.keys, read)),
        jobs=_jobs(view, plan, jobs, read),
        ring=_ring(view),
        indexes=infos,
        objects=objects,
        totals=_totals(checkpoint_prefix(view.keys.cluster, checkpoint), indexes, infos, objects),
        namespaces=tuple(
            NamespaceEntry(path, record.rows_max, record.bytes_max)
            for path, record in view.namespaces.items()
        ),
    )


def _objects(indexes: Sequence[ShardIndex]) -> tuple[ObjectInfo, ...]:
    found: dict[str, ObjectInfo] = {}
    for index in indexes:
        for each in index.objects:
            if found.setdefault(each.name, each) != each:
                raise Damaged(f"shards differ about object {each.name}")
    return tuple(found[name] for name in sorted(found))


def _totals(
    own: str,
    indexes: Sequence[ShardIndex],
    infos: Sequence[ObjectInfo],
    objects: Sequence[ObjectInfo],
) -> Totals:
    needed = [*infos, *objects]
    uploaded = sum(each.nbytes for each in needed if each.name.startswith(own))
    stored = sum(each.nbytes for each in needed)
    raw = sum(index.raw_bytes for index in indexes)
    return Totals(raw, stored, uploaded, stored - uploaded)


def _catalogued(keys: ClusterKeys, read: Mapping[bytes, bytes]) -> set[int]:
    """The numbers of the tables that etcd has."""
    items = ((key, value, keys.locate(key)) for key, value in read.items())
    return {
        TableRecord.from_bytes(value, key).table_id
        for key, value, at in items
        if at is not None and at.kind == "table"
    }


def _tables(indexes: Sequence[ShardIndex], catalogued: set[int]) -> tuple[TableEntry, ...]:
    specs = {table.number: table.spec for index in indexes for table in index.tables}
    numbers = sorted(set(specs) & catalogued)
    return tuple(TableEntry(spec_from_json(specs[n]).name, n, specs[n]) for n in numbers)


def _job_states(indexes: Sequence[ShardIndex]) -> dict[int, list[JobState]]:
    found: dict[int, list[JobState]] = {}
    for index in indexes:
        for job in index.jobs:
            found.setdefault(job.number, []).append(job)
    return dict(sorted(found.items()))


def _clocks(view: ClusterView, plan: CutPlan, jobs: dict[int, list[JobState]]) -> dict[str, int]:
    """The clocks of the cut; of a job that was done, the last one of any rank.

    Of a graph's job no shard may know any more: all its steps were done.
    """
    clocks = dict(plan.clocks)
    for name in plan.resting:
        ranks, graph = _ranks(jobs.get(plan.numbers[name], [])), view.graph(name)
        if ranks:  # else no shard knows the job any more
            clocks[name] = max(rank.ticked for rank in ranks.values())
        elif graph is not None and graph.job_id == plan.numbers[name]:
            clocks[name] = graph.graph.steps
    return clocks


def _ranks(parts: Sequence[JobState]) -> dict[int, RankState]:
    """Each rank as of the cut: where shards differ, the one that has come further is right."""
    found: dict[int, RankState] = {}
    for part in parts:
        for rank in part.ranks:
            held = found.get(rank.rank)
            if held is None or held.ticked < rank.ticked:
                found[rank.rank] = rank
    return dict(sorted(found.items()))


def _jobs(
    view: ClusterView,
    plan: CutPlan,
    states: dict[int, list[JobState]],
    read: Mapping[bytes, bytes],
) -> tuple[JobEntry, ...]:
    """Those that shards know, and those that only etcd knows yet."""
    records = {job.job_id: job for job in view.jobs}
    entries = []
    for number in sorted({*records, *states}):
        record, parts = records.get(number), states.get(number, [])
        entries.append(_removed(number, parts) if record is None else _entry(record, plan))
        if record is not None:
            key = view.keys.data_shards(record.name)
            given = _data_shards(plan, record.name, key, read.get(key), _ranks(parts))
            entries[-1] = replace(entries[-1], data_shards=given)
    return tuple(entries)


def _removed(number: int, parts: Sequence[JobState]) -> JobEntry:
    """What the job wrote is there, and nobody goes on with it."""
    spec = JobSpec.from_json(parts[0].spec)
    return JobEntry(spec.name, number, spec.ranks, consistency_name(spec.consistency), "stopped")


def _entry(record: JobRecord, plan: CutPlan) -> JobEntry:
    """As of the cut: a job that has ended since has something left to do."""
    has_ended_since = record.state == "done" and record.name not in plan.resting
    return JobEntry(
        name=record.name,
        number=record.job_id,
        ranks=record.ranks,
        consistency=record.consistency,
        state="running" if has_ended_since else record.state,
        evict_after_s=record.evict_after_s,
    )


def _data_shards(
    plan: CutPlan, job: str, key: bytes, raw: bytes | None, ranks: dict[int, RankState]
) -> JsonObject | None:
    """How data shards were given out as of the cut; of a job that is done, how that ended."""
    record = None if raw is None else DataShards.from_bytes(raw, key)
    if record is None or record.job_id != plan.numbers.get(job):  # one that began since
        return None
    if job not in plan.clocks:
        return record.at_cut(NO_CUT).to_json()
    cursors = {rank: _cursor(state.cursor) for rank, state in ranks.items()}
    return record.as_of(plan.clocks[job], cursors).to_json()


def _cursor(raw: bytes) -> Any:
    """What a rank's tick said; a program of one's own may say anything."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _ring(view: ClusterView) -> tuple[RingEntry, ...]:
    members = () if view.ring is None else view.ring.members
    return tuple(RingEntry(member.server, member.weight, member.zone) for member in members)
