"""What a server does with a gradient: the optimisers, as values.

An optimiser is part of a table's specification. `step`s are computed in the table's dtype by the
kernels in `steps.py`; here stand the names, the hyperparameters and their checks. `g` is the sum of
the gradients pushed for a row, `w` the row; all operations are element by element.

A step is taken for every row that was pushed, also where its gradient is zero. Rows that were not
pushed do not move: momentum, Adam's moments and step counts are those of the *row*, as in other
libraries' "lazy" or "sparse" variants. Where every push covers every row, the results are those of
the usual dense optimisers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from resilient_ps.errors import BadInput

# Learning rates and epsilons lie in this range, the others below its end: so all are normal
# numbers of float32 too, and a change of the rate that is valid here is valid for every table.
MIN_RATE = 1e-30
MAX_HYPERPARAMETER = 1e30
HYPERPARAMETERS = 8


@dataclass(frozen=True)
class Optimiser:
    """Base of the optimisers below; not used itself.

    `slots`: values of state per value of a row. `counts_steps`: whether one more value of state per
    row (per block, in dense tables) counts its steps.
    """

    name: ClassVar[str] = ""
    slots: ClassVar[int] = 0
    counts_steps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type in ("float", float):
                value = check_number(type(self).__name__, field.name, value)
                object.__setattr__(self, field.name, value)
            elif not isinstance(value, bool):
                raise BadInput(f"{type(self).__name__}: {field.name} must be true or false")
        self._check()

    def _check(self) -> None:
        """Raise BadInput where a hyperparameter is out of its range."""

    def _require(self, condition: bool, field: str, range_text: str) -> None:  # noqa: FBT001
        if not condition:
            value = getattr(self, field)
            raise BadInput(f"{type(self).__name__}: {field} must be {range_text}, not {value!r}")

    def _require_rate(self, field: str) -> None:
        text = f"{MIN_RATE:g} to {MAX_HYPERPARAMETER:g}"
        self._require(getattr(self, field) >= MIN_RATE, field, text)

    @property
    def formula(self) -> str:
        """Which of the kernels' formulas takes the step."""
        return self.name

    def state_columns(self, dim: int) -> int:
        """Values of state that a row of `dim` values has."""
        return self.slots * dim + int(self.counts_steps)

    def initial_state(self) -> float:
        """What every value of a new row's state is."""
        return 0.0

    def hyperparameters(self) -> NDArray[np.float64]:
        """The kernel's parameters, `HYPERPARAMETERS` values; the first is the learning rate."""
        values = np.zeros(HYPERPARAMETERS)
        given = self._kernel_values()
        values[: len(given)] = given
        return values

    def _kernel_values(self) -> tuple[float, ...]:
        return ()

    def with_lr(self, lr: float) -> Self:
        """The same optimiser with another learning rate."""
        return dataclasses.replace(self, lr=lr)  # type: ignore[call-arg]

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the optimiser's name and all of its hyperparameters."""
        return {"name": self.name, **dataclasses.asdict(self)}

    @staticmethod
    def from_json(data: object) -> Optimiser:
        """The optimiser that `to_json` gave this object for; BadInput for anything else."""
        optimiser = from_named_json(data, OPTIMISERS, "optimiser")
        assert isinstance(optimiser, Optimiser)
        return optimiser


def check_number(owner: str, field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise BadInput(f"{owner}: {field} must be a number, not {value!r}")
    # Compared before it is converted: a huge integer has no float.
    if not -MAX_HYPERPARAMETER <= value <= MAX_HYPERPARAMETER:
        raise BadInput(
            f"{owner}: {field} must be within +-{MAX_HYPERPARAMETER:g}, not {str(value)[:40]}"
        )
    return float(value)


@dataclass(frozen=True)
class Sum(Optimiser):
    """`w += g`: counters, statistics, or updates that the workers computed. For every dtype."""

    name: ClassVar[str] = "sum"

    def with_lr(self, lr: float) -> Self:
        raise BadInput("Sum has no learning rate: scale what you push, or create the table as SGD")


@dataclass(frozen=True)
class SGD(Optimiser):
    """`w -= lr * g` (Robbins and Monro, "A stochastic approximation method", 1951)."""

    lr: float
    name: ClassVar[str] = "sgd"

    def _check(self) -> None:
        self._require_rate("lr")

    def _kernel_values(self) -> tuple[float, ...]:
        return (self.lr,)


@dataclass(frozen=True)
class Momentum(Optimiser):
    """`b = momentum * b + g; w -= lr * b`, or with Nesterov `w -= lr * (g + momentum * b)`.

    Polyak, "Some methods of speeding up the convergence of iteration methods", 1964; Nesterov's in
    the form of Sutskever et al., "On the importance of initialization and momentum in deep
    learning", ICML 2013.
    """

    lr: float
    momentum: float = 0.9
    nesterov: bool = False
    name: ClassVar[str] = "momentum"
    slots: ClassVar[int] = 1

    def _check(self) -> None:
        self._require_rate("lr")
        self._require(0 <= self.momentum < 1, "momentum", "in [0, 1)")

    def _kernel_values(self) -> tuple[float, ...]:
        return (self.lr, self.momentum)

    @property
    def formula(self) -> str:
        return "nesterov" if self.nesterov else self.name


@dataclass(frozen=True)
class Adagrad(Optimiser):
    """`a += g * g; w -= lr * g / (sqrt(a) + epsilon)`.

    Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic
    optimization", JMLR 2011. `a` begins at `initial_accumulator`.
    """

    lr: float
    epsilon: float = 1e-10
    initial_accumulator: float = 0.0
    name: ClassVar[str] = "adagrad"
    slots: ClassVar[int] = 1

    def _check(self) -> None:
        self._require_rate("lr")
        self._require_rate("epsilon")
        self._require(self.initial_accumulator >= 0, "initial_accumulator", "at least 0")

    def initial_state(self) -> float:
        return self.initial_accumulator

    def _kernel_values(self) -> tuple[float, ...]:
        return (self.lr, self.epsilon)


@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam with bias correction (Kingma, Ba, "Adam: a method for stochastic optimization", 2015).

    `m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * g * g;
    w -= lr / (1 - beta1**t) * m / (sqrt(v) / sqrt(1 - beta2**t) + epsilon)`

    `t` counts the steps of the row, so the state is m, v and t. It is kept in the table's dtype:
    in a float32 table it stops at 2**24, where both corrections are 1 for all usual betas.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    name: ClassVar[str] = "adam"
    slots: ClassVar[int] = 2
    counts_steps: ClassVar[bool] = True

    def _check(self) -> None:
        self._require_rate("lr")
        self._require(0 <= self.beta1 < 1, "beta1", "in [0, 1)")
        self._require(0 <= self.beta2 < 1, "beta2", "in [0, 1)")
        self._require_rate("epsilon")

    def _kernel_values(self) -> tuple[float, ...]:
        return (
            self.lr,
            self.epsilon,
            self.beta1,
            self.beta2,
            1.0 - self.beta1,
            1.0 - self.beta2,
        )


@dataclass(frozen=True)
class FTRL(Optimiser):
    """FTRL-proximal with per-coordinate rates and L1/L2, for sparse linear models.

    McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1:
    `s = (sqrt(n + g * g) - sqrt(n)) / alpha; z += g - s * w; n += g * g;
    w = 0 if |z| <= l1 else -(z - sign(z) * l1) / ((beta + sqrt(n)) / alpha + l2)`

    The state is z and n, both from 0. `with_lr` changes alpha. The first step replaces an initial
    value other than 0 (its part in `z` apart): use the default initialiser.
    """

    alpha: float
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0
    name: ClassVar[str] = "ftrl"
    slots: ClassVar[int] = 2

    def _check(self) -> None:
        self._require_rate("alpha")
        for field in ("beta", "l1", "l2"):
            self._require(getattr(self, field) >= 0, field, "at least 0")
        self._require(self.beta + self.l2 >= MIN_RATE, "beta", "above 0 where l2 is 0")

    def with_lr(self, lr: float) -> Self:
        return dataclasses.replace(self, alpha=lr)

    def _kernel_values(self) -> tuple[float, ...]:
        return (self.alpha, self.beta, self.l1, self.l2)


OPTIMISERS: Mapping[str, type[Optimiser]] = {
    kind.name: kind for kind in (Sum, SGD, Momentum, Adagrad, Adam, FTRL)
}


def from_named_json(data: object, kinds: Mapping[str, type[Any]], noun: str) -> Any:
    """Build the dataclass that `data["name"]` selects from the other fields of `data`."""
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise BadInput(f"{noun}: expected an object with a name, not {str(data)[:80]!r}")
    kind = kinds.get(data["name"])
    if kind is None:
        known = ", ".join(sorted(kinds))
        raise BadInput(f"{noun}: unknown name {data['name'][:80]!r}; known are {known}")
    arguments = {key: value for key, value in data.items() if key != "name"}
    expected = {field.name for field in dataclasses.fields(kind)}
    if set(arguments) != expected:
        raise BadInput(
            f"{noun} {data['name']}: expected the fields {sorted(expected)},"
            f" not {sorted(map(str, arguments))}"[:300]
        )
    return kind(**arguments)
