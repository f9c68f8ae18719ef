"""What only harnesses and operators ask of a single member of etcd: its maintenance API."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator.runtime.endpoints import Endpoint, parse_address, parse_addresses
from resilient_ps.coordinator.runtime.refusals import describe
from resilient_ps.errors import Unavailable

DEADLINE_S = 5.0
DEFRAGMENT_DEADLINE_S = 30.0
_GET, _ACTIVATE, _DEACTIVATE = 0, 1, 2
_NO_SPACE = 1


class MemberStatus(NamedTuple):
    """What a member says of itself. `db_bytes`: of its file, on its disk."""

    member: int
    leader: int
    db_bytes: int
    revision: int


def granted_ttl_s(etcd: str, lease: int) -> int:
    """For how long a lease was granted. Raises `Unavailable` when no member says so."""
    why = ""
    for address in parse_addresses(etcd):
        with Maintenance(address) as member:
            try:
                return member.granted_ttl_s(lease)
            except Unavailable as error:
                why = str(error)
    raise Unavailable(why)


class Maintenance:
    """One member, by its address. A context; every call raises `Unavailable`, naming it."""

    def __init__(self, address: str) -> None:
        self._member = Endpoint(parse_address(address), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._member.channel.close()

    def status(self, deadline_s: float = DEADLINE_S) -> MemberStatus:
        told = self._call(
            "status",
            lambda: self._member.maintenance.Status(rpc.StatusRequest(), timeout=deadline_s),
        )
        head = told.header
        return MemberStatus(head.member_id, told.leader, told.dbSize, head.revision)

    def granted_ttl_s(self, lease: int) -> int:
        """For how long a lease was granted. Raises `Unavailable` for one that has ended, too."""
        told = self._call(
            "lease",
            lambda: self._member.lease.LeaseTimeToLive(
                rpc.LeaseTimeToLiveRequest(ID=lease), timeout=DEADLINE_S
            ),
        )
        if told.TTL <= 0:
            raise Unavailable(f"lease {lease} of etcd {self._member.address} has ended: look again")
        return int(told.grantedTTL)

    def defragment(self, deadline_s: float = DEFRAGMENT_DEADLINE_S) -> None:
        """Write its file anew without the holes in it; it serves nobody meanwhile."""
        self._call(
            "defragmentation",
            lambda: self._member.maintenance.Defragment(
                rpc.DefragmentRequest(), timeout=deadline_s
            ),
        )

    def out_of_space(self) -> list[int]:
        """The members for which the alarm NOSPACE is raised: all of etcd refuses writes then."""
        return [each.memberID for each in self._alarm(_GET, 0).alarms if each.alarm == _NO_SPACE]

    def raise_no_space(self, member: int) -> None:
        """As if the file of a member had outgrown its quota."""
        self._alarm(_ACTIVATE, member)

    def disarm_no_space(self, member: int) -> None:
        """Writes are accepted again."""
        self._alarm(_DEACTIVATE, member)

    def _alarm(self, action: int, member: int) -> Any:
        request = rpc.AlarmRequest(action=action, memberID=member, alarm=_NO_SPACE)
        return self._call(
            "alarm", lambda: self._member.maintenance.Alarm(request, timeout=DEADLINE_S)
        )

    def _call(self, what: str, send: Callable[[], Any]) -> Any:
        try:
            return send()
        except grpc.RpcError as error:
            raise Unavailable(
                f"{what} of etcd {self._member.address}: {describe(error)}; see its log"
            ) from error
