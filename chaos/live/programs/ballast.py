"""Takes memory, and writes to it until it is ended: `python ballast.py BYTES LEAVE_BYTES`.

It stops taking where less than LEAVE_BYTES would stay free on the machine, and is the first process
that the kernel ends when memory is short all the same.
"""

import contextlib
import mmap
import sys
import time

CHUNK_BYTES = 32 * 1024 * 1024
PIECE = b"\xa5" * (256 * 1024)
_LIMITS = (  # of a container: how much it may have, and has
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes() -> int:
    """What the kernel could give away without ending anybody; 0 where it does not say."""
    free = 0
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as lines:
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        free = int(found[0]) * 1024 if found else 0
    for most, held in _LIMITS:
        with contextlib.suppress(OSError, ValueError), open(most) as limit, open(held) as usage:
            free = min(free, max(0, int(limit.read()) - int(usage.read())))
    return free


def main() -> None:
    """Take, and write for ever."""
    most_bytes, leave_bytes = int(sys.argv[1]), int(sys.argv[2])
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    chunks: list[mmap.mmap] = []
    while (len(chunks) + 1) * CHUNK_BYTES <= most_bytes:
        if free_bytes() - CHUNK_BYTES < leave_bytes:
            break
        chunks.append(mmap.mmap(-1, CHUNK_BYTES))
        _fill(chunks[-1])
    while True:
        for chunk in chunks:
            _fill(chunk)
        time.sleep(0.05)


def _fill(chunk: mmap.mmap) -> None:
    chunk.seek(0)
    for _ in range(CHUNK_BYTES // len(PIECE)):
        chunk.write(PIECE)


if __name__ == "__main__":
    main()
