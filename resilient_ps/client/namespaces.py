"""A namespace for programs: `client.namespace("ctr/emb", rows_max=1_000_000)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from resilient_ps.client.scopes import Scopes
from resilient_ps.coordinator.keys import check_namespace
from resilient_ps.errors import NotFound
from resilient_ps.namespaces import covers

if TYPE_CHECKING:
    from resilient_ps.client.tables import DenseTable, SparseTable
    from resilient_ps.client.worker import Worker


class NamespaceQuota(NamedTuple):
    """How much all tables in a namespace and below it may hold together; None: no bound."""

    rows_max: int | None
    bytes_max: int | None


class Namespace:
    """A scope of tables: what lies in `ctr/emb` is named `ctr/emb/...`.

    A quota bounds all tables in the namespace and below it; those of the namespaces that enclose it
    count, too. `rows_max`: rows of sparse tables. `bytes_max`: bytes of rows and elements with the
    optimiser's state; a sparse row takes 8 + (dim + columns of state) x bytes of a value. A push
    that would go beyond raises `QuotaExceeded`.
    """

    def __init__(self, path: str, scopes: Scopes, names: Callable[[], list[str]]) -> None:
        self.path = path
        self._scopes = scopes
        self._names = names

    def __repr__(self) -> str:
        return f"Namespace({self.path!r})"

    def name_of(self, table: str) -> str:
        """The whole name of a table in it."""
        return f"{self.path}/{table}"

    def sparse_table(self, worker: Worker, name: str, **specification: Any) -> SparseTable:
        """`worker.sparse_table` of a table in this namespace."""
        return worker.sparse_table(self.name_of(name), **specification)

    def dense_table(self, worker: Worker, name: str, **specification: Any) -> DenseTable:
        """`worker.dense_table` of a table in this namespace. All of it counts at once."""
        return worker.dense_table(self.name_of(name), **specification)

    def namespace(
        self, name: str, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> Namespace:
        """A namespace in this one; see `Client.namespace`."""
        return opened(self.name_of(name), self._scopes, self._names, rows_max, bytes_max)

    def tables(self) -> list[str]:
        """The whole names of the tables in it and below it."""
        return [name for name in self._names() if covers(self.path, name)]

    @property
    def quota(self) -> NamespaceQuota:
        """As it is now. Raises `NotFound` when the namespace was removed."""
        record = self._scopes.find(self.path)
        if record is None:
            raise NotFound(f"namespace {self.path!r} was removed")
        return NamespaceQuota(record.rows_max, record.bytes_max)

    def set_quota(self, *, rows_max: int | None = None, bytes_max: int | None = None) -> None:
        """Give it another quota; all shards know it when this returns. None: no bound.

        A quota may be below what is used: then nothing can be created until it is above. Raises
        `DeadlineExceeded` where the coordinator does not bring it into force in time.
        """
        self._scopes.set(self.path, rows_max, bytes_max)


def opened(
    path: str,
    scopes: Scopes,
    names: Callable[[], list[str]],
    rows_max: int | None,
    bytes_max: int | None,
) -> Namespace:
    """The namespace, registered, and its quota in force."""
    check_namespace(path)
    scopes.open(path, rows_max, bytes_max)
    return Namespace(path, scopes, names)
