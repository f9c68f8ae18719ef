"""What a cluster keeps in etcd: one frozen record per kind of key, as strict JSON.

`to_bytes()` gives the value to store, `from_bytes(raw, key)` reads one. Both refuse what the other
would refuse: nothing can be written that could not be read. `key` is the etcd key that errors name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, cast, get_args

from resilient_ps.coordinator.fields import (
    INT64_MAX,
    MAX_RECORD_BYTES,
    UINT64_MAX,
    Fields,
    JsonObject,
    dump,
)
from resilient_ps.coordinator.keys import MAX_INTENT, MAX_NAME_CHARS, MAX_RANK, MAX_SHARD
from resilient_ps.coordinator.placement import MAX_REPLICAS, MAX_SHARDS
from resilient_ps.coordinator.ring import (
    MAX_MEMBERS,
    MAX_VNODES,
    MAX_WEIGHT,
    MIN_WEIGHT,
    RingMember,
)
from resilient_ps.errors import BadInput
from resilient_ps.ids import Epoch

JobState: TypeAlias = Literal["running", "stopped", "done"]
IntentKind: TypeAlias = Literal["join", "leave", "cut", "rollback"]
IntentState: TypeAlias = Literal["open", "done", "aborted"]
CheckpointState: TypeAlias = Literal["good", "damaged", "deleting"]

EVICT_LEAST_S = 3.0  # several heartbeats
EVICT_MOST_S = 30 * 86_400.0
KEPT_MAX = 4_096  # records that need not be read again
KEPT_BYTES_MAX = 1_024
MAX_SPEC_CHARS = 32 * 1024
MAX_PORT = 65_535
MAX_BLOB_CHARS = 512  # of an object's name in the store
MAX_ID_CHARS = 64
MAX_PATH_CHARS = 107  # of a Unix socket, from Linux's struct sockaddr_un


class Record:
    """A value in etcd. Subclasses are frozen dataclasses and say how to read each field."""

    WHAT: ClassVar[str]
    BYTES_MAX: ClassVar[int] = MAX_RECORD_BYTES

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, raw: bytes, key: bytes) -> Self:
        """Read a stored value. Raises BadInput naming `key`, the fault and the remedy."""
        if len(raw) > KEPT_BYTES_MAX:
            return cls._parse(raw, key)
        try:
            record: Self = _read_record(cast(Any, cls), raw)
        except BadInput:
            return cls._parse(raw, key)  # which names the key
        return record

    @classmethod
    def _parse(cls, raw: bytes, key: bytes) -> Self:
        fields = Fields(raw, key, cls.WHAT, cls.BYTES_MAX)
        record = cls._read(fields)
        fields.end()
        return record

    def to_bytes(self) -> bytes:
        """The value to store. Raises BadInput for what `from_bytes` would refuse."""
        raw = dump(self._fields(), self.WHAT)
        self.from_bytes(raw, b"(not written yet)")
        return raw

    def _fields(self) -> JsonObject:
        return {each.name: getattr(self, each.name) for each in fields(cast(Any, self))}


@functools.lru_cache(KEPT_MAX)
def _read_record(kind: Any, raw: bytes) -> Any:
    """Records are read again and again, by the view, for routings and at each write."""
    return kind._parse(raw, b"")


@dataclass(frozen=True, slots=True)
class ClusterConfig(Record):
    """What was fixed when the cluster was created, and its incarnation."""

    WHAT = "cluster configuration"

    cluster_id: str  # random hex
    incarnation: int  # from 1; grows with every rollback and restore
    shards: int
    initial_servers: int
    replicas: int
    min_in_sync: int  # a primary acknowledges nothing that fewer than these hold
    vnodes: int
    created_by: str

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        cluster_id = fields.text("cluster_id", least=8, most=64)
        if not set(cluster_id) <= set("0123456789abcdef"):
            fields.fail(f"cluster_id is {cluster_id!r}, not lower-case hexadecimal")
        return cls(
            cluster_id=cluster_id,
            incarnation=fields.integer("incarnation", 1, INT64_MAX),
            shards=fields.integer("shards", 1, MAX_SHARDS),
            initial_servers=fields.integer("initial_servers", 1, MAX_MEMBERS),
            replicas=fields.integer("replicas", 1, MAX_REPLICAS),
            min_in_sync=fields.integer("min_in_sync", 1, MAX_REPLICAS),
            vnodes=fields.integer("vnodes", 1, MAX_VNODES),
            created_by=fields.text("created_by"),
        )


@dataclass(frozen=True, slots=True)
class ServerRecord(Record):
    """A running server process. It lies under the server's lease: it is there while it lives."""

    WHAT = "server record"

    server: str
    process: int  # the process's incarnation id, drawn at boot
    host: str  # to connect to
    port: int
    unix_path: str  # for clients on `hostname`; "" when there is none
    zone: str
    weight: float
    lease: int
    version: str
    pid: int
    hostname: str
    stopping: bool = False  # it hands over what it leads, and ends

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        return cls(
            server=fields.text("server", least=1, most=MAX_NAME_CHARS),
            process=fields.integer("process", 1, UINT64_MAX),
            host=fields.text("host", least=1, most=255),
            port=fields.integer("port", 1, MAX_PORT),
            unix_path=fields.text("unix_path", most=MAX_PATH_CHARS),
            zone=fields.text("zone", most=MAX_NAME_CHARS),
            weight=fields.number("weight", MIN_WEIGHT, MAX_WEIGHT),
            lease=fields.integer("lease", 0, INT64_MAX),
            version=fields.text("version", most=100),
            pid=fields.integer("pid", 0, INT64_MAX),
            hostname=fields.text("hostname", most=255),
            stopping=fields.flag("stopping"),
        )


class Member(NamedTuple):
    """A process that holds a replica: a restarted server is another process, with empty memory."""

    server: str
    process: int


@dataclass(frozen=True, slots=True)
class ShardRecord(Record):
    """Who holds a shard, and in which epoch. It changes in guarded transactions only.

    Before the first election `primary` is "" and `primary_process` 0. A primary is in `in_sync`.
    `desired` are the servers that are to hold the shard, the one that is to be primary first: the
    coordinator writes it, and the primary brings the rest about. `nonce` tells whose transaction
    wrote this value, when the answer to the transaction was lost.
    """

    WHAT = "shard record"

    shard: int
    epoch: Epoch
    primary: str
    primary_process: int
    in_sync: tuple[Member, ...]
    desired: tuple[str, ...]
    ring_version: int
    nonce: str

    @property
    def leader(self) -> Member:
        """The primary."""
        return Member(self.primary, self.primary_process)

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        record = cls(
            shard=fields.integer("shard", 0, MAX_SHARD),
            epoch=Epoch(*fields.pair("epoch")),
            primary=fields.text("primary", most=MAX_NAME_CHARS),
            primary_process=fields.integer("primary_process", 0, UINT64_MAX),
            in_sync=tuple(Member(*member) for member in fields.members("in_sync")),
            desired=fields.names("desired"),
            ring_version=fields.integer("ring_version", 0, INT64_MAX),
            nonce=fields.text("nonce", most=64),
        )
        if bool(record.primary) != bool(record.primary_process):
            fields.fail("primary and primary_process must both be given, or neither")
        if record.primary and record.leader not in record.in_sync:
            fields.fail(f"primary {record.primary!r} is not in in_sync")
        return record


@dataclass(frozen=True, slots=True)
class RingRecord(Record):
    """The servers that are to hold shards: desired state, which the coordinator keeps.

    A server that died stays on it for a while: it may come back under its name.
    """

    WHAT = "ring record"

    version: int  # grows with every change
    members: tuple[RingMember, ...]  # by name

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        rows = fields.weighted("members", MIN_WEIGHT, MAX_WEIGHT)
        return cls(
            version=fields.integer("version", 1, INT64_MAX),
            members=tuple(RingMember(*row) for row in rows),
        )


@dataclass(frozen=True, slots=True)
class DrainRecord(Record):
    """A server is to give all its shards to others. It lies there until it is taken back."""

    WHAT = "drain record"

    server: str
    asked_by: str

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        return cls(
            server=fields.text("server", least=1, most=MAX_NAME_CHARS),
            asked_by=fields.text("asked_by", most=255),
        )


@dataclass(frozen=True, slots=True)
class TableRecord(Record):
    """A table: the number that messages use for it, and its specification as JSON text."""

    WHAT = "table record"

    table_id: int
    spec_json: str

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        return cls(
            table_id=fields.integer("table_id", 1, 2**32 - 1),
            spec_json=fields.text("spec_json", least=2, most=MAX_SPEC_CHARS),
        )


@dataclass(frozen=True, slots=True)
class JobRecord(Record):
    """A training job: how many ranks, under which consistency, in which state."""

    WHAT = "job record"

    job_id: int
    name: str
    consistency: str  # "bsp", "bsp:mean", "ssp:3", "asp"
    ranks: int
    state: JobState
    evict_after_s: float | None = None  # a rank that is silent for so long leaves the job

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        return cls(
            job_id=fields.integer("job_id", 1, 2**32 - 1),
            name=fields.text("name", least=1, most=MAX_NAME_CHARS),
            consistency=fields.text("consistency", least=3, most=MAX_NAME_CHARS),
            ranks=fields.integer("ranks", 1, MAX_RANK + 1),
            state=cast(JobState, fields.choice("state", get_args(JobState))),
            evict_after_s=fields.optional_number("evict_after_s", EVICT_LEAST_S, EVICT_MOST_S),
        )


@dataclass(frozen=True, slots=True)
class IntentRecord(Record):
    """A numbered intent of the coordinator: written before any shard is told of it.

    `result` is what came of it, as a JSON object (a join's first clock, for instance). `job`,
    `rank` and `incarnation` are those of a join or leave; cuts and rollbacks, which concern the
    whole cluster, leave them empty and say what they are about in `details`.
    """

    WHAT = "intent record"

    number: int
    kind: IntentKind
    job: str
    rank: int
    incarnation: int
    state: IntentState
    result: JsonObject = field(default_factory=dict)
    details: JsonObject = field(default_factory=dict)

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        kind = cast(IntentKind, fields.choice("kind", get_args(IntentKind)))
        of_a_rank = kind in ("join", "leave")
        return cls(
            number=fields.integer("number", 1, MAX_INTENT),
            kind=kind,
            job=fields.text("job", least=int(of_a_rank), most=MAX_NAME_CHARS * of_a_rank),
            rank=fields.integer("rank", 0, MAX_RANK * of_a_rank),
            incarnation=fields.integer("incarnation", 0, INT64_MAX * of_a_rank),
            state=cast(IntentState, fields.choice("state", get_args(IntentState))),
            result=fields.object("result"),
            details=fields.optional_object("details"),
        )


@dataclass(frozen=True, slots=True)
class CheckpointRecord(Record):
    """A checkpoint that was published: its manifest, and what it weighs.

    `state`: "damaged" was read and did not verify; "deleting" may not be used any more, and its
    objects are being deleted: the record goes last. `number` is that of its cut's intent.
    """

    WHAT = "checkpoint record"

    number: int
    id: str
    incarnation: int  # of the cluster, when it was made
    manifest: str  # the name of the object
    nbytes: int  # of the manifest
    sha256: str  # of the manifest
    clocks: JsonObject  # job name -> the clock that it is aligned to
    created_s: int  # wall clock, for people
    stored_bytes: int  # of all objects that it needs
    uploaded_bytes: int  # of those that were written for it
    state: CheckpointState = "good"
    why: str = ""  # it is damaged

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        return cls(
            number=fields.integer("number", 1, MAX_INTENT),
            id=fields.text("id", least=1, most=MAX_ID_CHARS),
            incarnation=fields.integer("incarnation", 1, INT64_MAX),
            manifest=fields.text("manifest", least=1, most=MAX_BLOB_CHARS),
            nbytes=fields.integer("nbytes", 0, INT64_MAX),
            sha256=fields.digest("sha256"),
            clocks=fields.clocks("clocks"),
            created_s=fields.integer("created_s", 0, INT64_MAX),
            stored_bytes=fields.integer("stored_bytes", 0, INT64_MAX),
            uploaded_bytes=fields.integer("uploaded_bytes", 0, INT64_MAX),
            state=cast(CheckpointState, fields.choice("state", get_args(CheckpointState))),
            why=fields.text("why"),
        )


@dataclass(frozen=True, slots=True)
class RestoreRecord(Record):
    """What the shards of incarnation `incarnation` begin with. `checkpoint` "": with nothing.

    `clocks` are by job number, as text. `registered`: the coordinator has written the tables and
    jobs of the manifest, so that workers may resume. `damaged`: why a server cannot load it.
    """

    WHAT = "restore record"

    incarnation: int
    checkpoint: str
    manifest: str
    nbytes: int
    sha256: str  # "" without a checkpoint
    clocks: JsonObject
    why: str
    at_s: int  # wall clock, for people
    registered: bool = False
    damaged: str = ""

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        checkpoint = fields.text("checkpoint", most=MAX_ID_CHARS)
        return cls(
            incarnation=fields.integer("incarnation", 1, INT64_MAX),
            checkpoint=checkpoint,
            manifest=fields.text("manifest", least=int(bool(checkpoint)), most=MAX_BLOB_CHARS),
            nbytes=fields.integer("nbytes", 0, INT64_MAX),
            sha256=fields.digest("sha256") if checkpoint else fields.text("sha256", most=0),
            clocks=fields.clocks("clocks"),
            why=fields.text("why"),
            at_s=fields.integer("at_s", 0, INT64_MAX),
            registered=fields.flag("registered"),
            damaged=fields.text("damaged"),
        )


def read_counter(raw: bytes | None, key: bytes) -> int:
    """The last number that a counter gave; 0 when there is none yet (`raw` is None)."""
    if raw is None:
        return 0
    fields = Fields(raw, key, "counter")
    last = fields.integer("last", 0, INT64_MAX)
    fields.end()
    return last


def counter_bytes(last: int) -> bytes:
    """The value of a counter whose last number given is `last`."""
    raw = dump({"last": last}, "counter")
    read_counter(raw, b"(not written yet)")
    return raw
