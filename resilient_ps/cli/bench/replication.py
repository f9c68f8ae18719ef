"""What replication costs: the same requests to a cluster without and to one with replicas.

Both clusters run beside each other on this machine, and every round measures one and then the
other: what is compared is the ratio within a round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from resilient_ps.cli.bench.cases import Action, Case, Load
from resilient_ps.cli.bench.run import Plan, client_of, prepared, rows_of

BARS: dict[Action, float] = {"push": 0.45, "pull": 0.9}
UNITS = {"bytes": (1e9, "GB/s"), "rows": (1e6, "Mrow/s")}
COLUMNS = ("case", "", "over", "1 replica", "replicated", "kept", "spread", "bar")


@dataclass(slots=True)
class Comparison:
    """One case, measured on both clusters: a value per round."""

    case: Case
    transport: str
    replicas: int
    plain: list[float] = field(default_factory=list)  # requests per second
    replicated: list[float] = field(default_factory=list)

    @property
    def kept(self) -> float:
        """The share of the rate that remains: median over the rounds."""
        return statistics.median(self._shares)

    @property
    def _shares(self) -> list[float]:
        return [ours / other for ours, other in zip(self.replicated, self.plain, strict=True)]

    @property
    def spread(self) -> float:
        """(Largest - smallest) / median of the share."""
        return (max(self._shares) - min(self._shares)) / self.kept

    @property
    def bar(self) -> float | None:
        """The least share that is promised: for two replicas."""
        return BARS[self.case.action] if self.replicas == 2 else None

    @property
    def holds(self) -> bool | None:
        """Is the bar reached? None: there is none."""
        return None if self.bar is None else self.kept >= self.bar


def compare(plan: Plan, replicas: int, say: Callable[[str], None]) -> Iterator[Comparison]:
    """Every case of the plan, on as many servers: with one replica, and with `replicas`."""
    servers = max(2, replicas)
    with ExitStack() as stack:
        clusters = [
            stack.enter_context(prepared(plan, servers, say, replicas=count))
            for count in (1, replicas)
        ]
        for transport in plan.transports:
            for case in plan.cases:
                say(f"{case.name} {case.action} ({transport})")
                with ExitStack() as case_stack:
                    loads = [
                        case_stack.enter_context(_loaded(cluster, transport, case, plan))
                        for cluster in clusters
                    ]
                    yield _measure(Comparison(case, transport, replicas), loads, plan.rounds)


@contextmanager
def _loaded(cluster: Any, transport: str, case: Case, plan: Plan) -> Iterator[Load]:
    job = f"measure-{transport}-{case.action}-{case.keys}-{case.window}-{case.amount}"
    with client_of(cluster, transport) as client:
        with client.worker(job, 0, 1, "asp") as worker:
            yield Load(case, worker.table(case.table), rows_of(plan, case), seed=1)
        client.end_job(job, "done")


def _measure(row: Comparison, loads: list[Load], rounds: int) -> Comparison:
    for load in loads:
        load.run()
    for turn in range(rounds):
        pairs = list(zip(loads, (row.plain, row.replicated), strict=True))
        for load, rates in pairs if turn % 2 else reversed(pairs):
            rates.append(row.case.times / load.run())
    return row


def as_table(rows: list[Comparison]) -> Table:
    """Medians over the rounds, and what share is kept."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if number < 3 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row), style="bold red" if row.holds is False else None)
    return table


def _cells(row: Comparison) -> list[str]:
    scale, unit = UNITS[row.case.unit]
    rates = [statistics.median(r) * row.case.amount / scale for r in (row.plain, row.replicated)]
    window = f" w{row.case.window}" if row.case.window > 1 else ""
    return [
        row.case.name,
        row.case.action + window,
        row.transport,
        *(f"{rate:.2f} {unit}" for rate in rates),
        f"{row.kept:.2f}",
        f"{row.spread:.0%}",
        "" if row.bar is None else f"{row.bar:.2f}",
    ]


def as_json(rows: list[Comparison], *, seconds: float) -> dict[str, Any]:
    """Everything that was measured, with every round's value."""
    return {
        "seconds": round(seconds, 1),
        "holds": all(row.holds is not False for row in rows),
        "rows": [
            {
                "case": row.case.name,
                "action": row.case.action,
                "window": row.case.window,
                "transport": row.transport,
                "replicas": row.replicas,
                "kept": row.kept,
                "bar": row.bar,
                "holds": row.holds,
                "plain_requests_per_s": row.plain,
                "replicated_requests_per_s": row.replicated,
            }
            for row in rows
        ],
    }
