"""A folder as a store, where disks are full, mounts go away, and processes die midway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from resilient_ps.storage.blobs import (
    BlobExists,
    BlobGot,
    BlobList,
    BlobMissing,
    BlobPut,
    BlobsDeleted,
    DeleteBlobs,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
    StoreUnavailable,
    SweepUploads,
)
from resilient_ps.storage.runtime.directory import LOCK_NAME, TEMPORARY, DirectoryBlobs
from resilient_ps.storage.runtime.directory_errors import translation

MIB = 1 << 20

# Puts in a loop, and says so before each: it is killed somewhere in between.
WRITER = """
import sys
from pathlib import Path
from resilient_ps.storage.blobs import PutBlob
from resilient_ps.storage.runtime.directory import DirectoryBlobs
store = DirectoryBlobs(Path(sys.argv[1]))
for number in range(100_000):
    store.do(PutBlob(f"a/{number}", bytes([number % 251]) * 1_000_000))
    print(number, flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> DirectoryBlobs:
    return DirectoryBlobs(tmp_path / "store")


def names(store: DirectoryBlobs) -> list[str]:
    page = store.do(ListBlobs(""))
    assert isinstance(page, BlobList)
    return [item.name for item in page.items]


def read(store: DirectoryBlobs, name: str) -> bytes:
    got = store.do(GetBlob(name))
    assert isinstance(got, BlobGot)
    return got.data


def temporary_files(folder: Path) -> list[Path]:
    return list(folder.rglob(f"{TEMPORARY}*"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_a_clear_refusal_and_leaves_nothing_behind(small_disk: Path) -> None:
    store = DirectoryBlobs(small_disk)
    store.do(PutBlob("before", b"b" * MIB))
    with pytest.raises(StoreRefused, match=r"too-large.*make room") as caught:
        store.do(PutBlob("too-large", b"x" * (5 * MIB)))
    assert caught.value.why == "full"
    assert names(store) == ["before"]
    assert temporary_files(small_disk) == []
    store.do(PutBlob("after", b"a" * (2 * MIB)))
    assert read(store, "before") == b"b" * MIB


def test_a_mount_that_went_away_is_noticed_before_anything_is_written(small_disk: Path) -> None:
    store = DirectoryBlobs(small_disk)
    store.do(PutBlob("x", b"x"))
    subprocess.run(["umount", str(small_disk)], check=True)
    for request in (PutBlob("y", b"y"), GetBlob("x"), ListBlobs(""), DeleteBlobs(("x",))):
        with pytest.raises(StoreRefused, match="still mounted") as caught:
            store.do(request)
        assert caught.value.why == "bucket"
    assert list(small_disk.iterdir()) == []
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(small_disk)], check=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_a_clear_refusal(
    store: DirectoryBlobs, tmp_path: Path
) -> None:
    store.do(PutBlob("a/x", b"x"))
    (tmp_path / "store" / "a").chmod(0o500)
    with pytest.raises(StoreRefused, match="must be writable") as caught:
        store.do(PutBlob("a/y", b"y"))
    assert caught.value.why == "credentials"


def test_a_writer_killed_midway_leaves_whole_objects_only(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(5):
            last = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        last = max([last, *map(int, writer.stdout.read().split())])
    store = DirectoryBlobs(tmp_path)
    found = names(store)
    assert {f"a/{number}" for number in range(last + 1)} <= set(found)
    for name in found:
        number = int(name.removeprefix("a/"))
        assert read(store, name) == bytes([number % 251]) * 1_000_000


def test_what_a_dead_writer_left_is_swept_when_it_is_old(
    store: DirectoryBlobs, tmp_path: Path
) -> None:
    store.do(PutBlob("a/b/x", b"x"))
    old, young = (tmp_path / "store/a" / f"{TEMPORARY}{age}" for age in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half of an obj")
    an_hour_ago = old.stat().st_mtime - 3600
    os.utime(old, (an_hour_ago, an_hour_ago))
    assert names(store) == ["a/b/x"]
    assert store.do(SweepUploads("b/", 60)) == BlobsDeleted(0)
    assert store.do(SweepUploads("a/b/c", 60)) == BlobsDeleted(0)
    assert store.do(SweepUploads("a/c", 60)) == BlobsDeleted(1)  # it may have become such a name
    assert [path.exists() for path in (old, young)] == [False, True]
    (tmp_path / "store" / f"{TEMPORARY}top").touch()
    assert store.do(SweepUploads("", 0)) == BlobsDeleted(2)
    assert names(store) == ["a/b/x"]


def test_folders_come_and_go_with_their_objects(store: DirectoryBlobs, tmp_path: Path) -> None:
    store.do(PutBlob("a/b/c/x", b"x"))
    store.do(PutBlob("a/y", b"y"))
    store.do(DeleteBlobs(("a/b/c/x",)))
    assert not (tmp_path / "store/a/b").exists()
    store.do(DeleteBlobs(("a/y",)))
    assert [path.name for path in (tmp_path / "store").iterdir()] == [LOCK_NAME]


def test_links_do_not_lead_out_of_the_store(store: DirectoryBlobs, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "store/link").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreRefused, match="in the way"):
        read(store, "link")
    assert names(store) == []
    with pytest.raises(BlobExists):
        store.do(PutBlob("link", b"x", "create"))
    store.do(PutBlob("link", b"x"))  # replaces the link itself
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_name_below_an_object_is_a_clear_refusal(store: DirectoryBlobs) -> None:
    store.do(PutBlob("a", b"an object"))
    with pytest.raises(StoreRefused, match="in the way"):
        store.do(PutBlob("a/b", b"x"))
    with pytest.raises(BlobMissing):
        read(store, "a/b")


def test_etags_of_equal_contents_differ(store: DirectoryBlobs) -> None:
    etags = set()
    for _ in range(50):
        done = store.do(PutBlob("x", b"the same"))
        assert isinstance(done, BlobPut)
        etags.add(done.etag)
    assert len(etags) == 50


def test_two_stores_on_one_folder_are_one_store(tmp_path: Path) -> None:
    one, other = DirectoryBlobs(tmp_path), DirectoryBlobs(tmp_path)
    etag = one.do(PutBlob("x", b"1", "create")).etag  # type: ignore[union-attr]
    with pytest.raises(BlobExists):
        other.do(PutBlob("x", b"2", "create"))
    other.do(PutBlob("x", b"2", "if-match", etag))
    assert read(one, "x") == b"2"


def test_a_disk_that_fails_is_worth_another_attempt() -> None:
    error = translation(OSError(5, "Input/output error"), "get of /mnt/x")
    assert isinstance(error, StoreUnavailable)
    assert "/mnt/x" in str(error)
