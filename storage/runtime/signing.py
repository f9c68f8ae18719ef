"""Uploads signed with the digest that is known already, so that nothing is hashed twice.

A request to S3 is signed together with the SHA-256 of its body (`x-amz-content-sha256`), and the
store refuses a body that has another one. The library would read the whole body for it; ours brings
its digest along, since it stands in the manifest, too.
"""

from __future__ import annotations

from typing import Any

from botocore.auth import AUTH_TYPE_MAPS, S3SigV4Auth

VERSION = "resilient-ps-s3v4"
UPLOADS = ("PutObject", "UploadPart")


class _KnownDigest(S3SigV4Auth):  # type: ignore[misc]  # the library has no types
    def payload(self, request: Any) -> str:
        """Of a body that knows its digest, that one."""
        sha256: str = getattr(request.data, "sha256", "") or super().payload(request)
        return sha256


AUTH_TYPE_MAPS[VERSION] = _KnownDigest


def sign_uploads(client: Any) -> None:
    """Let this client's uploads be signed so, where they are signed by version 4 for S3 at all."""
    for operation in UPLOADS:
        client.meta.events.register(f"choose-signer.s3.{operation}", _choose)


def _choose(signature_version: Any, **_: Any) -> str | None:
    return VERSION if signature_version in ("s3v4", "v4") else None
