"""How fast is this store? Small objects, large ones, ranges of them, and large ones in parts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from resilient_ps.errors import BadInput
from resilient_ps.storage.blobs import Blobs, Encoded, PutBlob, StoreRefused, SweepUploads
from resilient_ps.storage.requests import sha256_of
from resilient_ps.storage.runtime.examination import Examination, Finding

MIB = 1 << 20
SMALL_BYTES = 4096
SMALL_OBJECTS = 64
LARGE_BYTES = 16 * MIB  # as objects of a checkpoint
RANGE_BYTES = 4 * MIB
PARTED_BYTES = 12 * MIB
SLOW_MIB_PER_S = 10.0


class SpeedExamination:
    """`examination`: what names and requests go through. `in_parts`: the same store, which sends
    objects of `PARTED_BYTES` in parts; None: this kind of store knows no parts."""

    def __init__(
        self, examination: Examination, in_parts: Blobs | None, *, large_mib: int, threads: int
    ) -> None:
        if large_mib < LARGE_BYTES // MIB:
            raise BadInput(f"{large_mib} MiB: at least {LARGE_BYTES // MIB} are needed")
        self._examination = examination
        self._in_parts = in_parts
        self._large = large_mib * MIB // LARGE_BYTES
        self._threads = threads

    def steps(self) -> Iterator[tuple[str, Callable[[], Finding]]]:
        """What is examined, in order."""
        if self._in_parts is not None:
            yield "objects in parts", self.parts
        yield "small objects", self.small
        yield "large objects", self.large

    def parts(self) -> Finding:
        """An object in parts is whole, is only created when it should be, and leaves nothing."""
        item, examination, parted = "objects in parts", self._examination, self._in_parts
        assert parted is not None
        data = _noise(PARTED_BYTES)
        examination.put("parts", b"")  # so that it is remembered
        parted.do(PutBlob(examination.name("parts"), data))
        got = examination.get("parts")
        if sha256_of([got.data]) != sha256_of([data]):
            return Finding(item, "bad", "other bytes came back", "objects must stay small")
        left = ""
        try:
            parted.do(SweepUploads(f"{examination.folder}/", 0))
        except StoreRefused as error:
            left = f"; unfinished uploads cannot be listed ({error.why})"
        means = "give the bucket a rule that ends unfinished uploads after a day" if left else ""
        return Finding(item, "limited" if left else "good", f"read back whole{left}", means)

    def small(self) -> Finding:
        """What a request costs."""
        data = _noise(SMALL_BYTES)
        examination = self._examination
        names = [f"small-{number % 8}/{number}" for number in range(SMALL_OBJECTS)]
        puts = [_timed(partial(examination.put, name, data)) for name in names]
        gets = [_timed(partial(examination.get, name)) for name in names]
        put_ms, get_ms = statistics.median(puts) * 1e3, statistics.median(gets) * 1e3
        figures = {
            "put_ms_median": round(put_ms, 2),
            "put_ms_most": round(max(puts) * 1e3, 2),
            "get_ms_median": round(get_ms, 2),
            "get_ms_most": round(max(gets) * 1e3, 2),
        }
        found = f"put {put_ms:.1f} ms, get {get_ms:.1f} ms (4 KiB, median of {SMALL_OBJECTS})"
        return Finding("small objects", "good", found, figures=figures)

    def large(self) -> Finding:
        """What a checkpoint and a restore can hope for."""
        examination = self._examination
        noise = _noise(LARGE_BYTES - 8)
        nbytes = self._large * LARGE_BYTES
        ranges = [
            (number, first)
            for number in range(self._large)
            for first in range(0, LARGE_BYTES, RANGE_BYTES)
        ]
        with ThreadPoolExecutor(self._threads) as pool:

            def rate(act: Callable[[int], object], count: int) -> float:
                seconds = _timed(lambda: list(pool.map(act, range(count))))
                return nbytes / MIB / seconds

            put = rate(lambda n: examination.put(f"large/{n}", _Numbered(n, noise)), self._large)
            get = rate(lambda n: examination.get(f"large/{n}"), self._large)
            ranged = rate(
                lambda n: examination.get(f"large/{ranges[n][0]}", ranges[n][1], RANGE_BYTES),
                len(ranges),
            )
        figures = {
            "put_mib_per_s": round(put, 1),
            "get_mib_per_s": round(get, 1),
            "get_ranges_mib_per_s": round(ranged, 1),
            "threads": self._threads,
            "mib": nbytes // MIB,
        }
        found = (
            f"put {put:.0f} MiB/s, get {get:.0f} MiB/s, in ranges {ranged:.0f} MiB/s "
            f"({self._threads} threads, {nbytes // MIB} MiB)"
        )
        if min(put, get, ranged) >= SLOW_MIB_PER_S:
            return Finding("large objects", "good", found, figures=figures)
        gib_min = 1024 / put / 60
        means = f"a checkpoint of 1 GiB takes about {gib_min:.0f} minutes: make fewer of them"
        return Finding("large objects", "limited", found, means, figures)


@dataclass(frozen=True)
class _Numbered:
    """Other bytes for each number, without as much memory."""

    number: int
    noise: bytes

    def encode(self) -> Encoded:
        return Encoded((self.number.to_bytes(8, "little"), self.noise))


def _timed(act: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    act()
    return time.perf_counter() - begun_s


def _noise(nbytes: int) -> bytes:
    """Nothing that a store can compress, or recognise from the last time."""
    return np.random.default_rng(time.time_ns()).bytes(nbytes)
