"""What etcd holds of a namespace: its quota."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from resilient_ps.coordinator.fields import INT64_MAX, Fields
from resilient_ps.coordinator.records import Record


@dataclass(frozen=True, slots=True)
class NamespaceRecord(Record):
    """A namespace: how much all tables in it and below it may hold together. None: no bound.

    `in_force`: the incarnation of the cluster in which all shards know the bounds; the coordinator
    writes it, and whoever changes the bounds sets it to 0. `dropping`: numbers of tables that are
    registered no more, and of which shards are to be told.
    """

    WHAT = "namespace record"

    rows_max: int | None
    bytes_max: int | None
    in_force: int = 0
    dropping: tuple[int, ...] = ()

    @classmethod
    def _read(cls, fields: Fields) -> Self:
        return cls(
            rows_max=fields.optional_integer("rows_max", 0, INT64_MAX),
            bytes_max=fields.optional_integer("bytes_max", 0, INT64_MAX),
            in_force=fields.integer("in_force", 0, INT64_MAX),
            dropping=fields.integers("dropping", 1, 2**32 - 1),
        )

    @property
    def bounded(self) -> bool:
        """Has it a quota?"""
        return self.rows_max is not None or self.bytes_max is not None
