"""An attempt at a checkpoint, after all shards were told of its cut: what becomes of the images.

The servers that make the images are asked again and again how far they are: what they say is only
kept in memory, here as there. A server that dies takes its images with it. What is decided here is
only whether all images are written, or why the attempt is to be given up (`Failure`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from resilient_ps.coordinator.cuts import CutPlan
from resilient_ps.machine import Effect, Send
from resilient_ps.messages import Ask
from resilient_ps.routing import PEER_PREFIX
from resilient_ps.storage.shard_index import INDEX_BYTES_MAX, ObjectInfo

POLL_NS = 50_000_000
POLL_MOST_NS = 400_000_000
POLL_LAST_NS = 10_000_000  # the same as the first, where nothing but indexes is missing
PATIENCE = 8  # asked again after one part in so many of the time that nothing has changed in
ANSWER_NS = 1_000_000_000  # a question without an answer is asked again
UNKNOWN_NS = 5_000_000_000  # a server that still knows nothing of an image does not make it
STALL_NS = 600_000_000_000  # a store that takes nothing for so long: the attempt is given up
SECOND_NS = 10**9
HOLD_MOST_NS = 10 * SECOND_NS  # for which pushes are held back: a third of a client's deadline
FIRST_ASK = 1 << 41  # of the numbers of our questions
WAITS_CHARS_MAX = 500

FailureKind: TypeAlias = Literal["refused", "deadline", "image", "store"]


class Failure(NamedTuple):
    """Why an attempt is given up. "store": the object store is to blame; the next one waits."""

    kind: FailureKind
    why: str


@dataclass(slots=True)
class _Image:
    """One shard's: who makes it, and what that server has said last."""

    server: str
    process: int
    state: Literal["unknown", "waiting", "writing", "done"] = "unknown"
    text: str = ""
    is_last: bool = False  # nothing but its index is missing
    index: ObjectInfo | None = None


class Images:
    """The images of all shards. `by`: the servers that make them, by shard."""

    def __init__(
        self,
        number: int,
        plan: CutPlan,
        by: Mapping[int, str],
        processes: Mapping[str, int],
        deadline_s: float,
        now_ns: int,
    ) -> None:
        self._question = json.dumps({"image": {"cut": number, "id": plan.id}})
        self._images = {
            shard: _Image(server, processes.get(server, 0)) for shard, server in by.items()
        }
        self._told_ns = self._moved_ns = self._changed_ns = now_ns
        self._patience_ns = int(deadline_s * SECOND_NS)
        self._reach_ns = reach_ns(plan, deadline_s)
        self._poll_at_ns = now_ns
        self._asked = FIRST_ASK
        self._open: dict[int, tuple[str, int]] = {}  # questions: to whom, and when
        self._failure: Failure | None = None

    @property
    def done(self) -> bool:
        """Are all of them written?"""
        return all(image.state == "done" for image in self._images.values())

    @property
    def reached(self) -> bool:
        """Have all ranks, on all shards, ticked the cut's clocks?"""
        return not self._waiting()

    @property
    def indexes(self) -> dict[int, ObjectInfo]:
        """The indexes of those that are written, by shard."""
        images = sorted(self._images.items())
        return {shard: image.index for shard, image in images if image.index is not None}

    def ask(self, now_ns: int) -> list[Effect]:
        """Ask those that are not done, if it is time."""
        if self.done or now_ns < self._poll_at_ns:
            return []
        pause_ns = (now_ns - self._changed_ns) // PATIENCE
        self._poll_at_ns = now_ns + min(max(pause_ns, POLL_NS), POLL_MOST_NS)
        self._open = {n: q for n, q in self._open.items() if now_ns - q[1] < ANSWER_NS}
        waiting = {server for server, _ in self._open.values()}
        missing = {image.server for image in self._images.values() if image.state != "done"}
        effects: list[Effect] = []
        for server in sorted(missing - waiting):
            self._asked += 1
            self._open[self._asked] = (server, now_ns)
            effects.append(Send(PEER_PREFIX + server, Ask(self._asked, self._question)))
        return effects

    @property
    def next_ns(self) -> int:
        """When to ask again."""
        return self._poll_at_ns

    def hear(self, request: int, body: str, now_ns: int) -> bool:
        """An answer; is it one to our questions?"""
        question = self._open.pop(request, None)
        if question is None:
            return False
        told = _images_in(body)
        self._hear_of_images(question[0], told, now_ns)
        if all(image.state == "done" or image.is_last for image in self._images.values()):
            pause_ns = (now_ns - self._changed_ns) // PATIENCE
            self._poll_at_ns = min(self._poll_at_ns, now_ns + max(pause_ns, POLL_LAST_NS))
        return True

    def _hear_of_images(self, server: str, told: Mapping[str, Any], now_ns: int) -> None:
        for shard, image in self._images.items():
            if image.server != server or image.state == "done":
                continue
            said = told.get(str(shard))
            if isinstance(said, dict):
                before = (image.state, image.text)
                self._take(shard, image, said, now_ns)
                if (image.state, image.text) != before:
                    self._changed_ns = now_ns
            elif now_ns - self._told_ns >= UNKNOWN_NS:
                self._fail("image", f"server {image.server} makes no image of shard {shard}")

    def failure(self, processes: Mapping[str, int], now_ns: int) -> Failure | None:
        """Why it is of no use to go on; None while it is."""
        for shard, image in sorted(self._images.items()):
            gone = processes.get(image.server) != image.process
            if gone and image.state != "done" and self._failure is None:
                self._fail("image", f"server {image.server}, which made shard {shard}'s, has died")
        if self._failure is None and self._waiting():
            if now_ns - self._told_ns >= self._reach_ns:
                self._fail("deadline", f"it was not reached in time: {self.waits_for()}")
        elif self._failure is None and not self.done and now_ns - self._moved_ns >= STALL_NS:
            self._fail("store", f"nothing more was written: {self.waits_for()}")
        return self._failure

    def waits_for(self) -> str:
        """For people: the first shard that is not done, and why."""
        for shard, image in sorted(self._images.items()):
            if image.state != "done":
                doing = image.text or f"server {image.server} has not told yet"
                return f"shard {shard}: {doing}"[:WAITS_CHARS_MAX]
        return "nothing"

    def _waiting(self) -> bool:
        return any(image.state in ("unknown", "waiting") for image in self._images.values())

    def _take(self, shard: int, image: _Image, said: Mapping[str, Any], now_ns: int) -> None:
        text = json.dumps(said)
        if text != image.text:
            self._moved_ns = now_ns
        match said.get("state"):
            case "waiting":
                image.state, image.text = "waiting", str(said.get("waits_for", ""))
                self._moved_ns = now_ns  # not a matter of writing
            case "writing":
                image.state, image.text = "writing", text
                image.is_last = _is_written(said)
            case "done":
                self._take_index(shard, image, said)
            case "failed":
                why = f"shard {shard} on {image.server}: {said.get('why', '')}"
                self._fail("store" if said.get("store") is True else "image", why)
            case other:
                self._fail("image", f"server {image.server} says {other!r} of shard {shard}")

    def _take_index(self, shard: int, image: _Image, said: Mapping[str, Any]) -> None:
        match said:
            case {"index": str(name), "bytes": int(nbytes), "sha256": str(sha256)} if (
                0 < nbytes <= INDEX_BYTES_MAX
            ):
                image.state, image.index = "done", ObjectInfo(name, nbytes, sha256)
            case _:
                self._fail("image", f"server {image.server} tells no index of shard {shard}")

    def _fail(self, kind: FailureKind, why: str) -> None:
        self._failure = self._failure or Failure(kind, why[:WAITS_CHARS_MAX])


def _is_written(said: Mapping[str, Any]) -> bool:
    match said:
        case {"done_bytes": int(done), "total_bytes": int(total)}:
            return done >= total > 0
    return False


def reach_ns(plan: CutPlan, deadline_s: float) -> int:
    """For how long a cut may be waited for. While pushes are held back it is not for long: workers
    would give up, and whoever is waited for may never come."""
    patience_ns = int(deadline_s * SECOND_NS)
    return min(patience_ns, HOLD_MOST_NS) if plan.hold else patience_ns


def _images_in(body: str) -> Mapping[str, Any]:
    try:
        told: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    images = told.get("images") if isinstance(told, dict) else None
    return images if isinstance(images, dict) else {}
