"""A folder as an object store, on one machine or on a mount that several share.

Theory of operation. An object is a file. It is written to a temporary file beside its place, made
durable, and then takes its place at once: by a hard link where there must be none, by a rename
otherwise. So a name shows a whole object or none, whatever dies when; what died midway leaves a
temporary file, which no listing shows and a sweep removes. Invariants:

* *one judge*: comparing an etag and taking the place happen under a lock file, and so does
  whatever else takes a place away from an object;
* *durable before it is answered*: the file, its name, and the names of new folders are synced;
* *no way out*: names cannot hold `..`, hidden parts, or lead through symbolic links of ours;
* *the same folder*: the lock file is made when the store is opened. Where it is missing later, the
  mount is gone, and nothing is written into what shows beneath.

An etag is made of what the file system says of a file, which is another file after every put; no
content is read for it. Whole-second file times are told apart by nanoseconds that we draw.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from resilient_ps.storage.blobs import (
    BlobExists,
    BlobGot,
    BlobInfo,
    BlobList,
    BlobMissing,
    BlobPut,
    BlobRequest,
    BlobResult,
    BlobsDeleted,
    Bytes,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
    StoreUnavailable,
    SweepUploads,
)
from resilient_ps.storage.requests import (
    LARGE_BYTES,
    check_request,
    check_size,
    decoded,
    encode,
    receiving,
    sha256_of,
    size_of,
)
from resilient_ps.storage.runtime.directory_errors import translated

LOCK_NAME = ".resilient-ps-store"
TEMPORARY = ".put-"
LOCK_DEADLINE_S = 30.0
_LOCK_LOOK_S = 0.005
_FOLDER_TRIES = 10  # a folder can be removed, being empty, between its making and its use
_SECOND_NS = 1_000_000_000


class DirectoryBlobs:
    """Objects as files below `folder`, which is made if there is none."""

    def __init__(self, folder: Path) -> None:
        self._root = os.path.abspath(folder)
        with translated(f"the store in {self._root}"):
            os.makedirs(self._root, exist_ok=True)
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            os.close(lock)

    def do(self, request: BlobRequest) -> BlobResult:
        """As `Blobs.do`."""
        check_request(request)
        match request:
            case PutBlob():
                return self._put(request)
            case GetBlob():
                return decoded(request, self._get(request))
            case ListBlobs():
                return self._list(request)
            case DeleteBlobs():
                return self._delete(request)
            case SweepUploads():
                return self._sweep(request)

    def close(self) -> None:
        """There is nothing to give back."""

    @property
    def _lock_path(self) -> str:
        return os.path.join(self._root, LOCK_NAME)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    # --------------------------------------------------------------------------------------- put

    def _put(self, request: PutBlob) -> BlobPut:
        pieces, info = encode(request.body)
        done = BlobPut("", size_of(pieces), sha256_of(pieces), info)
        if not pieces:
            return done
        with translated(f"put of {self._path(request.name)}"):
            self._check_root()
            with self._temporary(os.path.dirname(request.name)) as (descriptor, path):
                etag = _fill(descriptor, pieces)
                self._take_place(path, request)
                _sync_folder(os.path.dirname(path))
        return done._replace(etag=etag)

    def _take_place(self, path: str, request: PutBlob) -> None:
        place = self._path(request.name)
        if request.mode == "create":
            try:
                os.link(path, place, follow_symlinks=False)
                return
            except FileExistsError:
                raise BlobExists(f"put of {place}: there is such an object already") from None
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                    raise  # else: this file system has no hard links
        with self._locked():
            if request.mode == "create" and os.path.lexists(place):
                raise BlobExists(f"put of {place}: there is such an object already")
            if request.mode == "if-match" and _etag_at(place) != request.etag:
                raise BlobExists(f"put of {place}: there is another object, or none")
            os.replace(path, place)

    @contextlib.contextmanager
    def _temporary(self, folder: str) -> Iterator[tuple[int, str]]:
        """A new file in that folder of the store; gone at the end, if it is still there."""
        name = f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
        path = os.path.join(self._root, folder, name)
        descriptor = self._create(folder, path)
        try:
            yield descriptor, path
        finally:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _create(self, folder: str, path: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(_FOLDER_TRIES):
            with contextlib.suppress(FileNotFoundError):
                self._make_folder(folder)
                return os.open(path, flags, 0o666)
        raise StoreUnavailable(f"put of {path}: its folder disappears again and again")

    def _make_folder(self, folder: str) -> None:
        path = self._root
        for part in folder.split("/") if folder else ():
            above, path = path, os.path.join(path, part)
            try:
                os.mkdir(path)
            except FileExistsError:
                continue
            _sync_folder(above)

    # --------------------------------------------------------------------------- get, list, delete

    def _get(self, request: GetBlob) -> BlobGot:
        path = self._path(request.name)
        with translated(f"get of {path}"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                raise BlobMissing(f"there is no object {path}") from None
            try:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode):
                    raise BlobMissing(f"there is no object {path}: it is a folder")
                left = max(about.st_size - request.first, 0)
                length = left if request.length < 0 else min(request.length, left)
                check_size(request, length)
                data = _read(descriptor, request.first, length)
            finally:
                os.close(descriptor)
        return BlobGot(data, _etag(about), about.st_size)

    def _list(self, request: ListBlobs) -> BlobList:
        with translated(f"list of {self._path(request.prefix)}"):
            self._check_root()
            names = sorted(
                name
                for name in self._walk(request.prefix, hidden=False)
                if name > request.after and name.startswith(request.prefix)
            )
            items: list[BlobInfo] = []
            for name in names:
                if len(items) > request.most:
                    break
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    about = os.lstat(self._path(name))
                    items.append(BlobInfo(name, about.st_size, _etag(about), int(about.st_mtime)))
        return BlobList(tuple(items[: request.most]), len(items) > request.most)

    def _walk(self, prefix: str, *, hidden: bool) -> Iterator[str]:
        """Objects, or else temporary files, in the folders that can hold names of this prefix."""
        folders = [prefix.rpartition("/")[0]]
        while folders:
            folder = folders.pop()
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                with os.scandir(self._path(folder)) as entries:
                    found = list(entries)
                for entry in found:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        folders.append(name)
                    elif entry.is_file(follow_symlinks=False) and (
                        entry.name.startswith(TEMPORARY) if hidden else entry.name[0] != "."
                    ):
                        yield name

    def _delete(self, request: DeleteBlobs) -> BlobsDeleted:
        with translated(f"delete in {self._root}"):
            self._check_root()
            for name in request.names:
                with self._locked(), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(self._path(name))
                self._remove_empty(os.path.dirname(name))
        return BlobsDeleted(len(request.names))

    def _remove_empty(self, folder: str) -> None:
        """Folders come with objects, and go with the last one."""
        while folder:
            try:
                os.rmdir(self._path(folder))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    return
            folder = os.path.dirname(folder)

    def _sweep(self, request: SweepUploads) -> BlobsDeleted:
        deleted = 0
        with translated(f"sweep of {self._path(request.prefix)}"):
            self._check_root()
            until_s = self._now_s() - request.older_than_s
            top = request.prefix.rpartition("/")[0]  # anything there may have become such a name
            for name in list(self._walk(request.prefix, hidden=True)):
                folder = name.rpartition("/")[0]
                if folder != top and not f"{folder}/".startswith(request.prefix):
                    continue
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    if os.lstat(self._path(name)).st_mtime <= until_s:
                        os.unlink(self._path(name))
                        deleted += 1
                        self._remove_empty(os.path.dirname(name))
        return BlobsDeleted(deleted)

    def _now_s(self) -> float:
        """By the clock that file times are made with: a file server's, on a mount."""
        with self._temporary("") as (descriptor, _):
            return os.fstat(descriptor).st_mtime

    # -------------------------------------------------------------------------------------- locks

    def _check_root(self) -> None:
        if not os.path.exists(self._lock_path):
            raise StoreRefused(
                f"the store in {self._root} is gone: is it still mounted? Nothing was written",
                why="bucket",
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among all threads and processes, on all machines that lock through the mount."""
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC)
        try:
            until_s = time.monotonic() + LOCK_DEADLINE_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until_s:
                        raise StoreUnavailable(
                            f"{self._lock_path} has been locked for {LOCK_DEADLINE_S:.0f} s: is "
                            "a process that uses the store stopped?"
                        ) from None
                    time.sleep(_LOCK_LOOK_S)
            yield
        finally:
            os.close(descriptor)


def _fill(descriptor: int, pieces: Sequence[Bytes]) -> str:
    """Write, make durable, and the etag."""
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view.nbytes:
            view = view[os.write(descriptor, view) :]
    about = os.fstat(descriptor)
    second_ns = about.st_mtime_ns // _SECOND_NS * _SECOND_NS
    os.utime(descriptor, ns=(about.st_atime_ns, second_ns + secrets.randbelow(_SECOND_NS)))
    os.fsync(descriptor)
    return _etag(os.fstat(descriptor))


def _read(descriptor: int, first: int, length: int) -> Bytes:
    """What there is; much of it in a buffer, which whoever decodes it can use in place."""
    if length < LARGE_BYTES:
        return os.pread(descriptor, length, first)
    data = receiving(length)
    got = 0  # the kernel gives at most 2 GiB at once
    while got < length and (more := os.preadv(descriptor, [data[got:]], first + got)):
        got += more
    return data[:got]


def _etag(about: os.stat_result) -> str:
    return f"{about.st_ino:x}-{about.st_mtime_ns:x}-{about.st_size:x}"


def _etag_at(path: str) -> str:
    try:
        return _etag(os.lstat(path))
    except FileNotFoundError:
        return ""


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network mounts cannot
            raise
    finally:
        os.close(descriptor)
