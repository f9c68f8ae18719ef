"""What can this store do, and what does that mean for checkpoints?

Each step does to the store what a cluster will do, harder, and judges what comes of it. Everything
is written below one random name, which the end removes.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

from resilient_ps.errors import FixTheCall, ResilientPsError
from resilient_ps.storage.blobs import (
    DELETE_MOST,
    BlobExists,
    BlobGot,
    BlobInfo,
    BlobList,
    BlobMissing,
    BlobPut,
    Blobs,
    Body,
    Bytes,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    PutMode,
    StoreRefused,
)

Verdict = Literal["good", "limited", "bad"]
VERDICTS: tuple[Verdict, ...] = ("good", "limited", "bad")

WRITERS = 16
LAG_PATIENCE_S = 10.0
LAG_FINE_S = 1.0
LAG_LOOK_S = 0.05
SKEW_FINE_S = 5
SKEW_MOST_S = 300  # S3 refuses requests from 15 minutes on
PAGES_MOST = 1_000
_RACE_DEADLINE_S = 300.0

_NO_CREATE = (
    "checkpoints are published all the same: the record in etcd is the authority. But two clusters "
    "must never share this prefix, and where etcd is lost nothing stops two restores at once"
)
_NO_MATCH = "nothing: no part of a checkpoint is ever replaced"


@dataclass(frozen=True, slots=True)
class Finding:
    """`found`: what happened; `means`: what follows for us, where it is not simply good."""

    item: str
    verdict: Verdict
    found: str
    means: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


class Examination:
    """Of one store; each race is run in `rounds` rounds."""

    def __init__(self, blobs: Blobs, *, rounds: int = 3) -> None:
        self.blobs = blobs
        self.rounds = rounds
        self.folder = f"doctor-{secrets.token_hex(6)}"
        self._names: set[str] = set()
        self._lock = threading.Lock()

    # ---------------------------------------------------------------------------------- requests

    def name(self, short: str) -> str:
        """In our folder."""
        return f"{self.folder}/{short}"

    def put(
        self, short: str, data: Bytes | Body, mode: PutMode = "overwrite", etag: str = ""
    ) -> BlobPut:
        """Remembered, to be deleted at the end."""
        with self._lock:
            self._names.add(self.name(short))
        done = self.blobs.do(PutBlob(self.name(short), data, mode, etag))
        assert isinstance(done, BlobPut)
        return done

    def get(self, short: str, first: int = 0, length: int = -1) -> BlobGot:
        got = self.blobs.do(GetBlob(self.name(short), first, length))
        assert isinstance(got, BlobGot)
        return got

    def listed(self, short: str, most: int = 1_000) -> list[BlobInfo]:
        """All pages."""
        items: list[BlobInfo] = []
        for _ in range(PAGES_MOST):
            after = items[-1].name if items else ""
            page = self.blobs.do(ListBlobs(self.name(short), after, most))
            assert isinstance(page, BlobList)
            items += page.items
            if not page.more:
                break
        return items

    def clean_up(self) -> int:
        """Delete what was written, and what listings show below our name. How many objects."""
        with contextlib.suppress(ResilientPsError):
            self._names.update(item.name for item in self.listed(""))
        names = sorted(self._names)
        for begin in range(0, len(names), DELETE_MOST):
            self.blobs.do(DeleteBlobs(tuple(names[begin : begin + DELETE_MOST])))
        self._names.clear()
        return len(names)

    def together(self, act: Callable[[int], Any], threads: int = WRITERS) -> list[Any]:
        """`act(0)`, `act(1)`, ... at the same moment; what each returned."""
        start = threading.Barrier(threads)

        def run(number: int) -> Any:
            start.wait(_RACE_DEADLINE_S)
            return act(number)

        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(run, range(threads)))

    # ------------------------------------------------------------------------------------- steps

    def steps(self) -> Iterator[tuple[str, Callable[[], Finding]]]:
        """What is examined, in order. The first one raises where the store cannot be used."""
        yield "write, read, delete", self.basics
        yield "read after write", self.freshness
        yield "ranged reads", self.ranges
        yield "create only", self.creating
        yield "replace if unchanged", self.replacing
        yield "listing", self.listing
        yield "clock", self.clock

    def basics(self) -> Finding:
        """Raises what a store says to somebody who may not use it."""
        item, data = "write, read, delete", secrets.token_bytes(10_000)
        try:
            self.put("basics", data)
        except StoreRefused:
            self._names.clear()  # nothing was written: there is nothing to clean up
            raise
        if self.get("basics").data != data:
            return Finding(item, "bad", "other bytes came back", "no checkpoint can be read")
        self.blobs.do(DeleteBlobs((self.name("basics"),)))
        return Finding(item, "good", "works")

    def freshness(self) -> Finding:
        """Who reads after a write was answered sees it, or something newer."""
        item, stale = "read after write", 0
        for number in range(20):
            data = b"%d" % number
            self.put("fresh", data)
            stale += self.get("fresh").data != data
        self.blobs.do(DeleteBlobs((self.name("fresh"),)))
        with contextlib.suppress(BlobMissing):
            self.get("fresh")
            stale += 1
        if stale:
            return Finding(
                item, "bad", f"{stale} of 21 reads were stale", "a checkpoint may look damaged"
            )
        return Finding(item, "good", "21 of 21 reads saw the last write")

    def ranges(self) -> Finding:
        """Restores read pieces out of objects."""
        item, data = "ranged reads", secrets.token_bytes(100_000)
        self.put("ranges", data)
        cases = [(0, 10), (50_000, 1), (99_990, -1), (12_345, 54_321), (99_999, 10), (100_000, 5)]
        wrong = []
        for first, length in cases:
            got = self.get("ranges", first, length)
            end = None if length < 0 else first + length
            if got.data != data[first:end] or got.size != len(data):
                wrong.append(f"{first}+{length}")
        if wrong:
            return Finding(
                item, "bad", f"wrong bytes for {', '.join(wrong)}", "checkpoints cannot be restored"
            )
        return Finding(item, "good", f"{len(cases)} of {len(cases)} right")

    def creating(self) -> Finding:
        """One of many racing writers may create an object, and it is that one's."""
        item, means = "create only", _NO_CREATE
        try:
            counts = [self._race(f"create-{n}", "create", "") for n in range(self.rounds)]
        except StoreRefused as error:
            return Finding(item, "limited", f"refused: {error}", means)
        return _judged(item, counts, means, {})

    def replacing(self) -> Finding:
        """If-Match: with the right etag, a wrong one, on nothing, and raced for."""
        item, means = "replace if unchanged", _NO_MATCH
        try:
            etag = self.put("replace", b"0").etag
            etag = self.put("replace", b"1", "if-match", etag).etag
            ignored = [
                case
                for case, short in (("a wrong etag", "replace"), ("no object", "nothing"))
                if not self._is_refused(short, "0123456789abcdef0123456789abcdef")
            ]
            counts = []
            for _ in range(self.rounds):
                etag = self.put("raced", secrets.token_bytes(8)).etag
                counts.append(self._race("raced", "if-match", etag))
        except BlobExists:
            return Finding(item, "limited", "refused even with the right etag", means)
        except StoreRefused as error:
            return Finding(item, "limited", f"refused: {error}", means)
        if ignored:
            return Finding(item, "limited", f"carried out with {' and '.join(ignored)}", means)
        return _judged(item, counts, means, {})

    def _is_refused(self, short: str, etag: str) -> bool:
        try:
            self.put(short, b"never", "if-match", etag)
        except BlobExists:
            return True
        return False

    def _race(self, short: str, mode: PutMode, etag: str) -> int:
        """How many of the writers were told that they had won; 0 too if the object is not the
        winner's."""

        def act(number: int) -> int | None:
            try:
                self.put(short, b"writer %d" % number, mode, etag)
            except BlobExists:
                return None
            return number

        won = [number for number in self.together(act) if number is not None]
        if len(won) == 1 and self.get(short).data != b"writer %d" % won[0]:
            return 0
        return len(won)

    def listing(self) -> Finding:
        """How long do listings lag, and do pages show everything once?"""
        item = "listing"
        names = [self.name(f"list/{n % 3}/{n}") for n in range(12)]
        for name in names:
            self.put(name.removeprefix(f"{self.folder}/"), b"x")
        shown_s = self._until(lambda: self._names_listed() == sorted(names))
        pages = sorted(item.name for item in self.listed("list/", most=5))
        self.blobs.do(DeleteBlobs(tuple(names)))
        gone_s = self._until(lambda: not self._names_listed())
        figures = {"new_after_s": shown_s, "gone_after_s": gone_s}
        if shown_s is None or gone_s is None or pages != sorted(names):
            what = "incomplete" if shown_s is None or pages != sorted(names) else "never forgetting"
            return Finding(
                item,
                "limited",
                f"{what}, even after {LAG_PATIENCE_S:.0f} s",
                "etcd's records name all checkpoints, but sweeping leaves rubbish behind, and "
                "after a loss of etcd the newest one may be overlooked",
                figures,
            )
        text = f"new names after {shown_s:.2f} s, deleted ones gone after {gone_s:.2f} s"
        if max(shown_s, gone_s) > LAG_FINE_S:
            means = "sweeping is late by that much; after a loss of etcd, wait as long to restore"
            return Finding(item, "limited", text, means, figures)
        return Finding(item, "good", text, figures=figures)

    def _names_listed(self) -> list[str]:
        return sorted(item.name for item in self.listed("list/"))

    def _until(self, condition: Callable[[], bool]) -> float | None:
        """Seconds until it holds; None: it does not within our patience."""
        begun_s = time.monotonic()
        while not condition():
            if time.monotonic() - begun_s > LAG_PATIENCE_S:
                return None
            time.sleep(LAG_LOOK_S)
        return round(time.monotonic() - begun_s, 3)

    def clock(self) -> Finding:
        """How far is the store's clock from ours? It tells whole seconds."""
        item = "clock"
        before_s = time.time()
        self.put("clock", b"x")
        after_s = time.time()
        times = [each.modified_s for each in self.listed("clock")]
        if not times:
            return Finding(item, "limited", "the listing does not show a new object")
        skew_s = 0.0  # as little as can explain what it says
        if times[0] > after_s:
            skew_s = times[0] - after_s
        elif times[0] + 1 < before_s:
            skew_s = times[0] + 1 - before_s
        figures = {"skew_s": round(skew_s, 1)}
        if abs(skew_s) <= SKEW_FINE_S:
            return Finding(item, "good", "the same as here", figures=figures)
        found = f"{abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
        means = "ages in listings are wrong; S3 refuses requests when it is 15 minutes: use NTP"
        verdict: Verdict = "limited" if abs(skew_s) <= SKEW_MOST_S else "bad"
        return Finding(item, verdict, found, means, figures)


def _judged(item: str, counts: list[int], means: str, figures: dict[str, Any]) -> Finding:
    """By the number of winners in each race."""
    figures = {"writers": WRITERS, "winners": counts, **figures}
    if all(count == 1 for count in counts):
        found = (
            f"one winner among {WRITERS} racing writers, in {len(counts)} of {len(counts)} races"
        )
        return Finding(item, "good", found, figures=figures)
    wrong = sum(count != 1 for count in counts)
    most = max(counts)
    found = f"{most} winners among {WRITERS} racing writers" if most > 1 else "nobody's put counted"
    return Finding(
        item, "limited", f"{found}, in {wrong} of {len(counts)} races", means, figures=figures
    )


def examined(step: str, act: Callable[[], Finding]) -> Finding:
    """The step's finding; an error is one, too."""
    try:
        return act()
    except FixTheCall as error:
        return Finding(step, "bad", str(error))
    except ResilientPsError as error:
        return Finding(step, "bad", f"no answer: {error}")
