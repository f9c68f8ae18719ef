"""What a store is told to compare an upload with, beside the digest that the upload is signed with.

Not every store looks at that digest; most compare a checksum that is sent beside it. A SHA-256
costs them as much again as it costs us; a CRC-32C next to nothing, here as there, where the
processor has an instruction for it. Elsewhere it is the SHA-256, which is known in any case.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable

from resilient_ps.engine import native

_crc32c: Callable[[memoryview, int], int] | None = getattr(native, "crc32c", None)


def checksum_of(views: Iterable[memoryview], sha256: str) -> dict[str, str]:
    """As an argument of the S3 client's puts. `sha256`: of all views, in hexadecimal."""
    if _crc32c is None:
        return {"ChecksumSHA256": base64.b64encode(bytes.fromhex(sha256)).decode()}
    crc = 0
    for view in views:
        crc = _crc32c(view, crc)
    return {"ChecksumCRC32C": base64.b64encode(crc.to_bytes(4, "big")).decode()}
