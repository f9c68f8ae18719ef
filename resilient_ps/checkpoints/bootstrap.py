"""The first configuration of a cluster that has an object store: it may have lived before.

Theory of operation. Any server that finds no configuration in etcd lists the incarnation markers of
the cluster in the store, and what checkpoints there are. It chooses one (by default the newest that
verifies on the line of the last incarnation, see `lineage`; a future that was given up is better
than nothing), creates the next marker, and only then writes the configuration: with that
incarnation, with the number of shards that is asked for or that the checkpoint has, with what it
begins with, and with records of the checkpoints that were found. So a cluster whose etcd was lost
goes on with larger incarnations, and from its checkpoint. Of several servers that do this, one's
transaction succeeds.

A cluster that has checkpoints never begins empty by itself: where none can be used, or the store
cannot be read, it waits, and says why. "none" as `restore` begins empty all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from resilient_ps.checkpoints.candidates import manifests_among
from resilient_ps.checkpoints.choosing import Candidate, Choosing, Chosen, Skipped
from resilient_ps.checkpoints.lineage import Lineage
from resilient_ps.checkpoints.marking import (
    Listing,
    Marking,
    highest,
    manifests_of,
    markers_of,
)
from resilient_ps.checkpoints.refs import ROLLBACK_REFS, Refs
from resilient_ps.checkpoints.restored import (
    checkpoint_record,
    marked,
    restore_record,
    with_skipped,
)
from resilient_ps.checkpoints.wish import Wish
from resilient_ps.coordinator.kv import Op, Put, Txn, absent
from resilient_ps.coordinator.mandate import Mandate
from resilient_ps.coordinator.records import CheckpointRecord, ClusterConfig, counter_bytes
from resilient_ps.coordinator.view import ClusterView
from resilient_ps.ids import DrawBits
from resilient_ps.machine import Effect, Log, SetTimer
from resilient_ps.storage.blobs import BlobAnswered, BlobFailed

CONFIG_REF = ROLLBACK_REFS[3]
PAUSE_NS = 2_000_000_000  # for another server to finish what it has begun
COMPLAIN_NS = 30_000_000_000
RECORDS_MAX = 40  # of checkpoints that were found

NOTHING = "none"
AUTO = "auto"
NO_WISH = Wish("id")
"""No checkpoint will do: their manifests are only read."""


@dataclass(frozen=True, slots=True)
class RestoreWish:
    """What a new cluster is to begin with. Raises `BadInput` for what cannot be wished for.

    `restore`: "auto" (the newest checkpoint that verifies, if there is any), "none" (nothing), or a
    wish (see `wish`). `source_cluster`: whose checkpoints, "": its own.
    """

    restore: str = AUTO
    source_cluster: str = ""

    def __post_init__(self) -> None:
        if self.restore not in (AUTO, NOTHING):
            Wish.parse(self.restore)

    @property
    def wish(self) -> Wish:
        """Which checkpoint."""
        return Wish.parse("latest" if self.restore == AUTO else self.restore)


class Bootstrap:
    """See the module. `config` makes the configuration of a cluster that never lived before."""

    def __init__(
        self,
        view: ClusterView,
        mandate: Mandate,
        wish: RestoreWish,
        config: Callable[[], ClusterConfig],
        refs: Refs,
        draw: DrawBits,
        wall_s: Callable[[], int],
        timer: str,
        *,
        shards_asked_for: int,
    ) -> None:
        self._view = view
        self._mandate = mandate
        self._wish = wish
        self._config = config
        self._refs = refs
        self._draw = draw
        self._wall_s = wall_s
        self._timer = timer
        self._shards_asked_for = shards_asked_for
        self._part: Listing | Lineage | Choosing | Marking | None = None
        self._markers: list[str] | None = None  # that were listed
        self._beside: list[Candidate] = []  # checkpoints that are not on the line
        self._passed_over: list[Skipped] = []  # on the line, where nothing will do
        self._choosing: Choosing | None = None
        self._others: Choosing | None = None  # what is older than the chosen one
        self._at_ns = 0  # not before this is anything done
        self._complained_ns = -COMPLAIN_NS
        self.trouble = ""

    @property
    def source(self) -> str:
        """Whose checkpoints."""
        return self._wish.source_cluster or self._view.keys.cluster

    def drop(self) -> None:
        """There is a configuration."""
        self._part = self._choosing = self._others = self._markers = None
        self._beside, self._passed_over = [], []

    def owns(self, ref: int) -> bool:
        """Is this the reference of a call of ours?"""
        return self._part is not None and self._part.owns(ref)

    def on_blob(self, event: BlobAnswered | BlobFailed, now_ns: int) -> list[Effect]:
        """An answer of the store."""
        assert self._part is not None
        return [*self._part.on_blob(event, now_ns), *self.advance(now_ns)]

    def advance(self, now_ns: int) -> list[Effect]:
        """Do what comes next."""
        if now_ns < self._at_ns:
            return [SetTimer(self._timer, self._at_ns)]
        if self._mandate.busy(CONFIG_REF):
            return []
        if self._part is None:
            self._part = markers_of(self._view.keys.cluster, self._refs, self._timer)
        part = self._part
        if isinstance(part, Listing | Lineage | Marking) and part.failed is not None:
            return self._wait(str(part.failed), now_ns)
        effects = self._next(part, now_ns)
        return [*effects, *self._complain(self._trouble(), now_ns)]

    def _trouble(self) -> str:
        """Of the part that is under way now: it may be another one than before `_next`."""
        return "" if self._part is None else self._part.trouble

    def _next(self, part: Listing | Lineage | Choosing | Marking, now_ns: int) -> list[Effect]:
        match part:
            case Listing() if part.over and self._markers is None:
                return self._on_markers(part, now_ns)
            case Listing() if part.over:
                return self._on_checkpoints(part, now_ns)
            case Lineage() if part.over:
                self._beside = part.others
                return self._choose(part.line, now_ns)
            case Choosing() if part.over:
                return self._on_chosen(part, now_ns)
            case Marking(taken="ours"):
                return self._write(part.incarnation)
            case Marking(taken="theirs"):  # it may write the configuration any moment
                return self._wait("", now_ns)
            case _:
                return part.advance(now_ns)

    def _on_markers(self, listing: Listing, now_ns: int) -> list[Effect]:
        self._markers = listing.names
        if self._wish.restore == NOTHING:
            return self._mark(now_ns)
        self._part = manifests_of(self.source, self._refs, self._timer)
        return self._part.advance(now_ns)

    def _on_checkpoints(self, listing: Listing, now_ns: int) -> list[Effect]:
        found = manifests_among(self.source, listing.names)
        if not found and self._wish.restore == AUTO:
            return self._mark(now_ns)
        if not found:
            return self._wait(f"{self.source!r} has no checkpoint in the store", now_ns)
        if self._wish.wish.kind != "latest" or self.source != self._view.keys.cluster:
            return self._choose(found, now_ns)
        names = self._markers or []
        self._part = Lineage(self.source, names, found, self._refs, self._timer)
        return self._next(self._part, now_ns)

    def _choose(self, found: list[Candidate], now_ns: int) -> list[Effect]:
        self._part = Choosing(found, self._wish.wish, self._refs, self._timer)
        effects = self._part.advance(now_ns)
        return self._on_chosen(self._part, now_ns) if self._part.over else effects

    def _on_chosen(self, choosing: Choosing, now_ns: int) -> list[Effect]:
        if self._choosing is not None:  # all that are to be recorded have been read
            self._others = choosing
            return self._mark(now_ns)
        if choosing.chosen is None and self._beside:
            found, self._beside = self._beside, []
            self._passed_over = choosing.skipped
            return self._choose(found, now_ns)
        if choosing.chosen is None:
            skipped = [*self._passed_over, *choosing.skipped]
            why = with_skipped(f"no checkpoint of {self.source!r} will do", skipped)
            return self._wait(why, now_ns)
        self._choosing = choosing
        rest = [*choosing.rest, *self._beside][: max(0, RECORDS_MAX - len(choosing.read))]
        if not rest:
            return self._mark(now_ns)
        self._part = Choosing(rest, NO_WISH, self._refs, self._timer)
        return self._part.advance(now_ns)

    def _mark(self, now_ns: int) -> list[Effect]:
        chosen = None if self._choosing is None else self._choosing.chosen
        why = "a new cluster" if chosen is None else f"restored from {chosen.manifest.id}"
        nonce, cluster = f"{self._draw(64):016x}", self._view.keys.cluster
        number = highest(cluster, self._markers or []) + 1
        self._part = Marking(cluster, number, nonce, why, self._refs, self._timer)
        return self._part.advance(now_ns)

    def _write(self, incarnation: int) -> list[Effect]:
        """The configuration, and with it all that makes the incarnation what it is."""
        keys = self._view.keys
        config = replace(self._config(), incarnation=incarnation)
        choosing = self._choosing
        chosen = None if choosing is None else choosing.chosen
        if chosen is not None and not self._shards_asked_for:
            config = replace(config, shards=chosen.manifest.shards)
        ops: list[Op] = []
        if chosen is not None or incarnation > 1:
            why = f"the cluster was created anew with restore={self._wish.restore}"
            skipped = [*self._passed_over, *([] if choosing is None else choosing.skipped)]
            record = restore_record(incarnation, chosen, with_skipped(why, skipped), self._wall_s())
            ops.append(Put(keys.restore, record.to_bytes()))
        records = self._records()
        self._others = None
        ops += [Put(keys.checkpoint(r.number), r.to_bytes()) for r in records.values()]
        if records:
            ops.append(Put(keys.counter("intents"), counter_bytes(max(records))))
        ops.append(Put(keys.config, config.to_bytes()))
        self._part = None  # if another one was faster, there is a configuration now
        self._markers = self._choosing = None
        self._beside, self._passed_over = [], []
        what = {
            "incarnation": incarnation,
            "shards": config.shards,
            "checkpoint": "-" if chosen is None else str(chosen.manifest.id),
        }
        txn = Txn((absent(keys.config),), tuple(ops))
        sent = self._mandate.ask(CONFIG_REF, txn, config.cluster_id.encode())
        return [Log("info", "proposing the configuration of a new cluster", what), *sent]

    def _records(self) -> dict[int, CheckpointRecord]:
        """The cluster's own checkpoints that were found, by the number of their cuts."""
        looked = [each for each in (self._choosing, self._others) if each is not None]
        if not looked or self.source != self._view.keys.cluster:
            return {}
        read = [chosen for choosing in looked for chosen in choosing.read]
        skipped = [each for choosing in looked for each in choosing.skipped]
        found: list[Chosen] = sorted(read, key=lambda each: each.manifest.id)
        records = [checkpoint_record(each) for each in found[-RECORDS_MAX:]]
        damaged = {record.id: record for record in marked(records, skipped)}
        return {record.number: damaged.get(record.id, record) for record in records}

    # -- waiting

    def _wait(self, why: str, now_ns: int) -> list[Effect]:
        """Begin again after a while: somebody may have mended it."""
        self.drop()
        self._at_ns = now_ns + PAUSE_NS
        return [SetTimer(self._timer, self._at_ns), *self._complain(why, now_ns)]

    def _complain(self, why: str, now_ns: int) -> list[Effect]:
        self.trouble = why
        if not why or now_ns - self._complained_ns < COMPLAIN_NS:
            return []
        self._complained_ns = now_ns
        remedy = "mend the store, or start with --restore none for an empty cluster"
        return [Log("error", "the cluster cannot begin", {"why": why, "remedy": remedy})]
