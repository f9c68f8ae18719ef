"""Dials that are given up at any moment, also in the one in which they succeed."""

from __future__ import annotations

import pytest
from echo_machine import CLUSTER
from host_thread import Followed, HostThread, Servers

from resilient_ps.machine import Drop, Effect, Event, MessageArrived, PeerLost, Send
from resilient_ps.messages import PROTOCOL, Ask, Hello, Told

TIMES = 10_000
WAITS = 5
OTHER = "server:b"
HELLO = Hello(PROTOCOL, CLUSTER, "server a")


def begin_and_give_up(event: Event) -> list[Effect]:
    """What is asked decides: a dial begins, or is given up, or nothing happens."""
    match event:
        case MessageArrived(peer, Ask(number, what)) if peer != OTHER:
            heard = Send(peer, Told(number, what))
            if what == "give up":
                return [Drop(OTHER, "given up"), heard]
            return [Send(OTHER, Ask(number, what)), heard] if what == "dial" else [heard]
    return []


def answer(event: Event) -> list[Effect]:
    match event:
        case MessageArrived(peer, Ask(number, what)):
            return [Send(peer, Told(number, what))]
    return []


@pytest.mark.soak
def test_nothing_comes_of_a_dial_that_was_given_up_and_the_next_one_succeeds() -> None:
    machine, asked = Followed(begin_and_give_up), Followed(answer)
    with HostThread(asked) as other:
        servers = Servers(b=other.listening.address)
        with HostThread(machine, directory=servers, hello=HELLO) as host, host.peer() as peer:
            for number in range(TIMES):
                peer.ask(Ask(number, "dial"))
                for _ in range(number % WAITS):  # until it stands, or nearly so
                    peer.ask(Ask(number, "wait"))
                peer.ask(Ask(number, "give up"))
            peer.ask(Ask(TIMES, "dial"))
            given_up, wrong = True, []
            while True:
                event = machine.next_event()
                match event:
                    case MessageArrived(from_whom, Ask(_, what)) if from_whom != OTHER:
                        given_up = what == "give up" or (given_up and what != "dial")
                    case MessageArrived(_, Told(number)) if number == TIMES:
                        break
                    case MessageArrived(from_whom, _) | PeerLost(from_whom) if given_up:
                        wrong.append((from_whom, event))
    assert wrong == []
    assert sum(isinstance(event, MessageArrived) for event in asked.rest()) > TIMES // 100
