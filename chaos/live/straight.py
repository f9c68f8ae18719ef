"""A writer that pushes straight to one server, whatever etcd says of who leads what.

It keeps every rule of a worker but one: it never asks who the primary is. A server that has been
replaced must refuse all that it is sent.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping

import numpy as np

from resilient_ps.client.connection import Client
from resilient_ps.consistency import ASP
from resilient_ps.errors import Unavailable
from resilient_ps.ids import Epoch, WorkerId
from resilient_ps.messages import (
    PROTOCOL,
    Answer,
    Hello,
    Kind,
    Message,
    Part,
    PartAnswer,
    Request,
    Status,
    Welcome,
)
from resilient_ps.runtime.addresses import Address
from resilient_ps.tables.initialisers import Zeros
from resilient_ps.tables.optimisers import Sum
from resilient_ps.tables.spec import SparseSpec
from resilient_ps.wire import FrameReader, WireError, encode

SILENCE_S = 10.0
"""A server that runs answers a push, or closes the connection, within this time."""


class StraightWriter:
    """One rank of a job of its own, on one connection to `address`.

    `name`: of its job and of its table, which nobody else has. `keys`: by shard, the key to push.
    """

    def __init__(
        self, client: Client, address: Address, name: str, keys: Mapping[int, int]
    ) -> None:
        spec = client.catalogue.open_job(name, 1, ASP())
        self._worker = WorkerId(spec.job, 0, client.catalogue.draw_incarnation(name, 0))
        self._job_text = spec.to_json().encode()
        self._incarnation = client.routing().incarnation
        self._table = client.catalogue.create_table(SparseSpec(name, 1, "int64", Sum(), Zeros()))
        self._keys = dict(sorted(keys.items()))
        self.name = name
        self.keys = np.array(list(self._keys.values()), np.uint64)
        self._pushed = 0
        self._requests = 0
        self._reader = FrameReader()
        if address.unix_path and os.path.exists(address.unix_path):
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(address.unix_path)
        else:
            self._socket = socket.create_connection((address.host, address.port))
        self._socket.settimeout(SILENCE_S)
        self._send(Hello(PROTOCOL, client.cluster, "straight writer"))

    def begin(self) -> None:
        """Become a rank of the server's shards, and push once.

        Raises `Unavailable` where it refuses: it is no primary then.
        """
        table_text = self._table.spec.to_json().encode()
        for kind, text in (
            (Kind.OPEN_TABLE, table_text),
            (Kind.OPEN_JOB, self._job_text),
            (Kind.FENCE, b""),
        ):
            self._expect_ok(self._ask(kind, text))
        self.push()
        self._expect_ok(self.answers(1))

    def push(self) -> None:
        """Send a push to each shard, without waiting for anything."""
        self._pushed += 1
        ones = np.ones(len(self.keys), np.int64)
        parts = [Part(s, prev=self._pushed - 1, count=1, elements=1) for s in self._keys]
        self._send(
            Request(
                Kind.PUSH,
                self._next(),
                tuple(parts),
                self._incarnation,
                self._worker,
                clock=1,
                n=self._pushed,
                table=self._table.number,
                keys=self.keys,
                values=(ones,),
            )
        )

    def answers(self, pushes: int) -> list[PartAnswer]:
        """To so many pushes; fewer where the server closes the connection.

        Raises `Unavailable` when it says nothing at all.
        """
        return self._collect(pushes * len(self._keys))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _ask(self, kind: Kind, text: bytes) -> list[PartAnswer]:
        parts = tuple(Part(shard) for shard in self._keys)
        table = self._table.number if kind is Kind.OPEN_TABLE else 0
        self._send(
            Request(
                kind,
                self._next(),
                parts,
                self._incarnation,
                self._worker,
                table=table,
                text=text,
            )
        )
        return self._collect(len(parts))

    def _expect_ok(self, answers: Iterable[PartAnswer]) -> None:
        accepted = {a.shard for a in answers if a.status is Status.OK}
        refused = [f"shard {a.shard}: {a.status.name} {a.text.decode()}" for a in answers]
        if accepted != self._keys.keys():
            raise Unavailable(f"a server does not accept what it should: {'; '.join(refused)}")

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _send(self, message: Message) -> None:
        for buffer in encode(message):
            self._socket.sendall(buffer)

    def _collect(self, parts: int) -> list[PartAnswer]:
        answers: list[PartAnswer] = []
        try:
            while len(answers) < parts:
                count = self._socket.recv_into(self._reader.get_buffer())
                if not count:
                    break
                for message in self._reader.received(count):
                    answers += message.parts if isinstance(message, Answer) else ()
                    if not isinstance(message, Answer | Welcome):
                        raise Unavailable(f"a server says {message}")
        except TimeoutError as error:
            raise Unavailable(f"a server answers nothing for {SILENCE_S:g} s") from error
        except (ConnectionError, WireError):
            pass  # cut: nothing more of what was sent will be accepted
        return answers


def stale(answers: Iterable[PartAnswer], led: Mapping[int, Epoch]) -> int:
    """How many pushes were accepted in an epoch that had ended: `led` or an earlier one."""
    return sum(a.status is Status.OK and a.at.epoch <= led[a.shard] for a in answers)
