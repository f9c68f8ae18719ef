"""Namespaces as they are registered in etcd: made, given quotas, and removed.

A namespace need not be registered for tables to lie in it. Its record holds its quota, and while it
is being removed the numbers of tables that shards have to be told of still: so a removal that was
interrupted is finished by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from resilient_ps.coordinator.keys import MAX_LEVELS, ClusterKeys, check_namespace
from resilient_ps.coordinator.kv import (
    Compare,
    Delete,
    KeyValue,
    Kv,
    Op,
    Put,
    Txn,
    absent,
    unchanged,
)
from resilient_ps.coordinator.namespace_record import NamespaceRecord
from resilient_ps.coordinator.records import (
    ClusterConfig,
    RestoreRecord,
    TableRecord,
)
from resilient_ps.errors import BadInput, DeadlineExceeded, RetryLater, SpecMismatch, Unavailable
from resilient_ps.namespaces import covers, enclosing
from resilient_ps.quotas import QUOTAS_MAX

POLL_S = 0.05
TABLES_AT_ONCE = 40
_T = TypeVar("_T")


class Scopes:
    """The namespaces of one cluster. All calls end at `deadline_s`."""

    def __init__(self, kv: Kv, keys: ClusterKeys, deadline_s: float) -> None:
        self._kv = kv
        self._keys = keys
        self._deadline_s = deadline_s

    def all(self) -> dict[str, NamespaceRecord]:
        """Those that are registered, by name."""
        prefix = self._keys.namespaces
        items = self._kv.read(prefix, prefix=True, deadline_s=self._deadline_s).items
        return {
            item.key.removeprefix(prefix).decode(): NamespaceRecord.from_bytes(item.value, item.key)
            for item in items
        }

    def find(self, path: str) -> NamespaceRecord | None:
        """The record of this namespace."""
        return self._read(path)[1]

    def open(self, path: str, rows_max: int | None, bytes_max: int | None) -> NamespaceRecord:
        """The namespace of this name: registered, or found; its quota is in force then.

        Without bounds it is taken as it is. Raises `SpecMismatch` showing both quotas.
        """
        asked = NamespaceRecord(_bound("rows_max", rows_max), _bound("bytes_max", bytes_max))

        def attempt() -> NamespaceRecord | None:
            item, found = self._read(path)
            if found is None:
                self._check_number(path, asked)
                return self._write(path, item, asked)
            if asked.bounded and _quota(found) != _quota(asked):
                raise SpecMismatch(
                    f"namespace {path!r} exists with {quota_text(found)}; asked for was "
                    f"{quota_text(asked)}. Change it with `resilient-ps ns set {path}`"
                )
            return found

        check_namespace(path)
        self._until(f"registering namespace {path!r}", attempt)
        return self.wait(path)

    def set(self, path: str, rows_max: int | None, bytes_max: int | None) -> NamespaceRecord:
        """Give the namespace this quota instead of what it had; it is in force then."""
        asked = NamespaceRecord(_bound("rows_max", rows_max), _bound("bytes_max", bytes_max))

        def attempt() -> NamespaceRecord | None:
            item, found = self._read(path)
            if found is not None and _quota(found) == _quota(asked):
                return found
            self._check_number(path, asked)
            dropping = () if found is None else found.dropping
            return self._write(path, item, replace(asked, dropping=dropping))

        check_namespace(path)
        self._until(f"changing the quota of namespace {path!r}", attempt)
        return self.wait(path)

    def wait(self, path: str) -> NamespaceRecord:
        """Until all shards know its quota."""

        def attempt() -> NamespaceRecord | None:
            record = self.find(path)
            if record is None:
                raise Unavailable(f"namespace {path!r} was removed meanwhile")
            return record if record.in_force == self._incarnation() else None

        return self._until(f"bringing the quota of namespace {path!r} into force", attempt)

    def check_in_force(self, name: str) -> None:
        """Raise `Unavailable` if a table of this name has a quota that shards do not know yet."""
        for path in enclosing(name)[:MAX_LEVELS]:
            record = self.find(path)
            if record is not None and record.bounded and record.in_force != self._incarnation():
                raise Unavailable(
                    f"the quota of namespace {path!r} is not in force yet: is a coordinator "
                    "running? (`resilient-ps status` tells)"
                )

    # -- removing

    def strip(self, path: str, drop: Callable[[int], None]) -> list[str]:
        """Remove all tables in the namespace and below it; gives their names.

        `drop(number)` tells all shards of one. What an interrupted call has left is done first.
        """
        self._until(f"registering namespace {path!r}", lambda: self._registered(path))
        dropped: list[str] = []
        while True:
            self._finish(path, drop)
            names = self._until(
                f"removing tables of namespace {path!r}", lambda: self._unlist(path)
            )
            dropped += names
            if not names:
                return dropped

    def forget(self, path: str) -> list[str]:
        """Remove the records of the namespace and of those below it, once no quota is in force."""
        gone = [path, *(each for each in self.all() if covers(path, each))]
        for each in gone:
            if self.find(each) is not None:
                self.set(each, None, None)
        self._kv.txn(Txn((), tuple(Delete(self._keys.namespace(each)) for each in gone)))
        return gone

    def _registered(self, path: str) -> NamespaceRecord | None:
        item, found = self._read(path)
        return found or self._write(path, item, NamespaceRecord(None, None))

    def _finish(self, path: str, drop: Callable[[int], None]) -> None:
        """Tell shards of the tables that are not listed any more."""

        def attempt() -> NamespaceRecord | None:
            item, found = self._read(path)
            if found is None or not found.dropping:
                return found or self._registered(path)
            for number in found.dropping:
                drop(number)
            return self._write(path, item, replace(found, dropping=()))

        self._until(f"removing tables of namespace {path!r}", attempt)

    def _unlist(self, path: str) -> list[str] | None:
        """Some tables are registered no more; the record says that shards are to be told."""
        prefix = self._keys.tables_in(path)
        items = self._kv.read(prefix, prefix=True, deadline_s=self._deadline_s).items
        chosen = items[:TABLES_AT_ONCE]
        if not chosen:
            return []
        numbers = [TableRecord.from_bytes(item.value, item.key).table_id for item in chosen]
        held, found = self._read(path)
        if held is None or found is None or found.dropping:
            raise Unavailable(f"namespace {path!r} is being removed by somebody else: try again")
        put = Put(held.key, replace(found, dropping=tuple(numbers)).to_bytes())
        ops: list[Op] = [put, *(Delete(item.key) for item in chosen)]
        guards = [unchanged(item.key, item.mod_revision) for item in [held, *chosen]]
        if not self._kv.txn(Txn(tuple(guards), tuple(ops))).succeeded:
            return None
        return [item.key.removeprefix(self._keys.tables).decode() for item in chosen]

    # -- etcd

    def _read(self, path: str) -> tuple[KeyValue | None, NamespaceRecord | None]:
        items = self._kv.read(self._keys.namespace(path), deadline_s=self._deadline_s).items
        if not items:
            return None, None
        return items[0], NamespaceRecord.from_bytes(items[0].value, items[0].key)

    def _write(
        self, path: str, item: KeyValue | None, record: NamespaceRecord
    ) -> NamespaceRecord | None:
        key = self._keys.namespace(path)
        guard = absent(key) if item is None else unchanged(key, item.mod_revision)
        txn = Txn((guard, self._settled()), (Put(key, record.to_bytes()),))
        return record if self._kv.txn(txn).succeeded else None

    def _settled(self) -> Compare:
        """A guard that holds while nothing is being restored. Raises `Unavailable`."""
        key = self._keys.restore
        items = self._kv.read(key, deadline_s=self._deadline_s).items
        if not items:
            return absent(key)
        if not RestoreRecord.from_bytes(items[0].value, key).registered:
            raise Unavailable("the cluster is being restored: its namespaces come back first")
        return unchanged(key, items[0].mod_revision)

    def _incarnation(self) -> int:
        items = self._kv.read(self._keys.config, deadline_s=self._deadline_s).items
        if not items:
            raise Unavailable(f"cluster {self._keys.cluster!r} is not there yet")
        return ClusterConfig.from_bytes(items[0].value, items[0].key).incarnation

    def _check_number(self, path: str, asked: NamespaceRecord) -> None:
        bounded = [each for each, record in self.all().items() if record.bounded and each != path]
        if asked.bounded and len(bounded) >= QUOTAS_MAX:
            raise BadInput(
                f"{QUOTAS_MAX} namespaces have a quota, and no more can: {_first(bounded)}. Give "
                "one to a namespace that encloses several of them"
            )

    def _until(self, what: str, attempt: Callable[[], _T | None]) -> _T:
        """Try until it works: others may change the same keys meanwhile."""
        end = time.monotonic() + self._deadline_s
        last: RetryLater | None = None
        while True:
            try:
                result = attempt()
            except RetryLater as error:
                result, last = None, error
            if result is not None:
                return result
            if time.monotonic() >= end:
                raise last or DeadlineExceeded(
                    f"{what} did not end within {self._deadline_s:g} s: is a coordinator running, "
                    "and has every shard a primary? (`resilient-ps status` tells)"
                )
            time.sleep(POLL_S)


def quota_text(record: NamespaceRecord) -> str:
    """`rows_max=1000`, for people."""
    bounds = [("rows_max", record.rows_max), ("bytes_max", record.bytes_max)]
    return ", ".join(f"{n}={bound}" for n, bound in bounds if bound is not None) or "no quota"


def _quota(record: NamespaceRecord) -> tuple[int | None, int | None]:
    return record.rows_max, record.bytes_max


def _bound(name: str, bound: int | None) -> int | None:
    if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 0):
        raise BadInput(f"{name}={bound!r}: give a whole number from 0, or None for no bound")
    return bound


def _first(paths: Iterable[str]) -> str:
    names = sorted(paths)
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
