"""Hashes that are stable for ever: across processes, machines, versions and `PYTHONHASHSEED`.

Which shard a key belongs to is decided here, and is written into running clusters and checkpoints:
a change of any value loses data. The tests hold golden values.

`mix64` is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
generators", OOPSLA 2014), a bijection on 64-bit integers with full avalanche. The *upper* 32 bits
of it choose the shard, the *lower* ones the slot in a shard's index, so that the keys of one shard
are spread evenly over its index.
"""

from __future__ import annotations

import xxhash

MAX_SHARDS = 1024
_MASK = (1 << 64) - 1


def mix64(x: int) -> int:
    """Mix the low 64 bits of `x`; the result is in `0 .. 2**64 - 1`. `mix64(0) == 0`."""
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def hash_text(text: str | bytes, seed: int = 0) -> int:
    """XXH3 (64 bits) of the UTF-8 bytes of `text`; `seed` is in `0 .. 2**64 - 1`."""
    data = text.encode() if isinstance(text, str) else text
    return xxhash.xxh3_64_intdigest(data, seed)


def shard_of(key: int, shards: int) -> int:
    """The shard, in `0 .. shards - 1`, of a sparse key in `0 .. 2**64 - 1`."""
    return ((mix64(key) >> 32) * shards) >> 32
