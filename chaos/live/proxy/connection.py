"""One connection through the proxy: who dialled, whom, and its two directions."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Sequence
from typing import Protocol

from resilient_ps.chaos.live.proxy.pump import Pump
from resilient_ps.chaos.live.proxy.sockets import Endpoint, has_ended, reset
from resilient_ps.chaos.live.proxy.treatment import InForce, Treatment

DIAL_S = 30.0
_NO_DELAY = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Place(Protocol):
    """What a connection asks of the listener that it came through."""

    @property
    def target(self) -> Endpoint: ...

    def look(self) -> None:
        """The target may have died: refuse dials, if so."""
        ...

    def forget(self, connection: Connection) -> None: ...


class Connection:
    """`source`: the party that dialled; not known before `begin` was told."""

    def __init__(
        self,
        number: int,
        client: socket.socket,
        dialler: Endpoint,
        place: Place,
        chance: random.Random,
    ) -> None:
        self.number = number
        self.source = ""
        self.inode = 0
        self.dialler = dialler
        self._client = client
        self._server: socket.socket | None = None
        self._place = place
        self._chance = chance
        self._rules: Sequence[InForce] = ()
        self._counted: set[int] = set()
        self._pumps: tuple[Pump, ...] = ()
        self._may_dial = asyncio.Event()
        self._is_closed = False
        self._is_answered = False  # the last word was an answer
        self._was_reset = False

    # -- coming about

    async def dial(self) -> None:
        """Once a rule lets requests through. `treat` comes before."""
        was_cut = False
        while not self._is_closed and Treatment("requests", self._rules, self._chance).is_cut:
            was_cut = True
            self._may_dial.clear()
            await self._may_dial.wait()
        if self._is_closed:
            return
        if was_cut and has_ended(self._client):  # it has given up: nothing comes of it
            self.reset()
            return
        await self._reach_target()

    async def _reach_target(self) -> None:
        loop = asyncio.get_running_loop()
        server = socket.socket()
        server.settimeout(0)
        try:
            async with asyncio.timeout(DIAL_S):
                await loop.sock_connect(server, self._place.target)
        except (OSError, TimeoutError):
            server.close()
            self._place.look()
            self.reset()
            return
        except BaseException:
            server.close()
            raise
        if self._is_closed:
            reset(server)
            return
        self._server = server
        for one in (server, self._client):
            one.setsockopt(*_NO_DELAY)
        there, back = self._treatments()
        requests = Pump(loop, self._client, server, "requests", there, self)
        self._pumps = (requests, Pump(loop, server, self._client, "answers", back, self))

    # -- rules

    def treat(self, rules: Sequence[InForce]) -> None:
        """These concern it from now on."""
        self._rules = rules
        for one in rules:
            if one.number not in self._counted:
                one.connections += 1
        self._counted = {one.number for one in rules}
        self._may_dial.set()
        for pump, treatment in zip(self._pumps, self._treatments(), strict=False):
            pump.treat(treatment)

    def _treatments(self) -> tuple[Treatment, Treatment]:
        return (
            Treatment("requests", self._rules, self._chance),
            Treatment("answers", self._rules, self._chance),
        )

    # -- what the pumps say

    def passes(self, pump: Pump) -> bool:
        if pump.way == "requests":
            if self._is_answered:
                self._is_answered = False
                self._choose_victim()
            return True
        self._is_answered = True
        if not self._pumps[0].is_empty:
            return True  # to something before: this request is still on its way
        spent = [one for one in self._losers() if one.victim == self.number]
        for one in spent:
            one.pieces += 1
            one.is_spent = True
        if spent:
            self._lose_answers()
        return not spent

    def source_ended(self, pump: Pump) -> None:
        if pump.way == "answers":
            self._place.look()

    def end_passed(self, pump: Pump) -> None:
        if all(one.is_over for one in self._pumps):
            self._close(by_reset=self._was_reset)

    def source_reset(self, pump: Pump) -> None:
        self.reset()

    def sink_gone(self, pump: Pump) -> None:
        other = self._pumps[0] if pump is self._pumps[1] else self._pumps[1]
        if other.is_cut:  # its source must not learn of it yet
            self._was_reset = True
            pump.throw_away()
        else:
            self.reset()

    # -- losing an answer

    def _losers(self) -> list[InForce]:
        return [one for one in self._rules if one.rule.what == "lose answer" and not one.is_spent]

    def _choose_victim(self) -> None:
        """Of this request, the next one, the answer is to be lost."""
        for one in self._losers():
            one.victim = one.victim or self.number

    def _lose_answers(self) -> None:
        """The client reads a reset; the server is to carry out all that it was sent, so it reads an
        end in order, and what it says is thrown away."""
        requests, answers = self._pumps
        answers.throw_away()
        requests.stop()
        reset(self._client)
        requests.is_over = True
        self._was_reset = False
        if self._server is not None:
            self._server.shutdown(socket.SHUT_WR)

    # -- the end

    def reset(self) -> None:
        """Both ends read a reset."""
        self._close(by_reset=True)

    def _close(self, *, by_reset: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for pump in self._pumps:
            pump.stop()
        for sock in (self._client, self._server):
            if sock is not None:
                reset(sock) if by_reset else sock.close()
        for one in self._losers():
            if one.victim == self.number:
                one.victim = 0  # another one, then
        self._may_dial.set()
        self._place.forget(self)
