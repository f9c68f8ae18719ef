"""Metadata of every call to etcd: a token when etcd has users, and the demand for a leader."""

from __future__ import annotations

from typing import TypeAlias

import grpc
from etcd3 import etcdrpc as rpc

from resilient_ps.coordinator.runtime.endpoints import Endpoint
from resilient_ps.errors import BadInput

Metadata: TypeAlias = tuple[tuple[str, str], ...]

# A member without a leader then refuses at once, and ends its streams, instead of being silent.
_HAS_LEADER: Metadata = (("hasleader", "true"),)


class Login:
    """Logs in on first use and again after `forget`. Without a user there is no token."""

    def __init__(self, user: str | None, password: str | None) -> None:
        if (user is None) != (password is None):
            raise BadInput("etcd needs both a user and a password, or neither")
        self._user = user
        self._password = password
        self._token: str | None = None if user else ""

    def metadata(self, member: Endpoint, timeout_s: float) -> Metadata:
        """Raises `grpc.RpcError` when the login fails; the call itself was then not sent."""
        token = self._token
        if token is None:  # threads may log in at the same time: each token is as good
            token = self._token = self._authenticate(member, timeout_s)
        return (*_HAS_LEADER, ("token", token)) if token else _HAS_LEADER

    def forget(self) -> None:
        """The token is refused, or may be."""
        if self._user:
            self._token = None

    def _authenticate(self, member: Endpoint, timeout_s: float) -> str:
        request = rpc.AuthenticateRequest(name=self._user, password=self._password)
        try:
            return str(member.auth.Authenticate(request, timeout=timeout_s).token)
        except grpc.RpcError as error:
            if "authentication is not enabled" in (error.details() or ""):
                return ""  # as etcd's own client: the password is simply not needed
            raise
