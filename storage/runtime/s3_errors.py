"""What the S3 client raises, as errors of the store: what went wrong, where, and what to do.

The tables are the whole policy: a code is a refusal, which another attempt does not change, or an
absence, or a condition that does not hold. Everything else, and every failure on the way, is worth
another attempt.
"""

from __future__ import annotations

from typing import Any

from botocore import exceptions as b

from resilient_ps.errors import ResilientPsError
from resilient_ps.storage.blobs import (
    BlobExists,
    BlobMissing,
    Refusal,
    StoreRefused,
    StoreUnavailable,
)

SAID_CHARS_MAX = 300

_KEYS = "look at AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or ~/.aws, or the machine's role)"
_REMEDIES: dict[Refusal, str] = {
    "credentials": f"the store refuses these credentials, or what they may do: {_KEYS}, and at the "
    "bucket's policy",
    "expired": "the credentials have expired: renew them; they are read anew, nothing needs a "
    "restart",
    "clock": "the clocks of this machine and of the store differ too much: synchronise them (NTP)",
    "bucket": "there is no such bucket: create it first, or correct the URL or the endpoint",
    "full": "the store has no space left, or its quota is used up: make room",
    "request": "the store does not carry this out; `resilient-ps doctor` shows what it can do",
}
_REFUSALS: dict[str, Refusal] = {
    "AccessDenied": "credentials",
    "AccountProblem": "credentials",
    "AllAccessDisabled": "credentials",
    "AuthorizationHeaderMalformed": "credentials",
    "Forbidden": "credentials",
    "InvalidAccessKeyId": "credentials",
    "InvalidToken": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "Unauthorized": "credentials",
    "ExpiredToken": "expired",
    "ExpiredTokenException": "expired",
    "RequestExpired": "expired",
    "TokenRefreshRequired": "expired",
    "RequestTimeTooSkewed": "clock",
    "NoSuchBucket": "bucket",
    "InvalidBucketName": "bucket",
    "PermanentRedirect": "bucket",
    "InsufficientStorage": "full",
    "QuotaExceeded": "full",
    "StorageFull": "full",
    "XMinioAdminBucketQuotaExceeded": "full",
    "XMinioStorageFull": "full",
}
_AGAIN = (  # though their status says that the request is at fault
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "InternalError",
    "NoSuchUpload",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "TooManyRequests",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
)
_REFUSALS_BY_STATUS: dict[int, Refusal] = {401: "credentials", 403: "credentials", 507: "full"}
_NO_KEYS = (b.NoCredentialsError, b.PartialCredentialsError, b.ProfileNotFound)
_STALE_KEYS = (b.SSOError, b.LoginError, b.TokenRetrievalError, b.RefreshWithMFAUnsupportedError)
_ON_THE_WAY = (
    b.HTTPClientError,  # timeouts, closed and unreachable endpoints among them
    b.ConnectionError,
    b.CredentialRetrievalError,
    b.MetadataRetrievalError,
    b.IncompleteReadError,
    b.ChecksumError,
    b.FlexibleChecksumError,
)


def translation(error: Exception, what: str) -> ResilientPsError:
    """The error to raise. `what`: what was to be done, with bucket, name and endpoint."""
    if isinstance(error, ResilientPsError):
        return error
    if isinstance(error, b.ClientError):
        return _said_no(error, what)
    if isinstance(error, b.SSLError) and "CERTIFICATE_VERIFY_FAILED" in str(error):
        return StoreRefused(
            f"{what}: the store's certificate is not trusted: name the file with its authority's "
            f"certificate (CA bundle): {_short(error)}"
        )
    if isinstance(error, _NO_KEYS):
        return _refused(what, "credentials", f"no complete credentials: {_short(error)}")
    if isinstance(error, _STALE_KEYS):
        return _refused(what, "expired", _short(error))
    if isinstance(error, _ON_THE_WAY):
        return StoreUnavailable(f"{what}: {_short(error)}")
    if isinstance(error, b.BotoCoreError):
        return _refused(what, "request", _short(error))
    return StoreUnavailable(f"{what}: {error!r}"[: 2 * SAID_CHARS_MAX])


def code_of(error: b.ClientError) -> str:
    """The store's own word for it, or its HTTP status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _said_no(error: b.ClientError, what: str) -> ResilientPsError:
    response: dict[str, Any] = error.response
    code = code_of(error)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = response.get("Error", {}).get("Message", "")
    said = f"{status} {code}: {text}"[:SAID_CHARS_MAX] if text else f"{status} {code}"
    if code in _REFUSALS:
        return _refused(what, _REFUSALS[code], said)
    if code in _AGAIN:
        return StoreUnavailable(f"{what}: the store answers {said}")
    if code == "PreconditionFailed" or status == 412:
        return BlobExists(f"{what}: there is another object, or none to replace ({said})")
    if code == "NoSuchKey" or status == 404:
        return BlobMissing(f"{what}: there is no such object")
    if status in _REFUSALS_BY_STATUS:
        return _refused(what, _REFUSALS_BY_STATUS[status], said)
    if status == 501 or (300 <= status < 500 and status not in (408, 425, 429)):
        return _refused(what, "request", said)
    return StoreUnavailable(f"{what}: the store answers {said}")


def _refused(what: str, why: Refusal, said: str) -> StoreRefused:
    return StoreRefused(f"{what}: {_REMEDIES[why]} ({said})", why=why)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:SAID_CHARS_MAX]
