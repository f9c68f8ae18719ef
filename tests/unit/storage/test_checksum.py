"""The checksum that is sent beside an upload."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from resilient_ps.engine import native
from resilient_ps.storage.runtime.checksum import checksum_of

CRC32C = getattr(native, "crc32c", None)
needs_crc32c = pytest.mark.skipif(CRC32C is None, reason="no instruction for it, or no compiler")
POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed


def by_its_definition(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@needs_crc32c
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 63, 64, 1000])
def test_it_is_that_of_its_definition_wherever_the_data_stands(size: int) -> None:
    assert native.crc32c(b"123456789", 0) == 0xE3069283  # as in RFC 3720
    data = os.urandom(size + 8)
    for first in range(8):
        view = memoryview(data)[first : first + size]
        assert native.crc32c(view, 0) == by_its_definition(bytes(view))


@needs_crc32c
def test_it_goes_on_from_piece_to_piece() -> None:
    data = memoryview(os.urandom(200_001))
    pieces = [data[:1], data[1:1], data[1:70_000], data[70_000:]]
    (sent,) = checksum_of(pieces, "").values()
    assert sent == base64.b64encode(native.crc32c(data, 0).to_bytes(4, "big")).decode()


@needs_crc32c
def test_what_is_no_data_and_what_is_no_crc_are_refused() -> None:
    with pytest.raises(TypeError):
        native.crc32c("text", 0)
    with pytest.raises(TypeError):
        native.crc32c(b"")
    with pytest.raises(ValueError, match="32 bits"):
        native.crc32c(b"", 1 << 32)
    with pytest.raises((BufferError, ValueError)):
        native.crc32c(np.arange(6)[::2], 0)


def test_without_the_instruction_it_is_the_digest() -> None:
    digest = hashlib.sha256(b"abc")
    program = (
        "from resilient_ps.storage.runtime.checksum import checksum_of\n"
        f"print(checksum_of([memoryview(b'abc')], {digest.hexdigest()!r}))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RESILIENT_PS_KERNELS": "numba"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.strip() == str({"ChecksumSHA256": base64.b64encode(digest.digest()).decode()})
