"""Parts of the etcd client that need no etcd: what a refusal means, and which member is tried."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import grpc
import pytest
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator.runtime.endpoints import MAX_ENDPOINTS, Endpoints, parse_addresses
from resilient_ps.coordinator.runtime.pin import Pin
from resilient_ps.coordinator.runtime.refusals import Verdict, judge, translate
from resilient_ps.errors import BadInput, NotFound, Reopen, Unavailable


@dataclass
class Refusal:
    """What gRPC raises, as far as anybody looks at it."""

    status: grpc.StatusCode
    text: str | None

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str | None:
        return self.text


CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        (CODE.UNAVAILABLE, "failed to connect to all addresses; refused", Verdict.NOT_APPLIED),
        (CODE.UNAVAILABLE, "etcdserver: no leader", Verdict.NOT_APPLIED),
        (CODE.UNAVAILABLE, "etcdserver: request timed out", Verdict.LOST),
        (CODE.UNAVAILABLE, "Socket closed", Verdict.LOST),
        (CODE.UNAVAILABLE, None, Verdict.LOST),
        (CODE.DEADLINE_EXCEEDED, "Deadline Exceeded", Verdict.LOST),
        (CODE.CANCELLED, "", Verdict.LOST),
        (CODE.INTERNAL, "Received RST_STREAM", Verdict.LOST),
        (CODE.UNKNOWN, "anything", Verdict.LOST),
        (CODE.UNAUTHENTICATED, "etcdserver: invalid auth token", Verdict.LOGIN),
        (CODE.INVALID_ARGUMENT, "etcdserver: auth: revision in header is old", Verdict.LOGIN),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Verdict.NOT_APPLIED),
        (CODE.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Verdict.FINAL),
        (CODE.INVALID_ARGUMENT, "etcdserver: request is too large", Verdict.FINAL),
        (CODE.PERMISSION_DENIED, "etcdserver: permission denied", Verdict.FINAL),
        (CODE.UNIMPLEMENTED, "unknown service etcdserverpb.KV", Verdict.FINAL),
    ],
)
def test_only_what_surely_had_no_effect_counts_as_not_applied(
    code: grpc.StatusCode, text: str | None, verdict: Verdict
) -> None:
    assert judge(Refusal(code, text)) is verdict


@pytest.mark.parametrize(
    ("code", "text", "kind", "remedy"),
    [
        (CODE.NOT_FOUND, "etcdserver: requested lease not found", NotFound, "grant a new one"),
        (CODE.RESOURCE_EXHAUSTED, "mvcc: database space exceeded", Unavailable, "compact"),
        (CODE.RESOURCE_EXHAUSTED, "message larger than max", BadInput, "ask for less"),
        (CODE.PERMISSION_DENIED, "permission denied", BadInput, "grant this user"),
        (CODE.INVALID_ARGUMENT, "authentication failed, invalid user", BadInput, "password"),
        (CODE.UNIMPLEMENTED, "unknown service", BadInput, "does not speak etcd's API"),
    ],
)
def test_a_final_refusal_names_the_call_the_place_and_the_remedy(
    code: grpc.StatusCode, text: str, kind: type[Exception], remedy: str
) -> None:
    error = translate("read of b'k'", "10.0.0.1:2379", Refusal(code, text))
    assert type(error) is kind
    for part in ("read of b'k'", "10.0.0.1:2379", text, remedy):
        assert part in str(error)


def test_a_client_stays_with_a_member_until_it_fails() -> None:
    with closing(Endpoints("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")) as endpoints:
        first = endpoints.pick()
        assert endpoints.pick() is first
        endpoints.failed(first)
        second = endpoints.pick()
        assert second is not first
        assert endpoints.pick() is second
        endpoints.failed(second)
        third = endpoints.pick()
        assert len({first.address, second.address, third.address}) == 3
        endpoints.failed(third)
        assert not endpoints.has_fresh()
        assert endpoints.pick() is first  # its back-off ends first
        endpoints.worked(second)
        assert endpoints.has_fresh()
        assert endpoints.pick() is second


def test_clients_spread_over_the_members() -> None:
    addresses = "127.0.0.1:1,127.0.0.1:2"
    picked = set()
    for _ in range(64):
        with closing(Endpoints(addresses)) as endpoints:
            picked.add(endpoints.pick().address)
    assert picked == set(addresses.split(","))


def test_addresses_are_checked() -> None:
    assert parse_addresses("http://a:1, b:2,,a:1/") == ("a:1", "b:2")
    assert parse_addresses(["[::1]:2379"]) == ("[::1]:2379",)
    for wrong in ("", "a", "a:", ":1", "a:0", "a:65536", "a:1/path", "ftp://a:1x"):
        with pytest.raises(BadInput):
            parse_addresses(wrong)
    with pytest.raises(BadInput, match="at most"):
        parse_addresses([f"a:{port}" for port in range(1, MAX_ENDPOINTS + 2)])


def test_another_cluster_or_a_lower_revision_is_noticed() -> None:
    pin = Pin()
    pin.check(rpc.ResponseHeader(cluster_id=7, revision=10), "a:1")
    with pytest.raises(Reopen, match="cluster 8, not 7"):
        pin.check(rpc.ResponseHeader(cluster_id=8, revision=99), "a:1")
    assert pin.floor() == 10  # the revision of another cluster means nothing
    pin.check(rpc.ResponseHeader(cluster_id=7, revision=9), "a:1")  # not a linearizable answer
    with pytest.raises(Reopen, match="revision 9, below 10"):
        pin.check(rpc.ResponseHeader(cluster_id=7, revision=9), "a:1", floor=10)
    pin.check(rpc.ResponseHeader(cluster_id=7, revision=10), "a:1", floor=10)
