"""What every object store does: the model, a directory, and S3 servers pass the same tests."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from blob_stores import MIB, STORES, Store, listed, open_blobs
from kv_stores import together

from resilient_ps.errors import BadInput, NotFound
from resilient_ps.storage.blobs import (
    BlobExists,
    BlobMissing,
    BlobPut,
    BlobsDeleted,
    Bytes,
    DeleteBlobs,
    Encoded,
    GetBlob,
    ListBlobs,
    PutBlob,
    StoreRefused,
    SweepUploads,
)

_NUMBERS = itertools.count()
WRITERS = 16
ROUNDS = 5
SLOW_RACES = "seaweedfs"  # each racing writer waits up to a second for the one before
MOTO_RACES = "moto compares and puts in two steps: another one may come in between"
CLOCK_TOLERANCE_S = 60


@pytest.fixture(scope="module", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    with open_blobs(request.param, tmp_path_factory.mktemp("blobs")) as opened:
        yield opened


@pytest.fixture
def here() -> str:
    """A folder that no other test uses."""
    return f"t{next(_NUMBERS)}"


@dataclass
class Sentence:
    """A body that is made when it is sent."""

    words: tuple[Bytes, ...]

    def encode(self) -> Encoded:
        return Encoded(self.words, info=len(self.words))


# ------------------------------------------------------------------------------------ put and get


@pytest.mark.parametrize("size", [0, 1, 70_000, 5 * MIB])
def test_what_was_put_is_read(store: Store, here: str, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    data = data[:size]
    done = store.put(PutBlob(f"{here}/x", data))
    assert (done.nbytes, done.sha256) == (size, hashlib.sha256(data).hexdigest())
    got = store.get(GetBlob(f"{here}/x"))
    assert (got.data, got.size, got.etag, got.decoded) == (data, size, done.etag, None)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_can_be_put(store: Store, here: str, kind: type) -> None:
    store.put(PutBlob(f"{here}/x", kind(b"abc")))
    assert store.get(GetBlob(f"{here}/x")).data == b"abc"


def test_a_body_is_encoded_and_tells_what_it_knows(store: Store, here: str) -> None:
    done = store.put(PutBlob(f"{here}/x", Sentence((b"one ", b"", memoryview(b"two "), b"three"))))
    assert (done.nbytes, done.info) == (13, 4)
    assert done.sha256 == hashlib.sha256(b"one two three").hexdigest()
    assert store.get(GetBlob(f"{here}/x")).data == b"one two three"


def test_a_body_of_nothing_puts_nothing(store: Store, here: str) -> None:
    done = store.put(PutBlob(f"{here}/x", Sentence(())))
    assert (done.nbytes, done.etag, done.info) == (0, "", 0)
    with pytest.raises(BlobMissing):
        store.get(GetBlob(f"{here}/x"))


def test_a_second_put_replaces_the_object_and_its_etag(store: Store, here: str) -> None:
    first = store.put(PutBlob(f"{here}/x", b"first, and longer"))
    second = store.put(PutBlob(f"{here}/x", b"second"))
    got = store.get(GetBlob(f"{here}/x"))
    assert (got.data, got.etag) == (b"second", second.etag)
    assert first.etag != second.etag


def test_what_is_not_there_is_missing(store: Store, here: str) -> None:
    store.put(PutBlob(f"{here}/folder/x", b"x"))
    for name in (f"{here}/y", f"{here}/folder", f"{here}/folder/x/y", f"{here}/folder/y"):
        for length in (-1, 0, 5):
            with pytest.raises(BlobMissing, match=name):
                store.get(GetBlob(name, length=length))


@pytest.mark.parametrize(
    ("first", "length", "expected"),
    [
        (0, 3, b"012"),
        (4, 3, b"456"),
        (7, -1, b"789"),
        (9, 1, b"9"),
        (8, 100, b"89"),
        (10, 1, b""),
        (10, -1, b""),
        (500, 7, b""),
        (3, 0, b""),
    ],
)
def test_a_range_is_what_there_is_of_it(
    store: Store, here: str, first: int, length: int, expected: bytes
) -> None:
    done = store.put(PutBlob(f"{here}/x", b"0123456789"))
    got = store.get(GetBlob(f"{here}/x", first, length))
    assert (got.data, got.size, got.etag) == (expected, 10, done.etag)


def test_an_empty_object_has_an_empty_range(store: Store, here: str) -> None:
    store.put(PutBlob(f"{here}/x", b""))
    assert store.get(GetBlob(f"{here}/x", 0, 10)).data == b""


def test_more_than_expected_is_refused(store: Store, here: str) -> None:
    store.put(PutBlob(f"{here}/x", b"0123456789"))
    assert store.get(GetBlob(f"{here}/x", most=10)).size == 10
    assert store.get(GetBlob(f"{here}/x", 2, -1, most=8)).data == b"23456789"
    with pytest.raises(StoreRefused, match="10 bytes, of which at most 9"):
        store.get(GetBlob(f"{here}/x", most=9))
    with pytest.raises(StoreRefused, match="at most 8"):
        store.get(GetBlob(f"{here}/x", 0, 9, most=8))


def test_bytes_are_decoded_where_they_are_read(store: Store, here: str) -> None:
    store.put(PutBlob(f"{here}/x", b"17"))
    got = store.get(GetBlob(f"{here}/x", decode=int))
    assert (got.data, got.decoded) == (b"17", 17)

    def refuse(data: bytes) -> None:
        raise NotFound(f"no sense in {data!r}")

    with pytest.raises(NotFound, match="no sense in b'17'"):
        store.get(GetBlob(f"{here}/x", decode=refuse))


# -------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize("size", [3, 12 * MIB])
def test_create_never_replaces(store: Store, here: str, size: int) -> None:
    store.put(PutBlob(f"{here}/x", b"a" * size, "create"))
    with pytest.raises(BlobExists, match="x"):
        store.put(PutBlob(f"{here}/x", b"b" * size, "create"))
    assert store.get(GetBlob(f"{here}/x", 0, 3)).data == b"aaa"
    store.blobs.do(DeleteBlobs((f"{here}/x",)))
    store.put(PutBlob(f"{here}/x", b"c" * size, "create"))
    assert store.get(GetBlob(f"{here}/x", 0, 3)).data == b"ccc"


@pytest.mark.parametrize("size", [3, 12 * MIB])
def test_if_match_replaces_only_what_it_names(store: Store, here: str, size: int) -> None:
    if store.name == "moto" and size > MIB:
        pytest.skip("moto ignores If-Match where an upload of parts is completed")
    first = store.put(PutBlob(f"{here}/x", b"a" * size))
    second = store.put(PutBlob(f"{here}/x", b"b" * size, "if-match", first.etag))
    for etag in (first.etag, "0123456789abcdef0123456789abcdef"):
        with pytest.raises(BlobExists):
            store.put(PutBlob(f"{here}/x", b"c" * size, "if-match", etag))
    assert store.get(GetBlob(f"{here}/x", 0, 3)).data == b"bbb"
    assert store.get(GetBlob(f"{here}/x", 0, 0)).etag == second.etag


def test_if_match_makes_no_object(store: Store, here: str) -> None:
    etag = store.put(PutBlob(f"{here}/x", b"abc")).etag
    with pytest.raises(BlobExists):
        store.put(PutBlob(f"{here}/y", b"abc", "if-match", etag))
    with pytest.raises(BlobMissing):
        store.get(GetBlob(f"{here}/y"))


def test_of_racing_creators_one_wins(store: Store, here: str) -> None:
    if store.name == "moto":
        pytest.skip(MOTO_RACES)
    for number in range(rounds(store)):
        name = f"{here}/{number}"
        won = winners(store, lambda n, name=name: PutBlob(name, b"by %d" % n, "create"))
        assert len(won) == 1
        assert store.get(GetBlob(name)).data == b"by %d" % won[0]


def test_of_racing_replacers_one_wins(store: Store, here: str) -> None:
    if store.name == "moto":
        pytest.skip(MOTO_RACES)
    etag = store.put(PutBlob(f"{here}/x", b"nobody")).etag
    for number in range(rounds(store)):
        won = winners(
            store,
            lambda n, number=number, etag=etag: PutBlob(
                f"{here}/x", b"%d by %d" % (number, n), "if-match", etag
            ),
        )
        got = store.get(GetBlob(f"{here}/x"))
        assert len(won) == 1
        assert got.data == b"%d by %d" % (number, won[0])
        etag = got.etag


def rounds(store: Store) -> int:
    return 1 if store.name == SLOW_RACES else ROUNDS


def winners(store: Store, request) -> list[int]:  # type: ignore[no-untyped-def]
    writers = 6 if store.name == SLOW_RACES else WRITERS

    def act(number: int) -> int | None:
        try:
            store.put(request(number))
        except BlobExists:
            return None
        return number

    return [number for number in together(writers, act) if number is not None]


@pytest.mark.soak
def test_of_racing_creators_of_fifty_objects_one_wins_each(store: Store, here: str) -> None:
    keys = range(50)

    def act(number: int) -> list[int]:
        won = []
        for key in keys:
            turned = (key + 3 * number) % len(keys)
            try:
                store.put(PutBlob(f"{here}/{turned}", b"%d" % number, "create"))
                won.append(turned)
            except BlobExists:
                pass
        return won

    by_writer = together(WRITERS, act)
    assert sorted(key for won in by_writer for key in won) == list(keys)
    for number, won in enumerate(by_writer):
        for key in won:
            assert store.get(GetBlob(f"{here}/{key}")).data == b"%d" % number


def test_readers_see_whole_objects_while_they_are_replaced(store: Store, here: str) -> None:
    name = f"{here}/x"
    contents = {bytes([65 + number]) * 200_000 for number in range(4)}
    store.put(PutBlob(name, min(contents)))

    def act(number: int) -> None:
        for content in sorted(contents):
            if number % 2:
                store.put(PutBlob(name, content))
            else:
                assert store.get(GetBlob(name)).data in contents

    together(6, act)


# ------------------------------------------------------------------------------ listing, deleting


def test_a_listing_tells_name_size_etag_and_time(store: Store, here: str) -> None:
    done = [
        store.put(PutBlob(f"{here}/{name}", b"x" * size)) for name, size in (("a", 3), ("b", 0))
    ]
    items = store.listed(f"{here}/")
    assert [(item.name, item.size, item.etag) for item in items] == [
        (f"{here}/a", 3, done[0].etag),
        (f"{here}/b", 0, done[1].etag),
    ]
    for item in items:
        assert abs(item.modified_s - time.time()) < CLOCK_TOLERANCE_S


def test_a_prefix_need_not_be_a_folder(store: Store, here: str) -> None:
    names = [f"{here}/{name}" for name in ("aa/1", "ab/2", "ab/3/4", "abc", "b")]
    for name in names:
        store.put(PutBlob(name, b""))
    assert found(store, f"{here}/") == set(names)
    assert found(store, f"{here}/ab") == set(names[1:4])
    assert found(store, f"{here}/ab/") == set(names[1:3])
    assert found(store, f"{here}/abc") == {names[3]}
    assert found(store, f"{here}/c") == set()
    assert found(store, f"{here}x/") == set()
    assert set(names) <= found(store, "")


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_pages_together_show_each_name_once(store: Store, here: str, most: int) -> None:
    names = [f"{here}/{name}" for name in ("a/b", "a/c/d", "a-b", "a.b/x", "a0", "ab/z", "b", "B")]
    for name in names:
        store.put(PutBlob(name, b""))
    shown = [item.name for item in listed(store.blobs, f"{here}/", most)]
    assert sorted(shown) == sorted(names)


def test_names_of_one_folder_are_in_order(store: Store, here: str) -> None:
    for number in (3, 10, 1, 2):
        store.put(PutBlob(f"{here}/{number:08d}", b""))
    assert [item.name[-2:] for item in store.listed(f"{here}/")] == ["01", "02", "03", "10"]
    page = store.blobs.do(ListBlobs(f"{here}/", after=f"{here}/{2:08d}", most=1))
    assert [item.name for item in page.items] == [f"{here}/{3:08d}"]  # type: ignore[union-attr]
    assert page.more  # type: ignore[union-attr]


def test_deleting_is_the_end_of_an_object_and_may_be_repeated(store: Store, here: str) -> None:
    names = tuple(f"{here}/f{number}/x" for number in range(20))
    for name in names:
        store.put(PutBlob(name, b"x"))
    assert store.blobs.do(DeleteBlobs(names[:19])) == BlobsDeleted(19)
    assert store.blobs.do(DeleteBlobs((*names[:2], f"{here}/never"))) == BlobsDeleted(3)
    assert store.blobs.do(DeleteBlobs(())) == BlobsDeleted(0)
    with pytest.raises(BlobMissing):
        store.get(GetBlob(names[0]))
    assert found(store, f"{here}/") == {names[19]}


def test_sweeping_leaves_objects_alone(store: Store, here: str) -> None:
    store.put(PutBlob(f"{here}/x", b"x"))
    store.put(PutBlob(f"{here}/y", b"y" * (12 * MIB)))
    assert store.blobs.do(SweepUploads(f"{here}/", 0)) == BlobsDeleted(0)
    assert found(store, f"{here}/") == {f"{here}/x", f"{here}/y"}


# ------------------------------------------------------------------------------ names and numbers


@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.b", ".lock"),
        *("a b", "a\n", "ä", "a\\b", "a:b", "a\x00b", "x" * 513, "a/" + "x" * 201),
    ],
)
def test_names_that_cannot_be_are_refused(store: Store, name: str) -> None:
    for request in (PutBlob(name, b""), GetBlob(name), DeleteBlobs((name,))):
        with pytest.raises(BadInput, match="object name"):
            store.blobs.do(request)


@pytest.mark.parametrize(
    "name", ["a", "A-z0.9_=", "!#$%&'()+,@^~/x", "a..b", "x" * 200, "/".join(["y" * 60] * 7)]
)
def test_unusual_names_are_names(store: Store, here: str, name: str) -> None:
    store.put(PutBlob(f"{here}/{name}", b"x"))
    assert store.get(GetBlob(f"{here}/{name}")).data == b"x"
    assert found(store, f"{here}/") == {f"{here}/{name}"}
    store.blobs.do(DeleteBlobs((f"{here}/{name}",)))
    assert found(store, f"{here}/") == set()


@pytest.mark.parametrize(
    "bad",
    [
        GetBlob("x", -1),
        GetBlob("x", 0, -2),
        PutBlob("x", b"", "if-match"),
        PutBlob("x", b"", "append"),  # type: ignore[arg-type]
        ListBlobs("../"),
        ListBlobs("x", most=0),
        ListBlobs("x", most=1001),
        DeleteBlobs(("x",) * 1001),
        SweepUploads("x", -1),
    ],
)
def test_requests_that_make_no_sense_are_refused(store: Store, bad) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput):
        store.blobs.do(bad)


def test_fifty_threads_may_begin_at_once_with_a_fresh_store(store: Store, here: str) -> None:
    with closing(store.open()) as fresh:

        def act(number: int) -> str:
            name, data = f"{here}/{number}", b"%d" % number * 1000
            done = fresh.do(PutBlob(name, data))
            assert fresh.do(GetBlob(name)).data == data  # type: ignore[union-attr]
            assert isinstance(done, BlobPut)
            return name

        names = together(50, act)
    assert found(store, f"{here}/") == set(names)


def found(store: Store, prefix: str) -> set[str]:
    return {item.name for item in store.listed(prefix)}
