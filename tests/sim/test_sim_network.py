"""What the simulated network does to connections, and what it never does."""

from __future__ import annotations

import pytest
from sim_toys import MILLISECOND_NS, SECOND_NS, Pair

from resilient_ps.machine import Drop, MessageArrived, PeerLost, Send
from resilient_ps.messages import Ask, Hello


@pytest.mark.parametrize("wire", [False, True])
def test_messages_arrive_in_order_behind_a_greeting(wire: bool) -> None:
    pair = Pair(wire=wire)
    pair.ask(20)
    pair.run_for(SECOND_NS)
    first = pair.server.of(MessageArrived)[0]
    assert isinstance(first.message, Hello)
    assert pair.server.asks() == list(range(1, 21))


def test_a_partition_holds_data_back_and_delivers_it_in_order_when_it_ends() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.world.network.block("a", "b")
    pair.ask(5)
    pair.run_for(SECOND_NS // 2)
    assert pair.server.asks() == [1]
    pair.world.network.unblock("a", "b")
    pair.ask(2)
    pair.run_for(SECOND_NS)
    assert pair.server.asks() == list(range(1, 9))
    assert pair.client.of(PeerLost) == []


def test_data_on_its_way_when_a_partition_begins_is_held_back_too() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.ask()
    pair.world.network.block("a", "b")
    pair.run_for(SECOND_NS // 2)
    assert pair.server.asks() == [1]


def test_a_long_partition_breaks_the_connection_and_what_was_held_never_arrives() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.world.network.block("a", "b")
    pair.ask(3)
    pair.run_for(21 * SECOND_NS)
    assert pair.client.of(PeerLost) == [PeerLost("server:b")]
    assert pair.server.of(PeerLost) == []  # it has heard nothing: not even of the end
    pair.world.network.unblock("a", "b")
    pair.run_for(SECOND_NS)
    assert pair.server.asks() == [1]
    assert len(pair.server.of(PeerLost)) == 1


def test_a_partition_may_be_one_way() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.world.network.block("b", "a")
    pair.ask()
    (peer,) = {event.peer for event in pair.server.of(MessageArrived)}
    pair.b.perform([Send(peer, Ask(9, "status"))])
    pair.run_for(SECOND_NS // 2)
    assert pair.server.asks() == [1, 2]
    assert pair.client.asks() == []


@pytest.mark.parametrize("direction", [("a", "b"), ("b", "a")])
def test_a_dial_across_a_partition_ends_after_a_second_and_was_not_refused(
    direction: tuple[str, str],
) -> None:
    pair = Pair()
    pair.world.network.block(*direction)
    pair.ask(2)
    pair.run_for(SECOND_NS - 1)
    assert pair.client.of(PeerLost) == []
    pair.run_for(1)
    assert pair.client.of(PeerLost) == [PeerLost("server:b", refused=False)]


def test_a_killed_server_breaks_connections_and_refuses_new_ones() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.world.kill(pair.b)
    pair.run_for(SECOND_NS)
    pair.ask()
    pair.run_for(SECOND_NS)
    assert pair.client.of(PeerLost) == [PeerLost("server:b"), PeerLost("server:b", refused=True)]


def test_behind_a_partition_nobody_hears_of_a_kill_until_it_ends() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.world.network.block("b", "a")
    pair.world.kill(pair.b)
    pair.run_for(SECOND_NS // 2)
    assert pair.client.of(PeerLost) == []
    pair.world.network.unblock("b", "a")
    pair.run_for(SECOND_NS)
    assert pair.client.of(PeerLost) == [PeerLost("server:b")]


def test_a_firewall_refuses_dials_to_a_server_that_lives() -> None:
    pair = Pair()
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.world.network.refuse("a", "b")
    pair.run_for(SECOND_NS)
    pair.ask()
    pair.run_for(SECOND_NS)
    pair.world.network.accept("a", "b")
    pair.ask()
    pair.run_for(SECOND_NS)
    assert pair.client.of(PeerLost) == [PeerLost("server:b"), PeerLost("server:b", refused=True)]
    assert pair.server.asks() == [1, 3]


def test_old_data_may_arrive_after_newer_data_over_another_connection() -> None:
    late = 0
    for seed in range(30):
        pair = Pair(seed)
        pair.ask()
        pair.run_for(SECOND_NS)
        pair.ask()
        (connection,) = pair.world.connections()
        pair.world.cut(connection)
        pair.ask()
        pair.run_for(SECOND_NS)
        late += pair.server.asks() == [1, 3, 2]
    assert late > 0


def test_who_drops_a_connection_hears_no_more_of_it_but_what_it_sent_arrives() -> None:
    pair = Pair()
    pair.ask(3)
    pair.a.perform([Drop("server:b", "enough")])
    pair.run_for(SECOND_NS)
    assert pair.server.asks() == [1, 2, 3]
    assert len(pair.server.of(PeerLost)) == 1
    assert pair.client.of(PeerLost) == []


def test_a_slow_link_delivers_everything_later() -> None:
    pair = Pair()
    pair.world.network.slow("a", "b", 1000.0)
    pair.ask(5)
    pair.run_for(10 * MILLISECOND_NS)
    assert pair.server.asks() == []
    pair.run_for(5 * SECOND_NS)
    assert pair.server.asks() == [1, 2, 3, 4, 5]


def test_two_processes_may_have_a_connection_in_each_direction() -> None:
    pair = Pair()
    pair.world.listeners["a", 2] = pair.a
    pair.ask()
    pair.b.perform([Send("server:a", Ask(7, "status"))])
    pair.run_for(SECOND_NS)
    assert len(pair.world.connections()) == 2
    assert pair.server.asks() == [1]
    assert pair.client.asks() == [7]
