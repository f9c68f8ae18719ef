"""A server's shards that begin with what a checkpoint holds: read, verified, and handed over.

Theory of operation. etcd names the checkpoint that the present incarnation of the cluster began
with (`RestoreRecord`). Replicas that are members from the first wait in `Home.to_load`. They are
loaded together, in one pass: the manifest, the indexes of the old shards that overlap with them,
then ranges of the objects, each chunk verified by its digest; what arrives goes to the shards that
own it, in the order of the plan, a bounded amount in each step, different shards at the same time
(the plan takes shards in turn). A step takes what has arrived by then, and the next reads are begun
before it is loaded. Replicas that come to wait meanwhile are loaded in the next pass.

A store that cannot be reached is waited for, visibly. What is missing or damaged is written into
the restore record: the coordinator then rolls back to an earlier checkpoint. What was written in a
newer format is no damage: it is told, and nothing more is done until this server is replaced.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

from resilient_ps.checkpoints.fetching import Fetching, Wanted
from resilient_ps.checkpoints.refs import LOADING_BLOBS, LOADING_REFS, Refs
from resilient_ps.coordinator.kv import KvAnswered, KvCall, KvFailed, Put, Txn
from resilient_ps.coordinator.records import RestoreRecord
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.errors import ResilientPsError
from resilient_ps.machine import Effect, Log, SetTimer
from resilient_ps.replication.applying import InParallel
from resilient_ps.replication.home import Home, Out
from resilient_ps.restoring import RestoredShard
from resilient_ps.shard import Shard
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed
from resilient_ps.storage.documents import ForeignFormat
from resilient_ps.storage.manifest import Manifest
from resilient_ps.storage.reading import (
    LoadPlan,
    Portion,
    indexes_needed,
    plan_head,
    plan_load,
    read_index,
    read_manifest,
    rows_expected,
)

TIMER = "loading"
REPORT_REF = LOADING_REFS.start
STEP_BYTES = 64 << 20  # of content taken in before other events have their turn
INDEX_BYTES = 1 << 20  # what an index is reckoned with
REPORT_NS = 1_000_000_000
WHY_CHARS = 900

Deliver: TypeAlias = Callable[[int, Shard, int], list[Effect]]
Stage: TypeAlias = Literal["manifest", "indexes", "content", "ready", "failed"]


class Loading:
    """See the module. `deliver` gives a loaded shard to its replica."""

    def __init__(
        self, home: Home, view: ClusterView, deliver: Deliver, in_parallel: InParallel
    ) -> None:
        self._home = home
        self._view = view
        self._deliver = deliver
        self._in_parallel = in_parallel
        self._refs = Refs(LOADING_BLOBS)
        self._pass: _Pass | None = None
        self._reporting = False

    def look(self, now_ns: int) -> list[Effect]:
        """The view, or who waits, has changed."""
        restore = self._view.restore
        if self._pass is not None and self._pass.restore_key != _key(restore):
            self._pass = None  # of another incarnation
        if self._pass is not None or restore is None or not self._home.to_load:
            return []
        if restore.incarnation != self._home.incarnation:
            return []
        wanted = tuple(sorted(self._home.to_load))
        self._pass = _Pass(restore, wanted, self._home, self._refs)
        what = {"checkpoint": restore.checkpoint, "shards": len(wanted)}
        return [Log("info", "loading begins", what), *self._go_on(now_ns)]

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        under_way = self._pass
        if under_way is None or not under_way.fetching.owns(event.ref):
            return []
        before = under_way.fetching.trouble
        effects = under_way.fetching.on_blob(event, now_ns)
        trouble = under_way.fetching.trouble
        if trouble and not before:
            effects.append(Log("warning", "loading waits for the store", {"why": trouble}))
        if under_way.stage == "content" and under_way.fetching.failed is None:
            return [*effects, SetTimer(TIMER, now_ns)]  # others may have arrived as well
        return [*effects, *self._go_on(now_ns)]

    def on_timer(self, now_ns: int) -> list[Effect]:
        """Go on."""
        return self._go_on(now_ns)

    def on_kv(self, event: KvAnswered | KvFailed, now_ns: int) -> list[Effect]:
        """What became of a report: the view shows it, or it is made again."""
        self._reporting = False
        return [SetTimer(TIMER, now_ns + REPORT_NS)]

    def status(self) -> dict[str, Any] | None:
        """How far it has come; None where nothing is to be loaded."""
        return None if self._pass is None else self._pass.status()

    # --

    def _go_on(self, now_ns: int) -> list[Effect]:
        under_way = self._pass
        if under_way is None:
            return self.look(now_ns)
        more = under_way.step(self._in_parallel)
        effects = under_way.fetching.advance(now_ns)
        if under_way.error is not None:
            return [*effects, *self._on_error(under_way, under_way.error)]
        if under_way.stage == "ready":
            return [*effects, *self._hand_over(under_way, now_ns)]
        return [*effects, SetTimer(TIMER, now_ns)] if more else effects

    def _hand_over(self, loaded: _Pass, now_ns: int) -> list[Effect]:
        self._pass = None
        what = {"checkpoint": loaded.restore.checkpoint, "bytes": loaded.done_bytes}
        effects: list[Effect] = [Log("info", "loading ends", what)]
        for number in sorted(loaded.shards):
            effects += self._deliver(number, loaded.shards[number].finish(), now_ns)
        return [*effects, *self.look(now_ns)]

    def _on_error(self, failed: _Pass, error: ResilientPsError) -> list[Effect]:
        """Tell it; damage also to the coordinator, through the restore record."""
        effects: list[Effect] = []
        if not failed.told:
            failed.told = True
            what = {"checkpoint": failed.restore.checkpoint, "error": str(error)}
            effects.append(Log("error", "a checkpoint cannot be loaded", what))
        view, keys = self._view, self._view.keys
        restore, config = view.restore, view.config
        if isinstance(error, ForeignFormat) or self._reporting or restore is None:
            return effects
        is_present = config is not None and config.incarnation == restore.incarnation
        if restore.damaged or not is_present or _key(restore) != failed.restore_key:
            return effects
        self._reporting = True
        record = replace(restore, damaged=str(error)[:WHY_CHARS])
        guards = (view.as_seen(keys.restore), view.as_seen(keys.config))
        txn = Txn(guards, (Put(keys.restore, record.to_bytes()),))
        return [*effects, KvCall(REPORT_REF, txn)]


class _Pass:
    """One way through a checkpoint, for the shards that wait when it begins."""

    def __init__(
        self, restore: RestoreRecord, wanted: tuple[int, ...], home: Home, refs: Refs
    ) -> None:
        self.restore = restore
        self.restore_key = _key(restore)
        self.stage: Stage = "manifest"
        self.told = False
        self.shards: dict[int, RestoredShard] = {}
        self.done_bytes = 0
        self.error: ResilientPsError | None = None
        self._wanted = wanted
        self._home = home
        self._refs = refs
        self._manifest: Manifest | None = None
        self._plan: LoadPlan | None = None
        self._indexes: list[Any] = []
        self._taken: list[Portion] = []  # the rest of an answer
        self._batch: dict[int, list[Portion]] = {}  # by shard: taken, and to be loaded next
        reading = read_manifest(restore.manifest, restore.nbytes, restore.sha256)
        self.fetching = Fetching(refs, [Wanted(reading, restore.nbytes)], TIMER)

    def step(self, in_parallel: InParallel) -> bool:
        """Take in what has arrived, as much as one step may; is there more?"""
        if self.error is None and self.fetching.failed is not None:
            self.error = self.fetching.failed
        if self.error is not None:
            self.stage = "failed"
            return False
        try:
            return self._take_in(in_parallel)
        except ResilientPsError as error:  # it verifies, and yet it cannot be what it says
            self.error, self.stage = error, "failed"
            return False

    def _take_in(self, in_parallel: InParallel) -> bool:
        if self.stage == "content":
            return self._take_content(in_parallel)
        while (got := self.fetching.take()) is not None:
            self._indexes.append(got.decoded)
        if not self.fetching.done:
            return False
        if self.stage == "manifest":
            self._manifest = self._indexes.pop()
            self._read_indexes(self._manifest)
        else:
            self._read_content()
        return True

    def _read_indexes(self, manifest: Manifest) -> None:
        needed = indexes_needed(manifest, self._home.shards, self._wanted)
        reads = [read_index(manifest, shard) for shard in needed]
        self.stage = "indexes"
        self.fetching = Fetching(self._refs, [Wanted(read, INDEX_BYTES) for read in reads], TIMER)

    def _read_content(self) -> None:
        assert self._manifest is not None
        shards = self._home.shards
        plan = plan_load(self._indexes, shards, self._wanted)
        for number in self._wanted:
            tables, jobs = plan_head(self._manifest, self._indexes, shards, number)
            restored = RestoredShard(number, shards, self._home.guards)
            restored.take_head(
                [[t.number, t.spec, t.lr, t.writer, t.rows] for t in tables],
                [[j.number, j.spec, j.clock, [_rank(rank) for rank in j.ranks]] for j in jobs],
            )
            before = self._home.retired.pop(number, None)
            for table, rows in rows_expected(self._indexes, shards, number).items():
                restored.expect_rows(table, rows, before)
            self.shards[number] = restored
        self._home.retired.clear()
        self._indexes.clear()
        self._plan = plan
        self.stage = "content"
        wanted = [Wanted(fetch.request, fetch.held_bytes) for fetch in plan.fetches]
        self.fetching = Fetching(self._refs, wanted, TIMER)

    def _take_content(self, in_parallel: InParallel) -> bool:
        """Load what the step before has taken, and take more: reads go on while it is loaded."""
        assert self._plan is not None
        batch, self._batch = self._batch, {}
        in_parallel([partial(_take_all, self.shards[n], batch[n]) for n in sorted(batch)])
        nbytes = 0
        while nbytes < STEP_BYTES and (portion := self._next_portion()) is not None:
            self._batch.setdefault(portion.shard, []).append(portion)
            nbytes += portion.content.nbytes + portion.keys.nbytes
        if not self._batch and self.fetching.done:
            self.stage = "ready"
        return bool(self._batch)

    def _next_portion(self) -> Portion | None:
        assert self._plan is not None
        while not self._taken:
            place = self.fetching.taken
            got = self.fetching.take()
            if got is None:
                return None
            self.done_bytes += self._plan.fetches[place].nbytes
            self._taken = list(reversed(got.decoded))
        return self._taken.pop()

    def status(self) -> dict[str, Any]:
        total = 0 if self._plan is None else self._plan.nbytes
        return {
            "checkpoint": self.restore.checkpoint,
            "stage": self.stage,
            "shards": len(self._wanted),
            "done_bytes": self.done_bytes,
            "total_bytes": total,
            "trouble": str(self.error) if self.error is not None else self.fetching.trouble,
        }


def _take_all(restored: RestoredShard, portions: Sequence[Portion]) -> list[Out]:
    for portion in portions:
        if portion.kind == "elements":
            restored.take_elements(portion.table, portion.at, portion.end, portion.content)
        else:
            restored.take_rows(portion.table, portion.keys, portion.content, all_ours=True)
    return []


def _rank(rank: Any) -> list[Any]:
    cursor = base64.b64encode(rank.cursor).decode()
    return [rank.rank, rank.ticked, rank.live, rank.started, cursor]


def _key(restore: RestoreRecord | None) -> tuple[int, str]:
    """Which restore it is."""
    return (0, "") if restore is None else (restore.incarnation, restore.checkpoint)
