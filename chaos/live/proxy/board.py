"""All listeners, connections and rules of the proxy. Everything here runs in the loop's thread."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from resilient_ps.chaos.faults.links import EVERYBODY, Effect, Rule
from resilient_ps.chaos.live.proxy.connection import Connection
from resilient_ps.chaos.live.proxy.listener import Listener
from resilient_ps.chaos.live.proxy.owners import HARNESS, Owners
from resilient_ps.chaos.live.proxy.sockets import Endpoint, SocketTable, reset
from resilient_ps.chaos.live.proxy.treatment import InForce
from resilient_ps.errors import BadInput, NotFound

MAX_CONNECTIONS = 4096
MAX_LISTENERS = 256
MAX_RULES = 1024
MAX_ENDED_RULES = 4096
LOOK_EVERY_S = 0.02


class Board:
    """Use `run` as a task beside it: it looks who is alive."""

    def __init__(self) -> None:
        self._listeners: dict[Endpoint, Listener] = {}
        self._rules: dict[int, InForce] = {}
        self._ended: dict[int, Effect] = {}
        self._numbers = itertools.count(1)
        self._owners = Owners()
        self._asking = ThreadPoolExecutor(1, "owners")
        self._table = SocketTable()
        self._chance = random.Random()
        self._tasks: set[asyncio.Task[None]] = set()
        self._beats: dict[int, asyncio.TimerHandle] = {}

    async def run(self) -> None:
        """For ever: let listeners follow the parties that they stand for."""
        while True:
            try:
                alive = self._table.listening()
                for listener in self._listeners.values():
                    listener.follow(is_alive=listener.watched in alive)
            except OSError as error:  # what was so before stays so
                print(f"cannot look who listens: {error}", file=sys.stderr, flush=True)
            await asyncio.sleep(LOOK_EVERY_S)

    # -- parties

    def expose(self, party: str, target: Endpoint, port: int, watched: int) -> Endpoint:
        """Where the party can be dialled from now on."""
        if len(self._listeners) >= MAX_LISTENERS:
            raise BadInput(f"the proxy stands for at most {MAX_LISTENERS} addresses")
        try:
            listener = Listener(party, target, port, watched, self._accepted, self._is_alive)
        except OSError as error:
            raise BadInput(f"cannot stand for {party} at port {port}: {error}") from error
        self._listeners[listener.address] = listener
        self._refuse_where_ruled()
        return listener.address

    def withdraw(self, address: Endpoint) -> None:
        """Nothing stands there any more; its connections are reset."""
        listener = self._listeners.pop(address, None)
        if listener is None:
            raise NotFound(f"the proxy does not stand at {address[0]}:{address[1]}")
        listener.close()

    async def own(self, party: str, pid: int) -> None:
        """The party is this process now; also of connections that nobody was known for."""
        self._owners.own(party, pid)
        unknown = {c.inode: c for c in self._connections() if c.source == HARNESS and c.inode}
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._asking, self._owners.find, list(unknown))
        for inode, source in found.items():
            if source != HARNESS:
                unknown[inode].source = source
        self._treat_all()

    # -- rules

    def apply(self, rule: Rule) -> int:
        if len(self._rules) >= MAX_RULES:
            raise BadInput(f"at most {MAX_RULES} rules can be in force: lift some")
        one = InForce(next(self._numbers), rule)
        self._rules[one.number] = one
        self._treat_all()
        if rule.what in ("reset", "refuse"):
            self._beat(one)
        return one.number

    def lift(self, number: int) -> Effect:
        one = self._rules.pop(number, None)
        if one is None:
            return self._ended.get(number, Effect())
        beat = self._beats.pop(number, None)
        if beat is not None:
            beat.cancel()
        self._ended[number] = one.effect
        if len(self._ended) > MAX_ENDED_RULES:
            del self._ended[min(self._ended)]
        self._treat_all()
        return one.effect

    def effect(self, number: int) -> Effect:
        one = self._rules.get(number)
        return self._ended.get(number, Effect()) if one is None else one.effect

    def close(self) -> None:
        """End everything."""
        for task in list(self._tasks):
            task.cancel()
        for listener in self._listeners.values():
            listener.close()
        self._asking.shutdown()
        self._owners.close()
        self._table.close()

    # --

    def _connections(self) -> list[Connection]:
        return [c for one in self._listeners.values() for c in one.connections.values()]

    def _is_alive(self, port: int) -> bool:
        try:
            return port in self._table.listening()
        except OSError:
            return True  # `run` looks again soon

    def _accepted(self, listener: Listener, client: socket.socket, dialler: Endpoint) -> None:
        if len(self._connections()) >= MAX_CONNECTIONS:
            reset(client)
            return
        number = next(self._numbers)
        connection = Connection(number, client, dialler, listener, self._chance)
        listener.connections[number] = connection
        task = asyncio.create_task(self._begin(listener, connection))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._begun(done, connection))

    def _begun(self, task: asyncio.Task[None], connection: Connection) -> None:
        """A connection never stands unattended."""
        self._tasks.discard(task)
        if task.cancelled():
            connection.reset()
        elif error := task.exception():
            print(f"cannot carry a connection: {error!r}", file=sys.stderr, flush=True)
            connection.reset()

    async def _begin(self, listener: Listener, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        own = listener.address
        connection.inode, connection.source = await loop.run_in_executor(
            self._asking, self._who, connection.dialler, own
        )
        rules = self._rules_for(listener, connection)
        connection.treat(rules)
        for one in rules:
            if one.rule.what == "refuse":
                one.pieces += 1
                connection.reset()
                return
        await connection.dial()

    def _who(self, dialler: Endpoint, own: Endpoint) -> tuple[int, str]:
        try:
            inode = self._owners.inode(dialler, own)
            return inode, self._owners.find([inode]).get(inode, HARNESS)
        except OSError as error:
            print(f"cannot tell who dialled: {error}", file=sys.stderr, flush=True)
            return 0, HARNESS

    def _rules_for(self, listener: Listener, connection: Connection) -> list[InForce]:
        pair = connection.source, listener.party
        return [one for one in self._rules.values() if one.rule.concerns(*pair)]

    def _treat_all(self) -> None:
        for listener in self._listeners.values():
            for connection in list(listener.connections.values()):
                if connection.source:
                    connection.treat(self._rules_for(listener, connection))
        self._refuse_where_ruled()

    def _refuse_where_ruled(self) -> None:
        rules = [one.rule for one in self._rules.values() if one.rule.what == "refuse"]
        refused = [rule for rule in rules if EVERYBODY in rule.sources]
        for one in self._listeners.values():
            one.refuse(refuses=any(rule.concerns("", one.party) for rule in refused))

    def _beat(self, one: InForce) -> None:
        """Reset what the rule concerns, and again when its time has passed."""
        for listener in self._listeners.values():
            for connection in list(listener.connections.values()):
                if connection.source and one.rule.concerns(connection.source, listener.party):
                    one.pieces += 1
                    connection.reset()
        if one.rule.what == "reset" and one.rule.every_s > 0:
            loop = asyncio.get_running_loop()
            self._beats[one.number] = loop.call_later(one.rule.every_s, self._beat, one)
