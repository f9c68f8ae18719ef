"""A process that does to a store what any program would: plain puts and gets of whole objects.

It is what our checkpoints are measured against: the same sizes and concurrency, boto3's own calls,
random bytes, nothing compressed, hashed or looked at. Of a folder: files that are written, synced
and renamed. For each line of JSON on standard input it prints the seconds that the work took.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from resilient_ps.errors import Unavailable
from resilient_ps.storage.runtime.open import parse_folder, parse_s3

FOLDER = "plain"
RANDOM_BYTES = 32 << 20


class PlainStore:
    """The process, from the outside. `threads`: how many requests are under way at once."""

    def __init__(self, url: str, threads: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "resilient_ps.cli.bench.plain_store", url, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def put(self, sizes: Sequence[int], bytes_per_s: float = 0.0) -> float:
        """Seconds to put objects of these sizes; no faster than `bytes_per_s` (0: no limit)."""
        self.begin_put(sizes, bytes_per_s)
        return self.seconds()

    def begin_put(self, sizes: Sequence[int], bytes_per_s: float = 0.0) -> None:
        """As `put`, but `seconds` waits for it."""
        self._ask({"do": "put", "sizes": list(sizes), "bytes_per_s": bytes_per_s})

    def get(self, sizes: Sequence[int]) -> float:
        """Seconds to get the first objects that were put, of these sizes, into memory."""
        self._ask({"do": "get", "sizes": list(sizes), "bytes_per_s": 0.0})
        return self.seconds()

    def seconds(self) -> float:
        """How long the last one took."""
        return float(self._answer())

    def _ask(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise Unavailable("the process that uses the store plainly has ended: see above")
        return line

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


class _Store:
    """Put and get of one kind of store, and what is put."""

    def __init__(self, url: str, threads: int) -> None:
        is_bucket = url.startswith("s3:")
        self._put, self._get = _bucket(url, threads) if is_bucket else _folder(parse_folder(url))
        self._noise = os.urandom(RANDOM_BYTES)

    def run(self, asked: dict[str, Any], pool: ThreadPoolExecutor) -> float:
        """The seconds that it took."""
        sizes, rate = asked["sizes"], asked["bytes_per_s"]
        starts = [end - size for end, size in zip(itertools.accumulate(sizes), sizes, strict=True)]
        held: dict[int, bytes] = {}  # as who restores has to
        begun_s = time.perf_counter()

        def do(number: int) -> None:
            if rate:
                wait_s = begun_s + starts[number] / rate - time.perf_counter()
                time.sleep(max(0.0, wait_s))
            if asked["do"] == "put":
                self._put(f"{number:06d}", self._content(sizes[number]))
            else:
                held[number] = self._get(f"{number:06d}")

        list(pool.map(do, range(len(sizes))))
        seconds = time.perf_counter() - begun_s
        if any(len(data) != sizes[number] for number, data in held.items()):
            raise Unavailable("an object has another size")
        return seconds

    def _content(self, size: int) -> bytes:
        return self._noise * (size // RANDOM_BYTES) + self._noise[: size % RANDOM_BYTES]


def main() -> None:
    """The process itself."""
    url, threads = sys.argv[1], int(sys.argv[2])
    store = _Store(url, threads)
    print("ready", flush=True)
    with ThreadPoolExecutor(threads) as pool:
        for line in sys.stdin:
            print(store.run(json.loads(line), pool), flush=True)


def _bucket(
    url: str, threads: int
) -> tuple[Callable[[str, bytes], object], Callable[[str], bytes]]:
    import boto3
    from botocore.config import Config

    bucket, prefix = parse_s3(url)
    config = Config(
        max_pool_connections=threads,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"},
    )
    endpoint = os.environ.get("RESILIENT_PS_S3_ENDPOINT") or None
    region = os.environ.get("AWS_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config)
    below = f"{prefix}/{FOLDER}".lstrip("/")

    def put(name: str, data: bytes) -> object:
        return client.put_object(Bucket=bucket, Key=f"{below}/{name}", Body=data)

    def get(name: str) -> bytes:
        data: bytes = client.get_object(Bucket=bucket, Key=f"{below}/{name}")["Body"].read()
        return data

    return put, get


def _folder(folder: Path) -> tuple[Callable[[str, bytes], object], Callable[[str], bytes]]:
    below = folder.with_name(f"{folder.name}-{FOLDER}")
    below.mkdir(parents=True, exist_ok=True)

    def put(name: str, data: bytes) -> None:
        with (below / f"{name}.part").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        (below / f"{name}.part").rename(below / name)

    def get(name: str) -> bytes:
        return (below / name).read_bytes()

    return put, get


if __name__ == "__main__":
    main()
