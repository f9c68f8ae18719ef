"""The specification of a table: what a cluster stores about it, and creators must agree on."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from resilient_ps.errors import BadInput
from resilient_ps.hashing import hash_text
from resilient_ps.tables.initialisers import Constant, Initialiser, Zeros
from resilient_ps.tables.optimisers import Optimiser, Sum

Dtype: TypeAlias = Literal["float32", "float64", "int64"]

DTYPES: tuple[Dtype, ...] = ("float32", "float64", "int64")
MAX_NAME_CHARS = 200
MAX_DIM = 4096
MAX_DIMENSIONS = 8
MAX_DENSE_ELEMENTS = 1 << 32
MAX_SPEC_JSON_CHARS = 4096
_KEPT = 256  # specifications that need not be read again: every replica of a table is told its own
_NAME = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_MAX_EXACT_INTEGER = 2.0**53


@dataclass(frozen=True)
class SparseSpec:
    """A table of rows of `dim` (1 to 4096) values, made when their uint64 key is first pushed."""

    name: str
    dim: int
    dtype: Dtype = "float32"
    optimiser: Optimiser = field(default_factory=Sum)
    initialiser: Initialiser = field(default_factory=Zeros)

    def __post_init__(self) -> None:
        _check(self)
        if not (_is_integer(self.dim) and 1 <= self.dim <= MAX_DIM):
            raise BadInput(f"table {self.name}: dim must be 1 to {MAX_DIM}, not {self.dim!r}")

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """As `spec_from_json`; a specification of the other layout is BadInput."""
        spec = spec_from_json(text)
        if not isinstance(spec, cls):
            raise BadInput(f"expected a {cls.__name__}, got a {spec.describe()}")
        return spec

    @property
    def seed(self) -> int:
        """Seed of the initial values; differs between tables."""
        return hash_text(self.name)

    def to_json(self) -> str:
        """Canonical JSON: equal specifications give equal text."""
        return _to_json(self, "sparse", {"dim": self.dim})

    def describe(self) -> str:
        """One line for messages."""
        return f"sparse table {self.name} (dim {self.dim}, {_describe_rest(self)})"


@dataclass(frozen=True)
class DenseSpec:
    """An array of `shape`, split by its first axis; `()` is a single value."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype = "float32"
    optimiser: Optimiser = field(default_factory=Sum)
    initialiser: Initialiser = field(default_factory=Zeros)

    def __post_init__(self) -> None:
        _check(self)
        if not isinstance(self.shape, (tuple, list)) or len(self.shape) > MAX_DIMENSIONS:
            raise BadInput(
                f"table {self.name}: shape must be a tuple of at most {MAX_DIMENSIONS} lengths"
            )
        if not all(_is_integer(length) and length >= 1 for length in self.shape):
            raise BadInput(
                f"table {self.name}: lengths in a shape must be 1 or more, not {self.shape!r}"
            )
        object.__setattr__(self, "shape", tuple(int(length) for length in self.shape))
        if self.elements > MAX_DENSE_ELEMENTS:
            raise BadInput(
                f"table {self.name}: shape {self.shape} has {self.elements} elements;"
                f" the maximum is {MAX_DENSE_ELEMENTS}: split it into several tables"
            )

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """As `spec_from_json`; a specification of the other layout is BadInput."""
        spec = spec_from_json(text)
        if not isinstance(spec, cls):
            raise BadInput(f"expected a {cls.__name__}, got a {spec.describe()}")
        return spec

    @property
    def seed(self) -> int:
        """Seed of the initial values; differs between tables."""
        return hash_text(self.name)

    def to_json(self) -> str:
        """Canonical JSON: equal specifications give equal text."""
        return _to_json(self, "dense", {"shape": list(self.shape)})

    def describe(self) -> str:
        """One line for messages."""
        return f"dense table {self.name} (shape {self.shape}, {_describe_rest(self)})"


TableSpec: TypeAlias = SparseSpec | DenseSpec


def check_name(name: object) -> str:
    """A table's name: parts of `A-Z a-z 0-9 _ . -` separated by `/`; BadInput for another."""
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise BadInput(
            f"table name {str(name)[:MAX_NAME_CHARS]!r}: use 1 to {MAX_NAME_CHARS} characters,"
            " parts of letters, digits, '_', '.' or '-' separated by '/'"
        )
    return name


@functools.lru_cache(_KEPT)
def spec_from_json(text: str | bytes) -> TableSpec:
    """The specification that `to_json` gave this text for; BadInput for anything else."""
    data = _parse(text)
    layout = data.pop("layout", None)
    expected = {"name", "dtype", "optimiser", "initialiser"}
    expected |= {"dim"} if layout == "sparse" else {"shape"}
    if layout not in ("sparse", "dense") or set(data) != expected:
        raise BadInput(
            f"table specification: layout must be sparse or dense with the fields"
            f" {sorted(expected)}; got {str(layout)[:20]!r} with {sorted(data)}"[:400]
        )
    optimiser = Optimiser.from_json(data.pop("optimiser"))
    initialiser = Initialiser.from_json(data.pop("initialiser"))
    kind = SparseSpec if layout == "sparse" else DenseSpec
    return kind(**data, optimiser=optimiser, initialiser=initialiser)


def _parse(text: str | bytes) -> dict[str, Any]:
    if len(text) > MAX_SPEC_JSON_CHARS:
        raise BadInput(
            f"table specification: {len(text)} characters; the maximum is {MAX_SPEC_JSON_CHARS}"
        )
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"table specification is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadInput(f"table specification must be a JSON object, not {str(data)[:80]!r}")
    return data


def _check(spec: TableSpec) -> None:
    check_name(spec.name)
    place = f"table {spec.name}"
    if spec.dtype not in DTYPES:
        raise BadInput(f"{place}: dtype must be one of {', '.join(DTYPES)}, not {spec.dtype!r}")
    if not isinstance(spec.optimiser, Optimiser) or not isinstance(spec.initialiser, Initialiser):
        raise BadInput(
            f"{place}: give an optimiser such as Adagrad(lr=0.1) and an initialiser such as Zeros()"
        )
    if spec.dtype == "int64":
        _check_integers(spec, place)


def _check_integers(spec: TableSpec, place: str) -> None:
    if not isinstance(spec.optimiser, Sum):
        raise BadInput(f"{place}: an int64 table can only Sum, not {spec.optimiser}; use float64")
    if isinstance(spec.initialiser, Zeros):
        return
    value = spec.initialiser.value if isinstance(spec.initialiser, Constant) else math.nan
    if not (abs(value) <= _MAX_EXACT_INTEGER and value == int(value)):
        raise BadInput(
            f"{place}: an int64 table begins with Zeros or a whole Constant within 2**53"
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _describe_rest(spec: TableSpec) -> str:
    return f"{spec.dtype}, {spec.optimiser}, {spec.initialiser}"


def _to_json(spec: TableSpec, layout: str, fields: dict[str, Any]) -> str:
    data = {
        "layout": layout,
        "name": spec.name,
        "dtype": spec.dtype,
        "optimiser": spec.optimiser.to_json(),
        "initialiser": spec.initialiser.to_json(),
        **fields,
    }
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
