"""How far a server has come with the images of a cut: asked by the coordinator, as JSON.

    Ask {"image": {"cut": 17, ...}}  ->  Told {"cut": 17, "images": {"3": {"state": ...}, ...}}

A server answers for the shards whose image it is to make. One that is missing is not known to it
(yet): its replica has not applied the cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from resilient_ps.storage.shard_index import ObjectInfo

ImageState: TypeAlias = Literal["waiting", "writing", "done", "failed"]
TEXT_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class ImageProgress:
    """One shard's image.

    "waiting" `waits_for`: the ranks that have not ticked the cut's clock, or what else there is to
    wait for. "failed": `why`, and whether the `store` is to blame. "done": `index` is the object
    that was written last. `done_bytes` of `total_bytes`: of the content, before compression;
    `stored_bytes` are of all chunks, `uploaded_bytes` of what was written for this checkpoint.
    """

    shard: int
    state: ImageState
    waits_for: str = ""
    why: str = ""
    store: bool = False
    done_bytes: int = 0
    total_bytes: int = 0
    stored_bytes: int = 0
    uploaded_bytes: int = 0
    index: ObjectInfo | None = None

    def told(self) -> dict[str, Any]:
        """As the server tells it."""
        told: dict[str, Any] = {
            "state": self.state,
            "done_bytes": self.done_bytes,
            "total_bytes": self.total_bytes,
            "stored_bytes": self.stored_bytes,
            "uploaded_bytes": self.uploaded_bytes,
        }
        if self.state == "waiting":
            told["waits_for"] = self.waits_for[:TEXT_CHARS_MAX]
        if self.state == "failed":
            told |= {"why": self.why[:TEXT_CHARS_MAX], "store": self.store}
        if self.index is not None:
            index = self.index
            told |= {"index": index.name, "bytes": index.nbytes, "sha256": index.sha256}
        return told


def asked_cut(what: str) -> int | None:
    """The number of the cut whose images an `Ask` is about; None: it is about something else."""
    try:
        asked = json.loads(what)
    except (ValueError, RecursionError):
        return None
    match asked:
        case {"image": {"cut": int(cut)}} if cut > 0:
            return cut
    return None


def told_text(cut: int, shards: Iterable[ImageProgress]) -> str:
    """What the server tells."""
    return json.dumps({"cut": cut, "images": {str(each.shard): each.told() for each in shards}})
