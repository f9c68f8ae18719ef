"""What faults act on: the parties of a cluster here, the lines between them, the records.

Protocols only: `cluster.py`, `network.py` and `attached.py` are behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from resilient_ps.chaos.faults.kinds import Need
from resilient_ps.chaos.faults.links import Effect, Rule, StoreTrouble
from resilient_ps.chaos.live.orders import Order
from resilient_ps.chaos.live.records import Records

Role: TypeAlias = Literal["server", "worker", "etcd", "store"]
State: TypeAlias = Literal["running", "paused", "dead", "ended"]
"""`ended`: in order, by itself; `dead`: killed, or ended with an error."""


class Party(Protocol):
    """One process under a name that stays, however often it is started anew. Thread-safe."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> Role: ...
    @property
    def pid(self) -> int:
        """Of the present process, also of one that is over."""
        ...

    @property
    def state(self) -> State: ...
    @property
    def log(self) -> Path: ...
    @property
    def exit_code(self) -> int | None:
        """Of the present process; None while it runs. Negative: the signal that ended it."""
        ...

    @property
    def asked_to_end(self) -> bool:
        """Was it killed or stopped through this object since its last start?"""
        ...

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Nothing starts it again but `restart`."""
        ...

    def pause(self) -> None:
        """SIGSTOP."""
        ...

    def resume(self) -> None:
        """SIGCONT."""
        ...

    def stop(self, deadline_s: float) -> int:
        """SIGTERM, and wait for the end: the exit code. It is killed at the deadline."""
        ...

    def restart(self, environment: dict[str, str] | None = None) -> None:
        """Start it anew under its name and addresses; return when it serves (a worker: runs).

        Raises `Unavailable` with the end of its log.
        """
        ...


class Lines(Protocol):
    """The proxy between all parties. Thread-safe."""

    def apply(self, rule: Rule) -> int:
        """From now on; returns a number."""
        ...

    def lift(self, number: int) -> Effect:
        """No longer; what it has done. A number that is not known any more is no error."""
        ...

    def effect(self, number: int) -> Effect:
        """What it has done so far."""
        ...

    def trouble_store(self, trouble: StoreTrouble) -> None:
        """Replaces what was before; `StoreTrouble()` ends it."""
        ...

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those in force."""
        ...

    def store_effect(self) -> Effect:
        """What has been done to the store's answers, all together."""
        ...


class Claims(Protocol):
    """Whose process is being struck: one fault at a time kills, pauses, stops or restarts it.

    Thread-safe. A fault claims its parties when it is injected, and releases them when all is as
    it was before.
    """

    def claim(self, name: str) -> None:
        """From now on this party is ours. Raises `Skipped` when it is another fault's."""
        ...

    def doom(self, name: str, *, in_order: bool = False) -> None:
        """Before a claimed server or member of etcd is ended: it counts as dead from now on.

        Raises `Skipped`, and leaves it as it was, when a shard would lose its last copy, or etcd
        its majority. Otherwise a server is paused until it is ended, which must be at once.
        `in_order`: it will be told to stop, and be able to give up other members before it ends.
        """
        ...

    def release(self, name: str) -> None:
        """It is nobody's again, and as alive as its process. May be called again."""
        ...


class Scene(Protocol):
    """Everything that faults need. `lines` is None where no proxy stands between the parties."""

    @property
    def cluster(self) -> str: ...
    @property
    def etcd(self) -> str:
        """Endpoints for the harness, past all proxies: of e0, e1, ... in this order."""
        ...

    @property
    def public_etcd(self) -> str:
        """Endpoints as workers and servers are told them: through the proxies, if there are any."""
        ...

    @property
    def folder(self) -> Path: ...
    @property
    def lease_ttl_s(self) -> int: ...
    @property
    def records(self) -> Records: ...
    @property
    def lines(self) -> Lines | None: ...
    @property
    def claims(self) -> Claims: ...
    @property
    def offers(self) -> frozenset[Need]:
        """What is here of that which kinds of faults need."""
        ...

    def parties(self, role: Role | None = None) -> Sequence[Party]:
        """In the order of their names."""
        ...

    def party(self, name: str) -> Party:
        """Raises `NotFound`."""
        ...

    def order(self, server: str, what: Literal["gil", "loop"], seconds: float) -> Order:
        """Have a server hold its interpreter lock, or block its event loop; returns at once.

        Raises `Unavailable` when no server takes the order.
        """
        ...

    def add_server(self) -> Party:
        """One more; returns when it serves."""
        ...

    def remove_server(self, name: str) -> None:
        """Drain it, stop it in order, and forget it."""
        ...


class Fault(Protocol):
    """One fault; made by `faults.make` for a planned one. Called by one thread."""

    @property
    def struck(self) -> tuple[str, ...]:
        """Whom, by name; known after `inject`."""
        ...

    def inject(self) -> None:
        """Bring it about. Raises `Skipped` when it would destroy a shard, or finds nobody."""
        ...

    def heal(self) -> None:
        """End it, and bring back what it took. May be called again, and when `inject` failed."""
        ...

    def evidence(self) -> str:
        """After `heal`: how it is known that it really happened; "" when it did not."""
        ...


class Skipped(Exception):
    """Why a fault was not brought about."""
