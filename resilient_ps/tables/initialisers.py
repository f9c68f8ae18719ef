"""What a row holds before anybody has pushed to it.

An initial value depends on nothing but the table's name, the key and the column, so that a row is
the same wherever and whenever it is created, and a pull may answer it without creating the row. It
is computed from integer hashes with exact arithmetic and no function of a maths library: the same
bytes on every machine.

The numbers of a row are a SplitMix64 sequence (Steele, Lea, Flood, OOPSLA 2014) that starts at
`mix64(key ^ seed)`, `seed` being a hash of the table's name; dense tables count their rows as keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from resilient_ps.errors import BadInput
from resilient_ps.tables.optimisers import check_number, from_named_json


@dataclass(frozen=True)
class Initialiser:
    """Base of the initialisers below; not used itself."""

    name: ClassVar[str] = ""
    kind: ClassVar[int] = -1

    def parameters(self) -> tuple[float, float]:
        """The kernel's two parameters."""
        return (0.0, 0.0)

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the initialiser's name and its parameters."""
        return {"name": self.name, **asdict(self)}

    @staticmethod
    def from_json(data: object) -> Initialiser:
        """The initialiser that `to_json` gave this object for; BadInput for anything else."""
        initialiser = from_named_json(data, INITIALISERS, "initialiser")
        assert isinstance(initialiser, Initialiser)
        return initialiser


@dataclass(frozen=True)
class Zeros(Initialiser):
    """Every value is 0."""

    name: ClassVar[str] = "zeros"
    kind: ClassVar[int] = 0


@dataclass(frozen=True)
class Constant(Initialiser):
    """Every value is `value` (a whole number within +-2**53 in int64 tables)."""

    value: float
    name: ClassVar[str] = "constant"
    kind: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_number("Constant", "value", self.value))

    def parameters(self) -> tuple[float, float]:
        return (self.value, 0.0)


@dataclass(frozen=True)
class Uniform(Initialiser):
    """Uniform from low to high: `low + (high - low) * u`, u of 53 bits, rounded to the dtype."""

    low: float
    high: float
    name: ClassVar[str] = "uniform"
    kind: ClassVar[int] = 2

    def __post_init__(self) -> None:
        for field in ("low", "high"):
            object.__setattr__(self, field, check_number("Uniform", field, getattr(self, field)))
        if not self.low < self.high:
            raise BadInput(f"Uniform: low must be below high, not {self.low!r} and {self.high!r}")

    def parameters(self) -> tuple[float, float]:
        return (self.low, self.high - self.low)


@dataclass(frozen=True)
class Normal(Initialiser):
    """Mean 0 and standard deviation `stddev`, within 6 standard deviations.

    The sum of 12 uniform numbers of 16 bits, less its mean: variance 1 up to 2**-32, and only
    integer sums, where logarithms and cosines differ between maths libraries.
    """

    stddev: float
    name: ClassVar[str] = "normal"
    kind: ClassVar[int] = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "stddev", check_number("Normal", "stddev", self.stddev))
        if not self.stddev > 0:
            raise BadInput(f"Normal: stddev must be above 0, not {self.stddev!r}")

    def parameters(self) -> tuple[float, float]:
        return (self.stddev, 0.0)


INITIALISERS: Mapping[str, type[Initialiser]] = {
    kind.name: kind for kind in (Zeros, Constant, Uniform, Normal)
}
