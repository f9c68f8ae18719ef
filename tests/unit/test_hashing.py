"""The hashes that decide where data lives: these values may never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilient_ps.hashing import hash_text, mix64, shard_of

KEYS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("x", "mixed"),
    [
        (0, 0),
        # The first outputs of SplitMix64 seeded with 0 mix the multiples of its increment.
        (0x9E3779B97F4A7C15, 0xE220A8397B1DCDAF),
        (2 * 0x9E3779B97F4A7C15, 0x6E789E6AA1B965F4),
        (3 * 0x9E3779B97F4A7C15, 0x06C45D188009454F),
        (1, 0x5692161D100B05E5),
        (2**64 - 1, 0xB4D055FCF2CBBD7B),
    ],
)
def test_mix64_gives_its_golden_values(x: int, mixed: int) -> None:
    assert mix64(x) == mixed


def test_mix64_uses_the_low_64_bits() -> None:
    assert mix64(2**64 + 5) == mix64(5)


@given(st.lists(KEYS, unique=True, max_size=200))
def test_mix64_maps_different_keys_to_different_numbers(keys: list[int]) -> None:
    assert len({mix64(key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("text", "seed", "hashed"),
    [
        ("", 0, 0x2D06800538D394C2),
        ("features/weights", 0, 0x9B9318C6095259CF),
        ("features/weights", 7, 0xCEA19EC99B61A92F),
        ("größe", 0, 0xA6D7BBEA01D4872C),
    ],
)
def test_hash_text_gives_its_golden_values(text: str, seed: int, hashed: int) -> None:
    assert hash_text(text, seed) == hashed
    assert hash_text(text.encode(), seed) == hashed


@pytest.mark.parametrize(
    ("key", "shards", "shard"),
    [(0, 8, 0), (1, 8, 2), (2, 8, 6), (12345, 1024, 973), (2**64 - 1, 3, 2)],
)
def test_shard_of_gives_its_golden_values(key: int, shards: int, shard: int) -> None:
    assert shard_of(key, shards) == shard


@given(KEYS, st.integers(1, 1024))
def test_every_key_has_a_shard(key: int, shards: int) -> None:
    assert 0 <= shard_of(key, shards) < shards


@pytest.mark.parametrize("step", [1, 7, 1 << 12, 1 << 40])
@pytest.mark.parametrize("shards", [3, 12, 64])
def test_keys_at_regular_distances_spread_evenly_over_shards(step: int, shards: int) -> None:
    keys = [step * i for i in range(20_000)]
    counts = np.bincount([shard_of(key, shards) for key in keys], minlength=shards)
    expected = len(keys) / shards
    assert np.all(np.abs(counts - expected) < 6 * np.sqrt(expected))


def test_the_keys_of_one_shard_spread_evenly_over_its_index() -> None:
    """The shard is chosen by other bits of the hash than the slot."""
    keys = [key for key in range(64_000) if shard_of(key, 16) == 3]
    slots = np.bincount([mix64(key) & 63 for key in keys], minlength=64)
    expected = len(keys) / 64
    assert np.all(np.abs(slots - expected) < 6 * np.sqrt(expected))
