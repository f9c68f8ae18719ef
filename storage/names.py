"""Names of a checkpoint's objects: made here, and read back here, nowhere else.

Below the store's prefix:

    <cluster>/markers/<incarnation>                                   created once, never deleted
    <cluster>/markers/<incarnation>.began                             likewise, once it has begun
    <cluster>/checkpoints/<id>/manifest.json
    <cluster>/checkpoints/<id>/shard-<number>/<process>-<n>.chunks    rows and elements
    <cluster>/checkpoints/<id>/shard-<number>/<process>-index.json    what stands where

A checkpoint's id is `<incarnation>-<cut>-<nonce>`, `1-17-3fa9c2d1` for example. `process` is the
incarnation id of the process that wrote the object: no two ever write the same one. A colon in a
cluster's name becomes `=`, which it cannot have: not every store takes colons.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, Self, TypeAlias

from resilient_ps.errors import BadInput

MAX_CLUSTER_CHARS = 100
MAX_INCARNATION = 10**8 - 1
MAX_CUT = 10**12 - 1
MAX_SHARD = 1023
MAX_OBJECT = 10**6 - 1
UINT64_MAX = 2**64 - 1
NONCE_DIGITS = 8
MANIFEST = "manifest.json"

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_ID = re.compile(r"([1-9][0-9]{0,7})-([1-9][0-9]{0,11})-([0-9a-f]{8})")
_SHARD = re.compile(r"shard-([0-9]{4})")
_CHUNKS = re.compile(r"([0-9a-f]{16})-([0-9]{6})\.chunks")
_INDEX = re.compile(r"([0-9a-f]{16})-index\.json")

NameKind: TypeAlias = Literal["marker", "began", "manifest", "index", "chunks"]


class CheckpointId(NamedTuple):
    """Which checkpoint: the cluster's incarnation, the number of the cut, and a nonce."""

    incarnation: int
    number: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.incarnation}-{self.number}-{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id that `str` gives this text for. Raises BadInput."""
        found = _ID.fullmatch(text)
        if found is None:
            raise BadInput(
                f"{text[:60]!r} is no checkpoint's id: it looks like 1-17-3fa9c2d1 (`resilient-ps "
                "checkpoint ls` shows them)"
            )
        return cls(int(found[1]), int(found[2]), found[3])

    @classmethod
    def of(cls, incarnation: int, number: int, nonce: int | str) -> Self:
        """An id of its parts; `nonce`: 8 hexadecimal digits, or a number of 32 bits."""
        digits = nonce if isinstance(nonce, str) else f"{nonce:08x}"
        return cls.parse(f"{incarnation}-{number}-{digits}")


class Located(NamedTuple):
    """What an object of a cluster is. Numbers that a kind has not are 0; so is the id None."""

    kind: NameKind
    incarnation: int = 0  # of a marker, and of what began
    id: CheckpointId | None = None
    shard: int = 0
    process: int = 0


def markers_prefix(cluster: str) -> str:
    """What the names of all incarnation markers begin with."""
    return f"{_checked(cluster)}/markers/"


def marker_name(cluster: str, incarnation: int) -> str:
    """The marker that says: this incarnation of the cluster has been taken."""
    return f"{markers_prefix(cluster)}{_number('incarnation', incarnation, MAX_INCARNATION, 8)}"


def began_name(cluster: str, incarnation: int) -> str:
    """The object that says what this incarnation of the cluster has begun with."""
    return f"{marker_name(cluster, incarnation)}.began"


def checkpoints_prefix(cluster: str) -> str:
    """What the names of all objects of all checkpoints begin with."""
    return f"{_checked(cluster)}/checkpoints/"


def checkpoint_prefix(cluster: str, checkpoint: CheckpointId) -> str:
    """What the names of a checkpoint's own objects begin with."""
    return f"{checkpoints_prefix(cluster)}{CheckpointId.parse(str(checkpoint))}/"


def manifest_name(cluster: str, checkpoint: CheckpointId) -> str:
    """The object that is written last."""
    return checkpoint_prefix(cluster, checkpoint) + MANIFEST


def chunks_name(cluster: str, checkpoint: CheckpointId, shard: int, process: int, n: int) -> str:
    """The n-th object (from 1) that this process writes of a shard's image."""
    folder = _folder(cluster, checkpoint, shard)
    return f"{folder}{_process(process)}-{_number('object', n, MAX_OBJECT, 6)}.chunks"


def index_name(cluster: str, checkpoint: CheckpointId, shard: int, process: int) -> str:
    """The index of a shard's image that this process has written."""
    return f"{_folder(cluster, checkpoint, shard)}{_process(process)}-index.json"


def locate(cluster: str, name: str) -> Located | None:
    """What `name` is; None when it is no object of this cluster, or of a later version of it."""
    below = name.removeprefix(f"{_checked(cluster)}/")
    if below == name:
        return None
    match below.split("/"):
        case ["markers", number] if re.fullmatch("[0-9]{8}", number) and int(number):
            return Located("marker", int(number))
        case ["markers", text] if re.fullmatch("[0-9]{8}[.]began", text) and int(text[:8]):
            return Located("began", int(text[:8]))
        case ["checkpoints", text, *rest] if _ID.fullmatch(text):
            return _locate_part(CheckpointId.parse(text), rest)
        case _:
            return None


def _locate_part(checkpoint: CheckpointId, rest: list[str]) -> Located | None:
    if rest == [MANIFEST]:
        return Located("manifest", id=checkpoint)
    if len(rest) != 2 or not (shard := _SHARD.fullmatch(rest[0])) or int(shard[1]) > MAX_SHARD:
        return None
    if found := _CHUNKS.fullmatch(rest[1]):
        return Located("chunks", 0, checkpoint, int(shard[1]), int(found[1], 16))
    if found := _INDEX.fullmatch(rest[1]):
        return Located("index", 0, checkpoint, int(shard[1]), int(found[1], 16))
    return None


def _folder(cluster: str, checkpoint: CheckpointId, shard: int) -> str:
    if not 0 <= shard <= MAX_SHARD:
        raise BadInput(f"a shard's number is 0 to {MAX_SHARD}, not {shard}")
    return f"{checkpoint_prefix(cluster, checkpoint)}shard-{shard:04d}/"


def _process(process: int) -> str:
    if not 1 <= process <= UINT64_MAX:
        raise BadInput(f"a process is numbered 1 to {UINT64_MAX}, not {process}")
    return f"{process:016x}"


def _number(what: str, number: int, most: int, digits: int) -> str:
    if not 1 <= number <= most:
        raise BadInput(f"the number of an {what} is 1 to {most}, not {number}")
    return f"{number:0{digits}d}"


def _checked(cluster: str) -> str:
    if len(cluster) > MAX_CLUSTER_CHARS or not _CLUSTER.fullmatch(cluster):
        raise BadInput(
            f"{cluster[:60]!r} cannot name a cluster: begin with a letter or digit, then use "
            f"letters, digits and . _ : -, {MAX_CLUSTER_CHARS} at most"
        )
    return cluster.replace(":", "=")
