"""The task of the demo: late flights, with the settings under which it trains well."""

from __future__ import annotations

from resilient_ps.models.logistic import LogisticRegression
from resilient_ps.tables.optimisers import FTRL

FLIGHTS_BATCH_SIZE = 1024
FLIGHTS_EPOCHS = 2
# 1/C is the L2 that the model below asks FTRL for: both fit the same objective
FLIGHTS_SKLEARN_C = 0.01


def flights_model(table: str = "flights/weights") -> LogisticRegression:
    """Hashed sparse logistic regression for `resilient_ps.data.flights.flights()`."""
    return LogisticRegression(table, FTRL(alpha=0.05, beta=1.0, l2=1.0 / FLIGHTS_SKLEARN_C))
