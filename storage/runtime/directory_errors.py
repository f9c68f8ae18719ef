"""What the operating system says about files, as errors of the store."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from resilient_ps.errors import ResilientPsError
from resilient_ps.storage.blobs import StoreRefused, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_GONE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)
_IMPOSSIBLE = (errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Raises every `OSError` of the block as `StoreRefused` or `StoreUnavailable`."""
    try:
        yield
    except OSError as error:
        raise translation(error, what) from error


def translation(error: OSError, what: str) -> ResilientPsError:
    """The error to raise; `what` was to be done, and where."""
    said = error.strerror or repr(error)
    number = error.errno or 0
    if number in _FULL:
        return StoreRefused(f"{what}: {said}: make room, or use another folder", why="full")
    if number in _FORBIDDEN:
        return StoreRefused(
            f"{what}: {said}: the folder must be writable for this user", why="credentials"
        )
    if number in _GONE:
        return StoreRefused(
            f"{what}: {said}: is the folder still there, and mounted?", why="bucket"
        )
    if number in _IMPOSSIBLE:
        return StoreRefused(
            f"{what}: {said}: something that is no object of this store is in the way"
        )
    return StoreUnavailable(f"{what}: {said}: look at the disk, or at the mount's server")
