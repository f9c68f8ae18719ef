"""Where a cluster keeps what in etcd: all keys lie below `/resilient-ps/<cluster>/`.

    config                    ClusterConfig
    servers/<name>            ServerRecord, under the server's lease
    shards/<i>                ShardRecord
    leaders/<i>               the primary of shard i, under its lease
    coordinator/leader        the elected coordinator, under its lease
    ring                      RingRecord: the servers that are to hold shards
    drains/<name>             DrainRecord: a server that is to hold nothing any more
    tables/<name>             TableRecord; <name> may have slashes: namespace/table
    namespaces/<path>         NamespaceRecord: what a namespace may hold
    jobs/<name>               JobRecord
    jobs/<name>/ranks/<r>     counter: incarnations of rank r
    jobs/<name>/ranks/<r>/finished   the incarnation of rank r that had nothing left to do
    jobs/<name>/data-shards   DataShards: which rank works on which part of the data set
    graphs/<name>             GraphRecord: a graph of tasks, whose lanes are the ranks of job <name>
    graphs/<name>/lanes/<b>   LanesRecord: how far each lane is, and who has its next task; 64 lanes
    graphs/<name>/holders/<id>   HolderRecord: who may be granted tasks, under its lease
    intents/<number>          IntentRecord
    checkpoints/<number>      CheckpointRecord, by the number of its cut's intent
    restore                   RestoreRecord: what the present incarnation began with
    counters/<what>           the last number given: to a table, a job, an intent

A cluster's name has no slash and the prefix ends with one, so that no cluster's keys lie below
another's. Numbers are padded with zeros: the order of keys is the order of numbers.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

from resilient_ps.errors import BadInput

ROOT = "/resilient-ps/"
MAX_NAME_CHARS = 100
MAX_TABLE_CHARS = 200
MAX_LEVELS = 16  # of namespaces within namespaces
MAX_SHARD = 1023
MAX_RANK = 65_535
MAX_BUCKET = 255  # of a graph's lanes
MAX_INTENT = 10**12 - 1
KEPT_MAX = 4_096  # keys that need not be read again
KEPT_BYTES_MAX = 256

Counter = Literal["tables", "jobs", "intents"]
Kind = Literal[
    "config",
    "server",
    "shard",
    "leader",
    "coordinator",
    "ring",
    "drain",
    "table",
    "namespace",
    "job",
    "rank",
    "finished",
    "data-shards",
    "graph",
    "lanes",
    "holder",
    "intent",
    "checkpoint",
    "restore",
    "counter",
]

_NAME = r"[A-Za-z0-9][A-Za-z0-9._:-]*"
_NAME_RULE = "begin with a letter or digit, then use letters, digits and . _ : -"
_SHAPES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("config", re.compile(r"config")),
    ("server", re.compile(rf"servers/(?P<name>{_NAME})")),
    ("shard", re.compile(r"shards/(?P<number>[0-9]{4})")),
    ("leader", re.compile(r"leaders/(?P<number>[0-9]{4})")),
    ("coordinator", re.compile(r"coordinator/leader")),
    ("ring", re.compile(r"ring")),
    ("drain", re.compile(rf"drains/(?P<name>{_NAME})")),
    ("table", re.compile(rf"tables/(?P<name>{_NAME}(/{_NAME})*)")),
    ("namespace", re.compile(rf"namespaces/(?P<name>{_NAME}(/{_NAME})*)")),
    ("job", re.compile(rf"jobs/(?P<name>{_NAME})")),
    ("rank", re.compile(rf"jobs/(?P<name>{_NAME})/ranks/(?P<number>[0-9]{{5}})")),
    ("finished", re.compile(rf"jobs/(?P<name>{_NAME})/ranks/(?P<number>[0-9]{{5}})/finished")),
    ("data-shards", re.compile(rf"jobs/(?P<name>{_NAME})/data-shards")),
    ("graph", re.compile(rf"graphs/(?P<name>{_NAME})")),
    ("lanes", re.compile(rf"graphs/(?P<name>{_NAME})/lanes/(?P<number>[0-9]{{4}})")),
    ("holder", re.compile(rf"graphs/(?P<name>{_NAME})/holders/(?P<part>{_NAME})")),
    ("intent", re.compile(r"intents/(?P<number>[0-9]{12})")),
    ("checkpoint", re.compile(r"checkpoints/(?P<number>[0-9]{12})")),
    ("restore", re.compile(r"restore")),
    ("counter", re.compile(r"counters/(?P<name>tables|jobs|intents)")),
)


class Located(NamedTuple):
    """What a key is: e.g. ("rank", "my-job", 3). What it does not have is "" or -1.

    `part`: who it is within `name`, of a graph's holders.
    """

    kind: Kind
    name: str = ""
    number: int = -1
    part: str = ""


class ClusterKeys:
    """The keys of one cluster. Every method raises BadInput for names and numbers it refuses."""

    def __init__(self, cluster: str) -> None:
        self.cluster = check_name("cluster", cluster)
        self.prefix = f"{ROOT}{cluster}/".encode()
        self.config = self.prefix + b"config"
        self.coordinator_leader = self.prefix + b"coordinator/leader"
        self.ring = self.prefix + b"ring"
        self.drains = self.prefix + b"drains/"
        self.servers = self.prefix + b"servers/"
        self.shards = self.prefix + b"shards/"
        self.leaders = self.prefix + b"leaders/"
        self.tables = self.prefix + b"tables/"
        self.namespaces = self.prefix + b"namespaces/"
        self.jobs = self.prefix + b"jobs/"
        self.graphs = self.prefix + b"graphs/"
        self.intents = self.prefix + b"intents/"
        self.checkpoints = self.prefix + b"checkpoints/"
        self.restore = self.prefix + b"restore"

    def server(self, name: str) -> bytes:
        return self.servers + check_name("server", name).encode()

    def drain(self, server: str) -> bytes:
        return self.drains + check_name("server", server).encode()

    def shard(self, shard: int) -> bytes:
        return self.shards + _number("shard", shard, MAX_SHARD, digits=4)

    def leader(self, shard: int) -> bytes:
        return self.leaders + _number("shard", shard, MAX_SHARD, digits=4)

    def table(self, name: str) -> bytes:
        return self.tables + check_table_name(name).encode()

    def namespace(self, path: str) -> bytes:
        return self.namespaces + check_namespace(path).encode()

    def tables_in(self, path: str) -> bytes:
        """Prefix of all tables in a namespace and below it, and of no others."""
        return self.tables + check_namespace(path).encode() + b"/"

    def job(self, name: str) -> bytes:
        return self.jobs + check_name("job", name).encode()

    def ranks(self, job: str) -> bytes:
        """Prefix of all that is kept of the ranks of a job."""
        return self.job(job) + b"/ranks/"

    def rank(self, job: str, rank: int) -> bytes:
        return self.ranks(job) + _number("rank", rank, MAX_RANK, digits=5)

    def finished(self, job: str, rank: int) -> bytes:
        return self.rank(job, rank) + b"/finished"

    def data_shards(self, job: str) -> bytes:
        return self.job(job) + b"/data-shards"

    def graph(self, name: str) -> bytes:
        return self.graphs + check_name("graph", name).encode()

    def graph_parts(self, name: str) -> bytes:
        """Prefix of a graph's lanes and holders."""
        return self.graph(name) + b"/"

    def lanes(self, graph: str, bucket: int) -> bytes:
        return self.graph(graph) + b"/lanes/" + _number("bucket", bucket, MAX_BUCKET, digits=4)

    def holders(self, graph: str) -> bytes:
        """Prefix of all holders of a graph's tasks."""
        return self.graph(graph) + b"/holders/"

    def holder(self, graph: str, holder: str) -> bytes:
        return self.holders(graph) + check_name("holder", holder).encode()

    def intent(self, number: int) -> bytes:
        return self.intents + _number("intent", number, MAX_INTENT, digits=12)

    def checkpoint(self, number: int) -> bytes:
        return self.checkpoints + _number("checkpoint", number, MAX_INTENT, digits=12)

    def counter(self, what: Counter) -> bytes:
        return self.prefix + f"counters/{what}".encode()

    def locate(self, key: bytes) -> Located | None:
        """What `key` is; None when it is no key of this cluster, or of a later version of it."""
        if not key.startswith(self.prefix):
            return None
        below = key.removeprefix(self.prefix)
        return _locate_again(below) if len(below) <= KEPT_BYTES_MAX else _locate(below)


def _locate(below: bytes) -> Located | None:
    """`below`: a key without its cluster's prefix."""
    text = below.decode(errors="replace")
    for kind, shape in _SHAPES:
        if match := shape.fullmatch(text):
            parts = match.groupdict()
            number = int(parts.get("number") or -1)
            return Located(kind, parts.get("name") or "", number, parts.get("part") or "")
    return None


_locate_again = functools.lru_cache(KEPT_MAX)(_locate)


def check_name(what: str, name: str) -> str:
    """Return `name` if it can name a cluster, server or job, else raise BadInput."""
    if not isinstance(name, str):
        raise BadInput(f"a {what} name is text, not {type(name).__name__}: {name!r}")
    if len(name) > MAX_NAME_CHARS:
        raise BadInput(f"the {what} name {name[:20]!r}... is longer than {MAX_NAME_CHARS} letters")
    if not re.fullmatch(_NAME, name):
        raise BadInput(f"{name!r} cannot name a {what}: {_NAME_RULE}")
    return name


def check_table_name(name: str) -> str:
    """Return `name` if it can name a table, else raise BadInput."""
    if len(name) > MAX_TABLE_CHARS:
        raise BadInput(f"the table name {name[:20]!r}... is longer than {MAX_TABLE_CHARS} letters")
    if not re.fullmatch(rf"{_NAME}(/{_NAME})*", name):
        raise BadInput(f"{name!r} cannot name a table: {_NAME_RULE}, with / between namespaces")
    return name


def check_namespace(path: str) -> str:
    """Return `path` if it can name a namespace, else raise BadInput."""
    if not isinstance(path, str):
        raise BadInput(f"a namespace's name is text, not {type(path).__name__}: {path!r}")
    if len(path) > MAX_TABLE_CHARS:
        raise BadInput(f"the namespace {path[:20]!r}... is longer than {MAX_TABLE_CHARS} letters")
    if path.count("/") >= MAX_LEVELS:
        raise BadInput(f"the namespace {path[:40]!r} has more than {MAX_LEVELS} levels")
    if not re.fullmatch(rf"{_NAME}(/{_NAME})*", path):
        raise BadInput(f"{path!r} cannot name a namespace: {_NAME_RULE}, with / between the levels")
    return path


def _number(what: str, number: int, most: int, *, digits: int) -> bytes:
    if not 0 <= number <= most:
        raise BadInput(f"{what} {number} is out of range: 0 to {most}")
    return f"{number:0{digits}d}".encode()
