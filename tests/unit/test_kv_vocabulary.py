"""What the key-value vocabulary refuses, and which transactions may be repeated."""

from __future__ import annotations

from typing import Any

import pytest

from resilient_ps.coordinator.kv import (
    MAX_TXN_BYTES,
    MAX_TXN_OPS,
    Compare,
    Delete,
    LeaseGrant,
    Put,
    Read,
    Txn,
    absent,
    has_value,
    unchanged,
)
from resilient_ps.coordinator.repeats import check_nonce, may_repeat
from resilient_ps.coordinator.runtime.codec import (
    Unsupported,
    decode_range,
    decode_txn_request,
    encode_range,
    encode_txn,
)
from resilient_ps.errors import BadInput

NONCE = b"12345678"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Put(b"", b""), "empty key"),
        (lambda: Delete(b""), "empty key"),
        (lambda: Read(b""), "empty key"),
        (lambda: Read(b"k", limit=-1), "limit -1"),
        (lambda: Compare(b"k", "value", "=", 1), "takes bytes"),
        (lambda: Compare(b"k", "mod", "=", b"1"), "takes bytes"),
        (lambda: LeaseGrant(0), "TTL of 0 s"),
        (lambda: Txn((), (Put(b"k", b""), Put(b"k", b""))), "b'k' is put twice"),
        (lambda: Txn((), (), (Put(b"k", b""), Put(b"k", b""))), "b'k' is put twice"),
        (lambda: Txn((), (Put(b"k/1", b""), Delete(b"k", prefix=True))), "put and deleted"),
        (lambda: Txn((), tuple(Read(b"k") for _ in range(MAX_TXN_OPS + 1))), "129 entries"),
        (lambda: Txn((absent(b"k"),) * (MAX_TXN_OPS + 1), ()), "129 entries in `compares`"),
        (lambda: Txn((), (Put(b"k", b"x" * MAX_TXN_BYTES),)), "at most 1572864"),
        (lambda: Txn((has_value(b"k", b"x" * MAX_TXN_BYTES),), ()), "at most 1572864"),
    ],
)
def test_wrong_requests_are_refused_with_the_reason(make: Any, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        make()


def test_an_empty_prefix_and_a_key_put_in_both_branches_are_fine() -> None:
    Read(b"", prefix=True)
    Txn((), (Put(b"k", b""), Delete(b"k/", prefix=True)), (Put(b"k", b""),))


PUT = (Put(b"k", b"v"),)


@pytest.mark.parametrize(
    "txn",
    [
        Txn((), (Read(b"k"),)),
        Txn((has_value(b"k", b"v"),), (Read(b"k"),), (Read(b"k"),)),
        Txn((absent(b"k"),), PUT),
        Txn((unchanged(b"k", 0),), PUT),
        Txn((unchanged(b"k", 7),), PUT, (Read(b"k"),)),
        Txn((unchanged(b"k", 7),), (Delete(b"k"),)),
        Txn((Compare(b"k", "version", "=", 3),), PUT),
        Txn((Compare(b"k", "create", "=", 3),), (Delete(b"", prefix=True),)),
        Txn((has_value(b"x", b""), absent(b"k")), (Delete(b"x"), *PUT)),
    ],
)
def test_what_cannot_succeed_twice_may_be_repeated(txn: Txn) -> None:
    assert may_repeat(txn)


@pytest.mark.parametrize(
    "txn",
    [
        Txn((), PUT),
        Txn((), (Delete(b"k"),)),
        Txn((has_value(b"k", b"old"),), PUT),  # somebody may write the old value again
        Txn((absent(b"other"),), PUT),
        Txn((absent(b"k"),), (Delete(b"k"),)),
        Txn((Compare(b"k", "create", "=", 3),), PUT),
        Txn((Compare(b"k", "mod", ">", 3),), PUT),
        Txn((Compare(b"k", "mod", "!=", 3),), PUT),
        Txn((Compare(b"k", "lease", "=", 3),), PUT),
        Txn((absent(b"k"),), PUT, PUT),
    ],
)
def test_what_could_have_an_effect_twice_is_not_repeated(txn: Txn) -> None:
    assert not may_repeat(txn)


def test_a_nonce_must_be_long_and_written_and_alone() -> None:
    check_nonce(Txn((), (Put(b"k", b"x" + NONCE + b"y"),)), NONCE)
    for txn, nonce in (
        (Txn((), (Put(b"k", b"short"),)), b"short"),
        (Txn((), PUT), NONCE),
        (Txn((), PUT, (Put(b"k", NONCE),)), NONCE),
        (Txn((), (Put(b"k", NONCE), Read(b"x"))), NONCE),
    ):
        with pytest.raises(BadInput):
            check_nonce(txn, nonce)


@pytest.mark.parametrize("prefix", [b"", b"a", b"a/", b"\xff", b"a\xff\xff", b"\x00"])
def test_prefixes_survive_the_encoding_as_ranges(prefix: bytes) -> None:
    key, range_end = encode_range(prefix, prefix=True)
    assert decode_range(key, range_end) == (prefix, True)


def test_other_ranges_are_refused_by_name() -> None:
    with pytest.raises(Unsupported, match="single keys and prefixes"):
        decode_range(b"a", b"c")


def test_a_transaction_survives_the_encoding() -> None:
    txn = Txn(
        (absent(b"a"), has_value(b"b", b""), Compare(b"c", "lease", "!=", 2**62),
         Compare(b"d", "version", "<", 3), Compare(b"e", "mod", ">", 0)),
        (Put(b"a", b"\x00\xff", 7), Delete(b"b"), Delete(b"c/", prefix=True), Read(b"d", limit=3)),
        (Read(b"", prefix=True),),
    )  # fmt: skip
    assert decode_txn_request(encode_txn(txn)) == txn
