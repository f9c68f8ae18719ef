"""Ports that stay ours while nothing listens on them."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from resilient_ps.runtime.listening import listen_on
from resilient_ps.runtime.spawn import ReservedPorts

HOST = "127.0.0.1"


def test_a_server_may_come_and_go_on_a_reserved_port() -> None:
    with closing(ReservedPorts()) as ports:
        port = ports.take()
        for _ in range(2):
            listening = listen_on(f"{HOST}:{port}")
            socket.create_connection((HOST, port), 5).close()
            listening.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, port), 5)


def test_nobody_else_gets_a_reserved_port() -> None:
    with closing(ReservedPorts()) as ports, socket.socket() as other:
        port = ports.take()
        with pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))
        ports.close()
        other.bind((HOST, port))
