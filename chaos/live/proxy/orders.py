"""What the proxy is told, as lines of JSON, and what it says to that.

    {"do": "apply", "rule": {...}}     ->  {"result": 7}
    {"do": "lift", "number": 7}        ->  {"result": {"connections": 2, "pieces": 5}}
    {"do": "something else"}           ->  {"error": "..."}

One answer to each line, in order.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

from resilient_ps.chaos.faults.links import Rule, StoreTrouble
from resilient_ps.chaos.live.proxy.board import Board
from resilient_ps.chaos.live.proxy.sockets import Endpoint
from resilient_ps.chaos.live.proxy.store import StoreProxy
from resilient_ps.errors import BadInput, NotFound, ResilientPsError

MAX_LINE_BYTES = 65_536


class Orders:
    """Carries them out on a board, and on the store's proxy when there is one."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._store: StoreProxy | None = None

    async def obey(self, line: bytes) -> bytes:
        try:
            order = json.loads(line)
            result = await self._do(order.pop("do"), order)
            answer: dict[str, Any] = {"result": result}
        except ResilientPsError as error:
            answer = {"error": str(error)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            answer = {"error": f"not an order: {error!r}"}
        return json.dumps(answer).encode() + b"\n"

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    async def _do(self, what: str, order: dict[str, Any]) -> Any:
        board = self._board
        match what:
            case "open":
                return self._open(**order)
            case "close":
                board.withdraw(_endpoint(order["address"]))
            case "know":
                await board.own(str(order["party"]), int(order["pid"]))
            case "apply":
                return board.apply(rule_from_json(order["rule"]))
            case "lift":
                return asdict(board.lift(int(order["number"])))
            case "effect":
                return asdict(board.effect(int(order["number"])))
            case "trouble store":
                self._present_store().trouble = StoreTrouble(**order["trouble"])
            case "store effect":
                return asdict(self._present_store().effect)
            case _:
                raise BadInput(f"not an order: {what!r}")
        return None

    def _open(
        self, *, party: str, target: str, port: int, http: bool, credentials: list[str]
    ) -> Endpoint:
        dialled = watched = _endpoint(target)
        if http:
            if self._store is not None:
                raise BadInput("there is one store, and the proxy stands for it already")
            access_key, secret_key = credentials
            self._store = StoreProxy(f"http://{target}", credentials=(access_key, secret_key))
            dialled = self._store.address
        return self._board.expose(party, dialled, port, watched[1])

    def _present_store(self) -> StoreProxy:
        if self._store is None:
            raise NotFound("no store behind the proxy: open one with http=True")
        return self._store


async def serve(board: Board, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the other end has gone."""
    orders = Orders(board)
    try:
        while line := await reader.readline():
            writer.write(await orders.obey(line))
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        orders.close()


def rule_from_json(values: dict[str, Any]) -> Rule:
    """What `dataclasses.asdict` made of a rule. Raises `BadInput` when it can be none."""
    names = {name: tuple(values[name]) for name in ("sources", "targets")}
    rule = Rule(**{**values, **names})
    if rule.what == "bandwidth" and rule.bytes_per_s < 1:
        raise BadInput(f"{rule}: a thin line passes 1 byte per second or more")
    return rule


def _endpoint(text: str) -> Endpoint:
    host, _, port = text.rpartition(":")
    return host, int(port)
