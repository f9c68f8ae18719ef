"""Real etcd with members killed and stopped: nothing is lost, and every call ends in time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from etcd3 import etcdrpc as rpc
from kv_stores import PATIENCE_S, Recorder, eventually, fast_etcd

from resilient_ps.chaos.faults.links import Rule
from resilient_ps.chaos.live.network import Network
from resilient_ps.coordinator.kv import Delete, Put, Txn, absent, create, put
from resilient_ps.coordinator.runtime.etcd import EtcdKv
from resilient_ps.coordinator.runtime.processes import EtcdProcess
from resilient_ps.errors import RetryLater, Unavailable
from resilient_ps.runtime.spawn import free_ports

WRITE_EVERY_S = 0.05


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with fast_etcd(3) as process:
        yield process


@pytest.fixture
def kv(etcd: EtcdProcess) -> Iterator[EtcdKv]:
    with closing(EtcdKv(etcd.endpoints)) as client:
        yield client


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network(tmp_path) as opened:
        yield opened


class Writer(threading.Thread):
    """Writes new keys under a prefix at 20 Hz, deleting every third one, and remembers which
    writes were acknowledged."""

    def __init__(self, etcd: EtcdProcess, prefix: bytes) -> None:
        super().__init__(daemon=True)
        self._kv = EtcdKv(etcd.endpoints)
        self._prefix = prefix
        self._stopping = threading.Event()
        self._wrote = threading.Condition()
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(WRITE_EVERY_S):
            key = self._prefix + b"%06d" % number
            number += 1
            doomed = self._prefix + b"%06d" % (number - 3)
            ops = (Put(key, b""), Delete(doomed)) if number % 3 == 0 else (Put(key, b""),)
            try:
                self._kv.txn(Txn((absent(key),), ops))
            except RetryLater:
                continue
            with self._wrote:
                self.acknowledged.append(key)
                self._wrote.notify_all()

    def wait_for_more(self, count: int) -> None:
        with self._wrote:
            goal = len(self.acknowledged) + count
            done = self._wrote.wait_for(lambda: len(self.acknowledged) >= goal, PATIENCE_S)
            assert done, f"{len(self.acknowledged)} of {goal} writes in {PATIENCE_S} s"

    def stop(self) -> None:
        self._stopping.set()
        self.join(PATIENCE_S)
        self._kv.close()


class BareWatch(threading.Thread):
    """A watch on one member without resumption, leader demand or probes: the negative control."""

    def __init__(self, endpoint: str, prefix: bytes, start_revision: int) -> None:
        super().__init__(daemon=True)
        self.keys: list[bytes] = []
        self.error: grpc.RpcError | None = None
        self._closing = threading.Event()
        self._channel = grpc.insecure_channel(endpoint)
        self._create = rpc.WatchCreateRequest(
            key=prefix, range_end=prefix[:-1] + b"0", start_revision=start_revision
        )
        self.start()

    def run(self) -> None:
        try:
            for response in rpc.WatchStub(self._channel).Watch(self._requests()):
                self.keys += [event.kv.key for event in response.events]
        except grpc.RpcError as error:
            self.error = error

    def close(self) -> None:
        self._closing.set()
        self._channel.close()
        self.join(PATIENCE_S)

    def _requests(self) -> Iterator[Any]:
        yield rpc.WatchRequest(create_request=self._create)
        self._closing.wait()


@contextmanager
def writing(etcd: EtcdProcess, prefix: bytes) -> Iterator[Writer]:
    writer = Writer(etcd, prefix)
    writer.start()
    try:
        writer.wait_for_more(1)
        yield writer
    finally:
        writer.stop()


def test_a_watch_misses_nothing_while_each_member_is_killed_in_turn(
    etcd: EtcdProcess, kv: EtcdKv
) -> None:
    start = kv.read(b"w/").revision + 1
    seen, members = Recorder(), set()
    watch = kv.watch(b"w/", start, seen)
    eventually(lambda: watch.member, "the watch's member")
    bare = BareWatch(watch.member, b"w/", start)
    with writing(etcd, b"w/") as writer:
        for number in range(3):
            etcd.kill(number)
            writer.wait_for_more(10)
            etcd.restart(number)
            writer.wait_for_more(4)
            members.add(watch.member)
    put(kv, b"w/end", b"")
    seen.wait_for_key("put", b"w/end")
    watch.close()
    truth = Recorder()
    with closing(kv.watch(b"w/", start, truth)):
        truth.wait_for_key("put", b"w/end")
    assert seen.seen == truth.seen
    written = [key for kind, key in seen.names() if kind == "put"]
    assert set(writer.acknowledged) <= set(written)
    assert len(written) == len(set(written))
    assert any(kind == "delete" for kind, _ in seen.names())
    assert len(members) > 1
    # The control: the same watch without resumption ended with its member, and missed the rest.
    assert bare.error is not None
    assert not set(writer.acknowledged) <= set(bare.keys)
    bare.close()


def test_a_watch_leaves_a_member_that_hangs(etcd: EtcdProcess, kv: EtcdKv) -> None:
    start = kv.read(b"hang/").revision + 1
    seen = Recorder()
    watch = kv.watch(b"hang/", start, seen)
    put(kv, b"hang/before", b"")
    seen.wait_for_key("put", b"hang/before")
    hung = etcd.endpoints.index(watch.member)
    bare = BareWatch(watch.member, b"hang/", start)
    eventually(lambda: bare.keys, "the first event of the bare watch")
    etcd.pause(hung)
    try:
        # With a nonce, because the hung member may have been the leader, whose answer is then lost.
        nonce = b"nonce-of-this-test"
        assert create(kv, b"hang/during", nonce, nonce=nonce) is not None
        seen.wait_for_key("put", b"hang/during")
        assert watch.member != etcd.endpoints[hung]
        # The control: without probes a watch on the hung member stays silent, and no error comes.
        assert bare.keys == [b"hang/before"]
        assert bare.error is None
    finally:
        etcd.resume(hung)
    put(kv, b"hang/after", b"")
    seen.wait_for_key("put", b"hang/after")
    watch.close()
    bare.close()
    assert seen.names() == [("put", b"hang/" + name) for name in (b"before", b"during", b"after")]


def test_calls_succeed_within_their_deadline_when_the_leader_is_killed(
    etcd: EtcdProcess, kv: EtcdKv
) -> None:
    lease = kv.grant(60).lease
    leader = etcd.leader()
    etcd.kill(leader)
    try:
        nonce = b"nonce-of-this-test"
        created = create(kv, b"leader/killed", b"by " + nonce, nonce=nonce)
        assert created is not None
        assert kv.read(b"leader/killed").items[0].mod_revision == created
        assert kv.refresh(lease) == 60
        assert kv.grant(60).ttl_s == 60
        kv.revoke(lease)
    finally:
        etcd.restart(leader)


def test_without_a_quorum_calls_end_at_their_deadline_and_a_watch_goes_on_later(
    etcd: EtcdProcess, kv: EtcdKv
) -> None:
    seen = Recorder()
    watch = kv.watch(b"quorum/", 0, seen)
    eventually(lambda: watch.member, "the watch's member")
    mine = etcd.endpoints.index(watch.member)
    others = [number for number in range(3) if number != mine]
    for number in others:
        etcd.pause(number)
    try:
        # an answer that was on its way when they were stopped may still count
        eventually(lambda: etcd.endpoints[mine] in _why_unread(kv, b"quorum/"), "no quorum")
        with pytest.raises(RetryLater):
            kv.txn(Txn((absent(b"quorum/maybe"),), (Put(b"quorum/maybe", b""),)), deadline_s=1.5)
    finally:
        for number in others:
            etcd.resume(number)
    eventually(lambda: _can_write(kv, b"quorum/after"), "a leader")
    seen.wait_for_key("put", b"quorum/after")
    watch.close()
    assert seen.names() in (
        [("put", b"quorum/after")],
        [("put", b"quorum/maybe"), ("put", b"quorum/after")],
        [("put", b"quorum/after"), ("put", b"quorum/maybe")],
    )


def test_a_dead_endpoint_beside_a_live_one_does_no_harm(etcd: EtcdProcess) -> None:
    (dead,) = free_ports(1)
    for order in ([f"127.0.0.1:{dead}", etcd.endpoints[0]], [etcd.endpoints[0], f"[::1]:{dead}"]):
        with closing(EtcdKv(order)) as kv:
            seen = Recorder()
            watch = kv.watch(b"dead/", 0, seen)
            for number in range(10):
                put(kv, b"dead/%d" % number, b"")
            seen.wait(lambda seen: len(seen.events) == 10, "ten events")
            watch.close()


def test_unreachable_endpoints_are_named_at_the_deadline() -> None:
    first, second = free_ports(2)
    with closing(EtcdKv(f"127.0.0.1:{first},127.0.0.1:{second}")) as kv:
        for act in (
            lambda: kv.read(b"k", deadline_s=0.5),
            lambda: kv.txn(Txn((), (Put(b"k", b""),)), deadline_s=0.5),
            lambda: kv.grant(5, deadline_s=0.5),
            lambda: kv.refresh(1, deadline_s=0.5),
            lambda: kv.identity(deadline_s=0.5),
        ):
            with pytest.raises(Unavailable, match=f"127.0.0.1:{first},127.0.0.1:{second}.*0.5 s"):
                act()


def test_closing_ends_calls_and_watches_at_once(etcd: EtcdProcess, network: Network) -> None:
    kv = EtcdKv(network.open("e0", etcd.endpoints[0]))
    kv.watch(b"close/", 0, Recorder())
    outcome: list[object] = []

    def read() -> None:
        try:
            kv.read(b"k", deadline_s=3600)
        except Unavailable as error:
            outcome.append(error)

    kv.read(b"warm")
    silence = network.apply(Rule("drop", way="answers"))
    reader = threading.Thread(target=read)
    reader.start()
    eventually(lambda: network.effect(silence).pieces > 0, "the answer, which does not come")
    kv.close()
    reader.join(PATIENCE_S)
    assert len(outcome) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "etcd-watch-close/"]
    with pytest.raises(Unavailable, match="closed"):
        kv.read(b"k")
    with pytest.raises(Unavailable, match="closed"):
        kv.watch(b"close/", 1, Recorder())


def _why_unread(kv: EtcdKv, key: bytes) -> str:
    """Why it cannot be read; nothing if it can."""
    try:
        kv.read(key, deadline_s=1.5)
    except Unavailable as error:
        return str(error)
    return ""


def _can_write(kv: EtcdKv, key: bytes) -> bool:
    try:
        return bool(kv.read(key).items) or create(kv, key, b"") is not None
    except RetryLater:
        return False
