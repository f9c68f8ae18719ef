"""scikit-learn: one process, which is all that it has; `partial_fit` with equal batches.

SGDClassifier steps after every row, so its learning rate is that of a batch divided by its rows;
the networks step once for each batch, as the others do.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from resilient_ps.cli.bench.platforms.order import Order, Said
from resilient_ps.cli.bench.platforms.problems import Problem, Weights


def main(order: Order) -> None:
    """Train until the time is over."""
    import sklearn

    warnings.simplefilter("ignore")
    problem = order.problem
    dataset = problem.load(Path(order.folder))
    x, y = np.array(dataset.features), dataset.labels.astype(np.int64)
    model = _model(problem)
    size = problem.batch_size
    model.partial_fit(x[:size], y[:size], classes=np.arange(problem.classes))
    if problem.classes != 2:
        begin = problem.initial(order.seed)
        model.coefs_ = [layer[:-1].copy() for layer in begin]
        model.intercepts_ = [layer[-1].copy() for layer in begin]
    starts = range(0, len(x) - size + 1, size)
    samples = steps = 0
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < order.seconds:
        at = starts[steps % len(starts)]
        model.partial_fit(x[at : at + size], y[at : at + size])
        steps, samples = steps + 1, samples + size
    seconds = time.monotonic() - begun_s
    order.save(_weights(model, problem))
    Said(samples, seconds, sklearn.__version__).say()


def _model(problem: Problem) -> Any:
    from sklearn.linear_model import SGDClassifier
    from sklearn.neural_network import MLPClassifier

    if problem.classes == 2:
        rate = problem.lr / problem.batch_size
        return SGDClassifier(
            loss="log_loss", penalty=None, learning_rate="constant", eta0=rate, shuffle=False
        )
    return MLPClassifier(
        problem.hidden, solver="sgd", alpha=0.0, batch_size=problem.batch_size, momentum=0.0,
        learning_rate_init=problem.lr, nesterovs_momentum=False, shuffle=False,
    )  # fmt: skip


def _weights(model: Any, problem: Problem) -> Weights:
    if problem.classes == 2:
        return [np.vstack([model.coef_.T, model.intercept_[None]])]
    return [
        np.vstack([coef, bias]) for coef, bias in zip(model.coefs_, model.intercepts_, strict=True)
    ]


if __name__ == "__main__":
    main(Order.from_argument())
