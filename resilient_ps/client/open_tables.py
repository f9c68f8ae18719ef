"""The tables that a program trains: each is created, or found with the same specification."""

from __future__ import annotations

from resilient_ps.client.catalogue import Catalogue
from resilient_ps.client.opening import announce_table, bind, drop_table
from resilient_ps.client.tables import DenseTable, SparseTable
from resilient_ps.errors import NotFound, QuotaExceeded, SpecMismatch
from resilient_ps.runtime.driver import Driver
from resilient_ps.tables.initialisers import Initialiser, Zeros
from resilient_ps.tables.optimisers import Optimiser
from resilient_ps.tables.spec import DenseSpec, Dtype, SparseSpec, TableSpec


class OpenTables:
    """What workers and holders of tasks have in common: tables over one session."""

    def __init__(self, driver: Driver, catalogue: Catalogue, deadline_s: float) -> None:
        self._driver = driver
        self._catalogue = catalogue
        self._deadline_s = deadline_s
        self._tables: dict[str, SparseTable | DenseTable] = {}

    def sparse_table(
        self,
        name: str,
        *,
        dim: int,
        optimiser: Optimiser,
        dtype: Dtype = "float32",
        initialiser: Initialiser | None = None,
    ) -> SparseTable:
        """The sparse table of this name: created, or found with the same specification."""
        spec = SparseSpec(name, dim, dtype, optimiser, initialiser or Zeros())
        table = self._open(spec)
        assert isinstance(table, SparseTable)
        return table

    def dense_table(
        self,
        name: str,
        *,
        shape: tuple[int, ...],
        optimiser: Optimiser,
        dtype: Dtype = "float32",
        initialiser: Initialiser | None = None,
    ) -> DenseTable:
        """The dense table of this name: created, or found with the same specification."""
        table = self._open(DenseSpec(name, shape, dtype, optimiser, initialiser or Zeros()))
        assert isinstance(table, DenseTable)
        return table

    def table(self, name: str) -> SparseTable | DenseTable:
        """An existing table. Raises `NotFound`."""
        handle = self._catalogue.table(name)
        if handle is None:
            names = ", ".join(self._catalogue.tables()) or "-"
            raise NotFound(f"there is no table {name!r}; tables: {names}")
        return self._open(handle.spec)

    def _open(self, spec: TableSpec) -> SparseTable | DenseTable:
        held = self._tables.get(spec.name)
        if held is not None:
            if held.spec != spec:
                raise SpecMismatch(
                    f"table {spec.name!r} is open as {held.spec.describe()}; asked for was "
                    f"{spec.describe()}"
                )
            return held
        handle = self._catalogue.create_table(spec)
        try:
            announce_table(self._driver, handle, self._deadline_s)
        except QuotaExceeded:  # some shards may have had room for their part of it
            if self._catalogue.table(spec.name) == handle:
                self._catalogue.drop_table(spec.name)
            drop_table(self._driver, handle.number, self._deadline_s)
            raise
        self._tables[spec.name] = bind(handle, self._driver, self._deadline_s, writable=True)
        return self._tables[spec.name]

    def _open_tables_again(self) -> None:
        """In the incarnation that the cluster went back to."""
        for table in list(self._tables.values()):
            handle = self._catalogue.create_table(table.spec)
            announce_table(self._driver, handle, self._deadline_s)
            table.rebind(handle)
